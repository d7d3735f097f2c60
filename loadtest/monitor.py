"""Reads the server's own metrics while the load runs, for the picture of KV use over time."""

from __future__ import annotations

import re
import time
import urllib.request
from dataclasses import dataclass, field

SERIES = (
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "vllm:kv_cache_usage_perc",
    "vllm:num_preemptions_total",
)


@dataclass
class Monitor:
    """Samples of one model, summed over its versions: (`time.perf_counter()`, a value for each of SERIES)."""

    url: str
    model: str
    samples: list[tuple[float, list[float]]] = field(default_factory=list)

    def sample(self) -> None:
        """Takes one sample; a server that does not answer gives none."""
        try:
            with urllib.request.urlopen(self.url, timeout=2) as reply:
                text = reply.read().decode()
        except OSError:
            return
        self.samples.append((time.perf_counter(), read(text, self.model)))


def read(text: str, model: str) -> list[float]:
    """A value for each entry of SERIES out of Prometheus' text format; 0 for what is not there."""
    totals = dict.fromkeys(SERIES, 0.0)
    for name, labels, value in re.findall(r"^([\w:]+)\{([^}]*)\} (\S+)$", text, re.M):
        if name in totals and f'model="{model}"' in labels:
            totals[name] += float(value)
    return list(totals.values())
