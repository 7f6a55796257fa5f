"""What a process really holds (RssAnon), in processes of its own, and that it comes back."""
import json
import os
import struct

import pytest

pytestmark = pytest.mark.skipif(not os.path.exists("/proc/self/smaps_rollup"), reason="this system does not tell RssAnon")

MB = 1000                       # in the kernel's kB
RSS = """
import json, os, sys
def rss():
    with open("/proc/self/status") as f:
        return next(int(line.split()[1]) for line in f if line.startswith("RssAnon"))
import pyllama_paged
from pyllama_paged import Model
base = rss()
"""
HELLO = RSS + """
model = Model.open(sys.argv[1], context=int(sys.argv[2]))
session = model.session()
text = session.send("Hello", max_tokens=10).text
answered, memory = rss(), model.memory
session.close()
closed = rss()
with open("/proc/self/smaps") as f:
    lines = f.read().splitlines()
at = [i for i, line in enumerate(lines) if line.rstrip().endswith(".gguf")]
dirty = sum(int(l.split()[1]) for i in at for l in lines[i:i + 25] if l.startswith(("Private_Dirty", "Shared_Dirty")))
print(json.dumps(dict(text=text, answered=answered - base, closed=closed - base, resident=memory.resident, budget=memory.budget,
                      after=model.memory.resident, dirty=dirty)))
"""


def hello(script, path, context):
    return json.loads(script(HELLO, path, context))


def test_hello_takes_little_at_any_limit(script, smol_path):
    small, large = hello(script, smol_path, 512), hello(script, smol_path, 8192)
    print(small, large)
    assert small["text"] == large["text"] != ""
    assert small["answered"] <= 40 * MB and large["answered"] <= 40 * MB
    assert abs(small["answered"] - large["answered"]) <= 1 * MB


def test_the_limit_in_the_file_costs_nothing_either(script, smol_path, tmp_path):
    """llama.context_length overwritten in place: a reservation would be 24 GB."""
    data = bytearray(smol_path.read_bytes())
    key = b"llama.context_length"
    at = data.find(key) + len(key)
    assert struct.unpack_from("<II", data, at) == (4, 8192)
    struct.pack_into("<I", data, at + 4, 1 << 20)
    long = tmp_path / "long.gguf"
    long.write_bytes(data)
    plain, patched = hello(script, smol_path, 0), hello(script, long, 0)
    assert abs(plain["answered"] - patched["answered"]) <= 1 * MB
    assert patched["resident"] <= 2 << 20


def test_closing_a_session_gives_its_memory_back(script, smol_path):
    out = json.loads(script(RSS + """
model = Model.open(sys.argv[1])
line = model.tokenize("All happy families are alike; every unhappy family is unhappy in its own way. " * 60)[:512]
warm = model.session(); warm.feed(line); warm.compute(); warm.close()          # scratch memory is the model's, and steps differ in size
before = rss()
session = model.session()
session.feed(line)
session.compute()
held, memory = rss() - before, model.memory
session.close()
print(json.dumps(dict(held=held, kept=rss() - before, kv=memory.resident // 1024, after=model.memory.resident)))
""", smol_path))
    print(out)
    assert out["held"] >= out["kv"] * 0.95, "the test must see what the session holds"
    assert out["kept"] <= 0.05 * out["held"] and out["after"] == 0


def test_weights_stay_in_the_file(script, smol_path):
    assert hello(script, smol_path, 512)["dirty"] == 0


@pytest.mark.parametrize("path", ["tiny_path", "smol_path"])
def test_opening_and_closing_again_and_again(script, request, path):
    out = json.loads(script(RSS + """
import gc
def handles():
    return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))
start, figures = handles(), []
for i in range(50):
    model = Model.open(sys.argv[1])
    session = model.session()
    session.complete([1, 2, 3], max_tokens=20).read()
    other = model.session()
    if i % 3 == 0:
        model.close()
    elif i % 3 == 1:
        session.close(); other.close(); model.close()
    del model, session, other           # the rest is nobody's
    gc.collect()
    figures.append(rss())
with open("/proc/self/maps") as f:
    mapped = sys.argv[1] in f.read()
print(json.dumps(dict(growth=figures[49] - figures[4], mapped=mapped, same=handles() == start)))
""", request.getfixturevalue(path)))
    assert out["growth"] < 2 * MB and not out["mapped"] and out["same"], out


def test_damaged_files_leave_nothing_behind(script, tmp_path, smol_path):
    bad = tmp_path / "empty-key.gguf"
    bad.write_bytes(b"GGUF" + struct.pack("<IQQQIB", 3, 0, 1, 0, 0, 1))
    out = json.loads(script(RSS + """
from pyllama_paged import ModelFileError
def once():
    try:
        Model.open(sys.argv[1])
    except ModelFileError as problem:
        return str(problem)
for _ in range(200): said = once()
fds, before = len(os.listdir("/proc/self/fd")), rss()
for _ in range(1000): once()
grown = rss() - before
text = Model.open(sys.argv[2]).session().send("Hello", max_tokens=4).text
print(json.dumps(dict(said=said, grown=grown, fds=len(os.listdir("/proc/self/fd")) - fds, text=text)))
""", bad, smol_path))
    assert "empty" in out["said"] and out["grown"] < 500 and out["text"], out


def test_the_budget_holds_over_many_sessions(script, smol_path):
    """Cached KV counts too; one prompt that is too long is refused and harms nobody."""
    out = json.loads(script(RSS + """
from pyllama_paged import KvBudgetExceeded
model = Model.open(sys.argv[1], kv_budget="4MiB", kv_cache="4MiB")
line = model.tokenize(" ".join(f"{i} {i * i % 97} and" for i in range(400)))
model.session().send("Hi", max_tokens=2)
top = start = rss()
for i in range(12):
    session = model.session()
    session.sync(line[i * 50:i * 50 + 100])
    session.compute()
    top = max(top, rss())
    assert model.memory.resident <= 4 << 20
    session.close()
cached = model.memory.cached
session = model.session()
session.sync(line[:400])
try:
    session.compute()
    refused = None
except KvBudgetExceeded as problem:
    refused = [problem.wanted, problem.available]
session.sync(line[:50])
session.compute()
print(json.dumps(dict(top=top - start, cached=cached, refused=refused, n=session.n_computed, ok=model.check())))
""", smol_path))
    assert out["cached"] > 0 and out["refused"] and out["n"] == 50 and out["ok"]
    assert out["top"] <= 4 * 1049 + 2 * 1049 + MB, out
