"""Which blocks a sequence has: prefix hits, growth, and what others may find of them."""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass

from pagetide.block_pool import BlockPool, chain_hash
from pagetide.config import BLOCK_SIZE
from pagetide.prefix_index import Content
from pagetide.request import Sequence
from pagetide.step import BlockCopy

MIN_COPIED_TOKENS = 4
"""Fewer are computed faster than a block is copied in every layer (docs/scheduling.md has the times)."""

_MOST_SIBLINGS = 32
"""Blocks compared when a partial block is looked for: a popular prefix may have thousands of children."""


def blocks_for(num_tokens: int) -> int:
    """Blocks that hold the KV of `num_tokens` tokens."""
    return -(-num_tokens // BLOCK_SIZE)


def peak_blocks(sequence: Sequence) -> int:
    """Blocks that the sequence holds at most, if it uses all of its `max_tokens`."""
    return blocks_for(len(sequence.request.prompt_ids) + sequence.request.params.max_tokens)


@dataclass(frozen=True, slots=True)
class Hits:
    """`blocks` hold the sequence's first tokens; the next `num_copied` stand first in `source`."""

    blocks: list[int]
    source: int | None = None
    num_copied: int = 0

    def whole(self) -> Hits:
        return Hits(self.blocks)


class BlockTables:
    """Moves blocks between the pool and the sequences. Lives in the scheduler, on the engine thread.

    `root` maps a sequence to the hash that its first block chains to; None turns prefix hits off.
    """

    def __init__(self, pool: BlockPool, root: Callable[[Sequence], bytes] | None) -> None:
        self.pool = pool
        self._root = root

    def hits(self, sequence: Sequence, unwritten: Container[int]) -> Hits:
        """Blocks that hold the sequence's first tokens already. At least one token is left to compute.

        Blocks `unwritten` until the step runs can be shared in it, but not copied from before it.
        """
        if self._root is None or sequence.scores_prompt:
            return Hits([])
        blocks: list[int] = []
        for content_hash in self.chain(sequence):
            block = self.pool.index.find(content_hash)
            if block is None:
                break
            blocks.append(block)
        return self._with_partial(sequence, blocks, unwritten)

    def chain(self, sequence: Sequence) -> list[bytes]:
        """The hashes of the full blocks that the sequence could hit."""
        if self._root is None or sequence.scores_prompt:
            return []
        most = (sequence.num_tokens - 1) // BLOCK_SIZE
        return self._hash_first(sequence, most)[:most]

    def next_hash(self, sequence: Sequence, hits: Hits) -> bytes | None:
        """The first block that it misses, of those it could hit."""
        chain = self.chain(sequence)
        return chain[len(hits.blocks)] if len(hits.blocks) < len(chain) else None

    def cost(self, sequence: Sequence, hits: Hits) -> int:
        """Free blocks that starting the sequence takes: for all its tokens, one more, and idle hits."""
        return blocks_for(sequence.num_tokens + 1) - len(hits.blocks) + self.idle(hits)

    def idle(self, hits: Hits) -> int:
        """Hits that nobody holds: taking them leaves fewer free blocks."""
        used = hits.blocks if hits.source is None else [*hits.blocks, hits.source]
        return sum(not self.pool.is_held(block) for block in used)

    def to_come(self, sequence: Sequence) -> int:
        """Blocks a running sequence still lacks for what it has, and for one token more."""
        return max(0, blocks_for(sequence.num_tokens + 1) - len(sequence.block_table))

    def take_hits(self, sequence: Sequence, hits: Hits) -> BlockCopy | None:
        """The sequence starts behind its hits. A copy's source stays held until `release_source`."""
        for block in hits.blocks:
            self.pool.hold(block)
        sequence.block_table = array("i", hits.blocks)
        sequence.num_computed = len(hits.blocks) * BLOCK_SIZE + hits.num_copied
        sequence.num_hit_blocks = len(hits.blocks)
        if hits.source is None:
            return None
        self.pool.hold(hits.source)
        sequence.block_table.extend(self.pool.allocate(1))
        return BlockCopy(hits.source, sequence.block_table[-1])

    def release_source(self, copy: BlockCopy) -> None:
        self.pool.release([copy.source])

    def missing(self, sequence: Sequence, end: int) -> int:
        """Blocks to allocate before the KV of the first `end` tokens has a place."""
        return blocks_for(end) - len(sequence.block_table)

    def full(self, sequences: Iterable[Sequence]) -> list[Sequence]:
        """Those that have no room for the KV of their newest token."""
        return [s for s in sequences if len(s.tokens) + s.num_unknown > len(s.block_table) * BLOCK_SIZE]

    def grow(self, sequence: Sequence, end: int) -> None:
        """Raises OutOfBlocksError, and changes nothing, if `missing` is more than is free."""
        missing = self.missing(sequence, end)
        if missing > 0:
            sequence.block_table.extend(self.pool.allocate(missing))

    def publish(self, sequence: Sequence, start: int, end: int) -> list[int]:
        """Let others hit the full blocks among tokens `start` to `end`; the blocks that are now found.

        A block is not found before all its tokens are known.
        """
        first, last = start // BLOCK_SIZE, min(end, len(sequence.tokens)) // BLOCK_SIZE
        if self._root is None or first == last:
            return []
        self._hash_first(sequence, last)
        return [
            sequence.block_table[index]
            for index in range(first, last)
            if self.pool.publish(sequence.block_table[index], self._content(sequence, index))
        ]

    def release(self, sequence: Sequence) -> None:
        self.pool.release(reversed(sequence.block_table))
        sequence.block_table = array("i")
        sequence.num_computed = sequence.num_hit_blocks = 0

    def _with_partial(self, sequence: Sequence, blocks: list[int], unwritten: Container[int]) -> Hits:
        """Add the block that shares most of the next tokens, if copying it saves enough."""
        start = len(blocks) * BLOCK_SIZE
        wanted = sequence.tokens[start : min(start + BLOCK_SIZE, sequence.num_tokens - 1)]
        if len(wanted) < MIN_COPIED_TOKENS:
            return Hits(blocks)
        siblings = itertools.islice(
            self.pool.index.children(self._parent(sequence, len(blocks))), _MOST_SIBLINGS
        )
        common, source = max(
            ((self._common(block, wanted), block) for block in siblings if block not in unwritten),
            default=(0, None),
        )
        return Hits(blocks, source, common) if common >= MIN_COPIED_TOKENS else Hits(blocks)

    def _common(self, block: int, wanted: array[int]) -> int:
        """How many of the `wanted` tokens stand first in the block."""
        pairs = zip(self.pool.index.content(block).tokens, wanted, strict=False)
        return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))

    def _content(self, sequence: Sequence, index: int) -> Content:
        start = index * BLOCK_SIZE
        tokens = sequence.tokens[start : start + BLOCK_SIZE]
        return Content(sequence.block_hashes[index], self._parent(sequence, index), tokens)

    def _parent(self, sequence: Sequence, index: int) -> bytes:
        """What block `index` of the sequence continues; the hashes before it are known."""
        assert self._root is not None
        return sequence.block_hashes[index - 1] if index else self._root(sequence)

    def _hash_first(self, sequence: Sequence, num_blocks: int) -> list[bytes]:
        """The sequence's block hashes, at least the first `num_blocks` of them: each is computed once."""
        hashes = sequence.block_hashes
        for index in range(len(hashes), num_blocks):
            start = index * BLOCK_SIZE
            tokens = sequence.tokens[start : start + BLOCK_SIZE]
            hashes.append(chain_hash(self._parent(sequence, index), tokens))
        return hashes
