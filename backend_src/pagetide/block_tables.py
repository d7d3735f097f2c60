"""Which blocks a sequence has: prefix hits, growth, and what others may find of them."""

from __future__ import annotations

from array import array
from collections.abc import Callable

from pagetide.block_pool import BlockPool, chain_hash
from pagetide.config import BLOCK_SIZE
from pagetide.request import Request, Sequence


def blocks_for(num_tokens: int) -> int:
    """Blocks that hold the KV of `num_tokens` tokens."""
    return -(-num_tokens // BLOCK_SIZE)


def _scope(request: Request) -> bytes:
    """Who may share the request's prefix: its tenant, and there only those with the same salt."""
    tenant = request.tenant.encode()
    return len(tenant).to_bytes(8, "little") + tenant + request.cache_salt


class BlockTables:
    """Moves blocks between the pool and the sequences. Lives in the scheduler, on the engine thread.

    `root` maps who may share a prefix (tenant and cache salt) to the hash that the first block chains to;
    None turns prefix hits off.
    """

    def __init__(self, pool: BlockPool, root: Callable[[bytes], bytes] | None) -> None:
        self.pool = pool
        self._root = root

    def hits(self, sequence: Sequence) -> list[int]:
        """Blocks that hold the sequence's first tokens already. At least one token is left to compute."""
        most = (sequence.num_tokens - 1) // BLOCK_SIZE
        found: list[int] = []
        for content in self._hash_first(sequence, most)[:most]:
            block = self.pool.find(content)
            if block is None:
                break
            found.append(block)
        return found

    def cost(self, sequence: Sequence, hits: list[int]) -> int:
        """Free blocks that starting the sequence takes: for all its tokens, one more, and idle hits."""
        from_cache = sum(not self.pool.is_held(block) for block in hits)
        return blocks_for(sequence.num_tokens + 1) - len(hits) + from_cache

    def to_come(self, sequence: Sequence) -> int:
        """Blocks a running sequence still lacks for what it has, and for one token more."""
        return max(0, blocks_for(sequence.num_tokens + 1) - len(sequence.block_table))

    def take_hits(self, sequence: Sequence, hits: list[int]) -> None:
        for block in hits:
            self.pool.hold(block)
        sequence.block_table = array("i", hits)
        sequence.num_computed = len(hits) * BLOCK_SIZE

    def missing(self, sequence: Sequence, end: int) -> int:
        """Blocks to allocate before the KV of the first `end` tokens has a place."""
        return blocks_for(end) - len(sequence.block_table)

    def grow(self, sequence: Sequence, end: int) -> None:
        """Raises OutOfBlocksError, and changes nothing, if `missing` is more than is free."""
        sequence.block_table.extend(self.pool.allocate(self.missing(sequence, end)))

    def publish(self, sequence: Sequence, start: int, end: int) -> list[int]:
        """Let others hit the full blocks among tokens `start` to `end`; the blocks that are now found."""
        last = end // BLOCK_SIZE
        hashes = self._hash_first(sequence, last)
        published = []
        for index in range(start // BLOCK_SIZE, min(last, len(hashes))):
            if self.pool.publish(sequence.block_table[index], hashes[index]):
                published.append(sequence.block_table[index])
        return published

    def release(self, sequence: Sequence) -> None:
        self.pool.release(reversed(sequence.block_table))
        sequence.block_table = array("i")
        sequence.num_computed = 0

    def _hash_first(self, sequence: Sequence, num_blocks: int) -> list[bytes]:
        """The sequence's block hashes, at least the first `num_blocks` of them: each is computed once."""
        hashes = sequence.block_hashes
        if self._root is None:
            return hashes
        for index in range(len(hashes), num_blocks):
            parent = hashes[-1] if hashes else self._root(_scope(sequence.request))
            start = index * BLOCK_SIZE
            hashes.append(chain_hash(parent, sequence.tokens[start : start + BLOCK_SIZE]))
        return hashes
