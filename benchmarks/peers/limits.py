"""What this machine can do at most: reading memory, and bfloat16 matrix products."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

REPEATS = 7


def measure() -> dict[str, float]:
    """GB/s of a long read by all threads, and GFLOP/s of a product 1024 x 4096 x 4096 of bfloat16: best of 7.

    A CPU without instructions for bfloat16 multiplies faster in float32: the better of the two counts.
    """
    memory = torch.ones(2**28)
    read_s = _best(lambda: memory.sum())
    product_s = min(map(_product_s, (torch.bfloat16, torch.float32)))
    return {
        "read_gb_per_s": memory.nbytes / read_s / 1e9,
        "bf16_gflop_per_s": 2 * 1024 * 4096 * 4096 / product_s / 1e9,
    }


def _product_s(dtype: torch.dtype) -> float:
    a, b = (torch.randn(size, 4096).to(dtype) for size in (1024, 4096))
    return _best(lambda: torch.nn.functional.linear(a, b))


def _best(work: Callable[[], object]) -> float:
    times = []
    for _ in range(REPEATS):
        started_s = time.perf_counter()
        work()
        times.append(time.perf_counter() - started_s)
    return min(times)
