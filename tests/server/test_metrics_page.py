"""The metrics page tells what happened, in a form that Prometheus' functions take."""

from __future__ import annotations

import itertools
import json
import re
from collections import defaultdict

import pytest
from triton_world import MODEL, Triton

pytestmark = pytest.mark.server

VLLM = (
    "num_requests_running",
    "num_requests_waiting",
    "kv_cache_usage_perc",
    "prefix_cache_queries_total",
    "prefix_cache_hits_total",
    "num_preemptions_total",
    "prompt_tokens_total",
    "generation_tokens_total",
    "request_success_total",
)
VLLM_HISTOGRAMS = (
    "iteration_tokens_total",
    "time_to_first_token_seconds",
    "inter_token_latency_seconds",
    "request_time_per_output_token_seconds",
    "e2e_request_latency_seconds",
    "request_queue_time_seconds",
    "request_prefill_time_seconds",
    "request_decode_time_seconds",
)
HISTOGRAMS = [*(f"vllm:{name}" for name in VLLM_HISTOGRAMS), "pagetide:step_seconds"]
GRAMMARS = "pagetide:grammar_compile_seconds"
LENGTH = 'vllm:request_success_total{finished_reason="length"}'


def test_every_family_is_there_with_its_labels(triton: Triton) -> None:
    names = [f"vllm:{name}" for name in VLLM]
    names += ["pagetide:kv_blocks", "pagetide:kv_blocks_total", "pagetide:preemptions_total"]
    names += [f"{name}_{part}" for name in HISTOGRAMS for part in ("bucket", "sum", "count")]
    page = triton.metrics_page()
    for name in names:
        labels = re.search(rf"^{name}{{(.*)}} ", page, re.MULTILINE)
        assert labels, f"{name} is missing"
        assert f'model="{MODEL}"' in page
        assert 'version="1"' in labels[1]


def test_requests_are_counted_token_by_token(idle: Triton) -> None:
    before = idle.metrics()
    prompts = [f"Number {n}: tell" for n in range(3)]
    asked = {"return_num_input_tokens": True}
    sampling = {"max_tokens": 10, "ignore_eos": True}
    answers = idle.together([{"prompt": p, "sampling": sampling, **asked} for p in prompts])
    num_prompt_tokens = sum(responses[0].outputs["num_input_tokens"] for responses in answers)
    expected = {
        "vllm:prompt_tokens_total": num_prompt_tokens,
        "vllm:prefix_cache_queries_total": num_prompt_tokens,
        "vllm:generation_tokens_total": 30,
        LENGTH: 3,
        "vllm:time_to_first_token_seconds_count": 3,
        "vllm:inter_token_latency_seconds_count": 27,
        "vllm:request_time_per_output_token_seconds_count": 3,
        "vllm:e2e_request_latency_seconds_count": 3,
        "vllm:request_queue_time_seconds_count": 3,
        "vllm:iteration_tokens_total_sum": num_prompt_tokens + 27,
    }
    idle.wait_for_metrics({name: before[name] + added for name, added in expected.items()})


def test_refused_requests_are_counted_by_their_error(idle: Triton) -> None:
    refused = 'pagetide:requests_refused_total{code="INVALID_ARG"}'
    before = idle.metrics()[refused]
    idle.error(sampling={"top_p": 2})
    idle.wait_for_metrics({refused: before + 1})


