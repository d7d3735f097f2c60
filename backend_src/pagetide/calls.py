"""Requests that a front passed on, seen by the model that has the engine (docs/compatibility.md).

A front calls by BLS, which holds one of the server's 32 threads for each call until its first response and,
before 25.04, can't cancel one. So a call gets a response as soon as it is taken, with the version that
took it, and a second request, named after the first, ends it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol
from weakref import WeakValueDictionary

CALL = "pagetide-call:"
"""A request whose id begins so is a call; the rest of the id is its name, which nobody else can guess."""

CANCEL = "pagetide-cancel:"
"""A request whose id begins so ends the call of that name, and has no other answer than its end."""

FAILED = "failed"
"""The finish reason of a call that failed, with the error's code and message as its text.

Triton's own error responses do harm in BLS: in 24.10 they reach another call of the same front, which then
ends, and the server aborts (`bad_weak_ptr`) when more comes for it.
"""


class Channel(Protocol):
    """The caller's way back. `request_ids` are the engine's, empty until the engine has the request.

    `left` is what a sender gets to know when it asks whether the client left.
    """

    request_ids: Sequence[int]
    left: bool

    def greet(self, version: str) -> None:
        """The first response: the version that takes the request."""


def is_call(triton_id: str) -> bool:
    return triton_id.startswith(CALL)


class Calls:
    """The calls at work, by name, for as long as their channels live. Belongs to Triton's thread."""

    def __init__(self, version: str, abort: Callable[[int], None]) -> None:
        self._version = version
        self._abort = abort
        self._channels: WeakValueDictionary[str, Channel] = WeakValueDictionary()

    def open(self, triton_id: str, channel: Channel) -> None:
        """If this request is a call: remember it, and tell the caller that it is taken."""
        if is_call(triton_id):
            self._channels[triton_id.removeprefix(CALL)] = channel
            channel.greet(self._version)

    def cancel(self, triton_id: str) -> bool:
        """Whether this request is there to end a call; that one is ended, then, if it still is at work."""
        if not triton_id.startswith(CANCEL):
            return False
        channel = self._channels.get(triton_id.removeprefix(CANCEL))
        if channel is not None:
            channel.left = True
            for request_id in channel.request_ids:
                self._abort(request_id)
        return True
