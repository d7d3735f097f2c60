"""The metric families of one model version, and how the engine's messages change them.

Names and meanings are vLLM's where it has the family, so its dashboards work; the others are `pagetide:`.
"""

from __future__ import annotations

from collections.abc import Iterable

from pagetide.metric_series import Counter, Gauge, Histogram, Labels, Registry, Series
from pagetide.request import FinishReason, RequestStats
from pagetide.stats import Reason, StepStats

_SHORT_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
_LONG_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 60, 120, 300, 600)
_TOKENS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)

_COUNTERS = {
    "vllm:prefix_cache_queries_total": "Prompt tokens looked up in the prefix cache",
    "vllm:prefix_cache_hits_total": "Prompt tokens found in the prefix cache",
    "vllm:num_preemptions_total": "Preemptions",
    "vllm:prompt_tokens_total": "Prompt tokens computed",
    "vllm:generation_tokens_total": "Tokens generated",
    "pagetide:grammar_cache_hits_total": "Grammars asked for that were compiled already",
    "pagetide:grammars_refused_total": "Grammars that did not compile",
}
_GAUGES = {
    "vllm:num_requests_running": "Requests that run",
    "vllm:num_requests_waiting": "Requests that wait, preempted ones among them",
    "vllm:kv_cache_usage_perc": "Share of the KV blocks in use, 0 to 1",
    "pagetide:kv_blocks_total": "KV blocks in all",
    "pagetide:failed_steps": "Steps that failed since the last that succeeded",
}
_HISTOGRAMS = {
    "vllm:iteration_tokens_total": ("Tokens computed in one step", _TOKENS),
    "pagetide:step_seconds": ("Time of one step", _SHORT_S),
    "pagetide:grammar_compile_seconds": ("Time of compiling a grammar, refused ones included", _SHORT_S),
    "vllm:time_to_first_token_seconds": ("From arrival to the first token", _LONG_S),
    "vllm:inter_token_latency_seconds": ("From one token to the next", _SHORT_S),
    "vllm:request_time_per_output_token_seconds": ("Mean inter-token latency of one request", _SHORT_S),
    "vllm:e2e_request_latency_seconds": ("From arrival to the end", _LONG_S),
    "vllm:request_queue_time_seconds": ("From arrival to the first step", _LONG_S),
    "vllm:request_prefill_time_seconds": ("From the first step to the first token", _LONG_S),
    "vllm:request_decode_time_seconds": ("From the first token to the last", _LONG_S),
}
_BLOCKS = "pagetide:kv_blocks"
_FINISHED = "vllm:request_success_total"
_REFUSED = "pagetide:requests_refused_total"
_REFUSALS = ("INVALID_ARG", "UNAVAILABLE", "INTERNAL")
_PREEMPTIONS = "pagetide:preemptions_total"


