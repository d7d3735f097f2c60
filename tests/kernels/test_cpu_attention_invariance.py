"""A query's result is the same bits whatever else is computed with it: the promise behind equal tokens."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from pagetide_kernels import cpu

SEQUENCES = [(1, 1500), (300, 300), (1, 40), (37, 900), (2, 2), (9, 640), (1, 257)]


@pytest.fixture(params=cpu.ISAS)
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    if request.param not in cpu.supported_isas():
        pytest.skip(f"this CPU has no {request.param}")
    with cpu.use_isa(request.param):
        yield request.param


@pytest.fixture(
    params=[
        {"heads": 9, "kv_heads": 3, "head_size": 64},
        {"heads": 5, "kv_heads": 5, "head_size": 80, "window": 200},
        {"heads": 6, "kv_heads": 2, "head_size": 128, "window": 100},
        {"heads": 8, "kv_heads": 1, "head_size": 32, "soft_cap": 4.0},
    ],
    ids=["plain", "window", "window_of_tiles", "soft_cap"],
)
def shape(request: pytest.FixtureRequest) -> dict[str, object]:
    return request.param


@pytest.fixture(params=[torch.bfloat16, torch.float32], ids=["bf16", "f32"])
def case(request: pytest.FixtureRequest, make_case, shape, isa):
    return make_case(SEQUENCES, dtype=request.param, **shape)


@pytest.fixture
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_a_sequence_alone_gives_the_bits_it_gives_in_a_batch(case):
    together = case.run()
    for i in range(len(SEQUENCES)):
        assert torch.equal(case.only(i).run(), together[case.rows(i)])


@pytest.mark.parametrize("chunk", [1, 7, 16, 50, 64, 299])
def test_a_prompt_in_chunks_gives_the_bits_it_gives_in_one_piece(case, chunk):
    whole = case.run()[case.rows(1)]
    queries = len(whole)
    for first in range(0, queries, chunk):
        last = min(first + chunk, queries)
        assert torch.equal(case.only(1, last, first).run(), whole[first:last])


def test_a_token_decoded_gives_the_bits_it_gives_in_a_prefill(case):
    whole = case.run()[case.rows(3)]
    for query in range(len(whole)):
        assert torch.equal(case.only(3, query + 1, query).run()[0], whole[query])


@pytest.mark.parametrize("num_threads", [1, 2, 3, 5])
def test_the_number_of_threads_changes_no_bit(case, threads, num_threads):
    together = case.run()
    torch.set_num_threads(num_threads)
    assert torch.equal(case.run(), together)
    for i in range(len(SEQUENCES)):
        assert torch.equal(case.only(i).run(), together[case.rows(i)])


def test_where_the_blocks_lie_changes_no_bit(case):
    together = case.run()
    order = torch.randperm(len(case.kv_cache), generator=torch.Generator().manual_seed(1))
    moved = torch.empty_like(case.kv_cache)
    moved[order] = case.kv_cache
    used = case.block_table < len(case.kv_cache)
    table = case.block_table.clone()
    table[used] = order[case.block_table[used].long()].to(torch.int32)
    assert torch.equal(case.run(kv_cache=moved, block_table=table), together)


SHARERS = [1500, 1030, 512, 700, 1500, 255, 1280, 1025, 4 * 256 + 3, 768]
"""KV lengths of sequences that are decoded: all begin with the same blocks, as far as SHARED goes."""
SHARED = [1500, 1024, 512, 600, 520, 255, 500, 1000, 16, 768]
"""How many tokens' blocks each has in common with the first."""


@pytest.mark.parametrize("num_threads", [1, 2, 3])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=["bf16", "f32"])
def test_sequences_that_share_blocks_give_the_bits_they_give_alone(
    make_case, shape, isa, dtype, threads, num_threads
):
    torch.set_num_threads(num_threads)
    case = make_case([(1, length) for length in SHARERS] + [(1, 1500), (2, 600)], dtype=dtype, **shape)
    for i, tokens in enumerate(SHARED):
        case.block_table[i, : tokens // 16] = case.block_table[0, : tokens // 16]
    case.block_table[-1, :32] = case.block_table[0, :32]
    together = case.run()
    for i in range(len(case.kv_lens)):
        assert torch.equal(case.only(i).run(), together[case.rows(i)])


def test_of_sequences_that_share_blocks_nan_stays_with_whom_it_belongs_to(make_case):
    case = make_case([(1, 600)] * 3, dtype=torch.bfloat16, heads=9, kv_heads=3, head_size=64)
    case.block_table[:, :20] = case.block_table[0, :20]
    case.kv_cache[case.block_table[1, 30]] = float("nan")
    out = case.run()
    assert out[1].isnan().all()
    assert not out[[0, 2]].isnan().any()
