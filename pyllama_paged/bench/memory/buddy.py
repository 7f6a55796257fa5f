"""
A buddy allocator over token slots, as the paper assumes for Orca and FasterTransformer, whose own is not public.

    slots  [        8192        |   4096   | 2048 | 1024 |...]     a region of any size is cut into powers of two;
                                                                    a request takes the smallest that holds it, larger
                                                                    ones are halved, and two free halves join again
"""

from __future__ import annotations

import heapq

__all__ = ["Buddy"]


class Buddy:
    def __init__(self, n_slots: int):
        self.n_slots = n_slots
        self.n_free = n_slots
        self._free: list[set[int]] = [set() for _ in range(n_slots.bit_length())]      # by order: places of free blocks
        self._lowest: list[list[int]] = [[] for _ in self._free]                        # heaps over the same, with stale entries
        self._taken: dict[int, int] = {}
        at = 0
        for order in reversed(range(n_slots.bit_length())):
            if n_slots >> order & 1:
                self._put(order, at)
                at += 1 << order

    def _put(self, order: int, at: int) -> None:
        self._free[order].add(at)
        heapq.heappush(self._lowest[order], at)

    def _get(self, order: int) -> int:
        """The lowest free place, so that the upper ones have a chance to join."""
        while True:
            at = heapq.heappop(self._lowest[order])
            if at in self._free[order]:
                self._free[order].remove(at)
                return at

    def take(self, n: int) -> int | None:
        """The place of a block of at least n slots, or None."""
        order = max(n - 1, 0).bit_length()
        found = next((o for o in range(order, len(self._free)) if self._free[o]), None)
        if found is None:
            return None
        at = self._get(found)
        while found > order:
            found -= 1
            self._put(found, at + (1 << found))
        self._taken[at] = order
        self.n_free -= 1 << order
        return at

    def size(self, at: int) -> int:
        return 1 << self._taken[at]

    def give(self, at: int) -> None:
        order = self._taken.pop(at)
        self.n_free += 1 << order
        while order + 1 < len(self._free) and at ^ (1 << order) in self._free[order]:
            self._free[order].remove(at ^ (1 << order))
            at &= ~(1 << order)
            order += 1
        self._put(order, at)
