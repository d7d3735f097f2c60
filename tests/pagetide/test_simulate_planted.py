"""The simulation finds bugs: each one planted turns it red within 200 seeds."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
from simulation import planted_overlapped
from simulation.planted import PLANTS, Plant
from simulation.simulation import Simulation, SimulationError

from pagetide.loops import MakeLoop, OverlappedLoop, PlainLoop

MOST_SEEDS = 200
SHOWN = r"seed \d+, step \d+: [\s\S]*block map:"


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("plant", PLANTS, ids=[plant.__name__ for plant in PLANTS])
def test_a_planted_bug_is_found(plant: Plant) -> None:
    with plant(), pytest.raises(SimulationError, match=SHOWN):
        _run_seeds(PlainLoop)


@pytest.mark.parametrize("plant", planted_overlapped.PLANTS, ids=lambda plant: plant.__name__)
def test_a_bug_planted_in_what_only_overlapped_steps_need_is_found(plant: Plant) -> None:
    with plant(), pytest.raises(SimulationError, match=SHOWN):
        _run_seeds(OverlappedLoop)


def _run_seeds(loop: MakeLoop) -> None:
    for seed in range(MOST_SEEDS):
        Simulation(seed, loop=loop).run()
