"""Ref-counted blocks of KV, found by the hash of their content, freed and evicted in O(1).

A block is in exactly one of three states, and the pool owns the transitions:

    blank   no references, nothing worth keeping            `_blank`, a stack
    cached  no references, content still known by hash      `_cached`, least recently used first
    held    referenced by at least one block table          `_refs[block] > 0`

Hashes form a chain (block i's hash covers every token before it), so a hit on block i implies hits on
blocks 0..i-1. Blocks are released from a sequence's end, so children are evicted before their parents.
"""

from __future__ import annotations

import hashlib
from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterable

from pagetide.prefix_index import Content, PrefixIndex


class OutOfBlocksError(Exception):
    """More blocks were asked for than are blank or cached."""


def chain_root(*parts: bytes) -> bytes:
    """The parent of a sequence's first block: weights identity, adapter, tenant salt."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.digest()


def chain_hash(parent: bytes, tokens: array[int]) -> bytes:
    """Names the content of one full block of `tokens` behind `parent`. SHA-256: hits can't be forged."""
    return hashlib.sha256(parent + tokens.tobytes()).digest()


class BlockPool:
    """All blocks of one KV cache. Owned by the scheduler, on the engine thread.

    `on_cached` is told of each block that nobody holds any more and that is kept for its content.
    """

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.on_cached: Callable[[int], None] = lambda block: None
        self.index = PrefixIndex()
        self._refs = array("i", bytes(4 * num_blocks))
        self._blank = list(range(num_blocks - 1, -1, -1))
        self._cached: OrderedDict[int, None] = OrderedDict()

    @property
    def num_free(self) -> int:
        """Blocks that `allocate` can hand out: blank ones, then cached ones."""
        return len(self._blank) + len(self._cached)

    @property
    def num_cached(self) -> int:
        return len(self._cached)

    @property
    def num_held(self) -> int:
        return self.num_blocks - self.num_free

    def allocate(self, count: int) -> array[int]:
        """`count` blocks, one reference each; if fewer are free, raises OutOfBlocksError and takes none."""
        if count > self.num_free:
            raise OutOfBlocksError(f"{count} blocks asked for, {self.num_free} free")
        blocks = array("i", (self._take() for _ in range(count)))
        for block in blocks:
            self._refs[block] = 1
        return blocks

    def is_held(self, block: int) -> bool:
        return self._refs[block] > 0

    def refs(self, block: int) -> int:
        """How many block tables name the block."""
        return self._refs[block]

    def state(self, block: int) -> str:
        return "held" if self._refs[block] else "cached" if block in self._cached else "blank"

    def copy_states(self) -> tuple[array[int], frozenset[int]]:
        """Every block's references, and which are cached: a copy that is made between two steps."""
        return self._refs[:], frozenset(self._cached)

    def hold(self, block: int) -> None:
        """One more reference to a block that was found in the index."""
        if self._refs[block] == 0:
            del self._cached[block]
        self._refs[block] += 1

    def touch(self, block: int) -> None:
        """The block was found and will be used soon: among the cached ones it is evicted last."""
        if block in self._cached:
            self._cached.move_to_end(block)

    def release(self, blocks: Iterable[int]) -> None:
        """One reference less to each. Pass a sequence's blocks last first: the first is evicted last."""
        for block in blocks:
            self._refs[block] -= 1
            if self._refs[block] == 0:
                self._retire(block)

    def publish(self, block: int, content: Content) -> bool:
        """Let others find a held block by its content. False if another block already has it."""
        return self.index.add(block, content)

    def retract(self, block: int) -> None:
        """Forget a block's content: it was never written, or can't be trusted."""
        self.index.remove(block)
        if block in self._cached:
            del self._cached[block]
            self._blank.append(block)

    def check(self) -> None:
        """Conservation: blank + cached + held = all, each block in one state. Raises RuntimeError."""
        held = sum(1 for refs in self._refs if refs > 0)
        states = set(self._blank) | set(self._cached)
        if len(states) != self.num_free or held + self.num_free != self.num_blocks:
            raise RuntimeError(
                f"blocks lost: {len(self._blank)} blank + {len(self._cached)} cached + {held} held "
                f"of {self.num_blocks}"
            )
        if any(self._refs[block] != 0 for block in states):
            raise RuntimeError("a block is held and free at once")
        self.index.check()

    def _take(self) -> int:
        if self._blank:
            return self._blank.pop()
        block, _ = self._cached.popitem(last=False)
        self.index.remove(block)
        return block

    def _retire(self, block: int) -> None:
        if block in self.index:
            self._cached[block] = None
            self.on_cached(block)
        else:
            self._blank.append(block)
