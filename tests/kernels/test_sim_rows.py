"""The small CUDA kernels, simulated, against plain torch."""

from __future__ import annotations

import pytest
import torch

from pagetide_kernels.binding import ArgumentError
from pagetide_kernels.device_ops import Activation, DeviceOps
from pagetide_kernels.sim_launch import Simulator

SEED = 3


@pytest.fixture
def ops():
    return DeviceOps(Simulator())


@pytest.fixture(autouse=True)
def fixed_seed():
    torch.manual_seed(SEED)


def randn(*shape, dtype=torch.bfloat16):
    return torch.randn(shape).to(dtype)


def unwritten(*shape, dtype=torch.bfloat16):
    return torch.full(shape, torch.nan, dtype=dtype)


def rms_norm(x, weight, epsilon=1e-5, offset=0.0):
    x = x.float()
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + epsilon) * (weight.float() + offset)


def rotate(x, cos_sin, rotary_dim):
    """x [T, H, D]; cos_sin [T, R]."""
    half = rotary_dim // 2
    cos, sin = cos_sin[:, None, :half], cos_sin[:, None, half:]
    a, b, rest = x[..., :half], x[..., half:rotary_dim], x[..., rotary_dim:]
    return torch.cat((a * cos - b * sin, b * cos + a * sin, rest), dim=-1)


def assert_near(actual, expected, atol=0.016):
    torch.testing.assert_close(actual.float(), expected.float(), rtol=0.008, atol=atol)


