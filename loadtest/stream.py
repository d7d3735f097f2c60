"""One client's connection: sends a request over tritonclient's gRPC stream and times every response.

Under gevent, `grpc.experimental.gevent.init_gevent()` must have run before the first connection, and a
connection is never closed: `channel.close()` hangs there (grpcio 1.85, gevent 26.9).
"""

from __future__ import annotations

import json
import queue
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
from tritonclient.grpc import InferenceServerClient, InferInput, InferResult
from tritonclient.utils import InferenceServerException

from loadtest.records import Outcome, Record
from loadtest.workloads import Prompt

FLAGS = (
    "stream",
    "exclude_input_in_output",
    "return_finish_reason",
    "return_num_input_tokens",
    "return_num_output_tokens",
)


class _UnexpectedError(Exception):
    """The server broke its contract in a way that gRPC does not report."""


SENT_S = 0.01
"""By then a request has reached the server, so that cancelling it does not just keep it from being sent."""


@dataclass(frozen=True)
class _Event:
    """What the stream's reader thread saw, and when."""

    time_s: float
    result: InferResult
    error: InferenceServerException | None


class Connection:
    """A gRPC connection of its own, with one stream that serves one request after the other.

    `timeout_s` bounds the wait for the next response; a request that exceeds it has failed.
    """

    def __init__(self, url: str, model: str, timeout_s: float = 60.0) -> None:
        self._client = InferenceServerClient(url, channel_args=[("grpc.use_local_subchannel_pool", 1)])
        self._model = model
        self._timeout_s = timeout_s
        self._events: queue.SimpleQueue[_Event] | None = None

    def send(self, prompt: Prompt, due_s: float | None = None) -> Record:
        """Runs one request to its end, or to where `prompt` cancels it. Errors are in the record, not raised.

        `due_s` is when an open loop wanted it sent (`time.perf_counter()`); now if None.
        """
        record = Record(prompt.workload, time.perf_counter() if due_s is None else due_s, prompt.max_tokens)
        try:
            self._start(prompt)
            record.outcome = self._read(prompt, record)
        except (InferenceServerException, _UnexpectedError) as error:
            record.error = str(error)
        finally:
            record.end_s = time.perf_counter()
            if record.outcome is not Outcome.OK:
                self.hang_up()
        return record

    def hang_up(self) -> None:
        """Cancels what runs; the next request opens a new stream."""
        if self._events is not None:
            self._client.stop_stream(cancel_requests=True)
            self._events = None

    def _start(self, prompt: Prompt) -> None:
        if self._events is None:
            events: queue.SimpleQueue[_Event] = queue.SimpleQueue()
            self._client.start_stream(
                lambda result, error: events.put(_Event(time.perf_counter(), result, error))
            )
            self._events = events
        self._client.async_stream_infer(self._model, inputs(prompt), enable_empty_final_response=True)

    def _read(self, prompt: Prompt, record: Record) -> Outcome:
        if prompt.cancel_after == 0:
            time.sleep(SENT_S)
        finish_reason = ""
        while prompt.cancel_after is None or record.output_tokens < prompt.cancel_after:
            event = self._next()
            response = event.result.get_response()
            if response.outputs:
                finish_reason = _take(event, record) or finish_reason
            if response.parameters["triton_final_response"].bool_param:
                return _checked(prompt, record, finish_reason)
        return Outcome.CANCELLED

    def _next(self) -> _Event:
        assert self._events is not None
        try:
            event = self._events.get(timeout=self._timeout_s)
        except queue.Empty:
            raise _UnexpectedError(f"no response for {self._timeout_s:g} s") from None
        if event.error is not None:
            raise event.error
        return event


def inputs(prompt: Prompt) -> list[InferInput]:
    """The model's input tensors: greedy, and exactly `max_tokens` tokens whatever the model would say."""
    sampling = {"max_tokens": prompt.max_tokens, "temperature": 0, "ignore_eos": True}
    texts = {"text_input": prompt.text, "sampling_parameters": json.dumps(sampling)}
    return [
        _tensor(name, "BYTES", np.array([text.encode()], dtype=object)) for name, text in texts.items()
    ] + [_tensor(name, "BOOL", np.array([True])) for name in FLAGS]


def _tensor(name: str, datatype: str, value: np.ndarray[Any, Any]) -> InferInput:
    tensor = InferInput(name, [1], datatype)
    tensor.set_data_from_numpy(value)
    return tensor


def _take(event: _Event, record: Record) -> str:
    """Notes one response in the record; returns its finish reason, empty while more comes."""
    tokens = _number(event.result, "num_output_tokens")
    record.prompt_tokens = _number(event.result, "num_input_tokens") or record.prompt_tokens
    if tokens:
        record.responses.append((event.time_s, tokens))
    record.text += _string(event.result, "text_output")
    return _string(event.result, "finish_reason")


def _number(result: InferResult, name: str) -> int:
    value = result.as_numpy(name)
    return 0 if value is None or not value.size else int(value.reshape(-1)[0])


def _string(result: InferResult, name: str) -> str:
    value = result.as_numpy(name)
    text = b"" if value is None or not value.size else value.reshape(-1)[0]
    return "" if text in (b"", b"None") else bytes(text).decode()


def _checked(prompt: Prompt, record: Record, finish_reason: str) -> Outcome:
    if finish_reason != "length" or record.output_tokens != prompt.max_tokens:
        raise _UnexpectedError(
            f"ended by {finish_reason!r} after {record.output_tokens} of {prompt.max_tokens} tokens"
        )
    return Outcome.OK
