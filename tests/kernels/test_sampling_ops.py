"""From logits to tokens, on every device, against sorting in plain torch."""

from __future__ import annotations

import math

import pytest
import torch

from pagetide_kernels import cpu, ops
from pagetide_kernels.binding import ArgumentError

VOCAB = 1000


@pytest.fixture(autouse=True)
def fixed_seed():
    torch.manual_seed(5)


def draw(logits, uniform, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0):
    """One token for each of `uniform`, from the same row of logits."""

    def column(values, dtype=torch.float32):
        return torch.tensor(values, dtype=dtype, device=logits.device)

    count = len(uniform)
    return ops.sample(
        logits.expand(count, -1).contiguous(),
        column([temperature] * count),
        column([top_k] * count, torch.int32),
        column([top_p] * count),
        column([min_p] * count),
        column(uniform, torch.float64),
    ).tolist()


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
def test_the_token_is_where_the_running_mass_passes_the_draw(device, temperature, top_k, top_p, min_p):
    logits = torch.randn(VOCAB) * 3
    cumulative = kept_probabilities(logits, temperature, top_k, top_p, min_p).cumsum(0)
    middles = [(i + 0.5) / 12 for i in range(12)]
    # Away from the borders between tokens, where one rounding may decide.
    uniform = [u for u in middles if (cumulative - u).abs().min() > 1e-5]
    expected = torch.searchsorted(cumulative, torch.tensor(uniform, dtype=torch.float64), right=True).tolist()
    assert len(uniform) > 6
    assert draw(logits.to(device), uniform, temperature, top_k, top_p, min_p) == expected


def test_a_large_vocabulary_is_drawn_from_as_a_whole(device):
    logits = torch.randn(128256) * 3
    uniform = [0.05, 0.5, 0.95]
    cumulative = logits.double().softmax(-1).cumsum(0)
    expected = torch.searchsorted(cumulative, torch.tensor(uniform, dtype=torch.float64), right=True)
    drawn = torch.tensor(draw(logits.to(device), uniform))
    assert (drawn - expected).abs().max() <= 1


def test_the_ends_of_the_draw_give_kept_tokens(device):
    logits = torch.full((VOCAB,), -50.0, device=device)
    logits[400] = logits[700] = 1.0
    assert draw(logits, [0.0, 1.0], top_p=0.9) == [400, 700]


def test_tokens_that_tie_for_the_last_place_are_all_kept(device):
    logits = torch.zeros(64, device=device)
    assert sorted(set(draw(logits, [i / 64 + 0.001 for i in range(64)], top_k=3))) == list(range(64))


def test_banned_tokens_are_never_drawn(device):
    logits = torch.full((VOCAB,), -math.inf, device=device)
    logits[3] = logits[998] = 0.0
    assert set(draw(logits, [i / 16 for i in range(16)])) == {3, 998}


def test_a_token_too_unlikely_for_a_number_is_not_drawn(device):
    logits = torch.full((VOCAB,), -5000.0, device=device)
    logits[0], logits[600:] = -math.inf, 0.0
    assert draw(logits, [0.0, 1.0]) == [600, VOCAB - 1]