class Families:
    """Every series of one model version; they stand at 0 from the start. Owned by one thread."""

    def __init__(self, registry: Registry) -> None:
        def counter(name: str, text: str, labels: Labels) -> Counter:
            return Counter(registry.counter(name, text, labels))

        def gauge(name: str, text: str, labels: Labels) -> Gauge:
            return Gauge(registry.gauge(name, text, labels))

        self._counters = {name: counter(name, text, {}) for name, text in _COUNTERS.items()}
        self._gauges = {name: gauge(name, text, {}) for name, text in _GAUGES.items()}
        self._histograms = {
            name: Histogram(registry, name, text, edges) for name, (text, edges) in _HISTOGRAMS.items()
        }
        self._blocks = {
            state: gauge(_BLOCKS, "KV blocks by what they hold", {"state": state})
            for state in ("used", "cached", "free")
        }
        self._finished = {
            reason: counter(_FINISHED, "Requests ended, by reason", {"finished_reason": reason.value})
            for reason in FinishReason
        }
        self._refused = {
            code: counter(_REFUSED, "Requests that were not taken, by error code", {"code": code})
            for code in _REFUSALS
        }
        self._preemptions = {
            reason: counter(_PREEMPTIONS, "Preemptions, by reason", {"reason": reason.value})
            for reason in Reason
        }

    def publish(self) -> None:
        """Makes the calls that bring what is shown up to date."""
        groups: tuple[Iterable[Series], ...] = (
            self._counters.values(),
            self._gauges.values(),
            self._histograms.values(),
            self._blocks.values(),
            self._finished.values(),
            self._refused.values(),
            self._preemptions.values(),
        )
        for group in groups:
            for series in group:
                series.publish()

    def add_step(self, step: StepStats) -> None:
        self._set_gauges(step)
        counters = self._counters
        counters["vllm:prefix_cache_queries_total"].add(step.prefix_queries)
        counters["vllm:prefix_cache_hits_total"].add(step.prefix_hits)
        counters["vllm:num_preemptions_total"].add(step.num_preemptions)
        for reason, count in step.preemptions.items():
            self._preemptions[reason].add(count)
        counters["vllm:prompt_tokens_total"].add(step.num_prompt_tokens)
        counters["vllm:generation_tokens_total"].add(step.num_generated)
        if step.num_tokens:
            self._histograms["vllm:iteration_tokens_total"].observe(step.num_tokens)
            self._histograms["pagetide:step_seconds"].observe(step.step_s)

    def add_finished(self, reason: FinishReason, stats: RequestStats | None) -> None:
        self._finished[reason].add(1)
        if stats is not None:
            self._add_times(stats)

    def add_refused(self, code: str) -> None:
        """A request was not taken. `code` is Triton's."""
        self._refused[code].add(1)

    def add_intervals(self, intervals_s: Iterable[float]) -> None:
        """Times between one request's successive tokens."""
        histogram = self._histograms["vllm:inter_token_latency_seconds"]
        for interval_s in intervals_s:
            histogram.observe(interval_s)

    def add_grammar_hit(self) -> None:
        self._counters["pagetide:grammar_cache_hits_total"].add(1)

    def add_grammar_compiled(self, took_s: float, refused: bool) -> None:
        self._observe("pagetide:grammar_compile_seconds", took_s)
        self._counters["pagetide:grammars_refused_total"].add(refused)

    def _set_gauges(self, step: StepStats) -> None:
        gauges = self._gauges
        gauges["vllm:num_requests_running"].set(step.num_running)
        gauges["vllm:num_requests_waiting"].set(step.num_waiting)
        gauges["vllm:kv_cache_usage_perc"].set(step.blocks_used / step.blocks_total)
        gauges["pagetide:kv_blocks_total"].set(step.blocks_total)
        gauges["pagetide:failed_steps"].set(step.num_failed_in_a_row)
        self._blocks["used"].set(step.blocks_used)
        self._blocks["cached"].set(step.blocks_cached)
        self._blocks["free"].set(step.blocks_free)

    def _add_times(self, stats: RequestStats) -> None:
        observe = self._observe
        observe("vllm:e2e_request_latency_seconds", stats.finished_s - stats.arrival_s)
        if stats.scheduled_s is None:
            return
        observe("vllm:request_queue_time_seconds", stats.scheduled_s - stats.arrival_s)
        if stats.first_token_s is None:
            return
        decode_s = stats.finished_s - stats.first_token_s
        observe("vllm:time_to_first_token_seconds", stats.first_token_s - stats.arrival_s)
        observe("vllm:request_prefill_time_seconds", stats.first_token_s - stats.scheduled_s)
        observe("vllm:request_decode_time_seconds", decode_s)
        if stats.num_output_tokens > 1:
            each_s = decode_s / (stats.num_output_tokens - 1)
            observe("vllm:request_time_per_output_token_seconds", each_s)

    def _observe(self, name: str, value: float) -> None:
        self._histograms[name].observe(value)
