"""Rows' logits change as the parameters say, all rows at once, and no others do."""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sampling_reference import edited, tokens_of

from pagetide.logit_edits import LogitEdits, TokenMask
from pagetide.logits import edit, is_nothing_left
from pagetide.request import Request, SamplingParams
from pagetide_kernels import ops

REPEATABLE = settings(
    derandomize=True, deadline=None, max_examples=150, suppress_health_check=[HealthCheck.too_slow]
)
VOCAB = 41
EOS = 3

token = st.integers(0, VOCAB - 1)
few_tokens = st.integers(0, 5)
"""Few enough that they come back, and that bad words are often half written."""

penalty = st.sampled_from([0.0, 0.5, -0.75, 2.0, -2.0])
params = st.builds(
    SamplingParams,
    max_tokens=st.just(64),
    min_tokens=st.integers(0, 6),
    presence_penalty=penalty,
    frequency_penalty=penalty,
    repetition_penalty=st.sampled_from([1.0, 1.3, 0.5, 1000.0, 0.001]),
    logit_bias=st.dictionaries(token, st.floats(-100, 100, width=32), max_size=4).map(
        lambda biases: tuple(biases.items())
    ),
    allowed_token_ids=st.none() | st.sets(token, min_size=1).map(TokenMask.of),
    bad_word_ids=st.lists(st.lists(few_tokens, min_size=1, max_size=3).map(tuple), max_size=4).map(tuple),
    stop_token_ids=st.lists(token, max_size=2).map(tuple),
)
Row = tuple[SamplingParams, list[int], list[int]]
row = st.tuples(params, st.lists(few_tokens, min_size=1, max_size=8), st.lists(few_tokens, max_size=8))


def request(params: SamplingParams, prompt: Sequence[int]) -> Request:
    return Request(0, array("i", prompt), params, lambda output: None, 0.0, eos_token_ids=frozenset({EOS}))


def add_rules(edits: LogitEdits, at: int, request: Request, output: Sequence[int]) -> None:
    for rule in request.rules:
        rule.add_to(edits, at, request.prompt_ids + array("i", output))


def random_logits(count: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(count, VOCAB, generator=torch.Generator().manual_seed(seed)) * 5


@REPEATABLE
@given(rows=st.lists(row, min_size=1, max_size=5), seed=st.integers(0, 1000))
def test_every_row_of_a_batch_changes_as_its_own_parameters_say(rows: list[Row], seed: int) -> None:
    logits = random_logits(len(rows), seed)
    expected = [
        edited(logits[i].numpy(), params, prompt, output, [EOS])
        for i, (params, prompt, output) in enumerate(rows)
    ]
    edits = LogitEdits()
    for i, (params, prompt, output) in enumerate(rows):
        add_rules(edits, i, request(params, prompt), output)
    edit(logits, edits)
    np.testing.assert_allclose(logits.numpy(), np.stack(expected), rtol=1e-6, atol=1e-6)


@REPEATABLE
@given(each=row)
def test_rules_say_the_same_asked_at_every_token_or_only_once(each: Row) -> None:
    params, prompt, output = each
    often = request(params, prompt)
    for length in range(len(output)):
        add_rules(LogitEdits(), 0, often, output[:length])
    told, fresh = LogitEdits(), LogitEdits()
    for _ in range(2):
        told = LogitEdits()
        add_rules(told, 0, often, output)
    add_rules(fresh, 0, request(params, prompt), output)
    assert told == fresh


def test_a_request_without_such_parameters_has_no_rules() -> None:
    plain = SamplingParams(temperature=0.7, top_k=3, seed=5, logprobs=2, stop_token_ids=(4,))
    assert request(plain, [1, 2]).rules == ()


def test_only_the_repetition_penalty_looks_at_the_prompt() -> None:
    logits = torch.full((1, VOCAB), 4.0)
    edits = LogitEdits()
    add_rules(edits, 0, request(SamplingParams(presence_penalty=1, frequency_penalty=1), [7, 7]), [8, 8])
    edit(logits, edits)
    assert logits[0, 7] == 4.0
    assert logits[0, 8] == 4.0 - 1 - 2
    add_rules(edits := LogitEdits(), 0, request(SamplingParams(repetition_penalty=2), [7, 7]), [8, 8])
    edit(logits, edits)
    assert logits[0, 7] == 2.0
    assert logits[0, 8] == 0.5


def test_a_word_half_in_the_prompt_is_not_banned() -> None:
    """As in vLLM: only what was generated counts."""
    words = SamplingParams(bad_word_ids=((4, 5),))
    for prompt, output, banned in (([4], [], []), ([1], [4], [5]), ([4], [1], []), ([1], [4, 4], [5])):
        add_rules(edits := LogitEdits(), 0, request(words, prompt), output)
        assert list(edits.banned.tokens) == banned


@REPEATABLE
@given(sets=st.lists(st.sets(token), min_size=1, max_size=4))
def test_a_mask_holds_exactly_its_tokens_and_leaves_only_them(sets: list[set[int]]) -> None:
    masks = [TokenMask.of(each) for each in sets]
    assert [tokens_of(mask) for mask in masks] == sets
    logits = random_logits(len(sets))
    edits = LogitEdits()
    for i, mask in enumerate(masks):
        edits.allowed.add(i, mask)
    edit(logits, edits)
    assert [set(each.isfinite().nonzero()[:, 0].tolist()) for each in logits] == sets
    assert is_nothing_left(logits, logits.argmax(-1)).tolist() == [not each for each in sets]


@pytest.mark.parametrize("vocab_size", [1, 31, 32, 33, 96, 1000])
def test_a_bitmask_in_xgrammars_form_changes_its_rows_and_no_other(vocab_size: int) -> None:
    """Bit i % 32 of word i // 32 is token i; bits beyond the vocabulary don't matter."""
    generator = torch.Generator().manual_seed(vocab_size)
    logits = torch.randn(5, vocab_size, generator=generator)
    before = logits.clone()
    words = torch.randint(-(2**31), 2**31, (2, -(-vocab_size // 32)), generator=generator, dtype=torch.int64)
    ops.apply_bitmask(logits, torch.tensor([4, 1]), words.to(torch.int32))
    for i, at in enumerate((4, 1)):
        bits = [int(words[i, j // 32]) >> j % 32 & 1 for j in range(vocab_size)]
        expected = [float(x) if bit else -math.inf for x, bit in zip(before[at], bits, strict=True)]
        assert logits[at].tolist() == expected
    assert torch.equal(logits[[0, 2, 3]], before[[0, 2, 3]])


def test_bans_and_biases_are_on_the_logits_device() -> None:
    """A device of its own for tensors without data: mixing it with the CPU raises. The other edits are ops of
    the kernels, which refuse tensors of two devices by themselves."""
    changes = SamplingParams(min_tokens=1, logit_bias=((1, 1.0),), bad_word_ids=((1,),))
    add_rules(edits := LogitEdits(), 0, request(changes, [1, 2]), [3, 4])
    edit(torch.empty(1, VOCAB, device="meta"), edits)
