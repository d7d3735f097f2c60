"""A mover that takes its time, copies late, and damages what it stores now and then."""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from simulation.pure_model import Digests

from pagetide.kv_pool import Moved

DAMAGED = 0x5A5A
MOVE_S = 1e-6


@dataclass(slots=True)
class SlowMover:
    """The bytes are copied only when a move ends, so whoever gives a block away too early is betrayed.

    A move comes after the steps that were launched before it was asked for, as `fence` has it.
    """

    kv: Digests
    fence: Callable[[], Callable[[], None]]
    num_slots: int
    rng: random.Random
    coverage: Counter[str]
    slots: Digests = field(init=False)
    good: set[int] = field(default_factory=set)
    moving: deque[tuple[int, int, bool, Callable[[], None]]] = field(default_factory=deque)

    def __post_init__(self) -> None:
        self.slots = np.zeros((self.num_slots, self.kv.shape[1]), np.uint32)

    def save(self, block: int, slot: int) -> None:
        self.good.discard(slot)
        self.moving.append((block, slot, False, self.fence()))

    def load(self, slot: int, block: int) -> None:
        self.moving.append((block, slot, True, self.fence()))

    def take_moved(self) -> list[Moved]:
        ending = 0 if self.rng.random() < 0.8 else self.rng.randint(0, len(self.moving))
        return [self._move(*self.moving.popleft()) for _ in range(ending)]

    def _move(self, block: int, slot: int, is_load: bool, wait: Callable[[], None]) -> Moved:
        wait()
        ok = slot in self.good if is_load else True
        if is_load:
            self.kv[block] = self.slots[slot] if ok else DAMAGED
        else:
            self.slots[slot] = self.kv[block]
            self._keep(slot)
        self.coverage["host loads" if is_load and ok else "damaged loads" if is_load else "host saves"] += 1
        return Moved(block, slot, is_load, ok, MOVE_S)

    def _keep(self, slot: int) -> None:
        if self.rng.random() < 0.9:
            self.good.add(slot)