@pytest.mark.parametrize("vocab", [1, 31, 1000, 4099])
def test_greedy_is_the_first_largest_with_its_logprob(device, vocab):
    logits = torch.randn(5, vocab) * 4
    logits[1] = 2.0
    logits[2, -1] = logits[2, vocab // 2] = 99.0
    tokens, logprobs = ops.greedy(logits.to(device))
    assert tokens[:, 0].tolist() == [row.tolist().index(row.max()) for row in logits]
    expected = logits.log_softmax(-1).amax(-1)
    torch.testing.assert_close(logprobs[:, 0].cpu(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("count", [2, 20])
def test_greedy_gives_the_likeliest_in_order_the_smaller_of_equals_first(device, count):
    logits = (torch.randn(4, VOCAB) * 4).round()  # full of ties
    logits[1] = 0.0
    logits[2, 5:] = -math.inf
    tokens, logprobs = ops.greedy(logits.to(device), count)
    expected = logits.sort(dim=-1, descending=True, stable=True).indices[:, :count]
    assert torch.equal(tokens.cpu(), expected)
    torch.testing.assert_close(
        logprobs.cpu(), logits.log_softmax(-1).gather(1, expected), rtol=1e-5, atol=1e-5
    )


def ints(*values, device, dtype=torch.int64):
    return torch.tensor(values, dtype=dtype, device=device)


def test_likeliest_is_greedy_without_logprobs(device):
    logits = torch.randn(3, VOCAB, device=device)
    assert torch.equal(ops.likeliest(logits), ops.greedy(logits)[0][:, 0])


def test_penalties_change_what_listed_rows_have_seen(device):
    """Row 2 saw tokens 3 (twice in the output) and 69 (in its prompt); row 0 nothing; row 1 is not listed."""
    logits = torch.randn(3, 70)
    expected = logits.clone()
    for token, count in ((3, 2), (69, 0)):
        value = expected[2, token]
        value = value / 1.5 if value > 0 else value * 1.5
        expected[2, token] = value - 0.25 * count - (0.5 if count else 0.0)
    changed = logits.to(device)
    rows, starts = ints(2, 0, device=device), ints(0, 2, 2, device=device)
    tokens, counts = (ints(*v, device=device, dtype=torch.int32) for v in ((3, 69), (2, 0)))
    factors = (torch.tensor(pair, device=device) for pair in ([1.5, 1.0], [0.5, 0.0], [0.25, 0.0]))
    ops.penalise(changed, rows, starts, tokens, counts, *factors)
    torch.testing.assert_close(changed.cpu(), expected)


@pytest.mark.parametrize("vocab", [70, 5000])
def test_tokens_without_a_bit_are_impossible_in_listed_rows(device, vocab):
    logits, allowed = torch.randn(3, vocab), torch.rand(2, vocab) < 0.5
    padded = torch.nn.functional.pad(allowed, (0, -vocab % 32)).view(2, -1, 32)
    words = (padded.long() << torch.arange(32)).sum(-1)
    bitmask = torch.where(words < 2**31, words, words - 2**32).int()
    changed = logits.to(device)
    ops.apply_bitmask(changed, ints(2, 0, device=device), bitmask.to(device))
    expected = logits.clone()
    expected[[2, 0]] = expected[[2, 0]].masked_fill(~allowed, -math.inf)
    assert torch.equal(changed.cpu(), expected)


def test_a_mask_too_short_for_the_vocabulary_is_refused(device):
    logits, rows = torch.zeros(2, 70, device=device), ints(0, device=device)
    with pytest.raises(ArgumentError, match="bitmask has 2 words a row; expected 3 or more"):
        ops.apply_bitmask(logits, rows, torch.zeros(1, 2, dtype=torch.int32, device=device))


@pytest.mark.parametrize("value", [math.nan, -math.inf])
def test_a_row_without_a_chance_gives_some_token_of_the_vocabulary(device, value):
    logits = torch.full((70,), value, device=device)
    assert 0 <= int(ops.likeliest(logits[None])[0]) < 70
    assert 0 <= draw(logits, [0.5])[0] < 70
    assert 0 <= draw(logits, [0.5], top_k=5, top_p=0.9)[0] < 70


@pytest.mark.parametrize("isa", cpu.supported_isas())
@pytest.mark.parametrize("vocab", [1, 15, 511, 512, 513, 49152])
def test_likeliest_is_the_first_of_the_largest_with_every_instruction_set(isa, vocab):
    logits = (torch.randn(9, vocab + 3) * 4).round()[:, :vocab]  # full of ties, rows apart
    logits[1] = -math.inf
    logits[2, : vocab // 2] = math.nan
    with cpu.use_isa(isa):
        found = ops.likeliest(logits).tolist()
    expected = logits.nan_to_num(nan=-math.inf, neginf=-math.inf).argmax(-1).tolist()
    assert found == expected


FILTERS = [(0, 1.0, 0.0), (40, 1.0, 0.0), (0, 0.9, 0.0), (0, 1.0, 0.3), (0, 0.95, 0.01), (9, 0.9, 0.2)]


@pytest.mark.parametrize("isa", cpu.supported_isas())
@pytest.mark.parametrize("vocab", [1, 2, 63, 64, 65, 5000])
@pytest.mark.parametrize("spread", [0.1, 3.0, 30.0])
def test_every_instruction_set_draws_what_sorting_gives(isa, vocab, spread):
    """From flat rows, of which filters keep nearly all, to peaked ones. Rows stay as they were."""
    row, temperature = torch.randn(vocab) * spread, 0.7
    logits = torch.full((len(FILTERS), vocab + 5), math.nan)[:, :vocab].copy_(row)
    top_k, top_p, min_p = map(torch.tensor, zip(*FILTERS, strict=True))
    uniform = torch.rand(len(FILTERS), dtype=torch.float64)
    columns = torch.full_like(top_p, temperature), top_k.int(), top_p, min_p, uniform
    with cpu.use_isa(isa):
        tokens = ops.sample(logits, *columns).tolist()
    for (most, *rest), u, token in zip(FILTERS, uniform.tolist(), tokens, strict=True):
        cumulative = kept_probabilities(row, temperature, min(most, vocab), *rest).cumsum(0)
        assert (cumulative[token - 1] if token else 0.0) - 1e-5 <= u <= cumulative[token] + 1e-5
    assert torch.equal(logits, row.expand_as(logits))
