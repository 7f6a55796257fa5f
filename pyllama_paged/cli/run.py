"""
`pyllama-paged run`: one prompt, one answer.
"""

from __future__ import annotations

import json
import os
import stat
import sys

from ..errors import InvalidArgument
from . import looks
from .main import open_model, sampling, thought, with_stored_beginning

__all__ = ["run"]


def _piped() -> str:
    """What is piped or redirected in. Not asked where standard input is something else that may never end."""
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
    except (OSError, ValueError, AttributeError):
        return ""
    return _decoded(sys.stdin.buffer.read()) if stat.S_ISFIFO(mode) or stat.S_ISREG(mode) else ""


def _decoded(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def _prompt(args) -> str:
    parts = []
    if args.file == "-" or not args.file:
        parts.append(_piped())
    else:
        with open(args.file, "rb") as f:
            parts.append(_decoded(f.read()))
    if args.prompt is not None:
        parts.append(args.prompt)
    prompt = "\n\n".join(p if args.raw else p.strip("\r\n") for p in parts if p.strip())
    if not prompt:
        raise InvalidArgument("there is no prompt; give one with -p, with -f FILE, or through a pipe")
    return prompt


def run(args) -> int:
    if args.raw and args.system is not None:
        raise InvalidArgument("--raw continues the prompt as it is; a system prompt (-sys) has no place in it")
    prompt = _prompt(args)
    limit = args.max_tokens if args.max_tokens >= 0 else None
    with open_model(args) as model, model.session(system=args.system, think=thought(args.think), speculate=args.speculate == "on") as session:
        if not args.raw:
            with_stored_beginning(model, session)
        ask = session.complete if args.raw else session.stream
        with ask(prompt, max_tokens=limit, sampling=sampling(args)) as stream:
            if args.json:
                stream.read()
            else:
                typist = looks.Typist(sys.stdout)
                try:
                    for piece in stream:
                        typist.write(piece)
                finally:
                    typist.finish()
        if args.json:
            print(json.dumps(_report(args, model, stream), ensure_ascii=False))
        elif stream.reasoning and not stream.text and stream.finish == "length":
            print(f"pyllama-paged: {stream.stats.answer_tokens} tokens were only enough for reasoning; -n gives more, --think off does without", file=sys.stderr)
        elif stream.context_full:
            print(f"pyllama-paged: the context of {model.info.context_limit} tokens is full; the answer ends here", file=sys.stderr)
    return 0


def _report(args, model, stream) -> dict:
    stats, memory = stream.stats, model.memory
    return {
        "model": os.path.basename(model.path),
        "text": stream.text,
        "reasoning": stream.reasoning,
        "finish": stream.finish,
        "usage": {
            "prompt_tokens": stats.prompt_tokens,
            "completion_tokens": stats.answer_tokens,
            "total_tokens": stats.prompt_tokens + stats.answer_tokens,
            "prompt_tokens_details": {"cached_tokens": stats.reused_tokens},
            "speculation": {"drafted_tokens": stats.drafted_tokens, "accepted_tokens": stats.accepted_tokens},
        },
        "timings": {
            "prompt_seconds": round(stats.prompt_seconds, 6),
            "prompt_per_second": round(stats.prompt_rate, 2),
            "answer_seconds": round(stats.answer_seconds, 6),
            "answer_per_second": round(stats.answer_rate, 2),
        },
        "memory": {"kv_resident": memory.resident, "kv_tokens": memory.token_state, "scratch": memory.scratch,
                   "weights_mapped": memory.weights},
    }
