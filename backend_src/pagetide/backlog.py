"""How much may wait for the engine, and how soon there is room again."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Sequence

from pagetide.request import Request
from pagetide.tenants import Tenants

WINDOW_S = 60.0
_MOST_SAMPLES = 256


class UnavailableError(RuntimeError):
    """The engine takes no more requests now; the message says why, and when to try again if that is known."""


class StartRate:
    """How many tokens of waiting requests got their turn lately. Fed by the engine thread, read by any.

    Readers may see one number newer than the other: it is an estimate.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._samples: deque[tuple[float, int]] = deque()
        self._num_tokens = 0
        self._since_s = math.inf

    def add(self, num_tokens: int) -> None:
        now_s = self._clock()
        self._samples.append((now_s, num_tokens))
        self._num_tokens += num_tokens
        while len(self._samples) > _MOST_SAMPLES or self._samples[0][0] < now_s - WINDOW_S:
            self._num_tokens -= self._samples.popleft()[1]
        self._since_s = self._samples[0][0]

    def time_s(self, num_tokens: float) -> float | None:
        """Until so many tokens more get their turn, if it goes on like this. None: nothing is known."""
        elapsed_s = self._clock() - self._since_s
        if elapsed_s <= 0 or self._num_tokens <= 0:
            return None
        return num_tokens * elapsed_s / self._num_tokens


class Backlog:
    """What was submitted and does not run yet, against what may wait.

    A request that finds nobody waiting is always taken. `submitted` is called with the engine's gate held,
    `received` and `started` on its thread, `check_room` on any.
    """

    def __init__(
        self,
        tenants: Tenants,
        max_requests: int,
        max_tokens: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._tenants = tenants
        self._max_requests = max_requests
        self._max_tokens = max_tokens
        self._num_submitted = self._num_submitted_tokens = 0
        self._num_received = self._num_received_tokens = 0
        self._rate = StartRate(clock)

    def submitted(self, requests: Sequence[Request]) -> None:
        self._num_submitted += len(requests)
        self._num_submitted_tokens += _num_tokens(requests)

    def received(self, request: Request) -> None:
        """The scheduler has it."""
        self._num_received += 1
        self._num_received_tokens += len(request.prompt_ids)

    def started(self, num_tokens: int) -> None:
        """Requests with so many tokens run now."""
        self._rate.add(num_tokens)

    def check_room(self, requests: Sequence[Request]) -> None:
        """Raises UnavailableError if these, the samples of one prompt, can't wait beside those that do."""
        count = self._tenants.num_waiting + self._num_submitted - self._num_received
        if count == 0:
            return
        num_tokens = self._tenants.num_waiting_tokens + self._num_submitted_tokens - self._num_received_tokens
        excess = count + len(requests) - self._max_requests
        if excess > 0:
            raise UnavailableError(
                f"{count} requests wait already; max_waiting is {self._max_requests}"
                f"{self._retry(excess * num_tokens / count)}"
            )
        self._check_tokens(num_tokens, _num_tokens(requests))
        self._check_tenant(requests[0].tenant, len(requests))

    def _check_tokens(self, num_waiting: int, num_new: int) -> None:
        if self._max_tokens is None:
            return
        excess = num_waiting + num_new - self._max_tokens
        if excess > 0:
            raise UnavailableError(
                f"{num_waiting} prompt tokens wait already and this request has {num_new}; "
                f"max_waiting_tokens is {self._max_tokens}{self._retry(excess)}"
            )

    def _check_tenant(self, tenant: str, num_new: int) -> None:
        count, most = self._tenants.queue(tenant)
        if most is not None and count and count + num_new > most:
            raise UnavailableError(
                f"{count} requests of tenant {tenant!r} wait already; its max_waiting is {most}"
            )

    def _retry(self, num_tokens: float) -> str:
        time_s = self._rate.time_s(num_tokens)
        return "" if time_s is None else f"; retry in about {max(1, math.ceil(time_s))} s"


def _num_tokens(requests: Sequence[Request]) -> int:
    return sum(len(request.prompt_ids) for request in requests)
