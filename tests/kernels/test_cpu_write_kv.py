"""Writing keys and values to the paged cache."""

from __future__ import annotations

import pytest
import torch

from pagetide_kernels import ops, reference
from pagetide_kernels.binding import ArgumentError


def new_tokens(num_tokens, kv_heads=3, head_size=32, dtype=torch.bfloat16, blocks=9):
    generator = torch.Generator().manual_seed(num_tokens)
    key, value = torch.randn(2, num_tokens, kv_heads, head_size, generator=generator).to(dtype)
    cache = torch.full((blocks, 2, kv_heads, 16, head_size), torch.nan, dtype=dtype)
    slots = torch.randperm(blocks * 16, generator=generator)[:num_tokens]
    return key, value, cache, slots


def assert_written(key, value, cache, slots):
    expected = cache.clone()
    reference.write_kv(key, value, expected, slots)
    ops.write_kv(key, value, cache, slots)
    assert torch.equal(cache.view(torch.uint8), expected.view(torch.uint8))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=["bf16", "f32"])
@pytest.mark.parametrize("head_size", [16, 64, 80, 256])
@pytest.mark.parametrize("num_tokens", [0, 1, 17, 140])
def test_tokens_land_in_their_slots_and_nowhere_else(dtype, head_size, num_tokens):
    assert_written(*new_tokens(num_tokens, head_size=head_size, dtype=dtype))


def test_enough_tokens_for_several_threads_land_in_their_slots():
    assert_written(*new_tokens(3000, head_size=128, blocks=200))


def test_a_negative_slot_writes_nothing():
    key, value, cache, slots = new_tokens(20)
    slots[::3] = -1
    slots[1] = -(2**40)
    assert_written(key, value, cache, slots)


def test_keys_and_values_may_be_views_of_one_projection():
    generator = torch.Generator().manual_seed(0)
    projection = torch.randn(5, 3 + 2 + 2, 64, generator=generator)
    cache = torch.zeros(4, 2, 2, 16, 64)
    assert_written(projection[:, 3:5], projection[:, 5:], cache, torch.tensor([3, 60, 17, 0, 31]))


def test_a_slot_outside_the_cache_is_refused_before_anything_is_written():
    key, value, cache, slots = new_tokens(4, blocks=2)
    slots[2] = 32
    with pytest.raises(ArgumentError, match=r"slots\[2\] is 32; expected less than 32"):
        ops.write_kv(key, value, cache, slots)
    assert cache.isnan().all()
