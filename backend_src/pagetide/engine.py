"""The loop: receive, take a step (pagetide.loops), deliver. One thread owns everything behind it.

Other threads only call `submit`, `abort`, `drain` and `health`, which leave messages or read numbers.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue

from pagetide.backlog import Backlog, UnavailableError
from pagetide.failed_steps import FailedSteps
from pagetide.loops import MakeLoop, PlainLoop, StepLauncher, StepRunner
from pagetide.request import FinishReason, Output, Request
from pagetide.roster import Delivery
from pagetide.scheduler import Scheduler
from pagetide.statistics import History, Statistics, Step, rows_of, snapshot
from pagetide.stats import StepStats
from pagetide.step import StepPlan

log = logging.getLogger(__name__)

_STALLED_AFTER_S = 60.0
_QUIET_S = 1.0
"""An engine idle for this long has time to look at every block."""


@dataclass(frozen=True, slots=True)
class _Abort:
    request_id: int
    reason: FinishReason


Tell = Callable[[Statistics | None], None]
"""Takes a snapshot on the engine thread: it must return at once and never raise. None: the engine stopped."""


@dataclass(frozen=True, slots=True)
class _Ask:
    """Someone wants a snapshot."""

    tell: Tell


class _Wake:
    """Only makes an idle loop look again."""


_Message = Request | _Abort | _Ask | _Wake


class Engine:
    """Continuous batching over one scheduler and one runner, a step at a time or two, as `loop` has it.

    `on_step` is called on the engine thread after each step, and with 0 tokens whenever it falls idle, with
    plain numbers; like the requests' sinks it must return at once and never raise. `on_failure` is the
    engine thread's last call when its loop is broken, after every request was answered.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        runner: StepRunner | StepLauncher,
        max_waiting: int,
        on_step: Callable[[StepStats], None],
        clock: Callable[[], float] = time.monotonic,
        on_failure: Callable[[], None] = lambda: None,
        max_waiting_tokens: int | None = None,
        loop: MakeLoop = PlainLoop,
    ) -> None:
        self._scheduler = scheduler
        self._backlog = Backlog(scheduler.tenants, max_waiting, max_waiting_tokens, clock)
        self._on_step = on_step
        self._clock = clock
        self._on_failure = on_failure
        self._live: dict[int, Request] = {}
        self._gate = threading.Lock()
        self._is_closed = False
        self._inbox: SimpleQueue[_Message] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="pagetide-engine", daemon=True)
        self._draining = False
        self._failure: str | None = None
        self._failed_steps = FailedSteps()
        self._loop = loop(scheduler, runner, self._failed_steps, clock)
        self._busy_since_s: float | None = None
        self._ended_s = -math.inf
        self._planned_nothing = False
        self._history = History()

    @property
    def max_model_len(self) -> int:
        """Most tokens, prompt and output together, of one request."""
        return self._scheduler.longest

    def start(self) -> None:
        self._thread.start()

    def submit(self, *requests: Request) -> None:
        """Queue a request, or the samples of one prompt, all or none; outputs go to the sinks. Any thread.

        Raises AdmissionError if it could never run, UnavailableError if it can't be taken now.
        """
        self._scheduler.check_fits(len(requests[0].prompt_ids), requests[0].params)
        self._check_open()
        self._backlog.check_room(requests)
        with self._gate:
            self._check_not_closed()
            self._backlog.submitted(requests)
            for request in requests:
                self._inbox.put(request)

    def ask(self, tell: Tell) -> None:
        """`tell` gets the engine's state between two steps. Any thread. UnavailableError if it stopped."""
        with self._gate:
            self._check_not_closed()
            self._inbox.put(_Ask(tell))

    def _check_not_closed(self) -> None:
        """Within the gate: what is put into the inbox then will be answered, whatever happens."""
        if self._is_closed:
            raise UnavailableError(f"the engine stopped: {self._failure or 'shut down'}")

    def _check_open(self) -> None:
        if self._failure is not None:
            raise UnavailableError(f"the engine stopped: {self._failure}")
        if self._draining:
            raise UnavailableError("this model version is shutting down")

    def abort(self, request_id: int, reason: FinishReason = FinishReason.CANCELLED) -> None:
        """End a request before the next step: its sink gets `reason` last. Any thread; no-op once ended."""
        self._inbox.put(_Abort(request_id, reason))

    def drain(self, timeout_s: float) -> bool:
        """Take no more requests, finish those taken, stop the thread.

        True if all finished by themselves; after `timeout_s` the rest is cancelled.
        """
        self._draining = True
        self._inbox.put(_Wake())
        self._thread.join(timeout_s)
        finished = not self._thread.is_alive()
        if not finished:
            self._failure = f"not finished {timeout_s} s after shutdown began"
            self._inbox.put(_Wake())
            self._thread.join()
        return finished

    def health(self) -> str | None:
        """Why the engine can't be relied on, or None. Any thread."""
        if self._failure is not None:
            return self._failure
        failing = self._failed_steps.reason
        if failing is not None:
            return failing
        busy_since = self._busy_since_s
        if busy_since is not None and self._clock() - busy_since > _STALLED_AFTER_S:
            return f"no step finished in {self._clock() - busy_since:.0f} s"
        return None

    def turn(self, wait: bool = True) -> None:
        """One round: receive, take a step, deliver. The engine thread's own.

        `wait` lets it sleep while there is nothing to compute; a simulation, which has no thread, does not.
        """
        self._receive(wait)
        self._deliver(self._scheduler.expire())
        self._step()

    def _run(self) -> None:
        try:
            while self._failure is None and not (self._draining and self._nothing_left()):
                self.turn()
        except Exception as error:
            self._failure = f"{type(error).__name__}: {error}"
            self._end_all()
            log.exception("the engine stopped")
            self._on_failure()
        else:
            self._end_all()

    def _nothing_left(self) -> bool:
        return self._scheduler.is_idle and self._inbox.empty()

    def _receive(self, wait: bool) -> None:
        """Take every message that is there; with nothing to compute, sleep until one comes."""
        if wait and self._scheduler.is_idle:
            self._report()
            self._handle(self._wait_idle())
        elif wait and self._planned_nothing:
            self._sleep(self._scheduler.pause_s())
        while not self._inbox.empty():
            self._handle(self._inbox.get())

    def _wait_idle(self) -> _Message:
        """The next message. The blocks are counted only in real quiet: it takes longer the more there are."""
        with suppress(Empty):
            return self._inbox.get(timeout=_QUIET_S)
        self._scheduler.check()
        return self._inbox.get()

    def _sleep(self, most_s: float | None) -> None:
        """Everyone who waits is held back, by a rate limit at least: until a message or the time comes."""
        with suppress(Empty):
            self._handle(self._inbox.get(timeout=most_s))

    def _handle(self, message: _Message) -> None:
        if isinstance(message, Request):
            self._live[message.id] = message
            self._backlog.received(message)
            self._scheduler.add(message)
        elif isinstance(message, _Abort):
            delivery = self._scheduler.abort(message.request_id, message.reason)
            if delivery is not None:
                self._deliver([delivery])
        elif isinstance(message, _Ask):
            message.tell(snapshot(self._scheduler, self._history, self._clock()))

    def _step(self) -> None:
        """A step is over when what came of it is delivered. It began with its launch, or then."""
        if self._busy_since_s is None:
            self._busy_since_s = self._clock()
        ended, is_busy = self._loop.step(), self._loop.is_busy
        self._planned_nothing = ended is None and not is_busy
        if ended is not None:
            self._deliver(ended.deliveries)
            launched_s, self._ended_s = max(ended.launched_s, self._ended_s), self._clock()
            self._scheduler.observe(self._ended_s - launched_s)
            self._report(ended.plan, self._ended_s - launched_s)
        self._busy_since_s = self._clock() if is_busy else None

    def _deliver(self, deliveries: list[Delivery]) -> None:
        for request, output in deliveries:
            if output.finish_reason is not None:
                del self._live[request.id]
            request.sink(output)

    def _report(self, plan: StepPlan | None = None, step_s: float = 0.0) -> None:
        scheduler, pool, tally = self._scheduler, self._scheduler.pool, self._scheduler.take_tally()
        stats = StepStats(
            num_running=scheduler.num_running,
            num_waiting=scheduler.num_waiting,
            blocks_total=pool.num_blocks,
            blocks_used=pool.num_held,
            blocks_cached=pool.num_cached,
            blocks_free=pool.num_free - pool.num_cached,
            num_tokens=plan.num_tokens if plan else 0,
            num_prompt_tokens=tally.num_prompt_tokens,
            num_generated=tally.num_generated,
            prefix_queries=tally.prefix_queries,
            prefix_hits=tally.prefix_hits,
            step_s=step_s,
            preemptions=tally.preemptions,
            num_failed_in_a_row=self._failed_steps.in_a_row,
        )
        if plan is not None:
            self._history.add(
                Step(self._clock(), stats, rows_of(plan, scheduler.flights.ended.sequences.values()))
            )
        if tally.prefix_queries:
            self._backlog.started(tally.prefix_queries)
        self._on_step(stats)

    def _end_all(self) -> None:
        """Nothing that was accepted is left without an answer. The scheduler may be what broke: not asked."""
        with self._gate:
            self._is_closed = True
        while not self._inbox.empty():
            message = self._inbox.get()
            if isinstance(message, Request):
                self._live[message.id] = message
            elif isinstance(message, _Ask):
                message.tell(None)
        reason = FinishReason.CANCELLED if self._draining else FinishReason.ERROR
        for request in self._live.values():
            request.sink(Output(finish_reason=reason, error=self._failure))
        self._live.clear()
