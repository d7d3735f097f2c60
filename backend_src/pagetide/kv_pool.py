"""The host tier: where blocks go that the device has no room for, and from where they come back.

Cached blocks are saved in the background while the device still has them, so evicting them costs nothing;
what a waiting sequence lacks is loaded before it is planned. No step ever waits for a move. Preemption needs
nothing of its own: a victim's full blocks are saved like any others, and loaded when it is its turn again.

A block being moved is pinned: held by the tier, so that nobody overwrites it. Integers only; a BlockMover
moves the bytes.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from pagetide.block_pool import BlockPool
from pagetide.config import BLOCK_SIZE
from pagetide.prefix_index import Content

MOST_MOVES = 64
"""Moves in flight at once: pinned blocks are not free for sequences."""

_NEW_SHARE = 0.2


@dataclass(frozen=True, slots=True)
class Moved:
    """A move that ended. `ok` False: what the slot held was damaged, and the block is undefined."""

    block: int
    slot: int
    is_load: bool
    ok: bool
    move_s: float


class BlockMover(Protocol):
    """Copies blocks between the device and the host's slots, in the background, in order."""

    def save(self, block: int, slot: int) -> None: ...

    def load(self, slot: int, block: int) -> None: ...

    def take_moved(self) -> list[Moved]:
        """The moves that ended since the last call."""


class Tier(Protocol):
    """What the scheduler needs of a tier."""

    @property
    def pinned(self) -> Collection[int]:
        """Device blocks that the tier holds."""

    @property
    def num_slots(self) -> int: ...

    @property
    def num_used(self) -> int: ...

    def settle(self) -> None:
        """Take in the moves that ended. Before planning."""

    def start_moves(
        self, wanted: Callable[[], Sequence[bytes]], spare: Callable[[], int], token_s: float | None
    ) -> None:
        """Start to load what the device lacks of the chain `wanted` next, and to save what was cached.

        After planning. `spare` counts the free blocks that are promised to nobody. Nothing is loaded if
        computing it is faster: `token_s` is what a token takes, None if that is not known yet.
        """

    def is_loading(self, content_hash: bytes | None) -> bool: ...


class NoTier:
    """No host tier: evicted blocks are gone."""

    pinned: Collection[int] = ()
    num_slots = 0
    num_used = 0

    def settle(self) -> None:
        pass

    def start_moves(
        self, wanted: Callable[[], Sequence[bytes]], spare: Callable[[], int], token_s: float | None
    ) -> None:
        pass

    def is_loading(self, content_hash: bytes | None) -> bool:
        return False


class HostTier:
    """`num_slots` blocks on the host, the least recently used of which makes room. On the engine thread."""

    def __init__(self, pool: BlockPool, num_slots: int, mover: BlockMover) -> None:
        self._pool = pool
        self._mover = mover
        self.num_slots = num_slots
        self._free_slots = list(range(num_slots - 1, -1, -1))
        self._slots: OrderedDict[bytes, tuple[int, Content]] = OrderedDict()
        self._candidates: OrderedDict[int, bytes] = OrderedDict()
        self._saving: dict[int, Content] = {}
        self._loading: dict[int, Content] = {}
        self._load_s: float | None = None
        pool.on_cached = self._remember

    @property
    def pinned(self) -> Collection[int]:
        return self._saving.keys() | self._loading.keys()

    @property
    def num_used(self) -> int:
        return len(self._slots)

    def __contains__(self, content_hash: bytes) -> bool:
        return content_hash in self._slots

    def is_loading(self, content_hash: bytes | None) -> bool:
        return any(content.hash == content_hash for content in self._loading.values())

    def settle(self) -> None:
        for moved in self._mover.take_moved():
            (self._settle_load if moved.is_load else self._settle_save)(moved)

    def start_moves(
        self, wanted: Callable[[], Sequence[bytes]], spare: Callable[[], int], token_s: float | None
    ) -> None:
        if self._slots and self._loading_pays(token_s):
            self._prefetch(wanted(), self._most_pinned(spare()))
        if self._candidates:
            self._save_cached(self._most_pinned(spare()))

    def _prefetch(self, chain: Sequence[bytes], most_pinned: int) -> None:
        for content_hash in chain:
            block = self._pool.index.find(content_hash)
            if block is not None:
                self._pool.touch(block)
            elif not self.is_loading(content_hash):
                if content_hash not in self._slots or len(self.pinned) >= most_pinned:
                    return
                self._load(content_hash)

    def _save_cached(self, most_pinned: int) -> None:
        while self._candidates and len(self.pinned) < most_pinned:
            block, content_hash = self._candidates.popitem(last=False)
            if self._pool.state(block) == "cached" and self._pool.index.find(content_hash) == block:
                self._save(block)

    def _remember(self, block: int) -> None:
        """The pool keeps the block for its content only: it is worth saving, if it is not here yet."""
        content_hash = self._pool.index.content(block).hash
        if content_hash in self._slots:
            self._slots.move_to_end(content_hash)
        else:
            self._candidates[block] = content_hash

    def _save(self, block: int) -> None:
        content = self._pool.index.content(block)
        slot = None if content.hash in self._slots else self._take_slot()
        if slot is not None:
            self._pool.hold(block)
            self._saving[block] = content
            self._mover.save(block, slot)

    def _load(self, content_hash: bytes) -> None:
        slot, content = self._slots[content_hash]
        self._slots.move_to_end(content_hash)
        (block,) = self._pool.allocate(1)
        self._loading[block] = content
        self._mover.load(slot, block)

    def _settle_save(self, moved: Moved) -> None:
        """A block whose content was forgotten meanwhile was to be filled by a step that failed."""
        content = self._saving.pop(moved.block)
        if moved.ok and self._pool.index.find(content.hash) == moved.block:
            self._slots[content.hash] = moved.slot, content
        else:
            self._free_slots.append(moved.slot)
        self._pool.release([moved.block])

    def _settle_load(self, moved: Moved) -> None:
        """A good block can be hit from now on; of a damaged one nothing is kept."""
        content = self._loading.pop(moved.block)
        if moved.ok:
            self._pool.publish(moved.block, content)
            self._measure(moved.move_s)
        else:
            self._free_slots.append(self._slots.pop(content.hash)[0])
        self._pool.release([moved.block])

    def _take_slot(self) -> int | None:
        """An empty slot, else the least recently used one that no load reads from; None if all are."""
        if self._free_slots:
            return self._free_slots.pop()
        busy = {content.hash for content in self._loading.values()}
        victim = next((content_hash for content_hash in self._slots if content_hash not in busy), None)
        return None if victim is None else self._slots.pop(victim)[0]

    def _most_pinned(self, spare: int) -> int:
        """Half of what is spare stays free for sequences that start or grow meanwhile."""
        return min(MOST_MOVES, len(self.pinned) + spare // 2)

    def _loading_pays(self, token_s: float | None) -> bool:
        """By the measured times; before there are any, it is tried."""
        return self._load_s is None or token_s is None or self._load_s < token_s * BLOCK_SIZE

    def _measure(self, move_s: float) -> None:
        self._load_s = move_s if self._load_s is None else self._load_s + _NEW_SHARE * (move_s - self._load_s)
