"""Attention over an e4m3 cache, simulated, against the float32 reference on what the cache holds."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from pagetide_kernels.device_ops import DeviceOps
from pagetide_kernels.device_signatures import HEAD_DIMS
from pagetide_kernels.sim_launch import Simulator

TOLERANCE = 0.008
RAGGED = [(1, 700), (1, 17), (5, 5), (0, 0), (40, 300), (16, 90), (1, 0), (1, 1), (70, 70)]


def assert_right(case, key_scale=1.0, value_scale=1.0):
    """The cache is rounded to e4m3 with its scales; the reference reads what that leaves."""
    scales = torch.tensor([key_scale, value_scale]).view(1, 2, 1, 1, 1)
    stored = (case.kv_cache.float() / scales).to(torch.float8_e4m3fn)
    expected = replace(case, kv_cache=stored.float() * scales, query=case.query.float()).expected()
    out = torch.full_like(case.query, torch.nan)
    tensors = (out, case.query, stored, case.block_table, case.query_starts, case.kv_lens)
    DeviceOps(Simulator()).paged_attention(
        tensors, (case.scale, case.window, case.soft_cap, key_scale, value_scale)
    )
    torch.testing.assert_close(out.float(), expected, rtol=0.004, atol=TOLERANCE)


@pytest.mark.parametrize("head_dim", HEAD_DIMS)
def test_every_head_size_is_right(make_case, head_dim):
    assert_right(make_case(RAGGED, heads=8, kv_heads=2, head_size=head_dim, dtype=torch.bfloat16))


@pytest.mark.parametrize("queries", [1, 3])
def test_every_kv_length_around_a_block_is_right(make_case, queries):
    lens = [(queries, kv_len) for kv_len in range(queries, 67)]
    assert_right(make_case(lens, heads=8, kv_heads=2, dtype=torch.bfloat16))


@pytest.mark.parametrize(("key_scale", "value_scale"), [(0.25, 1.0), (1.0, 0.01), (3.0, 0.5)])
def test_scales_are_folded_in(make_case, key_scale, value_scale):
    assert_right(make_case(RAGGED, heads=6, kv_heads=2, dtype=torch.bfloat16), key_scale, value_scale)


def test_half_precision_queries_window_and_cap_are_right(make_case):
    assert_right(make_case(RAGGED, heads=4, kv_heads=2, dtype=torch.float16, window=50, soft_cap=4.0), 0.5)


def test_every_e4m3_value_is_read_exactly():
    """One key a sequence: the output is the value itself."""
    codes = torch.arange(256, dtype=torch.uint8)
    codes = codes[(codes & 0x7F) != 0x7F].repeat(2)[:448].view(7, 64)
    cache = torch.zeros(7, 2, 1, 16, 64, dtype=torch.float8_e4m3fn)
    cache[:, 1, 0, 0] = codes.view(torch.float8_e4m3fn)
    query, out = torch.ones(7, 1, 64, dtype=torch.bfloat16), torch.empty(7, 1, 64, dtype=torch.bfloat16)
    table = torch.arange(7, dtype=torch.int32)[:, None].contiguous()
    starts, lens = torch.arange(8, dtype=torch.int32), torch.ones(7, dtype=torch.int32)
    DeviceOps(Simulator()).paged_attention((out, query, cache, table, starts, lens), (0.125, 0, 0.0))
    assert torch.equal(out[:, 0].float(), codes.view(torch.float8_e4m3fn).float())
