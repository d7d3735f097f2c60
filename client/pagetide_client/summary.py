"""Two readings of a model version as the numbers an operator looks at."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pagetide_client.metrics import Reading, Snapshot, quantile, since

_TTFT = "vllm:time_to_first_token_seconds"
_ITL = "vllm:inter_token_latency_seconds"
_PROMPT = "vllm:prompt_tokens_total"
_GENERATED = "vllm:generation_tokens_total"
_QUERIES = "vllm:prefix_cache_queries_total"
_HITS = "vllm:prefix_cache_hits_total"


@dataclass(frozen=True, slots=True)
class Summary:
    """One model version over the last `window_s` seconds.

    Rates are of the window. Percentiles (seconds) and the prefix hit rate (0 to 1) are of the window too,
    or since the server's start if nothing happened in it; None if nothing ever did.
    """

    model: str
    version: str
    window_s: float
    running: int
    waiting: int
    output_tokens_per_s: float
    prompt_tokens_per_s: float
    ttft_p50_s: float | None
    ttft_p99_s: float | None
    itl_p50_s: float | None
    itl_p99_s: float | None
    prefix_hit_rate: float | None
    preemptions: int
    blocks_used: int
    blocks_cached: int
    blocks_free: int

    @property
    def blocks_total(self) -> int:
        return self.blocks_used + self.blocks_cached + self.blocks_free


def summarize(old: Snapshot, new: Snapshot) -> list[Summary]:
    """A summary of each model version in `new`, by name and version."""
    window_s = new.time_s - old.time_s
    return [
        _summary(key, window_s, old.readings.get(key, Reading()), reading)
        for key, reading in sorted(new.readings.items())
    ]


def _summary(key: tuple[str, str], window_s: float, old: Reading, new: Reading) -> Summary:
    ttft_p50_s, ttft_p99_s = _percentiles(_TTFT, old, new)
    itl_p50_s, itl_p99_s = _percentiles(_ITL, old, new)
    return Summary(
        model=key[0],
        version=key[1],
        window_s=window_s,
        running=int(new.values.get("vllm:num_requests_running", 0)),
        waiting=int(new.values.get("vllm:num_requests_waiting", 0)),
        output_tokens_per_s=_grown(_GENERATED, old, new) / window_s if window_s > 0 else 0.0,
        prompt_tokens_per_s=_grown(_PROMPT, old, new) / window_s if window_s > 0 else 0.0,
        ttft_p50_s=ttft_p50_s,
        ttft_p99_s=ttft_p99_s,
        itl_p50_s=itl_p50_s,
        itl_p99_s=itl_p99_s,
        prefix_hit_rate=_hit_rate(old, new),
        preemptions=int(new.values.get("vllm:num_preemptions_total", 0)),
        blocks_used=int(new.blocks.get("used", 0)),
        blocks_cached=int(new.blocks.get("cached", 0)),
        blocks_free=int(new.blocks.get("free", 0)),
    )


def _grown(name: str, old: Reading, new: Reading) -> float:
    """How much a counter grew; a server that restarted began again at 0."""
    before, now = old.values.get(name, 0.0), new.values.get(name, 0.0)
    return now - before if now >= before else now


def _hit_rate(old: Reading, new: Reading) -> float | None:
    for start in (old, Reading()):
        queries = _grown(_QUERIES, start, new)
        if queries:
            return _grown(_HITS, start, new) / queries
    return None


def _percentiles(name: str, old: Reading, new: Reading) -> Sequence[float | None]:
    total = new.histograms.get(name, {})
    recent = since(total, old.histograms.get(name, {}))
    shown = recent if any(recent.values()) else total
    return [quantile(q, shown) for q in (0.5, 0.99)]
