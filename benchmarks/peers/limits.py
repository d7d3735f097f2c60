"""What this machine can do at most: reading memory, and bfloat16 matrix products."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

REPEATS = 7


def measure() -> dict[str, float]:
    """GB/s of a long read by all threads, and bfloat16 GFLOP/s of a product 1024 x 4096 x 4096: best of 7."""
    memory = torch.ones(2**28)
    a, b = (torch.randn(size, 4096).to(torch.bfloat16) for size in (1024, 4096))
    read_s = _best(lambda: memory.sum())
    product_s = _best(lambda: torch.nn.functional.linear(a, b))
    return {
        "read_gb_per_s": memory.nbytes / read_s / 1e9,
        "bf16_gflop_per_s": 2 * 1024 * 4096 * 4096 / product_s / 1e9,
    }


def _best(work: Callable[[], object]) -> float:
    times = []
    for _ in range(REPEATS):
        started_s = time.perf_counter()
        work()
        times.append(time.perf_counter() - started_s)
    return min(times)
