from __future__ import annotations

import math
from array import array

import numpy as np
import pytest
import torch

from pagetide import sampler
from pagetide.logit_edits import LogitEdits
from pagetide.request import SamplingParams, TokenLogprobs
from pagetide.step import NO_TOKEN, SampledRows

VOCAB = 3000


def rows(params: list[SamplingParams], seeds: list[int], positions: list[int]) -> SampledRows:
    return SampledRows(
        rows=array("q", range(len(params))),
        params=params,
        seeds=array("Q", seeds),
        positions=array("Q", positions),
    )


def sample(logits: torch.Tensor, sampled: SampledRows) -> sampler.Told:
    return sampler.sample(logits, sampled).read()


def draw(logits: torch.Tensor, params: SamplingParams, seed: int, position: int) -> int:
    tokens, _ = sample(logits[None].clone(), rows([params], [seed], [position]))
    return tokens[0]


def random_logits(count: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(count, VOCAB, generator=torch.Generator().manual_seed(seed)) * 3


MIXED = [
    SamplingParams(temperature=0.0),
    SamplingParams(temperature=1.0),
    SamplingParams(temperature=0.7, top_k=5),
    SamplingParams(temperature=1.3, top_p=0.9),
    SamplingParams(temperature=1.0, min_p=0.05),
    SamplingParams(temperature=5.0, top_p=0.999),
    SamplingParams(temperature=1.0, top_k=2000, top_p=0.95, min_p=0.001),
]


def test_a_row_draws_the_same_token_alone_and_in_any_batch() -> None:
    logits = random_logits(70)
    params = [MIXED[i % len(MIXED)] for i in range(70)]
    alone = [draw(logits[i], params[i], seed=i, position=3 * i) for i in range(70)]
    together, _ = sample(logits.clone(), rows(params, list(range(70)), [3 * i for i in range(70)]))
    assert together == alone
    order = torch.randperm(70, generator=torch.Generator().manual_seed(1)).tolist()
    shuffled, _ = sample(
        logits[order].clone(), rows([params[i] for i in order], order, [3 * i for i in order])
    )
    assert shuffled == [alone[i] for i in order]


def test_parameters_at_the_edges_of_what_numbers_can_be_disturb_no_other_row() -> None:
    """`top_k` beyond every float once failed the step, and with it every request in it."""
    huge = 10**400
    edges = [
        SamplingParams(top_k=huge),
        SamplingParams(temperature=1e308, top_p=5e-324),
        SamplingParams(temperature=5e-324, min_p=1.0),
    ]
    logits = random_logits(4)
    params = [MIXED[3], *edges]
    together, _ = sample(logits.clone(), rows(params, [7] * 4, [1] * 4))
    assert together[0] == draw(logits[0], MIXED[3], seed=7, position=1)
    assert all(0 <= token < VOCAB for token in together)


def test_temperature_zero_takes_the_likeliest_whatever_the_seed() -> None:
    logits = random_logits(1)[0]
    assert {draw(logits, MIXED[0], seed, 0) for seed in range(5)} == {int(logits.argmax())}


def test_a_temperature_next_to_zero_is_greedy() -> None:
    logits = random_logits(1)[0]
    assert draw(logits, SamplingParams(temperature=1e-38), 3, 0) == int(logits.argmax())


def test_one_candidate_is_the_greedy_one_also_among_equals() -> None:
    logits = random_logits(1)[0]
    logits[[11, 222, 2222]] = logits.max() + 1
    one = SamplingParams(temperature=1.0, top_k=1)
    greedy = SamplingParams(temperature=0.0)
    assert {draw(logits, one, seed, 0) for seed in range(30)} == {draw(logits, greedy, 0, 0)} == {11}


def test_every_tensor_of_a_draw_is_on_the_logits_device() -> None:
    """A device of its own for tensors without data: mixing it with the CPU raises."""
    sampled = rows([MIXED[3], MIXED[1]], [1, 2], [3, 4])
    columns = sampler._columns(sampled, [0, 1], torch.device("meta"))
    assert {column.device.type for column in columns.values()} == {"meta"}


def test_the_same_seed_and_position_repeat_and_others_differ() -> None:
    logits = torch.zeros(VOCAB)
    params = SamplingParams()
    assert draw(logits, params, 5, 9) == draw(logits, params, 5, 9)
    assert len({draw(logits, params, 5, position) for position in range(50)}) > 40
    assert len({draw(logits, params, seed, 9) for seed in range(50)}) > 40


def allowed(logits: torch.Tensor, params: SamplingParams) -> set[int]:
    """The tokens the filters leave, by their definitions, one at a time in float64."""
    scaled = logits.double() / params.temperature
    order = scaled.argsort(descending=True).tolist()
    if params.top_k > 0:
        order = order[: params.top_k]
    weights = {i: math.exp(scaled[i] - scaled[order[0]]) for i in order}
    total = sum(weights.values()) if params.top_k > 0 else float(torch.exp(scaled - scaled.max()).sum())
    kept, mass = set(), 0.0
    for i in order:
        if mass >= params.top_p:
            break
        mass += weights[i] / total
        if weights[i] >= params.min_p:
            kept.add(i)
    return kept


@pytest.mark.parametrize("params", MIXED[2:])
def test_filters_leave_exactly_the_tokens_of_their_definitions(params: SamplingParams) -> None:
    logits = random_logits(1, seed=4)[0]
    expected = allowed(logits, params)
    count = 1000
    batch = logits.expand(count, -1).contiguous()
    drawn = set(sample(batch, rows([params] * count, list(range(count)), [0] * count))[0])
    assert drawn <= expected
    if len(expected) < 20:
        assert drawn == expected


def test_draws_follow_the_distribution() -> None:
    """Chi-square of 20,000 draws over 8 tokens stays below its 0.999 quantile (7 degrees: 24.3)."""
    logits = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, -1.0, -2.0, 0.2])
    count = 20_000
    batch = logits.expand(count, -1).contiguous()
    tokens, _ = sample(batch.clone(), rows([SamplingParams()] * count, list(range(count)), [11] * count))
    observed = np.bincount(tokens, minlength=8)
    expected = torch.softmax(logits.double(), -1).numpy() * count
    assert float(((observed - expected) ** 2 / expected).sum()) < 24.3


