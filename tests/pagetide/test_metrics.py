"""What is published is a sound Prometheus exposition of what happened, at a bounded cost, from one thread."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field, replace

import pytest

from pagetide.metric_families import Families
from pagetide.metric_series import Histogram, Labels
from pagetide.metrics import Metrics
from pagetide.request import FinishReason, RequestStats
from pagetide.stats import Reason, StepStats


@dataclass
class Shown:
    """One series as a scrape would show it."""

    registry: Board
    value: float = 0.0

    def increment(self, value: float) -> None:
        assert value > 0, "a counter only grows"
        self.registry.note_call()
        self.value += value

    def set(self, value: float) -> None:
        self.registry.note_call()
        self.value = value


@dataclass
class Board:
    """Keeps series as Triton does, and who called."""

    series: dict[tuple[str, frozenset[tuple[str, str]]], Shown] = field(default_factory=dict)
    threads: set[int] = field(default_factory=set)
    num_calls: int = 0

    def note_call(self) -> None:
        self.num_calls += 1
        self.threads.add(threading.get_ident())

    def counter(self, name: str, text: str, labels: Labels) -> Shown:
        assert text
        return self.series.setdefault((name, frozenset(labels.items())), Shown(self))

    gauge = counter

    def value(self, name: str, **labels: str) -> float:
        return self.series[name, frozenset(labels.items())].value

    def buckets(self, name: str) -> dict[str, float]:
        return {
            dict(labels)["le"]: shown.value
            for (each, labels), shown in self.series.items()
            if each == f"{name}_bucket"
        }


STEP = StepStats(
    num_running=3,
    num_waiting=2,
    blocks_total=10,
    blocks_used=5,
    blocks_cached=1,
    blocks_free=4,
    num_tokens=20,
    num_prompt_tokens=17,
    num_generated=3,
    prefix_queries=32,
    prefix_hits=16,
    step_s=0.02,
    preemptions={Reason.BLOCKS: 2, Reason.SHARE: 1},
)
STATS = RequestStats(
    num_prompt_tokens=17,
    num_output_tokens=5,
    num_prefix_hit_tokens=16,
    num_preemptions=0,
    arrival_s=100.0,
    scheduled_s=100.5,
    first_token_s=101.5,
    finished_s=103.5,
)


@pytest.fixture
def board() -> Board:
    return Board()


@pytest.fixture
def families(board: Board) -> Families:
    return Families(board)


def test_every_family_stands_at_zero_before_anything_happened(board: Board, families: Families) -> None:
    families.publish()
    names = {name for name, _ in board.series}
    assert {shown.value for shown in board.series.values()} == {0.0}
    assert {
        "vllm:num_requests_running",
        "vllm:kv_cache_usage_perc",
        "vllm:prompt_tokens_total",
        "vllm:request_success_total",
        "vllm:time_to_first_token_seconds_bucket",
        "vllm:inter_token_latency_seconds_count",
        "vllm:iteration_tokens_total_sum",
        "pagetide:kv_blocks",
        "pagetide:preemptions_total",
        "pagetide:step_seconds_bucket",
    } <= names


def test_a_step_is_counted(board: Board, families: Families) -> None:
    families.add_step(STEP)
    families.add_step(replace(STEP, num_running=4))
    families.publish()
    assert board.value("vllm:num_requests_running") == 4
    assert board.value("vllm:num_requests_waiting") == 2
    assert board.value("vllm:kv_cache_usage_perc") == 0.5
    assert [board.value("pagetide:kv_blocks", state=s) for s in ("used", "cached", "free")] == [5, 1, 4]
    assert board.value("pagetide:kv_blocks_total") == 10
    assert board.value("vllm:prefix_cache_queries_total") == 64
    assert board.value("vllm:prefix_cache_hits_total") == 32
    assert board.value("vllm:num_preemptions_total") == 6
    assert board.value("pagetide:preemptions_total", reason="blocks") == 4
    assert board.value("pagetide:preemptions_total", reason="share") == 2
    assert board.value("vllm:prompt_tokens_total") == 34
    assert board.value("vllm:generation_tokens_total") == 6
    assert board.value("vllm:iteration_tokens_total_sum") == 40
    assert board.value("pagetide:step_seconds_sum") == pytest.approx(0.04)


def test_a_refused_request_is_counted_by_its_code(board: Board, families: Families) -> None:
    for code in ("INVALID_ARG", "UNAVAILABLE", "INVALID_ARG"):
        families.add_refused(code)
    families.publish()
    codes = ("INVALID_ARG", "UNAVAILABLE", "INTERNAL")
    shown = [board.value("pagetide:requests_refused_total", code=code) for code in codes]
    assert shown == [2, 1, 0]


def test_a_report_without_computed_tokens_is_no_step(board: Board, families: Families) -> None:
    families.add_step(replace(STEP, num_tokens=0, step_s=0.0))
    families.publish()
    assert board.value("pagetide:step_seconds_count") == 0
    assert board.value("vllm:num_requests_running") == 3


def test_a_finished_requests_times_are_counted(board: Board, families: Families) -> None:
    families.add_finished(FinishReason.STOP, STATS)
    families.add_intervals((0.5, 0.25))
    families.publish()
    sums = {
        "vllm:request_queue_time_seconds": 0.5,
        "vllm:time_to_first_token_seconds": 1.5,
        "vllm:request_prefill_time_seconds": 1.0,
        "vllm:request_decode_time_seconds": 2.0,
        "vllm:e2e_request_latency_seconds": 3.5,
        "vllm:request_time_per_output_token_seconds": 0.5,
        "vllm:inter_token_latency_seconds": 0.75,
    }
    assert {name: board.value(f"{name}_sum") for name in sums} == pytest.approx(sums)
    assert board.value("vllm:request_success_total", finished_reason="stop") == 1
    assert board.value("vllm:request_success_total", finished_reason="length") == 0


def test_a_request_that_never_started_has_only_its_end(board: Board, families: Families) -> None:
    families.add_finished(FinishReason.CANCELLED, replace(STATS, scheduled_s=None, first_token_s=None))
    families.publish()
    assert board.value("vllm:request_success_total", finished_reason="cancelled") == 1
    assert board.value("vllm:e2e_request_latency_seconds_count") == 1
    assert board.value("vllm:request_queue_time_seconds_count") == 0
    assert board.value("vllm:time_to_first_token_seconds_count") == 0


def test_a_histogram_is_cumulative_with_inclusive_edges(board: Board) -> None:
    histogram = Histogram(board, "h", "text", (1, 2.5))
    for value in (0.5, 1.0, 2.0, 2.5, 9.0):
        histogram.observe(value)
    histogram.publish()
    histogram.observe(2.0)
    histogram.publish()
    assert board.buckets("h") == {"1.0": 2, "2.5": 5, "+Inf": 6}
    assert (board.value("h_count"), board.value("h_sum")) == (6, 17.0)


def test_publishing_costs_the_same_for_any_number_of_tokens(board: Board, families: Families) -> None:
    costs = []
    for count in (100, 100_000):
        families.add_intervals([0.0001 * (i % 90) for i in range(count)])
        before = board.num_calls
        families.publish()
        costs.append(board.num_calls - before)
    assert costs[0] == costs[1] < 20


def test_publishing_again_makes_no_call(board: Board, families: Families) -> None:
    families.add_step(STEP)
    families.publish()
    before = board.num_calls
    families.publish()
    assert board.num_calls == before


def test_one_thread_makes_every_call_however_many_leave_messages(board: Board) -> None:
    metrics = Metrics(lambda: board, period_s=0.001)
    metrics.start()
    threads = [threading.Thread(target=lambda: [metrics.on_step(STEP) for _ in range(500)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    metrics.on_finished(FinishReason.LENGTH, STATS)
    metrics.on_intervals((0.1,))
    metrics.stop()
    assert len(board.threads) == 1
    assert threading.get_ident() not in board.threads
    assert board.value("vllm:generation_tokens_total") == 3 * 2000
    assert board.value("vllm:request_success_total", finished_reason="length") == 1
    assert board.value("vllm:inter_token_latency_seconds_count") == 1


def test_a_server_without_metrics_still_serves(caplog: pytest.LogCaptureFixture) -> None:
    def refuse() -> Board:
        raise RuntimeError("metrics are off")

    metrics = Metrics(refuse)
    metrics.start()
    metrics.on_step(STEP)
    metrics.stop()
    assert "no metrics are shown" in caplog.text


def test_one_failed_publication_does_not_end_the_next(board: Board, caplog: pytest.LogCaptureFixture) -> None:
    failed = threading.Event()

    def fail_once(self: Shown, value: float) -> None:
        if not failed.is_set():
            failed.set()
            raise RuntimeError("no memory")
        Shown.increment(self, value)

    class Flaky(Board):
        def counter(self, name: str, text: str, labels: Labels) -> Shown:
            shown = super().counter(name, text, labels)
            shown.increment = fail_once.__get__(shown)  # type: ignore[method-assign]
            return shown

        gauge = Board.counter

    flaky = Flaky()
    metrics = Metrics(lambda: flaky, period_s=0.001)
    metrics.on_step(STEP)
    metrics.start()
    assert failed.wait(30)
    metrics.stop()
    assert flaky.value("vllm:generation_tokens_total") == 3
    assert "metrics were not published" in caplog.text
