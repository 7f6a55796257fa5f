"""
llama.cpp through llama-cpp-python's low-level API, as a process of `bench peers`.

Run as a file, by a Python that has llama-cpp-python; it imports nothing else but serve.py beside it.
Flash attention on, the batch sizes of llama-bench, a model mapped as by default.
"""

import ctypes
import os
import time

from serve import serve, some_tokens

import llama_cpp as L

_KV = {"f16": 1, "q8": 8, "q4": 2}          # ggml types F16, Q8_0, Q4_0
_FLASH_ATTENTION = 1
_BATCH = 2048


@L.llama_log_callback
def _silent(level, text, user_data):
    pass


def _check(status, what):
    if status:
        raise RuntimeError(f"llama.cpp: {what} gives {status}")


class Llama:
    model = context = None
    n_base = 0

    def open(self, model, threads, context, kv):
        self.close()
        L.llama_log_set(_silent, ctypes.c_void_p(0))
        L.llama_backend_init()
        self.model = L.llama_model_load_from_file(os.fsencode(model), L.llama_model_default_params())
        if not self.model:
            raise RuntimeError("llama.cpp cannot open the model")
        o = L.llama_context_default_params()
        o.n_ctx, o.n_batch, o.n_ubatch = context, min(_BATCH, context), 512
        o.n_threads = o.n_threads_batch = threads
        o.type_k = o.type_v = _KV[kv]
        o.flash_attn_type = _FLASH_ATTENTION
        o.no_perf = True
        self.context = L.llama_init_from_model(self.model, o)
        if not self.context:
            raise RuntimeError("llama.cpp cannot make a context")
        self.memory = L.llama_get_memory(self.context)
        self.n_vocab = L.llama_vocab_n_tokens(L.llama_model_get_vocab(self.model))
        version = L.llama_version().decode() if hasattr(L, "llama_version") else "of unknown version"
        return f"llama.cpp {version}, llama-cpp-python {L.__version__}"

    def _feed(self, tokens):
        for at in range(0, len(tokens), _BATCH):
            part = tokens[at:at + _BATCH]
            array = (L.llama_token * len(part))(*part)
            _check(L.llama_decode(self.context, L.llama_batch_get_one(array, len(part))), "llama_decode")

    def _back(self):
        L.llama_memory_seq_rm(self.memory, 0, self.n_base, -1)

    def depth(self, n):
        tokens = some_tokens(n, self.n_vocab)
        self.n_base = min(n, self.n_base)
        self._back()
        self._feed(tokens[self.n_base:])
        L.llama_synchronize(self.context)
        self.n_base = n

    def _logits(self):
        L.llama_synchronize(self.context)
        return L.llama_get_logits_ith(self.context, -1)[0]

    def prefill(self, n):
        tokens = some_tokens(n, self.n_vocab)
        start = time.perf_counter()
        self._feed(tokens)
        self._logits()
        seconds = time.perf_counter() - start
        self._back()
        return seconds

    def decode(self, n):
        tokens = (L.llama_token * n)(*some_tokens(n, self.n_vocab))
        start = time.perf_counter()
        for i in range(n):
            one = ctypes.cast(ctypes.byref(tokens, 4 * i), ctypes.POINTER(L.llama_token))
            _check(L.llama_decode(self.context, L.llama_batch_get_one(one, 1)), "llama_decode")
            self._logits()
        seconds = time.perf_counter() - start
        self._back()
        return seconds

    def close(self):
        if self.context:
            L.llama_free(self.context)
        if self.model:
            L.llama_model_free(self.model)
        self.context = self.model = None
        self.n_base = 0


if __name__ == "__main__":
    serve(Llama())
