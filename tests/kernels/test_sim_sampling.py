"""The CUDA sampling kernels, simulated, against sorting in plain torch."""

from __future__ import annotations

import math

import pytest
import torch

from pagetide_kernels.binding import ArgumentError
from pagetide_kernels.device_ops import DeviceOps
from pagetide_kernels.sim_launch import Simulator

VOCAB = 1000


@pytest.fixture
def ops():
    return DeviceOps(Simulator())


@pytest.fixture(autouse=True)
def fixed_seed():
    torch.manual_seed(5)


def column(values, dtype=torch.float32):
    return torch.tensor(values, dtype=dtype)


def draw(ops, logits, uniform, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0):
    """One token for each of `uniform`, from the same row of logits."""
    count = len(uniform)
    tokens = torch.full((count,), -1)
    rows = logits.expand(count, -1).contiguous()
    options = [column([value] * count) for value in (temperature, top_p, min_p)]
    top_ks = column([top_k] * count, torch.int32)
    ops.sample((tokens, rows, options[0], top_ks, options[1], options[2], column(uniform)))
    return tokens.tolist()


def kept_probabilities(logits, temperature, top_k, top_p, min_p):
    """By sorting: zeros where the filters drop a token."""
    values, order = (logits.double() / temperature).sort(descending=True)
    probs = values.softmax(-1)
    keep = torch.arange(len(probs)) < (top_k or len(probs))
    probs = probs * keep / probs[keep].sum()
    keep &= (probs.cumsum(-1) - probs < top_p) & (probs >= probs[0] * min_p)
    return torch.zeros_like(probs).scatter(0, order, probs * keep / probs[keep].sum())


@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.5])
@pytest.mark.parametrize(
    ("top_k", "top_p", "min_p"),
    [
        (0, 1.0, 0.0),
        (1, 1.0, 0.0),
        (7, 1.0, 0.0),
        (0, 0.5, 0.0),
        (0, 1.0, 0.1),
        (50, 0.8, 0.02),
        (999, 0.999, 0),
    ],
)
def test_the_token_is_where_the_running_mass_passes_the_draw(ops, temperature, top_k, top_p, min_p):
    logits = torch.randn(VOCAB) * 3
    cumulative = kept_probabilities(logits, temperature, top_k, top_p, min_p).cumsum(0)
    middles = [(i + 0.5) / 12 for i in range(12)]
    # Away from the borders between tokens, where one rounding may decide.
    uniform = [u for u in middles if (cumulative - u).abs().min() > 1e-5]
    expected = torch.searchsorted(cumulative, column(uniform, torch.float64), right=True).tolist()
    assert len(uniform) > 6
    assert draw(ops, logits, uniform, temperature, top_k, top_p, min_p) == expected


def test_the_ends_of_the_draw_give_kept_tokens(ops):
    logits = torch.full((VOCAB,), -50.0)
    logits[[400, 700]] = 1.0
    assert draw(ops, logits, [0.0, 1.0], top_p=0.9) == [400, 700]


def test_tokens_that_tie_for_the_last_place_are_all_kept(ops):
    logits = torch.zeros(64)
    assert sorted(set(draw(ops, logits, [i / 64 + 0.001 for i in range(64)], top_k=3))) == list(range(64))


def test_banned_tokens_are_never_drawn(ops):
    logits = torch.full((VOCAB,), -math.inf)
    logits[[3, 998]] = torch.tensor([0.0, 0.0])
    assert set(draw(ops, logits, [i / 16 for i in range(16)])) == {3, 998}


@pytest.mark.parametrize("vocab", [1, 31, 1000, 4099])
def test_greedy_is_the_first_largest_with_its_logprob(ops, vocab):
    logits = torch.randn(5, vocab) * 4
    logits[1] = 2.0
    logits[2, -1] = logits[2, vocab // 2] = 99.0
    tokens, logprobs = torch.full((5,), -1), torch.full((5,), torch.nan)
    ops.greedy((tokens, logprobs, logits))
    assert tokens.tolist() == [row.tolist().index(row.max()) for row in logits]
    torch.testing.assert_close(logprobs, logits.log_softmax(-1).amax(-1), rtol=1e-5, atol=1e-5)


def test_penalties_and_masks_are_right(ops):
    logits = torch.randn(2, 70)
    expected = logits.clone()
    for token, count in ((3, 2), (69, 0)):
        value = expected[0, token]
        value = value / 1.5 if value > 0 else value * 1.5
        expected[0, token] = value - 0.25 * count - (0.5 if count else 0.0)
    mask = torch.full((2, 3), -1, dtype=torch.int32)
    mask[1, 1] = 0
    expected[1, 32:64] = -math.inf
    starts, seen, counts = (column(v, torch.int32) for v in ([0, 2, 2], [3, 69], [2, 0]))
    ops.adjust_logits(
        (logits, starts, seen, counts, column([1.5, 1.0]), column([0.5, 0.0]), column([0.25, 0.0]), mask)
    )
    torch.testing.assert_close(logits, expected)


def test_a_mask_too_short_for_the_vocabulary_is_refused(ops):
    nothing, zeros = torch.zeros(0, dtype=torch.int32), torch.zeros(2)
    starts, mask = torch.zeros(3, dtype=torch.int32), torch.zeros(2, 2, dtype=torch.int32)
    with pytest.raises(ArgumentError, match="mask has 2 words a row; expected 3"):
        ops.adjust_logits((torch.zeros(2, 70), starts, nothing, nothing, zeros, zeros, zeros, mask))
