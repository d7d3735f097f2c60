from __future__ import annotations

import itertools

import pytest
from scheduler_world import World
from simulation.pure_model import EOS, pure_output

from pagetide.config import BLOCK_SIZE
from pagetide.limits import AdmissionError
from pagetide.request import FinishReason
from pagetide.step import NO_TOKEN, StepResult


def world(num_blocks: int = 64, max_step_tokens: int = 32, max_running: int = 8, **kw: bool) -> World:
    return World(num_blocks, max_step_tokens, max_running, **kw)


@pytest.mark.parametrize("length", [1, 15, 16, 17, 31, 32, 33, 64, 100])
def test_any_prompt_length_and_chunking_gives_the_pure_output(length: int) -> None:
    w = world(max_step_tokens=7)
    request = w.submit([i % 5 for i in range(length)], max_tokens=40)
    w.run_until_idle()
    assert w.tokens(request) == pure_output(w.requests[request])
    w.scheduler.check()


def test_decodes_go_before_prompt_chunks_within_the_budget() -> None:
    w = world(max_step_tokens=8)
    w.submit([1, 2, 3], max_tokens=30, min_tokens=30)
    w.step()
    w.submit([3] * 50, max_tokens=2)
    plan = w.step()
    assert plan is not None
    assert list(plan.num_new) == [1, 7]


@pytest.mark.parametrize("blocks", [1, 2, 3])
def test_a_prompt_of_whole_blocks_hits_all_but_the_last_token(blocks: int) -> None:
    w = world(max_step_tokens=256)
    prompt = [i % 11 for i in range(blocks * BLOCK_SIZE)]
    first = w.submit(prompt, max_tokens=4, min_tokens=4)
    w.run_until_idle()
    second = w.submit(prompt, max_tokens=4, min_tokens=4)
    plan = w.step()
    assert plan is not None
    assert list(plan.num_computed) == [blocks * BLOCK_SIZE - 1]
    assert len(plan.copies) == 1
    w.run_until_idle()
    assert w.tokens(first) == w.tokens(second)


def test_two_requests_of_one_step_share_the_prefix_that_the_first_computes() -> None:
    w = world(max_step_tokens=256)
    prompt = [i % 11 for i in range(3 * BLOCK_SIZE)]
    requests = [w.submit([*prompt, last], max_tokens=3) for last in (1, 2)]
    plan = w.step()
    assert plan is not None
    assert list(plan.num_new) == [49, 1]
    w.run_until_idle()
    for request in requests:
        assert w.tokens(request) == pure_output(w.requests[request])


def test_a_prefix_is_private_to_its_salt() -> None:
    w = world(max_step_tokens=256)
    prompt = [1] * 40
    w.submit(prompt, max_tokens=1, salt=b"a")
    w.run_until_idle()
    w.submit(prompt, max_tokens=1, salt=b"b")
    plan = w.step()
    assert plan is not None
    assert list(plan.num_computed) == [0]


def test_without_prefix_cache_nothing_is_looked_up() -> None:
    w = world(prefix_cache=False, max_step_tokens=256)
    for _ in range(2):
        w.submit([1] * 40, max_tokens=1)
        plan = w.step()
        assert plan is not None
        assert list(plan.num_computed) == [0]
    assert w.scheduler.pool.num_cached == 0


def test_a_preempted_sequence_resumes_with_the_same_output_and_the_oldest_is_spared() -> None:
    w = world(num_blocks=8, max_step_tokens=64)
    requests = [w.submit(prompt, max_tokens=60) for prompt in long_answers(4)]
    w.run_until_idle()
    preemptions = [w.outputs[r][-1].stats.num_preemptions for r in requests]  # type: ignore[union-attr]
    assert preemptions[0] == 0
    assert sum(preemptions) > 0
    assert max(preemptions) <= w.scheduler.limits.max_preemptions
    for request in requests:
        assert w.tokens(request) == pure_output(w.requests[request])
    w.scheduler.check()


