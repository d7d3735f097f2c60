"""How requests went, and what that adds up to: percentiles and goodput.

TTFT is the time from sending (open loop: from the moment the request was due) to the first token; ITL the gap
between two responses of a stream; TPOT a request's mean time per output token after the first. Goodput counts
the requests that met both limits of the SLO (Zhong et al., DistServe, 2024).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import pairwise
from statistics import fmean


class Outcome(str, Enum):
    """How a request ended, as its client saw it."""

    OK = "ok"
    CANCELLED = "cancelled"
    FAILED = "failed"


@dataclass
class Record:
    """One request. Times are `time.perf_counter()` seconds; `responses` holds (time, tokens in it)."""

    workload: str
    due_s: float
    max_tokens: int
    responses: list[tuple[float, int]] = field(default_factory=list)
    prompt_tokens: int = 0
    text: str = ""
    end_s: float = 0.0
    outcome: Outcome = Outcome.FAILED
    error: str = ""

    @property
    def output_tokens(self) -> int:
        return sum(tokens for _, tokens in self.responses)

    @property
    def ttft_s(self) -> float | None:
        return self.responses[0][0] - self.due_s if self.responses else None

    @property
    def itls_s(self) -> list[float]:
        times = [time for time, _ in self.responses]
        return [after - before for before, after in pairwise(times)]

    @property
    def tpot_s(self) -> float | None:
        if self.output_tokens < 2 or len(self.responses) < 2:
            return None
        return (self.responses[-1][0] - self.responses[0][0]) / (self.output_tokens - 1)

    @property
    def e2e_s(self) -> float:
        return self.end_s - self.due_s


@dataclass(frozen=True)
class SLO:
    """What a client is promised: seconds to the first token, and per token after it."""

    ttft_s: float = 2.0
    tpot_s: float = 0.1

    def met_by(self, record: Record) -> bool:
        return (
            record.outcome is Outcome.OK
            and record.ttft_s is not None
            and record.ttft_s <= self.ttft_s
            and (record.tpot_s or 0.0) <= self.tpot_s
        )


@dataclass(frozen=True)
class Spread:
    """A distribution in milliseconds: how many values, their mean and percentiles."""

    count: int
    mean: float
    p50: float
    p90: float
    p99: float

    @classmethod
    def of(cls, seconds: Iterable[float | None]) -> Spread:
        ms = sorted(1000 * value for value in seconds if value is not None)
        if not ms:
            return cls(0, 0.0, 0.0, 0.0, 0.0)
        return cls(len(ms), fmean(ms), *(percentile(ms, q) for q in (0.5, 0.9, 0.99)))


@dataclass(frozen=True)
class Summary:
    """A run's totals. Rates are per second of it; `good_share` is of all requests that were not cancelled."""

    duration_s: float
    ok: int
    cancelled: int
    failed: int
    prompt_tokens: int
    output_tokens: int
    output_tokens_per_s: float
    requests_per_s: float
    goodput_per_s: float
    good_share: float
    ttft_ms: Spread
    itl_ms: Spread
    tpot_ms: Spread
    e2e_ms: Spread


def percentile(ordered: Sequence[float], q: float) -> float:
    """The smallest value that at least a share `q` of the ordered values do not exceed."""
    return ordered[max(0, math.ceil(q * len(ordered)) - 1)]


def summarize(records: Sequence[Record], slo: SLO) -> Summary:
    duration = _duration(records)
    outcomes = [record.outcome for record in records]
    finished = [record for record in records if record.outcome is Outcome.OK]
    answered = len(records) - outcomes.count(Outcome.CANCELLED)
    good = sum(slo.met_by(record) for record in records)
    output_tokens = sum(record.output_tokens for record in records)
    return Summary(
        duration_s=duration,
        ok=len(finished),
        cancelled=outcomes.count(Outcome.CANCELLED),
        failed=outcomes.count(Outcome.FAILED),
        prompt_tokens=sum(record.prompt_tokens for record in records),
        output_tokens=output_tokens,
        output_tokens_per_s=output_tokens / duration if duration else 0.0,
        requests_per_s=len(finished) / duration if duration else 0.0,
        goodput_per_s=good / duration if duration else 0.0,
        good_share=good / answered if answered else 0.0,
        ttft_ms=Spread.of(record.ttft_s for record in finished),
        itl_ms=Spread.of(gap for record in finished for gap in record.itls_s),
        tpot_ms=Spread.of(record.tpot_s for record in finished),
        e2e_ms=Spread.of(record.e2e_s for record in finished),
    )


def _duration(records: Sequence[Record]) -> float:
    if not records:
        return 0.0
    return max(record.end_s for record in records) - min(record.due_s for record in records)
