"""Bytes to characters, and stop strings: the joined pieces are what the whole would have been."""
import pytest
from hypothesis import given, strategies as st

from pyllama_paged.errors import InvalidArgument
from pyllama_paged.text import Characters, StopStrings, utf8


@given(st.lists(st.binary(max_size=6), max_size=20))
def test_pieces_join_to_the_decoded_whole(pieces):
    characters = Characters()
    out = [characters.push(p) for p in pieces] + [characters.finish()]
    assert "".join(out) == b"".join(pieces).decode("utf-8", "replace")


def test_no_half_character_is_shown():
    characters = Characters()
    assert [characters.push(bytes([b])) for b in "🦙é".encode()] == ["", "", "", "🦙", "", "é"]
    assert characters.push(b"\xf0\x9f") == "" and characters.finish() == "\ufffd"


@given(st.text("ab", max_size=30), st.lists(st.text("ab", min_size=1, max_size=4), max_size=4), st.data())
def test_stops_are_found_however_the_text_is_cut(text, stops, data):
    found = [(text.find(s) + len(s), text.find(s)) for s in stops if s in text]
    want = text[:min(found)[1]] if found else text
    stream, got, at = StopStrings(stops), "", 0
    while at < len(text) and stream.hit is None:
        n = data.draw(st.integers(1, 5))
        got += stream.push(text[at:at + n])
        assert want.startswith(got), "shown before it was certain"
        at += n
    got += stream.finish()
    assert got == want and (stream.hit is not None) == bool(found)


def test_nothing_is_held_back_longer_than_needed():
    stream = StopStrings(["own fox"])
    assert stream.push("The quick br") == "The quick br"
    assert stream.push("own") == ""
    assert stream.push(" dog") == "own dog"


@pytest.mark.parametrize("stops", [[""], ["a"] * 5, [1], ["a", ""]])
def test_stops_that_cannot_be(stops):
    with pytest.raises(InvalidArgument):
        StopStrings(stops)


def test_a_lone_surrogate_is_named():
    with pytest.raises(InvalidArgument, match=r"lone surrogate \(U\+D83D\) at position 2"):
        utf8("ab\ud83d")
    with pytest.raises(InvalidArgument, match="str or bytes"):
        utf8(3)
    assert utf8(b"\xff\xfe") == b"\xff\xfe"
