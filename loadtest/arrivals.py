"""When requests arrive, whatever the server does: the open loop."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random

from loadtest.workloads import Prompt


def poisson(rate: float, rng: Random, make: Callable[[], Prompt]) -> Iterator[tuple[float, Prompt]]:
    """(seconds from the start, what to send) without end, `rate` a second on average. Raises ValueError."""
    if rate <= 0:
        raise ValueError(f"rate is {rate}; it must be above 0 requests a second")
    at_s = 0.0
    while True:
        at_s += rng.expovariate(rate)
        yield at_s, make()
