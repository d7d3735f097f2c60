"""The thread of a front that notices clients which left."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

log = logging.getLogger(__name__)

ASK_EACH_S = 0.025
"""A client is asked no more often than this whether it is still there."""

ASK_GAP_S = 0.001
"""Between two questions: each is a round trip to the server."""


class Call(Protocol):
    """A request of a client that may leave."""

    def has_left(self) -> bool: ...


AnyCall = TypeVar("AnyCall", bound=Call)


class Watch(Generic[AnyCall]):
    """Asks for each call in turn; `give_up` gets those whose client left, again until they are discarded."""

    def __init__(self, give_up: Callable[[AnyCall], None]) -> None:
        self._give_up = give_up
        self._calls: dict[AnyCall, None] = {}
        self._changed = threading.Condition()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="pagetide-watch", daemon=True)

    def __len__(self) -> int:
        return len(self._calls)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        with self._changed:
            self._stopping = True
            self._changed.notify()
        self._thread.join()

    def add(self, call: AnyCall) -> None:
        with self._changed:
            self._calls[call] = None
            self._changed.notify()

    def discard(self, call: AnyCall) -> None:
        with self._changed:
            self._calls.pop(call, None)

    def _run(self) -> None:
        while calls := self._wait_for_calls():
            began_s = time.monotonic()
            for call in calls:
                self._look_at(call)
                time.sleep(ASK_GAP_S)
            time.sleep(max(ASK_EACH_S - (time.monotonic() - began_s), 0.0))

    def _wait_for_calls(self) -> list[AnyCall]:
        """Empty when it is time to end."""
        with self._changed:
            self._changed.wait_for(lambda: self._calls or self._stopping)
            return [] if self._stopping else list(self._calls)

    def _look_at(self, call: AnyCall) -> None:
        try:
            if call.has_left():
                self._give_up(call)
        except Exception:
            log.exception("could not ask whether a client left, or end its call")
            self.discard(call)