def long_answers(count: int) -> list[list[int]]:
    """Prompts whose answers only end at their 60 tokens, which nobody can know."""
    w = world()
    prompts = ([n % 5, n // 5, *range(12)] for n in range(1000))
    endless = (p for p in prompts if len(pure_output(w.requests[w.submit(p, max_tokens=60)])) == 60)
    return list(itertools.islice(endless, count))


def test_a_request_that_can_never_fit_is_refused_with_its_numbers() -> None:
    w = world(num_blocks=2)
    with pytest.raises(AdmissionError, match=r"prompt \(30 tokens\) \+ max_tokens \(3\) is 33.*at most 32"):
        w.submit([1] * 30, max_tokens=3)
    with pytest.raises(AdmissionError, match="0 tokens"):
        w.submit([], max_tokens=1)


def test_the_whole_pool_serves_one_request() -> None:
    w = world(num_blocks=2)
    request = w.submit([1] * 20, max_tokens=12, min_tokens=12)
    w.run_until_idle()
    assert len(w.tokens(request)) == 12


def test_abort_frees_the_blocks_before_and_after_the_first_token() -> None:
    w = world(max_step_tokens=8)
    waiting, running = w.submit([1] * 30, max_tokens=5), w.submit([2] * 30, max_tokens=5)
    w.step()
    for request in (running, waiting, waiting):
        w.abort(request)
    assert w.scheduler.is_idle
    assert w.scheduler.pool.num_held == 0
    assert [w.outputs[r][-1].finish_reason for r in (waiting, running)] == [FinishReason.CANCELLED] * 2
    w.scheduler.check()


def test_a_failed_step_ends_its_requests_only_and_its_blocks_are_never_hit() -> None:
    w = world(max_step_tokens=40, max_running=1)
    prompt = [i % 7 for i in range(40)]
    failed, next_one = w.submit(prompt, max_tokens=3), w.submit(prompt, max_tokens=3)
    w.step(fails=True)
    assert w.outputs[failed][-1].error == "planted"
    plan = w.step()
    assert plan is not None
    assert list(plan.num_computed) == [0]
    w.run_until_idle()
    assert w.tokens(next_one) == pure_output(w.requests[next_one])


def test_min_tokens_bans_the_end_until_enough_came_out() -> None:
    w = world()
    w.submit([1, 2], max_tokens=4, min_tokens=2)
    banned = []
    while not w.scheduler.is_idle:
        plan = w.step()
        assert plan is not None
        assert plan.sampled.edits is not None
        banned.append(list(plan.sampled.edits.banned.tokens))
    assert banned[:3] == [[EOS], [EOS], []]


def test_a_sequence_that_may_get_no_token_ends_with_the_reason_and_the_others_go_on() -> None:
    w = world()
    stuck, other = w.submit([1, 2], max_tokens=4), w.submit([3, 4], max_tokens=4)
    plan = w.scheduler.plan()
    assert plan is not None
    deliveries = w.scheduler.update(StepResult([NO_TOKEN, 5], [None, None]))
    outputs = {request.id: output for request, output in deliveries}
    assert outputs[stuck].finish_reason is FinishReason.ERROR
    assert "no token is left to choose from" in (outputs[stuck].error or "")
    assert outputs[other].token_ids == (5,)
    assert [s.request.id for s in w.scheduler.sequences] == [other]
    w.abort(other)
    w.scheduler.check()


def test_waiting_requests_start_in_the_order_they_came() -> None:
    w = world(max_running=2, max_step_tokens=64)
    requests = [w.submit([n, n], max_tokens=3, min_tokens=3) for n in range(6)]
    w.run_until_idle()
    started = [w.outputs[r][-1].stats.scheduled_s for r in requests]  # type: ignore[union-attr]
    assert started == sorted(started)  # type: ignore[type-var]


def test_streams_are_planned_alike_one_by_one_and_all_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("secrets.randbits", lambda bits: 7)
    together, apart = worlds = world(max_running=5), world(max_running=5)
    monkeypatch.setattr(apart.scheduler, "_advance_streams", lambda s: [*map(apart.scheduler._advance, s)])
    for w in worlds:
        for number in range(12):
            w.submit([number % 3] * (9 + number), max_tokens=30 + number, min_tokens=2 * number)
    while not together.scheduler.is_idle:
        assert together.step() == apart.step()
        assert len({tuple(each.clock for each in w.scheduler.tenants.accounts) for w in worlds}) == 1
    assert together.outputs == apart.outputs
