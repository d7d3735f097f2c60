from __future__ import annotations

import json
import threading
import time
from array import array
from queue import SimpleQueue

import pytest
from simulation.pure_model import EOS, PureRunner, pure_output

from pagetide.backlog import UnavailableError
from pagetide.block_pool import BlockPool, chain_root
from pagetide.engine import Engine
from pagetide.limits import AdmissionError, Limits
from pagetide.request import FinishReason, Output, Request, SamplingParams, Sequence
from pagetide.roster import Delivery
from pagetide.scheduler import Scheduler
from pagetide.statistics import Statistics
from pagetide.stats import StepStats
from pagetide.step import StepPlan, StepResult
from pagetide.tenant_policy import TenantPolicies, TenantPolicy

NUM_BLOCKS = 64
WAIT_S = 20.0


class GatedRunner(PureRunner):
    """Lets each step through only when the test says so, and fails the steps it is told to."""

    def __init__(self) -> None:
        super().__init__(NUM_BLOCKS)
        self.gate = threading.Semaphore(0)
        self.started = threading.Semaphore(0)
        self.fail_next = False

    def run(self, plan: StepPlan) -> StepResult:
        self.started.release()
        assert self.gate.acquire(timeout=WAIT_S)
        if self.fail_next:
            self.fail_next = False
            raise ValueError("planted")
        return super().run(plan)

    def open(self) -> None:
        self.gate.release(1_000_000)


class Harness:
    def __init__(self, max_waiting: int = 100, policies: TenantPolicies | None = None) -> None:
        self.runner = GatedRunner()
        scheduler = Scheduler(BlockPool(NUM_BLOCKS), Limits(32, 8, 512), chain_root, policies=policies)
        self.steps: list[StepStats] = []
        self.failed = threading.Event()
        self.engine = Engine(
            scheduler, self.runner, max_waiting, self.steps.append, on_failure=self.failed.set
        )
        self.outputs: dict[int, SimpleQueue[Output]] = {}
        self.engine.start()

    def submit(self, request_id: int, prompt: list[int], max_tokens: int = 8, tenant: str = "") -> Request:
        self.outputs[request_id] = SimpleQueue()
        request = Request(
            id=request_id,
            prompt_ids=array("i", prompt),
            params=SamplingParams(max_tokens=max_tokens, temperature=0.0),
            sink=self.outputs[request_id].put,
            arrival_s=time.monotonic(),
            eos_token_ids=frozenset({EOS}),
            tenant=tenant,
        )
        self.engine.submit(request)
        return request

    def result(self, request_id: int) -> tuple[list[int], Output]:
        tokens: list[int] = []
        while True:
            output = self.outputs[request_id].get(timeout=WAIT_S)
            tokens += output.token_ids
            if output.finish_reason is not None:
                return tokens, output