@pytest.mark.parametrize("head_dim", [64, 80])
def test_write_kv_fills_exactly_the_named_slots(ops, head_dim):
    cache, before = unwritten(4, 2, 3, 16, head_dim), None
    key, value = randn(5, 3, head_dim), randn(5, 3, head_dim)
    before = cache.clone()
    slots = torch.tensor([17, 0, -1, 63, 31])
    ops.write_kv((cache, key, value, slots))
    expected = before
    for token, slot in enumerate(slots.tolist()):
        if slot >= 0:
            expected[slot // 16, 0, :, slot % 16] = key[token]
            expected[slot // 16, 1, :, slot % 16] = value[token]
    torch.testing.assert_close(cache, expected, rtol=0, atol=0, equal_nan=True)


def test_fp8_rounds_as_torch_does(ops):
    """Every float16 that e4m3 can come near, subnormals and ties included."""
    values = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(torch.float16)
    values = values[values.abs() <= 448].clone()
    values = values[: len(values) // 128 * 128].view(-1, 2, 64)
    cache = torch.zeros(-(-len(values) // 16), 2, 2, 16, 64, dtype=torch.float8_e4m3fn)
    ops.write_kv((cache, values, values, torch.arange(len(values))))
    written = cache[:, 0].permute(0, 2, 1, 3).flatten(0, 1)[: len(values)]
    assert torch.equal(written.view(torch.uint8), values.float().to(torch.float8_e4m3fn).view(torch.uint8))


def test_fp8_saturates_and_divides_by_the_scale(ops):
    cache = torch.zeros(1, 2, 1, 16, 64, dtype=torch.float8_e4m3fn)
    key, value = torch.full((1, 1, 64), 1e4, dtype=torch.bfloat16), torch.full((1, 1, 64), 6.0).bfloat16()
    ops.write_kv((cache, key, value, torch.tensor([0])), (1.0, 4.0))
    assert cache[0, 0, 0, 0].float().unique().tolist() == [448.0]
    assert cache[0, 1, 0, 0].float().unique().tolist() == [1.5]


@pytest.mark.parametrize(("head_dim", "rotary_dim"), [(64, 64), (80, 80), (96, 48), (256, 64)])
@pytest.mark.parametrize("normed", [False, True], ids=["plain", "qk-norm"])
def test_split_qkv_norms_turns_and_writes(ops, head_dim, rotary_dim, normed):
    heads, kv_heads, tokens = 5, 2, 4
    qkv = randn(tokens, heads + 2 * kv_heads, head_dim)
    cos_sin = torch.randn(50, rotary_dim)
    positions, slots = torch.tensor([3, 49, 0, 7]), torch.tensor([5, 16, -1, 40])
    query, cache = unwritten(tokens, heads, head_dim), unwritten(3, 2, kv_heads, 16, head_dim)
    norms = (randn(head_dim), randn(head_dim)) if normed else (None, None)
    ops.split_qkv((query, cache, qkv, cos_sin, positions, slots, *norms), (1e-5, 0.0, 1.0, 1.0))

    q, k, v = qkv.float().split((heads, kv_heads, kv_heads), dim=1)
    if normed:
        q, k = (rms_norm(x, weight).bfloat16().float() for x, weight in ((q, norms[0]), (k, norms[1])))
    assert_near(query, rotate(q, cos_sin[positions], rotary_dim))
    k = rotate(k, cos_sin[positions], rotary_dim)
    for token, slot in enumerate(slots.tolist()):
        if slot >= 0:
            assert_near(cache[slot // 16, 0, :, slot % 16], k[token])
            assert_near(cache[slot // 16, 1, :, slot % 16], v[token])
    assert cache.isnan().sum() == cache.numel() - 3 * 2 * kv_heads * head_dim


@pytest.mark.parametrize("width", [8, 576, 4096])
@pytest.mark.parametrize("offset", [0.0, 1.0])
def test_add_rms_norm_is_right(ops, width, offset):
    residual, x, weight = randn(3, width), randn(3, width), randn(width)
    summed = (residual.float() + x.float()).bfloat16()
    out = unwritten(3, width)
    ops.add_rms_norm((out, residual, x, weight), (1e-5, offset))
    assert torch.equal(residual, summed)
    assert_near(out, rms_norm(summed, weight, offset=offset))


def test_rms_norm_without_input_leaves_the_residual(ops):
    residual, weight = randn(2, 64, dtype=torch.float16), randn(64, dtype=torch.float16)
    before, out = residual.clone(), unwritten(2, 64, dtype=torch.float16)
    ops.add_rms_norm((out, residual, None, weight), (1e-6, 0.0))
    assert torch.equal(residual, before)
    assert_near(out, rms_norm(before, weight, 1e-6))


@pytest.mark.parametrize(
    ("kind", "function"),
    [
        (Activation.SILU, torch.nn.functional.silu),
        (Activation.GELU, torch.nn.functional.gelu),
        (Activation.GELU_TANH, lambda x: torch.nn.functional.gelu(x, approximate="tanh")),
    ],
    ids=["silu", "gelu", "gelu-tanh"],
)
def test_every_activation_is_right(ops, kind, function):
    gate_up, out = randn(3, 2, 2056) * 4, unwritten(3, 2056)
    ops.activate_and_multiply((out, gate_up), kind)
    assert_near(out, function(gate_up[:, 0].float()) * gate_up[:, 1].float())


def test_gathered_rows_are_the_table_s_and_zero_for_an_id_outside(ops):
    rows, ids, out = randn(7, 264), torch.tensor([6, 0, 7, -1, 6]), unwritten(5, 264)
    ops.gather_rows((out, rows, ids))
    expected = torch.stack([rows[6], rows[0], 0 * rows[0], 0 * rows[0], rows[6]])
    assert torch.equal(out, expected)


def test_blocks_come_back_from_a_gather_and_a_scatter(ops):
    cache = randn(9, 2, 1, 16, 64)
    ids, staging = torch.tensor([8, 2, 5]), unwritten(3, 2, 1, 16, 64)
    ops.move_blocks(staging, cache, None, ids)
    assert torch.equal(staging, cache[ids])
    restored = torch.zeros_like(cache)
    ops.move_blocks(restored, staging, ids, None)
    assert torch.equal(restored[ids], cache[ids])
    assert restored.count_nonzero() == cache[ids].count_nonzero()


def test_blocks_are_copied_within_a_cache_and_negative_ids_skipped(ops):
    cache = randn(5, 2, 1, 16, 64)
    expected = cache.clone()
    expected[[3, 1]] = cache[[0, 4]]
    ops.move_blocks(cache, cache, torch.tensor([3, -1, 1]), torch.tensor([0, 2, 4]))
    assert torch.equal(cache, expected)


def test_nothing_to_do_launches_nothing(ops):
    ops.gather_rows((unwritten(0, 64), randn(3, 64), torch.empty(0, dtype=torch.int64)))
    ops.write_kv((unwritten(1, 2, 1, 16, 64), randn(0, 1, 64), randn(0, 1, 64), torch.empty(0).long()))


def test_wrong_arguments_are_named(ops):
    ids = torch.zeros(1, dtype=torch.int64)
    qkv = (randn(1, 2, 64), randn(1, 2, 1, 16, 64), randn(1, 6, 64), torch.randn(1, 64), ids, ids, None, None)
    with pytest.raises(ArgumentError, match="qkv has 6 heads; expected Hq"):
        ops.split_qkv(qkv, (1e-5, 0.0, 1.0, 1.0))
    with pytest.raises(ArgumentError, match="rows 24 bytes apart"):
        ops.add_rms_norm((randn(1, 12), randn(1, 12), None, randn(12)), (1e-5, 0.0))
    with pytest.raises(ArgumentError, match="at least one"):
        ops.move_blocks(randn(1, 2, 1, 16, 64), randn(1, 2, 1, 16, 64), None, None)
