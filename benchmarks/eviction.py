"""Which blocks to evict: policies replayed on request traces, beside the optimum (Belady's).

    python -m benchmarks.eviction TRACE.jsonl ...

A trace has one request a line with its prompt's `hash_ids`, one for each 512 tokens; equal ids are equal
prefixes (Mooncake, FAST'25). A request hits its blocks up to the first that is missing and then has all of
them; they become evictable together, the last block first, as in the engine. Requests follow one another,
so nothing is in flight.
"""

from __future__ import annotations

import heapq
import json
import math
import sys
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Protocol

POOL_SIZES = (1_000, 10_000, 50_000)
"""In blocks of 512 tokens."""


class Eviction(Protocol):
    """The evictable blocks. All of one request's blocks are taken out, then put back last block first."""

    def take(self, block: int) -> None:
        """The block, if it is there, is in use now."""

    def put(self, block: int, was_hit: bool, now: int) -> None:
        """The block is evictable; request `now` had it, by a hit or by computing it."""

    def evict(self) -> int: ...


class Lru:
    """By last use."""

    def __init__(self, size: int, uses: Uses) -> None:
        self._blocks: OrderedDict[int, None] = OrderedDict()

    def take(self, block: int) -> None:
        self._blocks.pop(block, None)

    def put(self, block: int, was_hit: bool, now: int) -> None:
        self._blocks[block] = None

    def evict(self) -> int:
        return self._blocks.popitem(last=False)[0]


class Fifo(Lru):
    """By first use, whatever came after."""

    def take(self, block: int) -> None:
        pass

    def put(self, block: int, was_hit: bool, now: int) -> None:
        self._blocks.setdefault(block)


class Segmented(Lru):
    """Least recently used of those never hit, then of the others; those fill at most `protected` of the pool.

    (SLRU: Karedla et al., Computer 27(3), 1994.)
    """

    protected = 0.8

    def __init__(self, size: int, uses: Uses) -> None:
        super().__init__(size, uses)
        self._most = int(size * self.protected)
        self._hit: OrderedDict[int, None] = OrderedDict()

    def take(self, block: int) -> None:
        self._blocks.pop(block, None)
        self._hit.pop(block, None)

    def put(self, block: int, was_hit: bool, now: int) -> None:
        (self._hit if was_hit else self._blocks)[block] = None
        while len(self._hit) > self._most:
            self._blocks[self._hit.popitem(last=False)[0]] = None

    def evict(self) -> int:
        return (self._blocks or self._hit).popitem(last=False)[0]


class HalfSegmented(Segmented):
    """SLRU with half of the pool protected."""

    protected = 0.5


class _Ranked:
    """Evicts the block of the lowest rank; ranks change only while a block is out."""

    def __init__(self, size: int, uses: Uses) -> None:
        self.uses = uses
        self._heap: list[tuple[float, int, int]] = []
        self._entry: dict[int, tuple[float, int, int]] = {}
        self._ticks = 0
        self.floor = 0.0

    def rank(self, block: int, was_hit: bool, now: int) -> float:
        raise NotImplementedError

    def take(self, block: int) -> None:
        self._entry.pop(block, None)

    def put(self, block: int, was_hit: bool, now: int) -> None:
        self._ticks += 1
        entry = self._entry[block] = (self.rank(block, was_hit, now), self._ticks, block)
        heapq.heappush(self._heap, entry)

    def evict(self) -> int:
        while True:
            entry = heapq.heappop(self._heap)
            if self._entry.get(entry[2]) is entry:
                del self._entry[entry[2]]
                self.floor = entry[0]
                return entry[2]


class Lfu(_Ranked):
    """By number of uses while cached; of equals, the least recently used."""

    def __init__(self, size: int, uses: Uses) -> None:
        super().__init__(size, uses)
        self._counts: dict[int, int] = {}

    def rank(self, block: int, was_hit: bool, now: int) -> float:
        self._counts[block] = self._counts.get(block, 0) + 1 if was_hit else 1
        return self._counts[block]


class GreedyDual(Lfu):
    """Uses, with ageing: a block counts on from the rank of the last evicted one (GDSF, Cherkasova 1998)."""

    def rank(self, block: int, was_hit: bool, now: int) -> float:
        return self.floor + super().rank(block, was_hit, now)


class Belady(_Ranked):
    """By next use, the farthest first: needs the future, and no policy hits more (Belady, 1966)."""

    def rank(self, block: int, was_hit: bool, now: int) -> float:
        return -self.uses.next_after(block, now)


class Uses:
    """When each block is used, to answer when it is used next."""

    def __init__(self, requests: Sequence[Sequence[int]]) -> None:
        self._times: defaultdict[int, deque[int]] = defaultdict(deque)
        for now, blocks in enumerate(requests):
            for block in blocks:
                self._times[block].append(now)

    def next_after(self, block: int, now: int) -> float:
        times = self._times[block]
        while times and times[0] <= now:
            times.popleft()
        return times[0] if times else math.inf


POLICIES: dict[str, Callable[[int, Uses], Eviction]] = {
    "FIFO": Fifo,
    "LFU": Lfu,
    "GDSF": GreedyDual,
    "SLRU 50 %": HalfSegmented,
    "SLRU 80 %": Segmented,
    "LRU": Lru,
    "optimum": Belady,
}


def hit_rate(requests: Sequence[Sequence[int]], size: int, policy: Callable[[int, Uses], Eviction]) -> float:
    """Share of all prompt blocks that were found in a pool of `size` blocks."""
    eviction, cached, hits = policy(size, Uses(requests)), set[int](), 0
    for now, blocks in enumerate(requests):
        num_hits = next((i for i, block in enumerate(blocks) if block not in cached), len(blocks))
        hits += num_hits
        kept = blocks[:size]
        for block in kept:
            eviction.take(block)
        cached.update(kept)
        for index in reversed(range(len(kept))):
            eviction.put(kept[index], index < num_hits, now)
        while len(cached) > size:
            cached.remove(eviction.evict())
    return hits / sum(map(len, requests))


def read(path: Path) -> list[list[int]]:
    with path.open() as lines:
        return [list(dict.fromkeys(json.loads(line)["hash_ids"])) for line in lines]


def table(paths: Iterable[Path]) -> str:
    """Markdown: one row a policy, one column a trace and pool size, hits in percent."""
    traces = {path.stem: read(path) for path in paths}
    columns = [(name, size) for name in traces for size in POOL_SIZES]
    head = ["policy", *(f"{name}, {size:,}" for name, size in columns)]
    rows = [head, ["---"] + ["---:"] * len(columns)]
    for label, policy in POLICIES.items():
        rows.append([label, *(f"{100 * hit_rate(traces[name], size, policy):.1f}" for name, size in columns)])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


if __name__ == "__main__":
    print(table(map(Path, sys.argv[1:])))
