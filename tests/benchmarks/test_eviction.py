from __future__ import annotations

import random
from array import array

import pytest

from benchmarks.eviction import POLICIES, Belady, Lru, hit_rate
from pagetide.block_pool import BlockPool
from pagetide.prefix_index import Content


def requests(seed: int, count: int = 300) -> list[list[int]]:
    """Conversations that grow turn by turn, as ids that name the whole prefix."""
    rng = random.Random(seed)
    conversations = [[conversation * 1000] for conversation in range(12)]
    turns = []
    for _ in range(count):
        conversation = rng.choice(conversations)
        if len(conversation) < 12:
            conversation += range(conversation[-1] + 1, conversation[-1] + rng.randint(1, 3))
        turns.append(conversation[: rng.randint(1, len(conversation))])
    return turns


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("name", POLICIES)
def test_no_policy_hits_more_than_the_optimum(name: str, seed: int) -> None:
    trace = requests(seed)
    for size in (15, 40, 80):
        assert hit_rate(trace, size, POLICIES[name]) <= hit_rate(trace, size, Belady)


@pytest.mark.parametrize("size", [15, 40, 80])
def test_the_block_pool_hits_exactly_what_lru_hits(size: int) -> None:
    trace = requests(7)
    pool, hits = BlockPool(size), 0
    for blocks in trace:
        found = []
        while len(found) < len(blocks) and (block := pool.index.find(b"%d" % blocks[len(found)])) is not None:
            pool.hold(block)
            found.append(block)
        hits += len(found)
        new = pool.allocate(len(blocks) - len(found))
        for block, name in zip(new, blocks[len(found) :], strict=True):
            pool.publish(block, Content(b"%d" % name, b"", array("i")))
        pool.release(reversed([*found, *new]))
    assert hits / sum(map(len, trace)) == hit_rate(trace, size, Lru)
