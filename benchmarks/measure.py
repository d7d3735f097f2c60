"""What came back when: from token times to the numbers of the table."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from benchmarks.workload import Ask


@dataclass(slots=True)
class Trace:
    """One request's life on the client's clock; `arrivals` are (seconds, tokens) of each response."""

    started_s: float
    arrivals: list[tuple[float, int]] = field(default_factory=list)

    @property
    def num_tokens(self) -> int:
        return sum(count for _, count in self.arrivals)

    @property
    def ttft_s(self) -> float:
        return self.arrivals[0][0] - self.started_s

    @property
    def intervals_s(self) -> list[float]:
        """One gap per token after the first response; tokens that came together share their gap evenly."""
        gaps: list[float] = []
        for (before, _), (now, count) in zip(self.arrivals, self.arrivals[1:], strict=False):
            gaps += [(now - before) / count] * count
        return gaps


@dataclass(frozen=True, slots=True)
class Numbers:
    """One run of one subject at one concurrency."""

    output_tokens_per_s: float
    ttft_p50_s: float
    itl_p50_s: float
    itl_p99_s: float


Serve = Callable[[Ask, Trace], None]
"""Serves one request to its end and fills the trace."""


def closed_loop(asks: Sequence[Ask], concurrency: int, serve: Serve) -> list[Trace]:
    """`concurrency` clients, each asking for the next request as soon as its last is answered."""
    todo, traces = iter(asks), list[Trace]()
    lock = threading.Lock()

    def client() -> None:
        while True:
            with lock:
                ask = next(todo, None)
                if ask is None:
                    return
                trace = Trace(time.perf_counter())
                traces.append(trace)
            serve(ask, trace)

    threads = [threading.Thread(target=client) for _ in range(concurrency)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return traces


def numbers(traces: Sequence[Trace]) -> Numbers:
    begin = min(trace.started_s for trace in traces)
    end = max(trace.arrivals[-1][0] for trace in traces)
    intervals = sorted(gap for trace in traces for gap in trace.intervals_s)
    return Numbers(
        output_tokens_per_s=sum(trace.num_tokens for trace in traces) / (end - begin),
        ttft_p50_s=statistics.median(trace.ttft_s for trace in traces),
        itl_p50_s=statistics.median(intervals),
        itl_p99_s=intervals[int(len(intervals) * 0.99)],
    )
