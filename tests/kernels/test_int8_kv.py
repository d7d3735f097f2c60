"""A KV cache of 8-bit codes with a scale for each token and head: what is written, and attention over it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from pagetide_kernels import cpu, ops
from pagetide_kernels.binding import ArgumentError

DTYPES = {torch.bfloat16: (0.004, 0.008), torch.float32: (1e-5, 1e-5)}
RAGGED = [(1, 700), (1, 17), (5, 5), (0, 0), (40, 300), (16, 90), (1, 0), (1, 1), (70, 70)]


@pytest.fixture(params=cpu.ISAS)
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    if request.param not in cpu.supported_isas():
        pytest.skip(f"this CPU has no {request.param}")
    with cpu.use_isa(request.param):
        yield request.param


def empty_cache(num_blocks: int, kv_heads: int, head_dim: int) -> torch.Tensor:
    """Scales that are NaN."""
    shape = ops.kv_cache_shape(num_blocks, kv_heads, head_dim, torch.int8)
    return ops.empty(shape, torch.int8, torch.device("cpu")).fill_(-1)


def split(cache: torch.Tensor, head_dim: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes [N, 2, Hkv, 16, D] and scales [N, 2, Hkv, 16]."""
    codes, scales = cache.split([16 * head_dim, 64], dim=-1)
    return codes.unflatten(-1, (16, head_dim)), scales.contiguous().view(torch.float32)


def dequantised(cache: torch.Tensor, head_dim: int) -> torch.Tensor:
    codes, scales = split(cache, head_dim)
    return codes.float() * scales[..., None]


def quantised(kv_cache: torch.Tensor) -> torch.Tensor:
    """A case's cache written token by token; what is NaN in it is not written."""
    num_blocks, _, kv_heads, _, head_dim = kv_cache.shape
    cache = empty_cache(num_blocks, kv_heads, head_dim)
    key, value = kv_cache.permute(1, 0, 3, 2, 4).flatten(1, 2)
    slots = torch.arange(num_blocks * 16)
    slots[key.flatten(1).isnan().any(1)] = -1
    ops.write_kv(key.contiguous(), value.contiguous(), cache, slots)
    return cache


def assert_right(case) -> None:
    cache = quantised(case.kv_cache)
    read = dequantised(cache, case.query.shape[-1])
    expected = replace(case, kv_cache=read, query=case.query.float()).expected()
    relative, absolute = DTYPES[case.query.dtype]
    out = replace(case, kv_cache=cache).run(out=torch.full_like(case.query, torch.nan))
    torch.testing.assert_close(out.float(), expected, rtol=relative, atol=absolute)


@pytest.mark.parametrize("dtype", DTYPES, ids=["bf16", "f32"])
@pytest.mark.parametrize("head_dim", [16, 48, 64, 80, 128, 256])
def test_every_head_size_is_right(isa, make_case, head_dim, dtype):
    assert_right(make_case(RAGGED, heads=8, kv_heads=2, head_size=head_dim, dtype=dtype))


@pytest.mark.parametrize("queries", [1, 3])
def test_every_kv_length_around_a_block_is_right(isa, make_case, queries):
    lens = [(queries, kv_len) for kv_len in range(queries, 67)]
    assert_right(make_case(lens, heads=6, kv_heads=2, dtype=torch.bfloat16))


@pytest.mark.parametrize("dtype", DTYPES, ids=["bf16", "f32"])
def test_window_and_cap_are_right(isa, make_case, dtype):
    assert_right(make_case(RAGGED, heads=4, kv_heads=2, dtype=dtype, window=50, soft_cap=4.0))


def test_a_result_depends_neither_on_the_batch_nor_on_the_chunk(isa, make_case):
    case = make_case(RAGGED, heads=6, kv_heads=2, dtype=torch.bfloat16)
    case = replace(case, kv_cache=quantised(case.kv_cache))
    together = case.run()
    for sequence in (0, 4, 5, 8):
        rows = case.rows(sequence)
        assert torch.equal(case.only(sequence).run(), together[rows])
        count = rows.stop - rows.start
        assert torch.equal(
            case.only(sequence, last=count - count // 2).run(), together[rows][: count - count // 2]
        )


@pytest.mark.parametrize("dtype", DTYPES, ids=["bf16", "f32"])
def test_a_token_is_written_with_the_scale_that_its_largest_value_needs(dtype):
    generator = torch.Generator().manual_seed(0)
    key, value = torch.randn(2, 40, 3, 48, generator=generator).to(dtype)
    key[3, 1] = 0
    key[4] *= 1000
    slots = torch.randperm(64, generator=generator)[:40]
    cache = empty_cache(4, 3, 48)
    ops.write_kv(key, value, cache, slots)
    codes, scales = (part.permute(1, 0, 3, 2, *range(4, part.dim())) for part in split(cache, 48))
    for written, given in enumerate((key, value)):
        rows = given.float()
        at = codes[written].flatten(0, 1)[slots], scales[written].flatten(0, 1)[slots]
        torch.testing.assert_close(at[1], rows.abs().amax(-1) / 127)
        error = (at[0].float() * at[1][..., None] - rows).abs()
        assert (error <= 0.5001 * at[1][..., None]).all()


def test_a_negative_slot_writes_nothing():
    key, cache = torch.ones(1, 1, 64), empty_cache(2, 1, 64)
    ops.write_kv(key, key, cache, torch.tensor([-1]))
    assert (cache == -1).all()


def test_a_wrong_cache_is_named():
    key, slots = torch.zeros(1, 1, 64), torch.zeros(1, dtype=torch.int64)
    narrow = torch.zeros(1, 2, 1, 1024, dtype=torch.int8)
    with pytest.raises(
        ArgumentError, match=r"write_kv_int8: kv_cache is of size 1024; expected 16 D \+ 64 = 1088"
    ):
        ops.write_kv(key, key, narrow, slots)
    rows = torch.zeros(1, 2, 1, 16, 64, dtype=torch.int8)
    with pytest.raises(
        ArgumentError, match=r"write_kv_int8: kv_cache is of shape \[1, 2, 1, 16, 64\]; expected"
    ):
        ops.write_kv(key, key, rows, slots)
    with pytest.raises(ArgumentError, match=r"write_kv: slots\[0\] is 16; expected less than 16"):
        ops.write_kv(key, key, empty_cache(1, 1, 64), slots + 16)
