"""The one thread that makes every call on a metric object, and the messages others leave for it.

Triton's metric calls crash the server when two threads make them at once, and each waits for a round trip
and then for the interpreter lock. So the others only append to a queue; the metrics thread adds up and,
once a period, publishes what changed. A period costs at most one call per series, however many tokens
passed; Triton's own histograms would take one call per observation.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable

from pagetide.metric_families import Families
from pagetide.metric_series import Registry
from pagetide.request import FinishReason, RequestStats
from pagetide.stats import StepStats

log = logging.getLogger(__name__)

PERIOD_S = 0.5
_MAX_MESSAGES = 1_000_000

Message = Callable[[Families], None]


class Metrics:
    """Takes messages from any thread; never blocks them and never raises.

    `make_registry` runs on the metrics thread. If it fails, the server has its metrics switched off:
    that is logged, and messages are dropped.
    """

    def __init__(self, make_registry: Callable[[], Registry], period_s: float = PERIOD_S) -> None:
        self._make_registry = make_registry
        self._period_s = period_s
        self._inbox: deque[Message] = deque(maxlen=_MAX_MESSAGES)
        self._stopping = threading.Event()
        self._problem = ""
        self._thread = threading.Thread(target=self._run, name="pagetide-metrics", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Publishes what is left, then ends the thread. The series vanish with it."""
        self._stopping.set()
        self._thread.join()

    def on_step(self, step: StepStats) -> None:
        self._inbox.append(lambda families: families.add_step(step))

    def on_finished(self, reason: FinishReason, stats: RequestStats | None) -> None:
        self._inbox.append(lambda families: families.add_finished(reason, stats))

    def on_refused(self, code: str) -> None:
        """A request was not taken, with Triton's error code."""
        self._inbox.append(lambda families: families.add_refused(code))

    def on_intervals(self, intervals_s: tuple[float, ...]) -> None:
        """Times between one request's successive tokens."""
        self._inbox.append(lambda families: families.add_intervals(intervals_s))

    def on_grammar_hit(self) -> None:
        self._inbox.append(Families.add_grammar_hit)

    def on_grammar_compiled(self, took_s: float, refused: bool) -> None:
        self._inbox.append(lambda families: families.add_grammar_compiled(took_s, refused))

    def _run(self) -> None:
        try:
            registry = self._make_registry()
            families = Families(registry)
        except Exception:
            log.exception("no metrics are shown")
            self._inbox = deque(maxlen=0)
            return
        while not self._stopping.wait(self._period_s):
            self._publish(families)
        self._publish(families)
        del families  # before the registry: Triton's families must outlive their metrics

    def _publish(self, families: Families) -> None:
        try:
            for _ in range(len(self._inbox)):
                self._inbox.popleft()(families)
            families.publish()
        except Exception as error:
            self._complain(f"metrics were not published: {error}")

    def _complain(self, problem: str) -> None:
        """Once per problem: it would come again every period."""
        if problem != self._problem:
            self._problem = problem
            log.error(problem, exc_info=True)