def test_requests_from_many_threads_all_get_their_own_output() -> None:
    h = Harness()
    h.runner.open()
    requests: dict[int, Request] = {}
    threads = [
        threading.Thread(target=lambda n=n: requests.update({n: h.submit(n, [n % 5] * (n + 1))}))
        for n in range(24)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for n, request in requests.items():
        assert h.result(n)[0] == pure_output(request)
    assert h.engine.drain(WAIT_S)


def test_drain_finishes_what_was_accepted_and_takes_no_more() -> None:
    h = Harness()
    request = h.submit(1, [1, 2, 3], max_tokens=20)
    assert h.runner.started.acquire(timeout=WAIT_S)
    threading.Timer(0.05, h.runner.open).start()
    assert h.engine.drain(WAIT_S)
    assert h.result(1)[0] == pure_output(request)
    with pytest.raises(UnavailableError, match="shutting down"):
        h.submit(2, [1])


def test_drain_cancels_what_does_not_finish_in_time() -> None:
    h = Harness()
    h.submit(1, [1, 2, 3], max_tokens=400)
    assert h.runner.started.acquire(timeout=WAIT_S)
    threading.Timer(0.3, h.runner.gate.release).start()
    assert not h.engine.drain(0.05)
    assert h.result(1)[1].finish_reason is FinishReason.CANCELLED


def test_abort_ends_a_request_before_its_first_token() -> None:
    h = Harness()
    h.submit(1, [1] * 100)
    assert h.runner.started.acquire(timeout=WAIT_S)
    h.engine.abort(1)
    h.engine.abort(1)
    h.runner.open()
    tokens, last = h.result(1)
    assert tokens == []
    assert last.finish_reason is FinishReason.CANCELLED
    assert h.engine.drain(WAIT_S)


def test_a_step_that_raises_ends_its_requests_and_the_engine_goes_on() -> None:
    h = Harness()
    h.runner.fail_next = True
    h.submit(1, [1] * 20)
    h.runner.open()
    _, last = h.result(1)
    assert last.finish_reason is FinishReason.ERROR
    assert last.error == "ValueError: planted"
    request = h.submit(2, [1] * 20)
    assert h.result(2)[0] == pure_output(request)
    assert h.engine.health() is None
    assert h.engine.drain(WAIT_S)


def test_a_full_queue_refuses_with_its_limit() -> None:
    h = Harness(max_waiting=2)
    h.submit(1, [1] * 400, max_tokens=1)
    assert h.runner.started.acquire(timeout=WAIT_S)
    h.submit(2, [1])
    h.submit(3, [1])
    with pytest.raises(UnavailableError, match="2 requests wait already; max_waiting is 2"):
        h.submit(4, [1])
    h.runner.open()
    assert h.engine.drain(WAIT_S)


def test_a_tenant_that_fills_its_own_queue_leaves_room_for_others() -> None:
    h = Harness(policies=TenantPolicies({"loud": TenantPolicy(max_waiting=1)}))
    h.submit(1, [1] * 400, max_tokens=1, tenant="loud")
    assert h.runner.started.acquire(timeout=WAIT_S)
    h.submit(2, [1], tenant="loud")
    h.runner.gate.release()
    assert h.runner.started.acquire(timeout=WAIT_S)
    with pytest.raises(
        UnavailableError, match="1 requests of tenant 'loud' wait already; its max_waiting is 1"
    ):
        h.submit(3, [1], tenant="loud")
    h.submit(4, [1], tenant="quiet")
    h.runner.open()
    assert h.engine.drain(WAIT_S)


def test_what_can_never_fit_is_refused_on_the_callers_thread() -> None:
    h = Harness()
    with pytest.raises(AdmissionError, match="at most 512"):
        h.submit(1, [1] * 600)
    assert h.engine.drain(WAIT_S)


def test_a_broken_scheduler_answers_everyone_and_says_why() -> None:
    h = Harness()
    h.engine._scheduler.plan = lambda: 1 / 0  # type: ignore[method-assign,assignment,return-value]
    h.submit(1, [1])
    _, last = h.result(1)
    assert last.finish_reason is FinishReason.ERROR
    assert last.error is not None
    assert "ZeroDivisionError" in last.error
    assert "ZeroDivisionError" in str(h.engine.health())
    with pytest.raises(UnavailableError, match="ZeroDivisionError"):
        h.submit(2, [1])


def test_one_broken_answer_leaves_no_other_request_without_its_own() -> None:
    """The accounting of one request raises in the middle of an update: all three are answered."""
    h = Harness()
    for n in range(3):
        h.submit(n, [n] * 4)
    finish = h.engine._scheduler._roster.finish

    def broken(sequence: Sequence, output: Output) -> Delivery:
        if sequence.request.id == 1:
            raise KeyError("planted")
        return finish(sequence, output)

    h.engine._scheduler._roster.finish = broken  # type: ignore[method-assign]
    h.runner.open()
    for n in range(3):
        assert h.result(n)[1].finish_reason is not None
    assert h.failed.wait(WAIT_S)


def test_a_request_that_meets_the_engines_end_is_answered_or_refused() -> None:
    h = Harness()
    h.engine._scheduler.plan = lambda: 1 / 0  # type: ignore[method-assign,assignment,return-value]
    taken = []
    for n in range(1000):
        try:
            h.submit(n, [1])
        except UnavailableError:
            break
        taken.append(n)
    for n in taken:
        assert h.result(n)[1].finish_reason is FinishReason.ERROR
    assert h.failed.wait(WAIT_S)


def test_three_failed_steps_in_a_row_are_ill_health_and_one_good_step_ends_it() -> None:
    h = Harness()
    h.runner.open()
    for n in range(3):
        assert h.engine.health() is None
        h.runner.fail_next = True
        h.submit(n, [1] * 5)
        h.result(n)
    assert h.engine.health() == "the last 3 steps failed: ValueError: planted"
    h.submit(9, [1] * 5)
    h.result(9)
    assert h.engine.health() is None
    assert h.engine.drain(WAIT_S)


def test_each_step_is_reported_and_the_last_leaves_no_block_in_use() -> None:
    h = Harness()
    h.runner.open()
    request = h.submit(1, [1] * 40, max_tokens=6)
    h.result(1)
    assert h.engine.drain(WAIT_S)
    assert sum(s.num_generated for s in h.steps) == len(pure_output(request))
    assert sum(s.num_prompt_tokens for s in h.steps) == 40
    assert h.steps[-1].blocks_used == 0
    assert all(s.blocks_used + s.blocks_cached + s.blocks_free == NUM_BLOCKS for s in h.steps)


def test_statistics_show_queues_by_tenant_the_last_steps_and_every_block() -> None:
    h = Harness()
    for request_id, tenant in enumerate(["amber", "amber", "blue"]):
        h.submit(request_id, [request_id] * 30, max_tokens=40, tenant=tenant)
    h.runner.gate.release(1)
    for _ in range(2):
        assert h.runner.started.acquire(timeout=WAIT_S)
    told: SimpleQueue[Statistics | None] = SimpleQueue()
    h.engine.ask(told.put)
    h.runner.open()
    statistics = told.get(timeout=WAIT_S)
    assert statistics is not None
    shown = json.loads(statistics.to_json())
    queues = {t["name"]: t["num_waiting"] + t["num_running"] for t in shown["tenants"]}
    assert queues == {"amber": 2, "blue": 1}
    assert sum(tenant["share"] for tenant in shown["tenants"]) == pytest.approx(1.0)
    assert [step["num_tokens"] for step in shown["last_steps"]] == [32, 32]
    assert shown["last_steps"][0]["plan"] == [[0, "amber", 0, 30], [2, "blue", 0, 2]]
    assert sum(count for _, count in shown["block_map"]) == sum(shown["blocks"].values()) == NUM_BLOCKS
    assert shown["blocks"]["held"] >= 4
    assert shown["prefix_queries"] == statistics.prefix_queries
    assert h.engine.drain(WAIT_S)


def test_whoever_asks_an_engine_that_ends_first_is_told_so() -> None:
    h = Harness()
    h.submit(1, [1] * 20)
    assert h.runner.started.acquire(timeout=WAIT_S)
    told: SimpleQueue[Statistics | None] = SimpleQueue()
    h.engine._scheduler.observe = lambda step_s: 1 / 0  # type: ignore[method-assign,assignment,return-value]
    h.engine.ask(told.put)
    h.runner.open()
    assert told.get(timeout=WAIT_S) is None
    assert h.failed.wait(WAIT_S)
    with pytest.raises(UnavailableError, match="the engine stopped: ZeroDivisionError"):
        h.engine.ask(told.put)
