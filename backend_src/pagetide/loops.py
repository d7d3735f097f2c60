"""Two ways to take steps, side by side: one after the other, or the next one planned while one runs.

Both give the same tokens. The plain loop is what a CPU wants, where planning and computing share the cores.
On a GPU the overlapped one keeps the device from waiting for the host: a step is planned and launched while
the one before it runs, whose tokens it gets on the device. (NanoFlow, OSDI'25, and SGLang do it too.)
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from pagetide.failed_steps import FailedSteps
from pagetide.roster import Delivery
from pagetide.scheduler import Scheduler
from pagetide.step import StepPlan, StepResult

log = logging.getLogger(__name__)


class Pending(Protocol):
    """A step that was launched. Whatever went wrong with it, `result` raises."""

    def sample(self) -> None:
        """Its plan, open until now, is complete: go on to choose tokens. No-op if it was complete before."""

    def result(self) -> StepResult:
        """Wait until the step is over."""


class StepRunner(Protocol):
    """Runs plans in the order in which it gets them."""

    def run(self, plan: StepPlan) -> StepResult: ...


class StepLauncher(Protocol):
    """Runs plans in the order in which it gets them, without waiting for one before taking the next."""

    def launch(self, plan: StepPlan) -> Pending: ...


@dataclass(frozen=True, slots=True)
class Ended:
    """A step that is over, and what it has for whom."""

    plan: StepPlan
    launched_s: float
    deliveries: list[Delivery]


class Loop(Protocol):
    """Takes steps, on the engine thread."""

    @property
    def is_busy(self) -> bool:
        """A step is in flight."""

    def step(self) -> Ended | None:
        """Go on; the step that ended meanwhile, if one did."""


MakeLoop = Callable[[Scheduler, Any, FailedSteps, Callable[[], float]], Loop]
"""Makes a loop of a scheduler, the kind of runner it takes, where it counts failed steps, and a clock."""


class PlainLoop:
    """Plan, run, update."""

    is_busy = False

    def __init__(
        self, scheduler: Scheduler, runner: StepRunner, failed: FailedSteps, clock: Callable[[], float]
    ) -> None:
        self._scheduler = scheduler
        self._runner = runner
        self._failed = failed
        self._clock = clock

    def step(self) -> Ended | None:
        plan = self._scheduler.plan()
        if plan is None:
            return None
        launched_s = self._clock()
        return Ended(plan, launched_s, self._compute(plan))

    def _compute(self, plan: StepPlan) -> list[Delivery]:
        """An exception in the model step ends that step's requests; the others never notice."""
        try:
            result = self._runner.run(plan)
        except Exception as error:
            return _fail(self._scheduler, self._failed, plan, error)
        self._failed.clear()
        return self._scheduler.update(result)


@dataclass(slots=True)
class _Flight:
    plan: StepPlan
    launched_s: float
    pending: Pending


class OverlappedLoop:
    """Plan and launch a step, then wait for the one before it and update.

        device   | step 1      | step 2      | step 3
        host     | plan 2      | update 1, plan 3 | update 2, plan 4

    A sequence that turns out to be finished has one row too many in the step that is in flight by then; what
    comes of it is dropped. Its blocks may be used at once: steps run in the order of their launches.
    """

    def __init__(
        self, scheduler: Scheduler, runner: StepLauncher, failed: FailedSteps, clock: Callable[[], float]
    ) -> None:
        self._scheduler = scheduler
        self._runner = runner
        self._failed = failed
        self._clock = clock
        self._flight: _Flight | None = None

    @property
    def is_busy(self) -> bool:
        return self._flight is not None

    def step(self) -> Ended | None:
        before, self._flight = self._flight, None
        if before is None or not isinstance(before.pending, _Failed):
            self._flight = self._launch()
        return None if before is None else Ended(before.plan, before.launched_s, self._take(before))

    def _launch(self) -> _Flight | None:
        plan = self._scheduler.plan()
        if plan is None:
            return None
        launched_s = self._clock()
        try:
            return _Flight(plan, launched_s, self._runner.launch(plan))
        except Exception as error:
            return _Flight(plan, launched_s, _Failed(error))

    def _take(self, flight: _Flight) -> list[Delivery]:
        """An exception in a step ends its requests. The step behind it rests on what it was to leave: it is
        forgotten, and those who were only in that one compute it again."""
        try:
            result = flight.pending.result()
        except Exception as error:
            self._flight = None
            return _fail(self._scheduler, self._failed, flight.plan, error)
        self._failed.clear()
        deliveries = self._scheduler.update(result)
        if self._flight is not None:
            self._sample(self._flight)
        return deliveries

    def _sample(self, flight: _Flight) -> None:
        try:
            flight.pending.sample()
        except Exception as error:
            flight.pending = _Failed(error)


@dataclass(frozen=True, slots=True)
class _Failed:
    """A step that could not be launched: it fails when its turn comes, and until then none is launched."""

    error: Exception

    def sample(self) -> None:
        pass

    def result(self) -> StepResult:
        raise self.error


def _fail(scheduler: Scheduler, failed: FailedSteps, plan: StepPlan, error: Exception) -> list[Delivery]:
    log.error("a step of %d tokens failed", plan.num_tokens, exc_info=error)
    return scheduler.fail(failed.add(error))
