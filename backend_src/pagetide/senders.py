"""Sender threads: tokens from the engine to text, to the clients, and back word of clients that left.

A request stays on one sender, so its tokens stay in order. While a sender waits for one `send`, what
others produce piles up and goes out as one response each.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Protocol

from pagetide.answer import Answer, ErrorCode, Failure, Reply
from pagetide.request import FinishReason, Output, RequestStats

log = logging.getLogger(__name__)

ASK_EACH_S = 0.025
"""A client is asked for no more often than this whether it is still there."""

ASK_GAP_S = 0.005
"""A sender asks no more often than this: each time costs a round trip to the server."""

CLIENT_LEFT = Failure(ErrorCode.CANCELLED, "the client cancelled the request")


class Channel(Protocol):
    """A client's way back. `send` with `final`, and `fail`, end it: nothing may be called after them."""

    def send(self, reply: Reply, final: bool) -> None: ...

    def fail(self, failure: Failure) -> None: ...

    def is_cancelled(self) -> bool: ...


class Listener(Protocol):
    """Who counts; called on sender threads."""

    def on_finished(self, reason: FinishReason, stats: RequestStats | None) -> None: ...

    def on_intervals(self, intervals_s: tuple[float, ...]) -> None: ...


Abort = Callable[[int, FinishReason], None]


@dataclass(slots=True, eq=False)
class Stream:
    """One request on its way out. `channel` and `answer` belong to its sender's thread.

    `is_open`: the client has not had its last response. `engine_done`: the engine has given its last
    output. A stream is forgotten when both are over.
    """

    request_id: int
    channel: Channel
    answer: Answer
    arrived: list[tuple[float, Output]] = field(default_factory=list)
    last_token_s: float | None = None
    is_open: bool = True
    engine_done: bool = False
    ended_by: FinishReason | None = None


class _Rotation:
    """Whom to ask next if it was cancelled: in turn, running ones and waiting ones alternately."""

    def __init__(self) -> None:
        self._groups: tuple[OrderedDict[Stream, None], ...] = (OrderedDict(), OrderedDict())
        self._next_s = 0.0

    def add(self, stream: Stream, running: bool) -> None:
        self.discard(stream)
        self._groups[running][stream] = None

    def discard(self, stream: Stream) -> None:
        for group in self._groups:
            group.pop(stream, None)

    def wait_s(self, now_s: float) -> float | None:
        """Until the next question is due; None if there is nobody to ask."""
        return max(self._next_s - now_s, 0.0) if any(self._groups) else None

    def take_due(self, now_s: float) -> list[Stream]:
        if now_s < self._next_s:
            return []
        due = []
        for group in filter(None, self._groups):
            stream = next(iter(group))
            group.move_to_end(stream)
            due.append(stream)
        largest = max(map(len, self._groups))
        self._next_s = now_s + max(ASK_GAP_S * len(due), ASK_EACH_S / max(largest, 1))
        return due


