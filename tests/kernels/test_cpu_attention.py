"""Paged attention in C++ against the float32 torch reference, with every instruction set this CPU has."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from pagetide_kernels import cpu

TOLERANCE = {torch.bfloat16: 0.008, torch.float32: 1e-5}
RAGGED = [(1, 700), (1, 17), (5, 5), (0, 0), (40, 300), (0, 33), (17, 600), (1, 0), (1, 1), (3, 64)]


@pytest.fixture(params=cpu.ISAS)
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    if request.param not in cpu.supported_isas():
        pytest.skip(f"this CPU has no {request.param}")
    with cpu.use_isa(request.param):
        yield request.param


@pytest.fixture(params=[torch.bfloat16, torch.float32], ids=["bf16", "f32"])
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    return request.param


def assert_right(case, out=None):
    out = case.run() if out is None else out
    assert out.dtype == case.query.dtype
    torch.testing.assert_close(out.float(), case.expected(), rtol=0, atol=TOLERANCE[out.dtype])


@pytest.mark.parametrize("queries", [1, 2, 3])
def test_every_kv_length_around_a_tile_is_right(make_case, isa, dtype, queries):
    assert_right(make_case([(queries, kv_len) for kv_len in range(queries, 131)], dtype=dtype))


@pytest.mark.parametrize("kv_len", [255, 256, 257, 511, 512, 513, 1039])
def test_lengths_around_a_partition_are_right(make_case, isa, dtype, kv_len):
    assert_right(make_case([(1, kv_len), (20, kv_len)], dtype=dtype))


@pytest.mark.parametrize("head_size", range(16, 257, 16))
def test_every_head_size_is_right(make_case, isa, dtype, head_size):
    assert_right(make_case(RAGGED, heads=4, kv_heads=2, head_size=head_size, dtype=dtype))


@pytest.mark.parametrize("group", range(1, 17))
def test_every_group_size_is_right(make_case, isa, dtype, group):
    assert_right(make_case(RAGGED, heads=2 * group, kv_heads=2, head_size=32, dtype=dtype))


def test_more_heads_of_a_group_than_rows_of_a_work_item_are_right(make_case, isa, dtype):
    assert_right(make_case(RAGGED, heads=71, kv_heads=1, head_size=32, dtype=dtype))


@pytest.mark.parametrize("window", [1, 2, 15, 16, 17, 63, 64, 65, 250, 256, 5000])
def test_every_window_is_right(make_case, isa, dtype, window):
    assert_right(make_case(RAGGED, dtype=dtype, window=window))


def test_blocks_that_left_the_window_are_never_read(make_case, isa, dtype):
    case = make_case([(3, 400)], dtype=dtype, window=30)
    first_seen = (400 - 3 - 30 + 1) // 16
    case.block_table[0, :first_seen] = -1
    expected = make_case([(3, 400)], dtype=dtype, window=30).expected()
    torch.testing.assert_close(case.run().float(), expected, rtol=0, atol=TOLERANCE[dtype])


@pytest.mark.parametrize("soft_cap", [0.5, 5.0, 50.0])
def test_every_soft_cap_is_right(make_case, isa, dtype, soft_cap):
    assert_right(make_case(RAGGED, dtype=dtype, soft_cap=soft_cap))


def test_window_and_soft_cap_together_are_right(make_case, isa, dtype):
    assert_right(make_case(RAGGED, heads=8, kv_heads=2, dtype=dtype, window=77, soft_cap=3.0))


def test_large_scores_do_not_overflow(make_case, isa, dtype):
    case = make_case(RAGGED, dtype=dtype)
    case.query.mul_(1000.0)
    out = case.run().float()
    assert out.isfinite().all()
    torch.testing.assert_close(out, case.expected(), rtol=0, atol=0.02)


def test_a_sequence_without_kv_gets_zeros(make_case, isa, dtype):
    case = make_case([(4, 0), (1, 20)], dtype=dtype)
    assert (case.run()[:4] == 0).all()


def test_a_sequence_without_kv_beside_one_that_is_shared_out_to_threads_gets_zeros(make_case, isa, dtype):
    """Once divided by the number of its partitions, which is none."""
    case = make_case([(1, 0), (1, 3000)], dtype=dtype)
    assert (case.run()[:1] == 0).all()
    assert_right(case)


def test_a_call_without_sequences_or_tokens_does_nothing(make_case, isa, dtype):
    assert make_case([], dtype=dtype).run().shape == (0, 3, 64)
    assert make_case([(0, 5)], dtype=dtype).run().shape == (0, 3, 64)


def test_rows_that_no_sequence_owns_stay_as_they_are(make_case, isa, dtype):
    case = make_case([(2, 9)], dtype=dtype)
    query = torch.cat([torch.full_like(case.query, torch.nan)] * 2 + [case.query, case.query])
    out = torch.full_like(query, 7.0)
    case.run(query=query, out=out, query_starts=torch.tensor([4, 6], dtype=torch.int32))
    assert (out[:4] == 7).all()
    assert (out[6:] == 7).all()
    assert_right(case, out[4:6])


def test_rows_may_lie_apart(make_case, isa, dtype):
    case = make_case(RAGGED, heads=6, kv_heads=2, dtype=dtype)
    packed = torch.cat([case.query, torch.full_like(case.query, torch.nan)], dim=1)
    out = torch.empty_like(packed)
    layers = torch.full((case.kv_cache.shape[0], 3, *case.kv_cache.shape[1:]), torch.nan, dtype=dtype)
    layers[:, 1] = case.kv_cache
    table = torch.nn.functional.pad(case.block_table, (0, 9), value=-1)[:, : case.block_table.shape[1]]
    case.run(query=packed[:, :6], kv_cache=layers[:, 1], block_table=table, out=out[:, :6])
    assert_right(case, out[:, :6])


def test_nan_in_a_sequences_own_kv_reaches_its_output_and_no_other(make_case, isa, dtype):
    case = make_case([(1, 100), (1, 100)], dtype=dtype)
    case.kv_cache[int(case.block_table[0, 2])] = torch.nan
    out = case.run()
    assert out[0].isnan().all()
    assert out[1].isfinite().all()
