"""Counters, gauges and histograms that gather values locally and publish only what changed.

One thread owns a series. A histogram is a set of counters in Prometheus' text form, so publishing any
number of observations costs at most one call per bucket.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Protocol

Labels = Mapping[str, str]


class CounterHandle(Protocol):
    def increment(self, value: float) -> None: ...


class GaugeHandle(Protocol):
    def set(self, value: float) -> None: ...


class Registry(Protocol):
    """Where series are shown. Asked for the same name again, it adds labels to the same family."""

    def counter(self, name: str, text: str, labels: Labels) -> CounterHandle: ...

    def gauge(self, name: str, text: str, labels: Labels) -> GaugeHandle: ...


class Series(Protocol):
    def publish(self) -> None: ...


class Counter:
    def __init__(self, handle: CounterHandle) -> None:
        self._handle = handle
        self._added = 0.0

    def add(self, value: float) -> None:
        self._added += value

    def publish(self) -> None:
        if self._added:
            self._handle.increment(self._added)
            self._added = 0.0


class Gauge:
    def __init__(self, handle: GaugeHandle) -> None:
        self._handle = handle
        self._value = self._shown = 0.0
        handle.set(0.0)

    def set(self, value: float) -> None:
        self._value = value

    def publish(self) -> None:
        if self._value != self._shown:
            self._handle.set(self._value)
            self._shown = self._value


class Histogram:
    """`edges` are the buckets' upper bounds, inclusive, ascending; the bucket without one is added."""

    def __init__(self, registry: Registry, name: str, text: str, edges: Sequence[float]) -> None:
        self._edges = edges
        self._counts = [0] * (len(edges) + 1)
        bounds = [*(str(float(edge)) for edge in edges), "+Inf"]
        self._buckets = [
            Counter(registry.counter(f"{name}_bucket", f"{text}: observations up to le", {"le": bound}))
            for bound in bounds
        ]
        self._sum = Counter(registry.counter(f"{name}_sum", f"{text}: sum", {}))
        self._count = Counter(registry.counter(f"{name}_count", f"{text}: observations", {}))

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._edges, value)] += 1
        self._sum.add(value)

    def publish(self) -> None:
        """The total goes last and the buckets from the top, so a reader between never sees too few."""
        cumulative = list(accumulate(self._counts))
        self._counts = [0] * len(self._counts)
        for bucket, count in zip(reversed(self._buckets), reversed(cumulative), strict=True):
            bucket.add(count)
            bucket.publish()
        self._sum.publish()
        self._count.add(cumulative[-1])
        self._count.publish()
