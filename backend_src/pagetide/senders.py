"""Sender threads: tokens from the engine to text, to the clients, and back word of clients that left.

A request stays on one sender, so its tokens stay in order. A response costs the same whether it carries one
token or five, so a sender sends a bounded number a second: first tokens and ends at once, the rest in rounds,
and what a stream got between two rounds goes out as one response.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Protocol

from pagetide.answer import Answer, ErrorCode, Failure, Reply
from pagetide.request import FinishReason, Output, RequestStats
from pagetide.rounds import Rotation, Rounds

log = logging.getLogger(__name__)

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
    last_token_s: float | None = None
    has_response: bool = False
    is_open: bool = True
    engine_done: bool = False
    ended_by: FinishReason | None = None
    stats: RequestStats | None = None


Job = Callable[[], None]

_Message = tuple[Stream, float, Output | None] | Job | None
"""A stream to watch or an output of it, something else to do, or the end."""


class Sender:
    """One thread and the streams it serves."""

    def __init__(self, name: str, abort: Abort, listener: Listener, most_per_s: float) -> None:
        self._abort = abort
        self._listener = listener
        self._inbox: SimpleQueue[_Message] = SimpleQueue()
        self._rotation = Rotation[Stream](most_per_s)
        self._rounds = Rounds[Stream](most_per_s)
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

    def run(self, job: Job) -> None:
        """Do what waits for a client and is no stream, such as an answer of one response. Any thread."""
        self._inbox.put(job)

    def _run(self) -> None:
        while not (self._stopping and not self._rounds):
            self._receive()
            stream = self._rounds.take(time.monotonic())
            if stream is not None:
                self._guarded(stream, self._respond)
            if stream is None or not self._rounds:
                self._tell_intervals()
            self._ask()

    def _receive(self) -> None:
        """Take the messages that are there; wait for one no longer than until something is due."""
        now_s = time.monotonic()
        waits = [
            wait for wait in (self._rounds.wait_s(now_s), self._rotation.wait_s(now_s)) if wait is not None
        ]
        try:
            self._file(self._inbox.get(timeout=min(waits, default=None)))
        except Empty:
            return
        for _ in range(self._inbox.qsize()):
            self._file(self._inbox.get())

    def _file(self, message: _Message) -> None:
        if message is None:
            self._stopping = True
            self._rounds.wait_no_more()
            return
        if callable(message):
            _do(message)
            return
        stream, now_s, output = message
        if output is not None:
            self._take(stream, now_s, output)
        elif stream.is_open and stream.last_token_s is None:
            self._rotation.add(stream, running=False)

    def _guarded(self, stream: Stream, work: Callable[..., None], *details: object) -> None:
        """What goes wrong with one stream ends that one."""
        try:
            work(stream, *details)
        except Exception as error:
            log.exception("request %d: its response was not sent", stream.request_id)
            if stream.is_open:
                told = f"request {stream.request_id}: its response was not sent: {error}"
                self._fail(stream, Failure(ErrorCode.INTERNAL, told))

    def _take(self, stream: Stream, now_s: float, output: Output) -> None:
        if output.token_ids:
            self._note_interval(stream, now_s)
        stream.engine_done, stream.stats = output.finish_reason is not None, output.stats
        if stream.is_open:
            self._guarded(stream, self._gather, output)
        else:
            self._count(stream)

    def _gather(self, stream: Stream, output: Output) -> None:
        stream.answer.take(output)
        is_over = stream.answer.ended or stream.answer.failure is not None
        self._rounds.add(stream, urgent=is_over or not stream.has_response)

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
        if not stream.is_open:
            return
        answer = stream.answer
        if answer.failure is not None:
            self._fail(stream, answer.failure)
            return
        reply = answer.reply()
        if reply is None:
            return
        stream.has_response = True
        self._rounds.count_response()
        stream.channel.send(reply, final=reply.finish_reason is not None)
        if reply.finish_reason is not None:
            self._close(stream, reply.finish_reason)

    def _fail(self, stream: Stream, failure: Failure) -> None:
        self._close(stream, failure.finish_reason)
        try:
            stream.channel.fail(failure)
        except Exception:
            log.exception("request %d: its error was not sent", stream.request_id)

    def _close(self, stream: Stream, reason: FinishReason) -> None:
        """The client has, or is due, its last response: ask no more, stop the engine's work on it."""
        self._rotation.discard(stream)
        stream.is_open = False
        stream.ended_by = reason
        if not stream.engine_done:
            self._abort(stream.request_id, reason)
        self._count(stream)

    def _count(self, stream: Stream) -> None:
        """When both the engine and the client are through with it, so that the reason is the client's."""
        if stream.engine_done and stream.ended_by is not None:
            self._listener.on_finished(stream.ended_by, stream.stats)

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


def _do(job: Job) -> None:
    try:
        job()
    except Exception:
        log.exception("a client was not answered")


class Senders:
    """A few senders; requests are dealt out in turn. Together they send `most_per_s` responses a second."""

    def __init__(self, count: int, abort: Abort, listener: Listener, most_per_s: float) -> None:
        self._senders = [
            Sender(f"pagetide-sender-{i}", abort, listener, most_per_s / count) for i in range(count)
        ]

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
