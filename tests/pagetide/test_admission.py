from __future__ import annotations

import itertools
import random
from array import array

from pagetide.admission import PeakEstimate, peak_blocks_of
from pagetide.block_tables import blocks_for
from pagetide.request import Request, SamplingParams, Sequence


def sequence(num_generated: int = 0, **params: int | bool) -> Sequence:
    request = Request(0, array("i", [1]), SamplingParams(**params), lambda output: None, 0.0)  # type: ignore[arg-type]
    return Sequence(0, request, array("i", [1] * (1 + num_generated)), seed=0)


def learned(*lengths: int) -> PeakEstimate:
    estimate = PeakEstimate()
    for length in lengths:
        estimate.learn(length)
    return estimate


def test_the_peak_is_never_below_what_a_step_by_step_run_needs() -> None:
    rng = random.Random(0)
    for _ in range(300):
        rows = [(rng.randint(0, 60), rng.randint(1, 200)) for _ in range(rng.randint(1, 12))]
        needed = (
            sum(blocks_for(so_far + step) for left, so_far in rows if left >= step)
            for step in itertools.takewhile(lambda step: step <= 60, itertools.count())
        )
        assert max(needed) <= peak_blocks_of(rows) <= sum(blocks_for(sum(row)) + 1 for row in rows)


def test_sequences_that_end_early_make_room_for_those_that_go_on() -> None:
    assert peak_blocks_of([(160, 16), (0, 160)]) < peak_blocks_of([(160, 16), (160, 160)])


def test_usual_lengths_are_learnt_and_bounded_by_what_was_asked() -> None:
    estimate = learned(*[10] * 200)
    assert estimate.tokens_left(sequence(max_tokens=1000)) < 200
    assert estimate.tokens_left(sequence(max_tokens=5)) == 5
    assert estimate.tokens_left(sequence(max_tokens=1000, ignore_eos=True)) == 1000
    assert estimate.tokens_left(sequence(max_tokens=1000, min_tokens=900)) >= 900


def test_what_has_outlived_the_usual_length_is_compared_with_the_long_ones() -> None:
    estimate = learned(*[10] * 100, *[500] * 100)
    assert estimate.tokens_left(sequence(num_generated=50, max_tokens=1000)) >= 450


def test_the_window_forgets() -> None:
    estimate = learned(*[500] * 300, *[10] * 256)
    assert estimate.tokens_left(sequence(max_tokens=1000)) < 200


def test_a_preemption_makes_admission_cautious_for_a_while() -> None:
    estimate = learned(*[10] * 200)
    calm = estimate.tokens_left(sequence(max_tokens=1000))
    estimate.stepped(preempted=True)
    alarmed = estimate.tokens_left(sequence(max_tokens=1000))
    for _ in range(2000):
        estimate.stepped(preempted=False)
    assert alarmed > 2 * calm
    assert estimate.tokens_left(sequence(max_tokens=1000)) == calm
