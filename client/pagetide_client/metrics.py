"""What the metrics port says about each model version, read from Prometheus' text format."""

from __future__ import annotations

import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from prometheus_client.parser import text_string_to_metric_families

from pagetide_client.errors import ServerError, ServerUnavailable

Buckets = Mapping[float, float]
"""A histogram: observations up to each upper bound, cumulative; the last bound is infinite."""

_PREFIXES = ("vllm:", "pagetide:")
_BLOCKS = "pagetide:kv_blocks"

# The metrics port is on the server itself; a proxy for the web would not reach it.
_opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@dataclass(frozen=True, slots=True)
class Reading:
    """One model version's series at one moment: `values` by name, `blocks` by state, histograms by name.

    The server writes a histogram as counters, to whose names the parser adds `_total`, as to any counter's.
    """

    values: dict[str, float] = field(default_factory=dict)
    blocks: dict[str, float] = field(default_factory=dict)
    histograms: dict[str, dict[float, float]] = field(default_factory=dict)

    def add(self, name: str, labels: Mapping[str, str], value: float) -> None:
        if "le" in labels:
            histogram = name.removesuffix("_total").removesuffix("_bucket")
            self.histograms.setdefault(histogram, {})[float(labels["le"])] = value
        elif name == _BLOCKS:
            self.blocks[labels.get("state", "")] = value
        else:
            self.values[name] = self.values.get(name, 0.0) + value


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Every model version's reading by (model, version); `time_s` is `time.monotonic()` of the scrape."""

    time_s: float
    readings: dict[tuple[str, str], Reading]


def parse(text: str, time_s: float = 0.0) -> Snapshot:
    """Raises ServerError when `text` is not Prometheus' format."""
    readings: dict[tuple[str, str], Reading] = {}
    try:
        families = list(text_string_to_metric_families(text))
    except (ValueError, KeyError, IndexError) as error:
        raise ServerError(f"the metrics are not in Prometheus' text format: {error}") from None
    for sample in (sample for each in families for sample in each.samples):
        if sample.name.startswith(_PREFIXES) and "model" in sample.labels:
            key = (sample.labels["model"], sample.labels.get("version", ""))
            readings.setdefault(key, Reading()).add(sample.name, sample.labels, sample.value)
    return Snapshot(time_s, readings)


def scrape(url: str, timeout_s: float = 5.0) -> Snapshot:
    """Reads `url`, such as `http://127.0.0.1:8002/metrics`. Raises ServerUnavailable or ServerError."""
    try:
        with _opener.open(url, timeout=timeout_s) as response:
            text = response.read().decode(errors="replace")
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        reason = getattr(reason, "strerror", None) or reason
        raise ServerUnavailable(
            f"no metrics at {url} ({reason}); start a server with `pagetide serve`"
        ) from None
    return parse(text, time.monotonic())


def since(new: Buckets, old: Buckets) -> Buckets:
    """The observations between two readings of a histogram; all of `new` when the server has restarted."""
    if any(old.get(bound, 0.0) > count for bound, count in new.items()):
        return new
    return {bound: count - old.get(bound, 0.0) for bound, count in new.items()}


def quantile(q: float, buckets: Buckets) -> float | None:
    """The `q` quantile, linear within its bucket; None without observations.

    As Prometheus' `histogram_quantile`: what lies beyond the last finite bound is reported as that bound.
    """
    bounds = sorted(buckets)
    if not bounds or buckets[bounds[-1]] <= 0:
        return None
    rank = q * buckets[bounds[-1]]
    edges: Sequence[tuple[float, float]] = [(0.0, 0.0), *((bound, buckets[bound]) for bound in bounds[:-1])]
    for (low, below), (high, up_to) in pairwise(edges):
        if up_to >= rank and up_to > below:
            return low + (high - low) * (rank - below) / (up_to - below)
    return edges[-1][0]