def test_times_add_up(idle: Triton) -> None:
    before = idle.metrics()
    idle.text("Tell me", sampling={"max_tokens": 10, "ignore_eos": True})
    idle.wait_for_metrics({LENGTH: before[LENGTH] + 1})
    after = idle.metrics()
    took = {name: after[f"{name}_sum"] - before[f"{name}_sum"] for name in HISTOGRAMS}
    ttft = took["vllm:time_to_first_token_seconds"]
    decode = took["vllm:request_decode_time_seconds"]
    assert (
        0
        < ttft
        == pytest.approx(
            took["vllm:request_queue_time_seconds"] + took["vllm:request_prefill_time_seconds"], abs=1e-6
        )
    )
    assert took["vllm:e2e_request_latency_seconds"] == pytest.approx(ttft + decode, abs=1e-6)
    assert took["vllm:request_time_per_output_token_seconds"] == pytest.approx(decode / 9, abs=1e-6)
    assert 0 < took["pagetide:step_seconds"] < took["vllm:e2e_request_latency_seconds"]


def test_a_prefix_hit_is_counted_in_tokens(idle: Triton) -> None:
    """All full blocks of a prompt are found again, but one token is always computed."""
    before = idle.metrics()
    prompt = "A prompt of more than two blocks is computed once and then found again. " * 4
    options = {"sampling": {"max_tokens": 1}, "return_num_input_tokens": True}
    (first,) = idle.start(prompt, **options).all()
    (second,) = idle.start(prompt, **options).all()
    num_tokens = second.outputs["num_input_tokens"]
    assert first.outputs["num_input_tokens"] == num_tokens > 48
    queries, hits = "vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total"
    idle.wait_for_metrics(
        {queries: before[queries] + 2 * num_tokens, hits: before[hits] + (num_tokens - 1) // 16 * 16}
    )


def test_running_requests_and_their_blocks_show_while_they_run(idle: Triton) -> None:
    calls = [idle.start(f"Count {n}:", sampling={"max_tokens": 4000, "ignore_eos": True}) for n in range(3)]
    idle.wait_for_metrics({"vllm:num_requests_running": 3})
    shown = idle.metrics()
    used = shown['pagetide:kv_blocks{state="used"}']
    assert used >= 3
    assert shown["vllm:kv_cache_usage_perc"] == pytest.approx(used / shown["pagetide:kv_blocks_total"])
    for call in calls:
        call.cancel()


def test_histograms_are_cumulative_and_end_at_their_count(idle: Triton) -> None:
    idle.text("Hello", sampling={"max_tokens": 4})
    idle.wait_until_idle()
    shown = idle.metrics()
    buckets: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for name, value in shown.items():
        match = re.fullmatch(r'(.*)_bucket{le="(.*)"}', name)
        if match:
            buckets[match[1]].append((float(match[2]), value))
    assert set(buckets) == {*HISTOGRAMS, GRAMMARS}
    del buckets[GRAMMARS]  # nobody asked for one
    for name, unordered in buckets.items():
        counts = [count for _, count in sorted(unordered)]
        assert all(low <= high for low, high in itertools.pairwise(counts)), name
        assert counts[-1] == shown[f"{name}_count"] > 0, name


def test_statistics_tell_of_queues_plans_and_every_block(idle: Triton) -> None:
    """Over gRPC while requests run, and over HTTP."""
    sampling = {"max_tokens": 4000, "ignore_eos": True, "tenant": "acme"}
    calls = [idle.start(f"Count {n}:", sampling=sampling) for n in range(3)]
    idle.wait_for_metrics({"vllm:num_requests_running": 3})
    (response,) = idle.start(None, stream=None, statistics=True).all()
    assert response.is_final
    assert set(response.outputs) == {"text_output"}
    told = json.loads(response.text)
    assert [(t["name"], t["num_running"]) for t in told["tenants"]] == [("acme", 3)]
    assert {tenant for step in told["last_steps"][-3:] for _, tenant, _, _ in step["plan"]} == {"acme"}
    assert sum(told["blocks"].values()) == sum(count for _, count in told["block_map"])
    assert told["blocks"]["held"] + told["blocks"]["shared"] >= 3
    for call in calls:
        call.cancel()
    idle.wait_until_idle()
    status, body = idle.post("generate", {"statistics": True})
    assert status == 200
    assert json.loads(json.loads(body)["text_output"])["tenants"] == []
