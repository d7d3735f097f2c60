"""Simulated worlds in the ordinary test run; `make simulate` runs thousands."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
from simulation.simulation import Simulation


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """The engine logs every step failure that a scenario asks for."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("start", range(0, 500, 100))
def test_every_promise_holds_in_a_hundred_worlds(start: int) -> None:
    for seed in range(start, start + 100):
        Simulation(seed).run()


def test_a_seed_replays_to_the_same_steps() -> None:
    runs = [Simulation(4, trace=True) for _ in range(2)]
    for run in runs:
        run.run()
    assert len(runs[0].lines) > 10
    assert runs[0].lines == runs[1].lines
