from __future__ import annotations

from array import array

import pytest

from pagetide.block_pool import BlockPool, OutOfBlocksError, chain_hash, chain_root
from pagetide.prefix_index import Content


def named(name: bytes) -> Content:
    return Content(name, b"", array("i"))


def test_more_blocks_than_free_are_refused_and_none_is_taken() -> None:
    pool = BlockPool(4)
    pool.allocate(3)
    with pytest.raises(OutOfBlocksError, match="2 blocks asked for, 1 free"):
        pool.allocate(2)
    assert pool.num_free == 1
    pool.check()


def test_a_released_block_is_found_until_it_is_handed_out_again() -> None:
    pool = BlockPool(2)
    (block,) = pool.allocate(1)
    pool.publish(block, named(b"content"))
    pool.release([block])
    assert pool.index.find(b"content") == block
    pool.allocate(2)
    assert pool.index.find(b"content") is None
    pool.check()


def test_children_are_evicted_before_their_parents_and_least_recently_used_first() -> None:
    pool = BlockPool(3)
    table = pool.allocate(3)
    for block, name in zip(table, (b"parent", b"child", b"grandchild"), strict=True):
        pool.publish(block, named(name))
    pool.release(reversed(table))
    pool.allocate(1)
    assert pool.index.find(b"grandchild") is None
    pool.allocate(1)
    assert pool.index.find(b"child") is None
    assert pool.index.find(b"parent") is not None


def test_a_hit_block_is_freed_only_after_its_last_holder() -> None:
    pool = BlockPool(2)
    (block,) = pool.allocate(1)
    pool.publish(block, named(b"shared"))
    pool.hold(block)
    pool.release([block])
    assert pool.is_held(block)
    pool.release([block])
    assert not pool.is_held(block)
    pool.check()


def test_the_first_block_with_a_content_keeps_the_name() -> None:
    pool = BlockPool(2)
    first, second = pool.allocate(2)
    assert pool.publish(first, named(b"same"))
    assert not pool.publish(second, named(b"same"))
    pool.release([second])
    assert pool.num_cached == 0
    assert pool.index.find(b"same") == first
    pool.check()


def test_a_retracted_block_is_not_found_and_becomes_blank() -> None:
    pool = BlockPool(1)
    (block,) = pool.allocate(1)
    pool.publish(block, named(b"never written"))
    pool.retract(block)
    pool.release([block])
    assert pool.index.find(b"never written") is None
    assert pool.num_cached == 0
    pool.check()


def test_a_block_that_nobody_holds_any_more_becomes_blank_when_it_is_retracted() -> None:
    pool = BlockPool(1)
    (block,) = pool.allocate(1)
    pool.publish(block, named(b"never written"))
    pool.release([block])
    pool.retract(block)
    assert pool.num_cached == 0
    assert pool.state(block) == "blank"
    pool.check()


def test_check_notices_a_lost_block() -> None:
    pool = BlockPool(2)
    pool._blank.pop()
    with pytest.raises(RuntimeError, match="blocks lost"):
        pool.check()


def test_hashes_depend_on_weights_salt_parent_and_tokens() -> None:
    tokens = array("i", range(16))
    roots = [
        chain_root(b"w1", b""),
        chain_root(b"w2", b""),
        chain_root(b"w1", b"tenant"),
        chain_root(b"w", b"1"),
    ]
    hashes = {chain_hash(root, tokens) for root in roots}
    hashes.add(chain_hash(chain_hash(roots[0], tokens), tokens))
    hashes.add(chain_hash(roots[0], array("i", range(1, 17))))
    assert len(hashes) == 6
