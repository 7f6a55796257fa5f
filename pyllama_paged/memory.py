"""
What a model and a session hold, in bytes unless a name says otherwise. Snapshots: they do not change.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, fields

from ._native import ffi, lib
from .errors import InvalidArgument

__all__ = ["Memory", "SessionMemory", "Counters", "parse_bytes"]

_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "KI": 2**10, "MI": 2**20, "GI": 2**30, "TI": 2**40}


def parse_bytes(size: int | str | None) -> int:
    """512, "512MiB", "1.5 GB" -> bytes. None is 0, which stands for the default."""
    if size is None:
        return 0
    if isinstance(size, int) and not isinstance(size, bool) and size >= 0:
        n = size
    else:
        found = re.fullmatch(r"\s*(\d{1,20}(?:\.\d+)?)\s*([KMGT]?I?)B?\s*", str(size).upper())
        if not found or found[2] not in _UNITS:
            raise InvalidArgument(f"{size!r} is not a size; write it like 536870912, 512MiB or 1.5GB")
        n = int(float(found[1]) * _UNITS[found[2]])
    if n >= 2**63:
        raise InvalidArgument(f"{size!r} is more than any memory; 512MiB or 1.5GB would do")
    return n


def _read(cls, struct):
    return cls(**{f.name: int(getattr(struct, f.name)) for f in fields(cls)})


@dataclass(frozen=True)
class Memory:
    """
    The ledger of a model's KV pool. It adds up:

        resident = token_state + reserved + internal + external + cached + pool metadata
    """

    resident: int           #: pool memory taken from the system and not given back
    token_state: int        #: KV of tokens that some session or pinned prefix holds, shared ones once
    reserved: int           #: free places of open blocks, which the next tokens fill
    internal: int           #: held places that will never be used
    external: int           #: free blocks inside slabs, slab tails
    cached: int             #: let go but still findable; evicted when the memory is needed
    pinned: int             #: the part of token_state that pinned prefixes hold
    mapped: int             #: file-backed prefix blocks; not part of resident
    shared_saved: int       #: what the sessions would need besides, had they not shared
    spilled: int            #: idle sessions' blocks in the spill file
    scratch: int            #: activations and work space
    metadata: int           #: tables, index, bookkeeping
    weights: int            #: file-backed weights
    n_tokens: int           #: live tokens over all sessions, shared ones once
    n_blocks: int
    n_slabs: int
    budget: int             #: the hard limit on the pool

    @classmethod
    def of(cls, engine) -> "Memory":
        out = ffi.new("plp_memory *")
        lib.plp_engine_memory(engine, out)
        return _read(cls, out)


@dataclass(frozen=True)
class SessionMemory:
    """What one session holds of the pool."""

    own: int                #: blocks that nobody else holds
    shared: int             #: blocks that others hold too
    saved: int              #: what sharing spared this session
    reserved: int           #: free places in its open block
    spilled: int
    n_tokens: int
    n_blocks: int
    n_shared_blocks: int
    n_saved_blocks: int     #: of the shared ones, those that another session or a file pays for already

    @classmethod
    def of(cls, session) -> "SessionMemory":
        out = ffi.new("plp_session_memory *")
        lib.plp_session_get_memory(session, out)
        return _read(cls, out)


@dataclass(frozen=True)
class Counters:
    """What happened since the model was opened."""

    tokens_computed: int
    tokens_reused: int
    steps: int
    blocks_forked: int
    blocks_evicted: int
    blocks_sealed: int
    blocks_spilled: int
    blocks_restored: int
    budget_refusals: int

    @classmethod
    def of(cls, engine) -> "Counters":
        out = ffi.new("plp_counters *")
        lib.plp_engine_counters(engine, out)
        return _read(cls, out)
