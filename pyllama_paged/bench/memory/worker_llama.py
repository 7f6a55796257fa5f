"""
llama.cpp as a scenario's process, through llama-cpp-python's low-level API.

Run as a file, by a Python that has llama-cpp-python; it imports nothing else but loop.py beside it. A session is a
sequence. Memory mapped, flash attention on, both as by default. `unified`: all sequences share one cache of `context`
cells; otherwise each has `context` cells of its own.
"""

import ctypes
import os
import time

from loop import run, tokens_of

import llama_cpp as L

_KV = {"f16": 1, "q8": 8, "q4": 2}          # ggml types F16, Q8_0, Q4_0
_FLASH_ATTENTION = 1
_BATCH = 512


@L.llama_log_callback
def _silent(level, text, user_data):
    pass


class Llama:
    model = context = None

    def hello(self):
        L.llama_log_set(_silent, ctypes.c_void_p(0))

    def open(self, model, threads, context, sessions, kv="f16", unified=False, **others):
        L.llama_backend_init()
        self.model = L.llama_model_load_from_file(os.fsencode(model), L.llama_model_default_params())
        if not self.model:
            raise RuntimeError("llama.cpp cannot open the model")
        o = L.llama_context_default_params()
        o.n_ctx = context if unified else context * sessions
        o.n_seq_max = sessions
        o.kv_unified = unified
        o.n_batch = o.n_ubatch = min(_BATCH, o.n_ctx)
        o.n_threads = o.n_threads_batch = threads
        o.type_k = o.type_v = _KV[kv]
        o.flash_attn_type = _FLASH_ATTENTION
        o.no_perf = True
        self.context = L.llama_init_from_model(self.model, o)
        if not self.context:
            raise RuntimeError("llama.cpp cannot make a context")
        self.memory = L.llama_get_memory(self.context)
        self.batch = L.llama_batch_init(_BATCH, 0, 1)
        self.n_vocab = L.llama_vocab_n_tokens(L.llama_model_get_vocab(self.model))
        self.seq, self.unused, self.length = {}, list(range(sessions)), {}
        version = L.llama_version().decode() if hasattr(L, "llama_version") else "of unknown version"
        return {"what": "llama.cpp %s, llama-cpp-python %s" % (version, L.__version__), "n_vocab": self.n_vocab, "context": o.n_ctx}

    def start(self, id, reserve=0):
        self.seq[id] = self.unused.pop(0)
        self.length[id] = 0

    def _decode(self, entries):
        """entries: (id, token, wants logits). False: there is no room for them."""
        b = self.batch
        for i, (id, token, wants) in enumerate(entries):
            b.token[i], b.pos[i], b.n_seq_id[i], b.logits[i] = token, self.length[id], 1, wants
            b.seq_id[i][0] = self.seq[id]
            self.length[id] += 1
        b.n_tokens = len(entries)
        status = L.llama_decode(self.context, b)
        if status == 1:
            for id, _, _ in entries:
                self.length[id] -= 1
            return False
        if status:
            raise RuntimeError("llama.cpp: llama_decode gives %d" % status)
        L.llama_synchronize(self.context)
        return True

    def feed(self, id, tokens):
        start, before = time.perf_counter(), self.length[id]
        for at in range(0, len(tokens), _BATCH):
            part = tokens[at:at + _BATCH]
            if not self._decode([(id, t, at + i + 1 == len(tokens)) for i, t in enumerate(part)]):
                return {"refused": True, "error_type": "llama_decode gives 1", "computed": self.length[id] - before}
        L.llama_get_logits_ith(self.context, -1)[0]
        return {"refused": False, "seconds": time.perf_counter() - start}

    def decode(self, ids, n):
        tokens, steps = tokens_of(n * len(ids), self.n_vocab, seed=len(ids)), []
        for i in range(n):
            start = time.perf_counter()
            if not self._decode([(id, tokens[i * len(ids) + k], True) for k, id in enumerate(ids)]):
                raise RuntimeError("llama.cpp: the cache is full")
            L.llama_get_logits_ith(self.context, -1)[0]
            steps.append(time.perf_counter() - start)
        return {"steps": steps}

    def fork(self, id, to):
        self.start(to)
        start = time.perf_counter()
        L.llama_memory_seq_cp(self.memory, self.seq[id], self.seq[to], -1, -1)
        self.length[to] = self.length[id]
        return {"seconds": time.perf_counter() - start}

    def end(self, id):
        seq = self.seq.pop(id)
        L.llama_memory_seq_rm(self.memory, seq, -1, -1)
        self.unused.append(seq)
        del self.length[id]

    def trim(self):
        """It has nothing to trim: the cache is one buffer for as long as the context lives."""

    def unload(self):
        L.llama_batch_free(self.batch)
        L.llama_free(self.context)
        L.llama_model_free(self.model)
        self.context = self.model = None

    def save(self, id, n, path):
        """The whole sequence; n is its length."""
        start = time.perf_counter()
        none = (L.llama_token * 1)()
        if not L.llama_state_seq_save_file(self.context, os.fsencode(path), self.seq[id], none, 0):
            raise RuntimeError("llama.cpp cannot write " + path)
        return {"seconds": time.perf_counter() - start}

    def load(self, path, id):
        start = time.perf_counter()
        none, n = (L.llama_token * 1)(), ctypes.c_size_t()
        if not L.llama_state_seq_load_file(self.context, os.fsencode(path), self.seq[id], none, 1, ctypes.byref(n)):
            raise RuntimeError("llama.cpp cannot read " + path)
        self.length[id] = L.llama_memory_seq_pos_max(self.memory, self.seq[id]) + 1
        return {"seconds": time.perf_counter() - start, "tokens": self.length[id]}

    def ledger(self):
        return {}


if __name__ == "__main__":
    run(Llama())
