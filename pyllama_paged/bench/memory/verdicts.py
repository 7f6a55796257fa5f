"""
Which gains of paging travelled to this device, computed from the numbers, in plain words.

Every question compares one figure of the paged side with one of a rival. The answer is one of

    "gain"     paged is better by more than the margin and the spread        "loss"     the rival is
    "level"    neither is                                                    "unknown"  a figure is missing

and nothing here assumes that it comes out for paging.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

__all__ = ["Verdict", "judge", "of"]

_MARGIN = 0.05          # a twentieth is what anybody might notice
_CHUNK = 1e6            # bytes: an allocator's chunk, page tables; no difference of placement
_NAMES = {"computing it again": "computing it again", "f16": "f16",
          "max": "the whole limit reserved", "lazy": "a reservation that the system commits lazily", "llama": "llama.cpp",
          "unified": "llama.cpp with one unified cache", "pow2": "reservations of powers of two", "oracle": "reservations of the exact length",
          "faster-transformer": "static batches (simulated)"}


@dataclass(frozen=True)
class Verdict:
    topic: str
    against: str
    answer: str
    words: str
    ours: float | None = None
    theirs: float | None = None


def judge(ours: float | None, theirs: float | None, *, less_is_better: bool = True, spread: float = 0.0, least: float = 0.0) -> str:
    """`spread`: of either figure, as a part of it; a difference within it, or below `least`, says nothing."""
    if ours is None or theirs is None:
        return "unknown"
    if abs(ours - theirs) < least:
        return "level"
    if not less_is_better:
        ours, theirs = theirs, ours
    slack = max(_MARGIN, spread)
    if ours < theirs * (1 - slack):
        return "gain"
    return "loss" if theirs < ours * (1 - slack) else "level"


def _value(figure) -> float | None:
    return figure["median"] if isinstance(figure, dict) else figure


def _spread(*figures) -> float:
    return max((abs(f["spread"]) for f in figures if isinstance(f, dict)), default=0.0)


def _mb(n: float) -> str:
    return f"{n / 1e6:,.1f} MB"


def _ms(n: float) -> str:
    return f"{n * 1e3:,.1f} ms" if n < 1 else f"{n:,.2f} s"


class _Rows:
    def __init__(self, rows: dict[str, dict]):
        self.rows = rows

    def get(self, scenario: str, side: str, variant: str = "") -> dict | None:
        row = self.rows.get(" ".join(filter(None, (scenario, variant, side))))
        return None if row is None or "not_run" in row else row

    def variants(self, scenario: str) -> list[str]:
        return list(dict.fromkeys(r["variant"] for r in self.rows.values() if r.get("scenario") == scenario and r.get("variant")))

    def last(self, scenario: str) -> str:
        return self.variants(scenario)[-1] if self.variants(scenario) else ""


def _median(samples) -> float | None:
    ordered = sorted(samples or ())
    return ordered[len(ordered) // 2] if ordered else None


def _sample_spread(*lists) -> float:
    out = 0.0
    for samples in lists:
        ordered = sorted(samples or ())
        if len(ordered) > 3:
            out = max(out, (ordered[3 * len(ordered) // 4] - ordered[len(ordered) // 4]) / ordered[len(ordered) // 2])
    return out


def _compare(topic: str, what: str, side: str, ours, theirs, shown, *, less_is_better=True, spread=0.0) -> Verdict:
    answer = judge(ours, theirs, less_is_better=less_is_better, spread=spread, least=_CHUNK if shown is _mb else 0.0)
    if answer == "unknown":
        return Verdict(topic, side, answer, f"{what}: not measured against {_NAMES.get(side, side)}.", ours, theirs)
    verb = {"gain": "the gain travelled", "loss": "paging LOSES here", "level": "no difference beyond the spread"}[answer]
    return Verdict(topic, side, answer, f"{what}: {shown(ours)} paged, {shown(theirs)} with {_NAMES.get(side, side)}; {verb}.", ours, theirs)


def _held(rows: _Rows, topic, what, scenario, sides, variant="") -> list[Verdict]:
    mine = rows.get(scenario, "paged", variant)
    out = []
    for side in sides:
        other = rows.get(scenario, side, variant)
        a, b = (row and row.get("held") for row in (mine, other))
        out.append(_compare(topic, what, side, _value(a), _value(b), _mb, spread=_spread(a, b)))
    return out


def _at(row: dict, mark: str) -> float | None:
    return _value(row["marks"][mark].get("anonymous", row["marks"][mark].get("footprint")))


def _beyond(row: dict, mark: str) -> float | None:
    now, before = _at(row, mark), _at(row, "launched")
    return None if now is None or before is None else now - before


def _one_word(rows: _Rows) -> list[Verdict]:
    variants = rows.variants("one word")
    if not variants:
        return []
    out = _held(rows, "one word", f"A one-word prompt at a {variants[-1]}", "one word", ("max", "lazy", "llama"), variants[-1])
    small, large = (_value((rows.get("one word", "paged", v) or {}).get("held")) for v in (variants[0], variants[-1]))
    if small is not None and large is not None:
        grown = large - small
        steady = grown < max(_MARGIN * small, 1e6)
        out.append(Verdict("one word", "the limit", "gain" if steady else "loss",
                           f"From {variants[0]} to {variants[-1]} the memory for one word changes by {_mb(grown)}: it "
                           f"{'does not depend' if steady else 'DEPENDS'} on the limit.", large, small))
    return out


def _per_session(row: dict | None) -> float | None:
    """Bytes that one session more costs, from the first to the last mark of a row; for fixed caches, the whole by their number."""
    if row is None:
        return None
    marks = [(int(name.split()[0]), m) for name, m in row["marks"].items() if name.endswith(" sessions")]
    held = [(n, _value(m.get("anonymous", m.get("footprint")))) for n, m in sorted(marks, key=lambda pair: pair[0])]
    if not held or held[-1][1] is None:
        return None
    if len(held) == 1:
        return _value(row["held"]) / held[0][0]
    return (held[-1][1] - held[0][1]) / (held[-1][0] - held[0][0])


def _sessions(rows: _Rows) -> list[Verdict]:
    out = []
    for variant in rows.variants("sessions"):
        mine = _per_session(rows.get("sessions", "paged", variant))
        for side in ("max", "pow2", "oracle", "lazy", "llama", "unified"):
            out.append(_compare("sessions", f"One more session ({variant} tokens shared)", side, mine, _per_session(rows.get("sessions", side, variant)), _mb))
    return out


def _churn(rows: _Rows) -> list[Verdict]:
    out = []
    for variant in rows.variants("churn"):
        mine = rows.get("churn", "paged", variant)
        for side in ("max", "pow2", "oracle", "lazy", "unified", "faster-transformer"):
            other = rows.get("churn", side, variant)
            a, b = (_value(row and row.get("at_a_time")) for row in (mine, other))
            out.append(_compare("churn", f"Requests at a time in the same memory, {variant}", side, a, b, lambda n: f"{n:.1f}", less_is_better=False))
        if mine and (again := _value(mine.get("computed_again"))) is not None:
            out.append(Verdict("churn", "reservations", "loss" if again > 100 * _MARGIN else "level",
                               f"Without reservations {again:.0f} % of the tokens were computed a second time ({variant})"
                               + ("; that is what the fuller memory COSTS." if again > 100 * _MARGIN else "."), again, 0.0))
        if mine and (share := _value(mine.get("of_held"))) is not None:
            out.append(Verdict("churn", "the paper's 96.3 %", "gain" if share >= 96 else "loss",
                               f"Of held blocks, {share:.1f} % is tokens ({variant}); the paper's system has 96.3 %.", share, 96.3))
    return out


def _forks(rows: _Rows) -> list[Verdict]:
    out = []
    for variant in rows.variants("forks"):
        row = rows.get("forks", "paged", variant)
        share = row and _value(row.get("saving"))
        if share is None:
            continue
        answer = "gain" if share > _MARGIN else "level"
        out.append(Verdict("forks", "blocks of their own", answer, f"{variant}: sharing saves {share:.0%} of the blocks"
                           + ("." if answer == "gain" else "; too little to matter."), share, 0.0))
    return out


def _give_back(rows: _Rows) -> list[Verdict]:
    def returned(row, mark):
        if row is None:
            return None
        held = {m: _at(row, m) for m in ("loaded", "all open", mark)}
        if None in held.values():
            return None
        grown = held["all open"] - held["loaded"]
        # A cache that is allocated whole at loading never grew, so nothing can come back.
        return (held["all open"] - held[mark]) / grown if grown > 1e6 else 0.0

    out, mine = [], rows.get("give back", "paged")
    for mark, what in (("half closed", "Given back after half of the sessions closed"), ("all closed", "Given back after all closed")):
        for side in ("max", "lazy", "llama"):
            out.append(_compare("give back", what, side, returned(mine, mark), returned(rows.get("give back", side), mark), lambda x: f"{x:.0%}",
                                less_is_better=False))
    return [v for v in out if mine]


def _restart(rows: _Rows) -> list[Verdict]:
    mine = rows.get("restart", "paged")
    if not mine:
        return []
    again, cold = mine.get("restart_seconds"), _value(mine["cold_seconds"])
    out = [_compare("restart", "First token after a restart, prefix stored", "computing it again", _median(again), cold, _ms, spread=_sample_spread(again))]
    other = rows.get("restart", "llama")
    theirs = other and other.get("restart_seconds")
    out.append(_compare("restart", "First token after a restart, prefix stored", "llama", _median(again), _median(theirs), _ms,
                        spread=_sample_spread(again, theirs)))
    if other and "together_pss" in other and "together_pss" in mine:
        a, b = mine["together_pss"], other["together_pss"]
        out.append(_compare("restart", "Three processes with the same prefix, together (PSS)", "llama", _value(a), _value(b), _mb, spread=_spread(a, b)))
    return out


def _budget(rows: _Rows) -> list[Verdict]:
    mine, out = rows.get("budget", "paged"), []
    if not mine:
        return []
    fine = mine["refused"] is True and mine.get("others_go_on") is True and mine.get("refused_goes_on") is True
    out.append(Verdict("budget", "failing", "gain" if fine else "loss",
                       f"At the budget the next session is refused with {mine.get('error_type')}; the others "
                       f"{'go on, and it goes on when one closes' if fine else 'do NOT all go on'}."))
    for side in ("max", "lazy", "unified"):
        other = rows.get("budget", side)
        a, b = (_value(row and row.get("fit")) for row in (mine, other))
        out.append(_compare("budget", "Sessions of 256 tokens in one budget", side, a, b, lambda n: f"{n:.0f}", less_is_better=False))
    return out


def _price(rows: _Rows) -> list[Verdict]:
    out = []
    for row in rows.rows.values():
        if row.get("scenario") != "price":
            continue
        ratio, low, high = row["ratio"], row["low"], row["high"]
        beyond = (low > 1 + _MARGIN / 2 and ratio > 1 + _MARGIN, high < 1 - _MARGIN / 2 and ratio < 1 - _MARGIN)
        answer = "loss" if beyond[0] else "gain" if beyond[1] else "level"
        words = {"loss": "paging COSTS time", "gain": "paged is faster", "level": "no price beyond the spread"}[answer]
        out.append(Verdict("price", "contiguous blocks", answer, f"Decoding after {row['depth']:,} tokens, shuffled blocks of {row['block']}: "
                           f"{ratio:.3f} x the time of contiguous ones ({low:.3f} to {high:.3f}); {words}.", ratio, 1.0))
    return out


def _formats(rows: _Rows) -> list[Verdict]:
    plain = rows.get("formats", "paged", "f16")
    out = []
    for kv in ("q8", "q4"):
        row = rows.get("formats", "paged", kv)
        if not plain or not row:
            continue
        a, b = row["marks"]["deep"].get("ledger", {}).get("resident"), plain["marks"]["deep"].get("ledger", {}).get("resident")
        out.append(_compare("formats", f"KV of a deep session in {kv}", "f16", _value(a), _value(b), _mb))
        out.append(_compare("formats", f"A token at depth with {kv}", "f16", _median(row["steps"]), _median(plain["steps"]), _ms,
                            spread=_sample_spread(row["steps"], plain["steps"])))
    return out


def _life(rows: _Rows) -> list[Verdict]:
    def left(row):
        """Beyond what the process had before it opened the model."""
        return row and _beyond(row, "chat closed, trimmed")

    mine = rows.get("life", "paged")
    if not mine:
        return []
    out = _held(rows, "life", "An app after ten turns", "life", ("max", "lazy", "llama"))
    for side in ("max", "lazy", "llama"):
        out.append(_compare("life", "Left when the chat is closed, the model kept", side, left(mine), left(rows.get("life", side)), _mb))
    return out


def _latency(rows: _Rows) -> list[Verdict]:
    mine = rows.get("latency", "paged")
    if not mine:
        return []
    out = []
    for key, what in (("warm_seconds", "First token after a known system prompt"), ("fork_seconds", "First token of a fork")):
        out.append(_compare("latency", what, "computing it again", _median(mine.get(key)), _median(mine["cold_seconds"]), _ms,
                            spread=_sample_spread(mine.get(key), mine["cold_seconds"])))
    for side in ("max", "lazy", "llama"):
        other = rows.get("latency", side)
        for key, what in (("cold_seconds", "First token, cold"), ("steps", "Each further token")):
            theirs = other and other.get(key)
            out.append(_compare("latency", what, side, _median(mine[key]), _median(theirs), _ms, spread=_sample_spread(mine[key], theirs)))
    return out


def of(result: dict) -> list[dict]:
    """The verdicts of a result, as dictionaries; for scenarios that were not run there are none."""
    rows = _Rows(result["rows"])
    parts = (_one_word, _sessions, _churn, _forks, _give_back, _restart, _budget, _price, _formats, _life, _latency)
    return [asdict(v) for part in parts for v in part(rows)]