def test_uniform_numbers_fill_the_interval_evenly() -> None:
    draws = sampler.uniform(np.zeros(100_000, np.uint64), np.arange(100_000, dtype=np.uint64))
    assert draws.min() >= 0
    assert draws.max() < 1
    assert np.abs(np.histogram(draws, 20, (0, 1))[0] / 5000 - 1).max() < 0.06


def test_banned_tokens_are_never_drawn() -> None:
    logits = torch.tensor([[0.0, 9.0, 1.0]])
    sampled = rows([SamplingParams(temperature=0)], [0], [0])
    sampled.edits = LogitEdits()
    sampled.edits.banned.add(0, array("i", [1]))
    assert sample(logits, sampled)[0] == [2]


@pytest.mark.parametrize("params", MIXED)
def test_a_row_that_may_get_no_token_gets_none_and_its_neighbours_theirs(params: SamplingParams) -> None:
    logits = random_logits(3)
    sampled = rows([params] * 3, [1, 2, 3], [4, 5, 6])
    alone = sample(logits.clone(), sampled)[0]
    sampled.edits = LogitEdits()
    sampled.edits.banned.add(1, array("i", range(VOCAB)))
    assert sample(logits.clone(), sampled)[0] == [alone[0], NO_TOKEN, alone[2]]


def test_logprobs_are_of_the_unscaled_distribution_and_only_for_rows_that_ask() -> None:
    logits = random_logits(3)
    params = [SamplingParams(temperature=0.5, logprobs=2), SamplingParams(), SamplingParams(logprobs=0)]
    tokens, logprobs = sample(logits.clone(), rows(params, [1, 2, 3], [4, 5, 6]))
    expected = logits.log_softmax(-1)
    assert logprobs[1] is None
    assert logprobs[0] is not None
    assert logprobs[2] is not None
    assert logprobs[0].logprob == pytest.approx(float(expected[0, tokens[0]]))
    assert [i for i, _ in logprobs[0].top] == expected[0].topk(2).indices.tolist()
    assert logprobs[2].top == ()
    assert logprobs[2].rank == 1 + int((expected[2] > expected[2, tokens[2]]).sum())


def test_logprobs_are_those_before_anything_was_changed() -> None:
    """As in vLLM: a banned token that was the likeliest stands first, and the chosen one second."""
    logits = torch.tensor([[0.0, 9.0, 1.0]])
    sampled = rows([SamplingParams(temperature=0, logprobs=1)], [0], [0])
    sampled.edits = LogitEdits()
    sampled.edits.banned.add(0, array("i", [1]))
    expected = logits[0].log_softmax(-1).tolist()
    tokens, (told,) = sample(logits.clone(), sampled)
    assert tokens == [2]
    assert told == TokenLogprobs(pytest.approx(expected[2]), 2, ((1, pytest.approx(expected[1])),))


@pytest.mark.parametrize("asked", [-1, VOCAB, VOCAB + 1])
def test_all_logprobs_are_told_when_minus_one_or_more_than_there_are_are_asked_for(asked: int) -> None:
    logits = random_logits(1)
    _, (told,) = sample(logits.clone(), rows([SamplingParams(logprobs=asked)], [0], [0]))
    assert told is not None
    assert sorted(token for token, _ in told.top) == list(range(VOCAB))
