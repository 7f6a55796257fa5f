"""Fetching: from a Hub of our own on this machine. Resumed, checked, named only when whole; and what names mean."""
import hashlib
import http.server
import json
import threading

import pytest

from pyllama_paged import DownloadError, ModelNotFound, hub

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
        hub._choose("org/name", server["names"], "Q4_0")


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
        assert len(entry["sha256"]) == 64 and entry["n_bytes"] > 0 and entry["license"] and entry["title"], name
        assert {"repo", "revision"} <= entry["hub"].keys() and {"package", "version", "member"} <= entry["index"].keys()


def test_the_default_model_is_the_one_in_the_catalog(smol_path):
    entry = hub.catalog()[hub.DEFAULT]
    if smol_path.name != entry["file"]:
        pytest.skip("PLP_MODEL names another model")
    assert smol_path.stat().st_size == entry["n_bytes"]
    assert hashlib.sha256(smol_path.read_bytes()).hexdigest() == entry["sha256"]
