"""What a step takes on this machine, measured before anything is served."""

from __future__ import annotations

import time
from array import array

from pagetide.config import SettingsError
from pagetide.runner import Runner
from pagetide.step import StepPlan

_REPEATS = 3


def check_target(target_itl_ms: float, runner: Runner) -> None:
    """Raises SettingsError if even a step of one token takes longer than the target."""
    step_ms = 1e3 * shortest_step_s(runner)
    if target_itl_ms < step_ms:
        raise SettingsError(
            f"target_itl_ms is {target_itl_ms:g}, but a step of one token takes {step_ms:.1f} ms here; "
            f"set it to at least {2 * step_ms:.0f}, or leave it out"
        )


def shortest_step_s(runner: Runner) -> float:
    """Seconds of the fastest of some steps of one token. They write to block 0, which nobody has yet."""
    plan = StepPlan([0], array("i", [0]), array("q", [1]), array("q", [0]), [array("i", [0])])
    return min(_time(runner, plan) for _ in range(_REPEATS))


def _time(runner: Runner, plan: StepPlan) -> float:
    started_s = time.perf_counter()
    runner.run(plan)
    return time.perf_counter() - started_s
