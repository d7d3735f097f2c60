"""The simulation finds bugs: each one planted turns it red within 200 seeds."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
from simulation.planted import PLANTS, Plant
from simulation.simulation import Simulation, SimulationError

MOST_SEEDS = 200


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("plant", PLANTS, ids=[plant.__name__ for plant in PLANTS])
def test_a_planted_bug_is_found(plant: Plant) -> None:
    with plant(), pytest.raises(SimulationError, match=r"seed \d+, step \d+: [\s\S]*block map:"):
        _run_seeds()


def _run_seeds() -> None:
    for seed in range(MOST_SEEDS):
        Simulation(seed).run()