class Sender:
    """One thread and the streams it serves."""

    def __init__(self, name: str, abort: Abort, listener: Listener) -> None:
        self._abort = abort
        self._listener = listener
        self._inbox: SimpleQueue[tuple[Stream, float, Output | None] | None] = SimpleQueue()
        self._rotation = _Rotation()
        self._ready: OrderedDict[Stream, None] = OrderedDict()
        self._intervals_s: list[float] = []
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout_s: float) -> None:
        """Send what has been produced so far, then end the thread."""
        self._inbox.put(None)
        self._thread.join(timeout_s)

    def watch(self, stream: Stream) -> None:
        """From now on the client is asked if it left. Any thread."""
        self._inbox.put((stream, time.monotonic(), None))

    def deliver(self, stream: Stream, output: Output) -> None:
        """The engine thread leaves an output here."""
        self._inbox.put((stream, time.monotonic(), output))

    def _run(self) -> None:
        while not (self._stopping and not self._ready):
            self._receive()
            if self._ready:
                self._serve(self._ready.popitem(last=False)[0])
            if not self._ready:
                self._tell_intervals()
            self._ask()

    def _receive(self) -> None:
        """Take every message that is there; with nothing to send, wait for one or for the next question."""
        wait_s = 0.0 if self._ready else self._rotation.wait_s(time.monotonic())
        try:
            self._file(self._inbox.get(timeout=wait_s))
            while True:
                self._file(self._inbox.get_nowait())
        except Empty:
            return

    def _file(self, message: tuple[Stream, float, Output | None] | None) -> None:
        if message is None:
            self._stopping = True
            return
        stream, now_s, output = message
        if output is not None:
            stream.arrived.append((now_s, output))
            self._ready[stream] = None
        elif stream.is_open and stream.last_token_s is None:
            self._rotation.add(stream, running=False)

    def _serve(self, stream: Stream) -> None:
        try:
            self._take_arrived(stream)
            if stream.is_open:
                self._respond(stream)
        except Exception as error:
            log.exception("request %d: its response was not sent", stream.request_id)
            if stream.is_open:
                self._fail(stream, Failure(ErrorCode.INTERNAL, f"the response was not sent: {error}"))

    def _take_arrived(self, stream: Stream) -> None:
        arrived, stream.arrived = stream.arrived, []
        for now_s, output in arrived:
            if output.token_ids:
                self._note_interval(stream, now_s)
            if stream.is_open:
                stream.answer.take(output)
            if output.finish_reason is not None:
                stream.engine_done = True
                reason = stream.ended_by or stream.answer.finish_reason or output.finish_reason
                self._listener.on_finished(reason, output.stats)

    def _note_interval(self, stream: Stream, now_s: float) -> None:
        if stream.last_token_s is not None:
            self._intervals_s.append(now_s - stream.last_token_s)
        elif stream.is_open:
            self._rotation.add(stream, running=True)
        stream.last_token_s = now_s

    def _tell_intervals(self) -> None:
        if self._intervals_s:
            self._listener.on_intervals(tuple(self._intervals_s))
            self._intervals_s.clear()

    def _respond(self, stream: Stream) -> None:
        answer = stream.answer
        if answer.failure is not None:
            self._fail(stream, answer.failure)
            return
        reply = answer.reply()
        if reply is None:
            return
        if reply.finish_reason is not None:
            self._close(stream, reply.finish_reason)
        stream.channel.send(reply, final=reply.finish_reason is not None)

    def _fail(self, stream: Stream, failure: Failure) -> None:
        cancelled = failure.code is ErrorCode.CANCELLED
        self._close(stream, FinishReason.CANCELLED if cancelled else FinishReason.ERROR)
        try:
            stream.channel.fail(failure)
        except Exception:
            log.exception("request %d: its error was not sent", stream.request_id)

    def _close(self, stream: Stream, reason: FinishReason) -> None:
        """The client's last response is due: ask no more, and stop the engine if it still works on it."""
        self._rotation.discard(stream)
        stream.is_open = False
        stream.ended_by = reason
        if not stream.engine_done:
            self._abort(stream.request_id, reason)

    def _ask(self) -> None:
        """When a question is due: has that client left?"""
        for stream in self._rotation.take_due(time.monotonic()):
            if self._has_left(stream):
                self._fail(stream, CLIENT_LEFT)

    def _has_left(self, stream: Stream) -> bool:
        try:
            return stream.channel.is_cancelled()
        except Exception:
            log.exception("request %d: could not ask if it was cancelled", stream.request_id)
            self._rotation.discard(stream)
            return False


class Senders:
    """A few senders; requests are dealt out in turn."""

    def __init__(self, count: int, abort: Abort, listener: Listener) -> None:
        self._senders = [Sender(f"pagetide-sender-{i}", abort, listener) for i in range(count)]

    def __getitem__(self, request_id: int) -> Sender:
        """The sender of that request, always the same one."""
        return self._senders[request_id % len(self._senders)]

    def start(self) -> None:
        for sender in self._senders:
            sender.start()

    def stop(self, timeout_s: float) -> None:
        """Send what has been produced so far, then end the threads."""
        for sender in self._senders:
            sender.stop(timeout_s)
