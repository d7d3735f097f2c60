"""A KV cache in e4m3, simulated or on a GPU: what is written, and attention over what the cache holds."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from pagetide_kernels import ops
from pagetide_kernels.binding import ArgumentError
from pagetide_kernels.device_signatures import HEAD_DIMS

E4M3 = torch.float8_e4m3fn
TOLERANCE = 0.008
RAGGED = [(1, 700), (1, 17), (5, 5), (0, 0), (40, 300), (16, 90), (1, 0), (1, 1), (70, 70)]


@pytest.fixture
def assert_right(cuda_device):
    """assert_right(case, key_scale, value_scale): over the case's cache, rounded to e4m3 with these scales,
    attention gives what the reference reads out of it."""

    def assert_right(case, key_scale=1.0, value_scale=1.0):
        scales = torch.tensor([key_scale, value_scale]).view(1, 2, 1, 1, 1)
        stored = (case.kv_cache.float() / scales).to(E4M3)
        expected = replace(case, kv_cache=stored.float() * scales, query=case.query.float()).expected()
        moved = replace(case, kv_cache=stored).to(cuda_device)
        nan = torch.full_like(moved.query, torch.nan)
        out = moved.run(out=nan, key_scale=key_scale, value_scale=value_scale)
        torch.testing.assert_close(out.float().cpu(), expected, rtol=0.004, atol=TOLERANCE)

    return assert_right


@pytest.mark.parametrize("head_dim", HEAD_DIMS)
def test_every_head_size_is_right(assert_right, make_case, head_dim):
    assert_right(make_case(RAGGED, heads=8, kv_heads=2, head_size=head_dim, dtype=torch.bfloat16))


@pytest.mark.parametrize("queries", [1, 3])
def test_every_kv_length_around_a_block_is_right(assert_right, make_case, queries):
    lens = [(queries, kv_len) for kv_len in range(queries, 67)]
    assert_right(make_case(lens, heads=8, kv_heads=2, dtype=torch.bfloat16))


@pytest.mark.parametrize(("key_scale", "value_scale"), [(0.25, 1.0), (1.0, 0.01), (3.0, 0.5)])
def test_scales_are_folded_in(assert_right, make_case, key_scale, value_scale):
    assert_right(make_case(RAGGED, heads=6, kv_heads=2, dtype=torch.bfloat16), key_scale, value_scale)


def test_half_precision_queries_window_and_cap_are_right(assert_right, make_case):
    assert_right(make_case(RAGGED, heads=4, kv_heads=2, dtype=torch.float16, window=50, soft_cap=4.0), 0.5)


def test_every_e4m3_value_is_read_exactly(cuda_device):
    """One key a sequence: the output is the value itself."""
    codes = torch.arange(256, dtype=torch.uint8)
    codes = codes[(codes & 0x7F) != 0x7F].repeat(2)[:448].view(7, 64)
    cache = torch.zeros(7, 2, 1, 16, 64, dtype=E4M3)
    cache[:, 1, 0, 0] = codes.view(E4M3)
    query, table = torch.ones(7, 1, 64, dtype=torch.bfloat16), torch.arange(7, dtype=torch.int32)[:, None]
    starts, lens = torch.arange(8, dtype=torch.int32), torch.ones(7, dtype=torch.int32)
    moved = (tensor.contiguous().to(cuda_device) for tensor in (query, cache, table, starts, lens))
    out = ops.paged_attention(*moved, scale=0.125)
    assert torch.equal(out[:, 0].float().cpu(), codes.view(E4M3).float())


def test_writing_rounds_as_torch_does(cuda_device):
    """Every float16 that e4m3 can come near, subnormals and ties included."""
    values = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(torch.float16)
    values = values[values.abs() <= 448].clone()
    values = values[: len(values) // 128 * 128].view(-1, 2, 64)
    cache = torch.zeros(-(-len(values) // 16), 2, 2, 16, 64, dtype=E4M3, device=cuda_device)
    moved = values.to(cuda_device)
    ops.write_kv(moved, moved, cache, torch.arange(len(values), device=cuda_device))
    written = cache.cpu()[:, 0].permute(0, 2, 1, 3).flatten(0, 1)[: len(values)]
    assert torch.equal(written.view(torch.uint8), values.float().to(E4M3).view(torch.uint8))


def test_writing_divides_by_the_scale_and_saturates(cuda_device):
    cache = torch.zeros(1, 2, 1, 16, 64, dtype=E4M3, device=cuda_device)
    key = torch.full((1, 1, 64), 1e4, dtype=torch.bfloat16, device=cuda_device)
    value = torch.full_like(key, 6.0)
    ops.write_kv(key, value, cache, torch.tensor([0], device=cuda_device), value_scale=4.0)
    assert cache[0, 0, 0, 0].float().unique().tolist() == [448.0]
    assert cache[0, 1, 0, 0].float().unique().tolist() == [1.5]


def test_the_fused_write_stores_what_the_plain_one_does(cuda_device):
    generator = torch.Generator().manual_seed(2)
    qkv = torch.randn(3, 4 + 2 * 2, 64, generator=generator).bfloat16().to(cuda_device)
    cos, sin = (torch.full((3, 1, 64), x, device=cuda_device) for x in (1.0, 0.0))  # turns nothing
    slots = torch.tensor([2, 31, -1], device=cuda_device)
    fused, plain = (torch.zeros(2, 2, 2, 16, 64, dtype=E4M3, device=cuda_device) for _ in range(2))
    scales = {"key_scale": 0.5, "value_scale": 2.0}
    query = ops.split_qkv(qkv.clone(), cos, sin, fused, slots, **scales)
    ops.write_kv(qkv[:, 4:6], qkv[:, 6:], plain, slots, **scales)
    assert torch.equal(query, qkv[:, :4])
    assert torch.equal(fused.view(torch.uint8), plain.view(torch.uint8))


def test_a_cpu_has_no_such_cache_and_says_so():
    key, slots = torch.zeros(1, 1, 64, dtype=torch.bfloat16), torch.zeros(1, dtype=torch.int64)
    with pytest.raises(ArgumentError, match="kv_cache is of dtype float8_e4m3fn; expected bfloat16 or"):
        ops.write_kv(key, key, torch.zeros(1, 2, 1, 16, 64, dtype=E4M3), slots)
    cache = torch.zeros(1, 2, 1, 16, 64, dtype=torch.bfloat16)
    with pytest.raises(ArgumentError, match="write_kv: key_scale is 2; expected 1 on a CPU"):
        ops.write_kv(key, key, cache, slots, key_scale=2.0)


def test_a_cache_in_another_format_or_without_a_scale_is_refused(cuda_device):
    key = torch.zeros(1, 1, 64, dtype=torch.bfloat16, device=cuda_device)
    slots = torch.zeros(1, dtype=torch.int64, device=cuda_device)
    halves = torch.zeros(1, 2, 1, 16, 64, dtype=torch.float16, device=cuda_device)
    with pytest.raises(ArgumentError, match="write_kv: kv_cache is f16 and key bf16; expected the same"):
        ops.write_kv(key, key, halves, slots)
    with pytest.raises(ArgumentError, match=r"write_kv: value_scale is 0\.0; expected more than 0"):
        ops.write_kv(key, key, halves.to(E4M3), slots, value_scale=0.0)
