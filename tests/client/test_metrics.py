"""The metrics page becomes the numbers an operator looks at."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagetide_client import ServerError, ServerUnavailable
from pagetide_client.metrics import Snapshot, parse, quantile, scrape, since
from pagetide_client.summary import summarize

REPEATABLE = settings(derandomize=True, deadline=None)
INF = math.inf

# As Triton writes it: histograms are counters with `le`, in no order, among families of its own.
PAGE = """\
# HELP nv_inference_count Number of inferences performed
# TYPE nv_inference_count counter
nv_inference_count{{model="m",version="1"}} 3
# HELP vllm:num_requests_running Requests that run
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{{model="m",model_name="m",version="1"}} {running}
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{{model="m",model_name="m",version="1"}} 2
# TYPE vllm:generation_tokens_total counter
vllm:generation_tokens_total{{model="m",model_name="m",version="1"}} {generated}
# TYPE vllm:prompt_tokens_total counter
vllm:prompt_tokens_total{{model="m",model_name="m",version="1"}} 40
# TYPE vllm:prefix_cache_queries_total counter
vllm:prefix_cache_queries_total{{model="m",model_name="m",version="1"}} 200
# TYPE vllm:prefix_cache_hits_total counter
vllm:prefix_cache_hits_total{{model="m",model_name="m",version="1"}} 50
# TYPE vllm:request_success_total counter
vllm:request_success_total{{finished_reason="stop",model="m",model_name="m",version="1"}} 4
vllm:request_success_total{{finished_reason="length",model="m",model_name="m",version="1"}} 5
# TYPE vllm:time_to_first_token_seconds_bucket counter
vllm:time_to_first_token_seconds_bucket{{le="+Inf",model="m",model_name="m",version="1"}} {ttft}
vllm:time_to_first_token_seconds_bucket{{le="0.1",model="m",model_name="m",version="1"}} 2
vllm:time_to_first_token_seconds_bucket{{le="0.2",model="m",model_name="m",version="1"}} {ttft}
# TYPE pagetide:kv_blocks_total gauge
pagetide:kv_blocks_total{{model="m",model_name="m",version="1"}} 10
# TYPE pagetide:kv_blocks gauge
pagetide:kv_blocks{{model="m",model_name="m",state="free",version="1"}} 3
pagetide:kv_blocks{{model="m",model_name="m",state="used",version="1"}} 5
pagetide:kv_blocks{{model="m",model_name="m",state="cached",version="1"}} 2
"""


def snapshot(time_s: float, running: int = 1, generated: int = 0, ttft: int = 2) -> Snapshot:
    return parse(PAGE.format(running=running, generated=generated, ttft=ttft), time_s)


def test_a_page_is_read_by_model_version_and_series() -> None:
    (reading,) = snapshot(0.0).readings.values()
    assert list(snapshot(0.0).readings) == [("m", "1")]
    assert reading.values["vllm:num_requests_waiting"] == 2
    assert reading.values["vllm:request_success_total"] == 9, "summed over the reasons"
    assert reading.blocks == {"used": 5, "cached": 2, "free": 3}
    assert reading.histograms["vllm:time_to_first_token_seconds"] == {0.1: 2, 0.2: 2, INF: 2}
    assert "nv_inference_count" not in reading.values


def test_a_page_in_another_format_is_refused() -> None:
    with pytest.raises(ServerError, match="not in Prometheus' text format"):
        parse("<html>not metrics</html>")


def test_no_metrics_port_is_one_clear_error() -> None:
    with pytest.raises(ServerUnavailable, match=r"no metrics at http://127\.0\.0\.1:1/metrics .*refused"):
        scrape("http://127.0.0.1:1/metrics")


def test_rates_are_of_the_window() -> None:
    (summary,) = summarize(snapshot(10.0, generated=100), snapshot(12.0, generated=150))
    assert summary.window_s == 2
    assert summary.output_tokens_per_s == 25
    assert summary.prompt_tokens_per_s == 0
    assert (summary.running, summary.waiting, summary.blocks_total) == (1, 2, 10)


def test_percentiles_are_of_the_window_or_of_everything_when_it_was_quiet() -> None:
    (busy,) = summarize(snapshot(0.0, ttft=2), snapshot(1.0, ttft=4))
    assert busy.ttft_p50_s == pytest.approx(0.15), "both new observations lie between 0.1 and 0.2"
    (quiet,) = summarize(snapshot(0.0, ttft=2), snapshot(1.0, ttft=2))
    assert quiet.ttft_p50_s == pytest.approx(0.05)
    assert quiet.itl_p50_s is None
    assert quiet.prefix_hit_rate == 0.25


def test_a_restarted_server_counts_from_zero_again() -> None:
    (summary,) = summarize(snapshot(0.0, generated=1000, ttft=9), snapshot(1.0, generated=30, ttft=4))
    assert summary.output_tokens_per_s == 30
    assert summary.ttft_p50_s is not None


def test_a_version_that_appears_is_counted_from_zero() -> None:
    (summary,) = summarize(parse("", 0.0), snapshot(2.0, generated=30))
    assert summary.output_tokens_per_s == 15


@pytest.mark.parametrize(
    ("q", "buckets", "expected"),
    [
        (0.5, {}, None),
        (0.5, {1.0: 0, INF: 0}, None),
        (0.5, {1.0: 10, INF: 10}, 0.5),
        (0.5, {1.0: 0, 2.0: 10, INF: 10}, 1.5),
        (0.5, {1.0: 5, 2.0: 5, 4.0: 10, INF: 10}, 1.0),
        (0.99, {1.0: 5, 2.0: 6, INF: 10}, 2.0),
        (0.5, {INF: 3}, 0.0),
    ],
)
def test_a_quantile_is_linear_within_its_bucket(
    q: float, buckets: dict[float, float], expected: float | None
) -> None:
    assert quantile(q, buckets) == (None if expected is None else pytest.approx(expected))


observations = st.lists(st.floats(0.0, 5.0), min_size=1, max_size=50)
BOUNDS = (0.1, 0.5, 1.0, 2.0, 5.0, INF)


def histogram(values: list[float]) -> dict[float, float]:
    return {bound: sum(value <= bound for value in values) for bound in BOUNDS}


@REPEATABLE
@given(observations, st.floats(0.01, 1.0))
def test_a_quantile_lies_in_the_bucket_of_the_exact_one(values: list[float], q: float) -> None:
    exact = sorted(values)[math.ceil(q * len(values)) - 1]
    found = quantile(q, histogram(values))
    assert found is not None
    high = next(bound for bound in BOUNDS if exact <= bound)
    low = max([bound for bound in (0.0, *BOUNDS) if bound < high])
    assert low <= found <= high


@REPEATABLE
@given(observations, observations)
def test_since_holds_exactly_the_newer_observations(old: list[float], new: list[float]) -> None:
    assert since(histogram(old + new), histogram(old)) == histogram(new)
