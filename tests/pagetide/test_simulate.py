"""Simulated worlds in the ordinary test run; `make simulate` runs thousands."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator

import pytest
from simulation.planted_overlapped import steps_fail_often
from simulation.scenario import make_scenario
from simulation.simulation import Simulation

from pagetide.loops import MakeLoop, OverlappedLoop, PlainLoop
from pagetide.request import FinishReason


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """The engine logs every step failure that a scenario asks for."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("loop", [PlainLoop, OverlappedLoop])
@pytest.mark.parametrize("start", range(150, 300, 50))
def test_every_promise_holds_in_fifty_worlds(start: int, loop: MakeLoop) -> None:
    for seed in range(start, start + 50):
        Simulation(seed, loop=loop).run()


@pytest.mark.parametrize("loop", [PlainLoop, OverlappedLoop])
def test_every_promise_holds_where_every_third_step_fails(loop: MakeLoop) -> None:
    with steps_fail_often():
        for seed in range(60):
            Simulation(seed, loop=loop).run()


HAPPENS = {
    "steps",
    "prefix hit tokens",
    "hits on blocks of the same step",
    "copies",
    "preemptions for blocks",
    "preemptions for share",
    "host saves",
    "host loads",
    "damaged loads",
    "rows for nothing",
    "sequences started again",
    *(reason.value for reason in FinishReason),
}


def test_all_that_can_go_wrong_does_go_wrong() -> None:
    """A world in which nothing happens proves nothing."""
    coverage: Counter[str] = Counter()
    for seed in range(150):
        for loop in (PlainLoop, OverlappedLoop):
            simulation = Simulation(seed, loop=loop)
            simulation.run()
            coverage += simulation.coverage
    assert not HAPPENS - coverage.keys()


def test_worlds_hold_what_clients_and_bad_luck_bring() -> None:
    worlds = [make_scenario(seed) for seed in range(150)]
    arrivals = [arrival for world in worlds for arrival in world.arrivals]
    assert {world.num_blocks for world in worlds} >= {1, 2, 3, 24}
    assert any(world.failing_steps for world in worlds)
    assert len({arrival.tenant for arrival in arrivals}) == 3
    assert len({arrival.priority for arrival in arrivals}) == 3
    assert any(arrival.timeout_s is not None for arrival in arrivals)
    assert any(arrival.abort_after_s is not None for arrival in arrivals)
    assert any(arrival.params.seed == 2 for arrival in arrivals), "the third of n samples"
    assert min(len(arrival.prompt) for arrival in arrivals) == 1
    assert max(len(arrival.prompt) for arrival in arrivals) > 100


@pytest.mark.parametrize("loop", [PlainLoop, OverlappedLoop])
def test_a_seed_replays_to_the_same_steps(loop: MakeLoop) -> None:
    runs = [Simulation(4, trace=True, loop=loop) for _ in range(2)]
    for run in runs:
        run.run()
    assert len(runs[0].lines) > 10
    assert runs[0].lines == runs[1].lines
