"""Bugs in what only overlapped steps need, to be planted one at a time: the simulation must find each."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from simulation import simulation
from simulation.planted import Plant
from simulation.scenario import Scenario, make_scenario

from pagetide import growth
from pagetide.draft import Draft
from pagetide.flights import Flights
from pagetide.request import Sequence
from pagetide.roster import Roster


def another_rows_token_is_carried() -> AbstractContextManager[Any]:
    entries = Draft.entries

    def wrong(self: Draft) -> dict[int, int]:
        return {number: max(0, entry - 1) for number, entry in entries(self).items()}

    return patch.object(Draft, "entries", wrong)


def a_block_is_named_before_its_last_token_is_known() -> AbstractContextManager[Any]:
    publish = Draft._publish

    def wrong(self: Draft, sequence: Sequence, start: int, end: int) -> None:
        unknown = end - len(sequence.tokens)
        sequence.tokens.extend([0] * unknown)
        publish(self, sequence, start, end)
        del sequence.tokens[len(sequence.tokens) - unknown :]

    return patch.object(Draft, "_publish", wrong)


def rules_do_not_wait_for_the_token_before() -> AbstractContextManager[Any]:
    close = Draft.close

    def wrong(self: Draft) -> None:
        for sequence, index in self.restricted:
            self._restrict(sequence, index)
        self.restricted.clear()
        close(self)

    return patch.object(Draft, "close", wrong)


def what_a_step_has_for_those_who_left_is_delivered() -> AbstractContextManager[Any]:
    return patch.object(growth, "Status", type("Nobody", (), {"FINISHED": None}))


@contextmanager
def steps_fail_often() -> Iterator[None]:
    """In every world: whoever rests on what a failed step was to leave is seen sooner."""

    def world(seed: int) -> Scenario:
        return replace(make_scenario(seed), failing_steps=frozenset(range(1, 60, 3)))

    with patch.object(simulation, "make_scenario", world):
        yield


@contextmanager
def what_rests_on_a_failed_step_is_believed() -> Iterator[None]:
    with steps_fail_often(), patch.object(Roster, "restart", lambda self, sequence: None):
        yield


def a_step_behind_a_failed_one_leaves_its_blocks_to_be_hit() -> AbstractContextManager[Any]:
    crash = Flights.crash

    def wrong(self: Flights) -> Any:
        behind = list(self._drafts)[1:]
        with patch.object(Draft, "undo", lambda draft: undo(draft) if draft not in behind else None):
            return crash(self)

    undo = Draft.undo
    return patch.object(Flights, "crash", wrong)


PLANTS: tuple[Plant, ...] = (
    another_rows_token_is_carried,
    a_block_is_named_before_its_last_token_is_known,
    rules_do_not_wait_for_the_token_before,
    what_a_step_has_for_those_who_left_is_delivered,
    what_rests_on_a_failed_step_is_believed,
    a_step_behind_a_failed_one_leaves_its_blocks_to_be_hit,
)
