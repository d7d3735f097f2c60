"""Steps on a thread of their own: a CPU that takes launches as a GPU does, in order and without waiting."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from pagetide.runner import Launched, Runner
from pagetide.step import StepPlan, StepResult


class StepThread:
    """A runner whose steps run one after the other, in the order of their launches, on one thread."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="pagetide-step")

    def launch(self, plan: StepPlan) -> Underway:
        """Reads the plan on the caller's thread; computes nothing there."""
        underway = Underway(self._runner.prepare(plan), self._thread)
        if not plan.sampled.is_open:
            underway.sample()
        return underway

    def fence(self) -> Callable[[], None]:
        """What it returns waits until all that was launched so far is over."""
        return self._thread.submit(lambda: None).result


class Underway:
    """A step that was launched on the thread."""

    def __init__(self, launched: Launched, thread: ThreadPoolExecutor) -> None:
        self._launched = launched
        self._thread = thread
        self._forward = thread.submit(launched.forward)
        self._sampled: Future[StepResult] | None = None

    def sample(self) -> None:
        if self._sampled is None:
            self._sampled = self._thread.submit(self._sample)

    def _sample(self) -> StepResult:
        self._forward.result()
        self._launched.sample()
        return self._launched.result()

    def result(self) -> StepResult:
        assert self._sampled is not None
        return self._sampled.result()
