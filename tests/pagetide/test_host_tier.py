"""The host tier's memory on real tensors, and the tier in a real engine."""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from test_runner import KV_BLOCK_BYTES, WAIT_S, engine, generate, random_prompts

from pagetide.block_pool import BlockPool
from pagetide.build import build
from pagetide.config import Settings, SettingsError
from pagetide.host_memory import HostMemory
from pagetide.kv_pool import HostTier, Moved
from pagetide.prefix_index import Content
from pagetide.request import SamplingParams


def caches(dtype: torch.dtype) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(6, 2, 2, 16, 8, generator=generator).to(dtype) for _ in range(3)]


def wait(memory: HostMemory, ready: Callable[[list[Moved]], bool]) -> list[Moved]:
    moved: list[Moved] = []
    give_up_s = time.monotonic() + WAIT_S
    while not ready(moved):
        assert time.monotonic() < give_up_s
        moved += memory.take_moved()
    return moved


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_block_comes_back_as_it_was(dtype: torch.dtype) -> None:
    kv = caches(dtype)
    memory = HostMemory(kv, num_slots=2)
    memory.save(4, slot=1)
    memory.load(1, block=2)
    moved = wait(memory, lambda moved: len(moved) == 2)
    assert [(m.block, m.slot, m.is_load, m.ok) for m in moved] == [(4, 1, False, True), (2, 1, True, True)]
    for cache, before in zip(kv, caches(dtype), strict=True):
        assert torch.equal(cache[2], before[4])
        assert torch.equal(cache[[0, 1, 3, 4, 5]], before[[0, 1, 3, 4, 5]])


def test_a_damaged_slot_is_noticed_and_not_loaded() -> None:
    kv = caches(torch.float32)
    memory = HostMemory(kv, num_slots=1)
    memory.save(0, slot=0)
    wait(memory, lambda moved: len(moved) == 1)
    memory._slots[0, 1, 0, 0, 3, 5] += 1
    memory.load(0, block=1)
    assert [m.ok for m in wait(memory, lambda moved: len(moved) == 1)] == [False]
    assert torch.equal(kv[0][1], caches(torch.float32)[0][1])


def test_what_a_failed_step_was_to_fill_is_not_kept_although_it_was_saved() -> None:
    """The step failed while a block of it, which nobody held any more, was on its way to the host."""
    pool = BlockPool(2)
    memory = HostMemory(caches(torch.float32), num_slots=2)
    tier = HostTier(pool, 2, memory)
    tokens = array("i", range(16))
    good, bad = pool.allocate(2)
    for block in (good, bad):
        pool.publish(block, Content(bytes([block]), b"root", tokens))
        pool.release([block])
    tier.start_moves(list, lambda: 8, None)
    assert set(tier.pinned) == {good, bad}
    pool.retract(bad)
    give_up_s = time.monotonic() + WAIT_S
    while tier.pinned:
        assert time.monotonic() < give_up_s
        tier.settle()
    assert [bytes([block]) in tier for block in (good, bad)] == [True, False]
    assert [pool.state(block) for block in (good, bad)] == ["cached", "blank"]
    pool.check()


def test_an_engine_with_a_host_tier_gives_the_same_tokens_from_blocks_that_went_and_came_back(
    tiny_llama: Path,
) -> None:
    params = SamplingParams(max_tokens=20, temperature=0.0)
    prompts = random_prompts(16)
    reference = engine(tiny_llama, prefix_cache=False)
    alone = [generate(reference, [prompt], params)[0] for prompt in prompts]
    tiered = engine(tiny_llama, num_blocks=24, host_cache_bytes=200 * KV_BLOCK_BYTES)
    for _ in range(4):
        assert generate(tiered, prompts, params) == alone
    assert tiered.engine._scheduler.tier.num_used > 24
    for built in (reference, tiered):
        assert built.engine.drain(WAIT_S)


def test_more_host_memory_than_the_machine_has_is_refused_with_both_numbers(tiny_llama: Path) -> None:
    settings = Settings.from_mapping({"model": str(tiny_llama), "host_cache_bytes": 2**60})
    with pytest.raises(
        SettingsError, match=rf"host_cache_bytes \({2**60}\).* is \d+ bytes; this machine has \d+ bytes"
    ):
        build(settings, tiny_llama, lambda stats: None)
