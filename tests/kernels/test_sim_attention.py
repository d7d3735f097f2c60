"""The CUDA attention kernels, simulated, against the float32 torch reference.

Whatever a sequence does not own is NaN (conftest.py), and so are outputs before a call.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from pagetide_kernels.binding import ArgumentError
from pagetide_kernels.device_ops import DeviceOps
from pagetide_kernels.device_signatures import HEAD_DIMS
from pagetide_kernels.sim_launch import Simulator

TOLERANCE = 0.008
# (queries, kv_len): decodes, verifications, whole and chunked prompts, empty rows.
RAGGED = [
    (1, 700),
    (1, 17),
    (5, 5),
    (0, 0),
    (40, 300),
    (0, 33),
    (17, 600),
    (16, 90),
    (1, 0),
    (1, 1),
    (70, 70),
]


def run(case, seed=1, **options):
    tensors = (
        torch.full_like(case.query, torch.nan),
        case.query,
        case.kv_cache,
        case.block_table,
        case.query_starts,
        case.kv_lens,
    )
    scalars = (case.scale, case.window, case.soft_cap, 1.0, 1.0)
    DeviceOps(Simulator(seed)).paged_attention(tensors, scalars, **options)
    return tensors[0]


def assert_right(case, **options):
    torch.testing.assert_close(run(case, **options).float(), case.expected(), rtol=0, atol=TOLERANCE)


@pytest.fixture
def make(make_case):
    """make_case in bf16 and with four heads a KV head."""
    return lambda sequences, **options: make_case(
        sequences, **{"dtype": torch.bfloat16, "heads": 8, "kv_heads": 2, **options}
    )


@pytest.mark.parametrize("queries", [1, 2, 3])
def test_every_kv_length_around_a_block_is_right(make, queries):
    assert_right(make([(queries, kv_len) for kv_len in range(queries, 131)]))


def test_every_chunk_length_around_a_tile_is_right(make):
    assert_right(make([(queries, queries + 30) for queries in range(60, 70)]))


@pytest.mark.parametrize("prefix", [0, 1, 15, 16, 63, 64, 65, 500])
def test_a_chunk_over_any_prefix_is_right(make, prefix):
    assert_right(make([(50, prefix + 50)]))


@pytest.mark.parametrize("kv_len", [511, 512, 513, 1024, 1025, 1500])
def test_lengths_around_a_run_are_right(make, kv_len):
    assert_right(make([(1, kv_len), (4, kv_len), (20, kv_len)]))


@pytest.mark.parametrize("head_dim", HEAD_DIMS)
def test_every_head_size_is_right(make, head_dim):
    assert_right(make(RAGGED, head_size=head_dim))


@pytest.mark.parametrize("group", range(1, 17))
def test_every_group_size_is_right(make, group):
    assert_right(make(RAGGED, heads=2 * group))


@pytest.mark.parametrize("window", [1, 2, 15, 16, 17, 63, 64, 65, 250, 5000])
def test_every_window_is_right(make, window):
    assert_right(make(RAGGED, window=window))


@pytest.mark.parametrize("soft_cap", [0.5, 5.0, 50.0])
def test_every_soft_cap_is_right(make, soft_cap):
    assert_right(make(RAGGED, soft_cap=soft_cap))


def test_window_and_soft_cap_together_are_right(make):
    assert_right(make(RAGGED, window=77, soft_cap=3.0))


def test_half_precision_is_right(make):
    assert_right(make(RAGGED, dtype=torch.float16))


def test_blocks_that_left_the_window_are_never_read(make):
    case = make([(3, 400), (40, 400)], window=30)
    expected = case.expected()
    table = case.block_table.clone()
    for i, (queries, kv_len) in enumerate([(3, 400), (40, 400)]):
        table[i, : (kv_len - queries - 30 + 1) // 16] = -1
    out = run(replace(case, block_table=table))
    torch.testing.assert_close(out.float(), expected, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("seed", range(2, 6))
def test_the_order_of_warps_blocks_and_copies_changes_nothing(make, seed):
    case = make(RAGGED)
    assert torch.equal(run(case, seed).nan_to_num(7), run(case).nan_to_num(7))


def test_a_result_depends_on_its_own_sequence_only(make):
    """Else the same request would give other tokens in another batch."""
    case = make(RAGGED)
    together = run(case)
    for i, (queries, _) in enumerate(RAGGED):
        if queries:
            assert torch.equal(run(case.only(i)), together[case.rows(i)])


def test_a_draft_is_verified_to_the_bits_that_decoding_gives(make):
    """Else a drafted token could be refused that decoding would have given."""
    case = make([(8, 777)])
    together = run(case)
    for i in range(8):
        assert torch.equal(run(case.only(0, last=i + 1, first=i)), together[i : i + 1])


def test_strided_queries_and_outputs_are_right(make):
    case = make(RAGGED)
    wide = torch.full((len(case.query), 12, 64), torch.nan, dtype=torch.bfloat16)
    wide[:, :8] = case.query
    assert_right(replace(case, query=wide[:, :8]))


def test_a_known_longest_query_changes_nothing(make):
    case = make([(1, 40), (1, 700), (1, 16)])
    assert torch.equal(run(case, max_query_len=1), run(case))


def test_what_no_kernel_is_built_for_is_refused_by_name(make):
    with pytest.raises(ArgumentError, match="head size 48"):
        run(make([(1, 1)], head_size=48))
    with pytest.raises(ArgumentError, match="17 query heads a KV head"):
        run(make([(1, 1)], heads=34))
    with pytest.raises(ArgumentError, match="query is of dtype float32"):
        run(make([(1, 1)], dtype=torch.float32))
    case = make([(1, 1)])
    with pytest.raises(ArgumentError, match="scale is -1"):
        run(replace(case, scale=-1.0))
    with pytest.raises(ArgumentError, match=r"kv_lens is of shape \[2\]"):
        run(replace(case, kv_lens=torch.tensor([1, 1], dtype=torch.int32)))
