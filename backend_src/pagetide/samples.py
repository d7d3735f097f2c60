"""Several samples of one prompt: requests of their own for the engine, one answer for the client."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from pagetide.answer import Answer, ErrorCode, Failure, Reply
from pagetide.request import FinishReason, SamplingParams


class Channel(Protocol):
    """A client's way back. `send_all` with `final`, and `fail`, end it."""

    def send_all(self, replies: Sequence[Reply], final: bool) -> None: ...

    def fail(self, failure: Failure) -> None: ...

    def is_cancelled(self) -> bool: ...


def nth_sample(params: SamplingParams, index: int) -> SamplingParams:
    """Sample `index` is what the request would give alone with its seed plus `index`, as in vLLM.

    The prompt is scored once, for the first.
    """
    if index == 0:
        return params
    seed = None if params.seed is None else params.seed + index
    return replace(params, seed=seed, prompt_logprobs=None)


class Joint:
    """Brings the samples of one request together. Owned by the sender thread that serves all of them.

    Each response has an entry for each sample, in order: in a stream what is new of it, mostly nothing.
    The request ends when all its samples have; if one fails, all do.
    """

    def __init__(
        self,
        channel: Channel,
        answers: Sequence[Answer],
        request_ids: Sequence[int],
        abort: Callable[[int, FinishReason], None],
        in_pieces: bool,
    ) -> None:
        self._channel = channel
        self._answers = answers
        self._request_ids = request_ids
        self._abort = abort
        self._in_pieces = in_pieces
        self._whole: dict[int, Reply] = {}
        self._told: set[int] = set()
        self._over = False

    def parts(self) -> list[Part]:
        """What each sample's stream takes for its client."""
        return [Part(self, index) for index in range(len(self._answers))]

    def send(self, index: int, reply: Reply) -> None:
        """A sample's turn in a stream is the turn of all: each gives what it has."""
        if self._over or index in self._told:
            return
        failures = [answer.failure for answer in self._answers if answer.failure is not None]
        if failures:
            self.fail(failures[0])
        elif self._in_pieces:
            self._told.update(i for i, answer in enumerate(self._answers) if answer.ended)
            self._respond([reply if i == index else a.gathered() for i, a in enumerate(self._answers)])
        else:
            self._told.add(index)
            self._whole[index] = reply
            if len(self._whole) == len(self._answers):
                self._respond([self._whole[i] for i in range(len(self._answers))])

    def fail(self, failure: Failure) -> None:
        if self._over:
            return
        self._over = True
        for request_id in self._request_ids:
            self._abort(request_id, failure.finish_reason)
        self._channel.fail(failure)

    def is_cancelled(self) -> bool:
        return not self._over and self._channel.is_cancelled()

    def _respond(self, replies: Sequence[Reply]) -> None:
        """A sample may be over for its stream when the response that it is in can't be sent."""
        self._over = len(self._told) == len(self._answers)
        try:
            self._channel.send_all(replies, final=self._over)
        except Exception as error:
            self.fail(Failure(ErrorCode.INTERNAL, f"the response was not sent: {error}"))
            raise


@dataclass(frozen=True, slots=True)
class Part:
    """One sample's share of a `Joint`: a channel like that of a request with one sample."""

    joint: Joint
    index: int

    def send(self, reply: Reply, final: bool) -> None:
        self.joint.send(self.index, reply)

    def fail(self, failure: Failure) -> None:
        self.joint.fail(failure)

    def is_cancelled(self) -> bool:
        return self.joint.is_cancelled()
