"""This runtime, as a process of `bench peers`: python -m pyllama_paged.bench.peer_own"""

from __future__ import annotations

from .. import __version__
from .serve import serve
from .work import Work


class Own:
    work: Work | None = None

    def open(self, model, threads, context, kv):
        self.close()
        self.work = Work(model, kv=kv, threads=threads, context=context)
        return f"pyllama_paged {__version__}, {self.work.model.info.tier}"

    def depth(self, n):
        self.work.to_depth(n)

    def prefill(self, n):
        return self.work.prefill(n)

    def decode(self, n):
        return self.work.decode(n)

    def close(self):
        if self.work:
            self.work.close()
            self.work = None


if __name__ == "__main__":
    serve(Own())
