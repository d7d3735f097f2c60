"""What happens to rows between matrix products, on every device, against float32 torch."""

from __future__ import annotations

import pytest
import torch

from pagetide_kernels import ops
from pagetide_kernels.binding import ArgumentError
from pagetide_kernels.signatures import ACTIVATIONS

FUNCTIONS = {
    "silu": torch.nn.functional.silu,
    "gelu": torch.nn.functional.gelu,
    "gelu_tanh": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
    "relu": torch.relu,
}


@pytest.fixture(autouse=True)
def fixed_seed():
    torch.manual_seed(3)


def randn(*shape, dtype=torch.bfloat16):
    return torch.randn(shape).to(dtype)


def unwritten(*shape, dtype=torch.bfloat16):
    return torch.full(shape, torch.nan, dtype=dtype)


def rms_norm(x, weight, epsilon=1e-5):
    x = x.float()
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + epsilon) * weight


def angles(positions, rotary_dim):
    """As `layers.Rotary` gives them: cos and sin [T, 1, R], the halves alike but for the sign of sin."""
    half = torch.outer(positions.float(), 0.3 ** torch.arange(rotary_dim // 2))
    cos, sin = half.cos(), half.sin()
    return torch.cat((cos, cos), -1)[:, None], torch.cat((-sin, sin), -1)[:, None]


def rotate(x, positions, rotary_dim):
    """x [T, H, D], by complex numbers."""
    turn = torch.polar(torch.ones(1), torch.outer(positions.float(), 0.3 ** torch.arange(rotary_dim // 2)))
    a, b, rest = x.float().split((rotary_dim // 2, rotary_dim // 2, x.shape[-1] - rotary_dim), -1)
    turned = torch.complex(a, b) * turn[:, None]
    return torch.cat((turned.real, turned.imag, rest), -1)


def assert_near(actual, expected, atol=0.016):
    torch.testing.assert_close(actual.float().cpu(), expected.float(), rtol=0.008, atol=atol)


@pytest.mark.parametrize("head_dim", [64, 80])
def test_write_kv_fills_exactly_the_named_slots(device, head_dim):
    cache = unwritten(4, 2, 3, 16, head_dim).to(device)
    key, value = randn(5, 3, head_dim).to(device), randn(5, 3, head_dim).to(device)
    expected = cache.clone()
    slots = torch.tensor([17, 0, -1, 63, 31])
    ops.write_kv(key, value, cache, slots.to(device))
    for token, slot in enumerate(slots.tolist()):
        if slot >= 0:
            expected[slot // 16, 0, :, slot % 16] = key[token]
            expected[slot // 16, 1, :, slot % 16] = value[token]
    torch.testing.assert_close(cache, expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize(("head_dim", "rotary_dim"), [(64, 64), (80, 80), (96, 48), (256, 64)])
@pytest.mark.parametrize("normed", [False, True], ids=["plain", "qk-norm"])
def test_split_qkv_norms_turns_and_writes(device, head_dim, rotary_dim, normed):
    heads, kv_heads, tokens = 5, 2, 4
    qkv = randn(tokens, heads + 2 * kv_heads, head_dim)
    positions, slots = torch.tensor([3, 49, 0, 7]), torch.tensor([5, 16, -1, 40])
    cos, sin = (part.to(device) for part in angles(positions, rotary_dim))
    cache = unwritten(3, 2, kv_heads, 16, head_dim).to(device)
    norm = torch.randn(heads + kv_heads, head_dim) if normed else None
    place = (cache, slots.to(device), norm if norm is None else norm.to(device))
    query = ops.split_qkv(qkv.clone().to(device), cos, sin, *place, epsilon=1e-5)

    q, k, v = qkv.float().split((heads, kv_heads, kv_heads), dim=1)
    if norm is not None:
        q, k = (rms_norm(x, w).bfloat16() for x, w in ((q, norm[:heads]), (k, norm[heads:])))
    assert_near(query, rotate(q, positions, rotary_dim))
    k = rotate(k, positions, rotary_dim)
    for token, slot in enumerate(slots.tolist()):
        if slot >= 0:
            assert_near(cache[slot // 16, 0, :, slot % 16], k[token])
            assert_near(cache[slot // 16, 1, :, slot % 16], v[token])
    assert cache.isnan().sum() == cache.numel() - 3 * 2 * kv_heads * head_dim


@pytest.mark.parametrize("width", [8, 576, 4096])
def test_add_rms_norm_is_right(device, width):
    residual, added, weight = randn(3, width), randn(3, width), torch.randn(width)
    summed = (residual.float() + added.float()).bfloat16()
    changed = residual.to(device)
    out = ops.add_rms_norm(changed, added.to(device), weight.to(device), 1e-5)
    assert torch.equal(changed.cpu(), summed)
    assert_near(out, rms_norm(summed, weight))


def test_rms_norm_of_nothing_added_leaves_the_residual(device):
    residual, weight = randn(2, 64), torch.randn(64)
    kept = residual.to(device)
    out = ops.add_rms_norm(kept, None, weight.to(device), 1e-6)
    assert torch.equal(kept.cpu(), residual)
    assert_near(out, rms_norm(residual, weight, 1e-6))


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_every_activation_is_right(device, activation):
    gate_up = randn(3, 2, 2056) * 4
    out = ops.activate_and_multiply(gate_up.to(device), activation)
    assert_near(out, FUNCTIONS[activation](gate_up[:, 0].float()) * gate_up[:, 1].float())


def test_gathered_rows_are_the_table_s(device):
    table, ids = randn(7, 264).to(device), torch.tensor([6, 0, 3, 6], device=device)
    assert torch.equal(ops.gather_rows(table, ids), table[ids])


def test_blocks_come_back_from_a_gather_and_a_scatter(device):
    cache, ids = randn(9, 2, 1, 16, 64).to(device), torch.tensor([8, 2, 5], device=device)
    staging, restored = torch.full_like(cache[:3], torch.nan), torch.zeros_like(cache)
    ops.move_blocks(staging, cache, source_ids=ids)
    assert torch.equal(staging, cache[ids])
    ops.move_blocks(restored, staging, to_ids=ids)
    assert torch.equal(restored[ids], cache[ids])
    assert restored.count_nonzero() == cache[ids].count_nonzero()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn], ids=["bf16", "e4m3"])
def test_blocks_are_copied_within_a_cache_and_negative_ids_skipped(device, dtype):
    cache = randn(5, 2, 1, 16, 64).to(dtype).to(device)
    expected = cache.float()
    expected[[3, 1]] = expected[[0, 4]]
    to_ids, source_ids = torch.tensor([3, -1, 1], device=device), torch.tensor([0, 2, 4], device=device)
    ops.move_blocks(cache, cache, to_ids, source_ids)
    assert torch.equal(cache.float(), expected)


def test_nothing_to_do_is_nothing_done(device):
    nothing = torch.empty(0, dtype=torch.int64, device=device)
    cache, rows = unwritten(1, 2, 1, 16, 64).to(device), randn(3, 64).to(device)
    assert ops.gather_rows(rows, nothing).shape == (0, 64)
    assert ops.add_rms_norm(rows[:0], None, torch.ones(64, device=device), 1e-5).shape == (0, 64)
    none = rows[:0].view(0, 1, 64)
    ops.write_kv(none, none, cache, nothing)
    assert cache.isnan().all()


def test_half_precision_is_right_where_tensor_cores_know_it():
    with ops.simulated_cuda():
        residual, weight = randn(2, 64, dtype=torch.float16), torch.randn(64)
        assert_near(ops.add_rms_norm(residual, None, weight, 1e-6), rms_norm(residual, weight, 1e-6))


def test_rows_that_vectors_cannot_read_are_refused_by_name():
    with (
        ops.simulated_cuda(),
        pytest.raises(ArgumentError, match=r"residual is at .* rows 24 bytes apart; expected .* 16 bytes"),
    ):
        ops.add_rms_norm(randn(2, 12), None, torch.ones(12), 1e-5)


def test_an_id_outside_gives_zeros_and_is_never_read():
    with ops.simulated_cuda():
        out = ops.gather_rows(randn(7, 64), torch.tensor([7, -1]))
    assert out.count_nonzero() == 0


@pytest.mark.parametrize("num_threads", [2, 3])
@pytest.mark.parametrize("width", [96, 128, 176])
def test_a_cpus_threads_change_no_bit_of_an_activation(num_threads, width):
    before = torch.get_num_threads()
    gate_up = randn(747, 2, width, dtype=torch.float32)
    torch.set_num_threads(num_threads)
    try:
        together = ops.activate_and_multiply(gate_up, "silu")
        alone = torch.cat([ops.activate_and_multiply(row, "silu") for row in gate_up.split(1)])
    finally:
        torch.set_num_threads(before)
    assert torch.equal(together, alone)
