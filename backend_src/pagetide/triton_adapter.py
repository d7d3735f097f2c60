"""Triton's Python backend interface over the engine. The only module that knows `pb_utils`."""

from __future__ import annotations

import itertools
import json
import logging
import os
import sys
import time
from array import array
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from pagetide.answer import Answer, ErrorCode, Failure, Reply
from pagetide.bad_words import spell
from pagetide.chat_template import ChatTemplateError
from pagetide.engine import UnavailableError
from pagetide.limits import AdmissionError
from pagetide.metric_series import CounterHandle, GaugeHandle, Labels
from pagetide.metrics import Metrics
from pagetide.parse import OPTIONS, Limits, ParsedRequest, fit, parse_request, truncate
from pagetide.parse_values import InvalidArgumentError
from pagetide.request import Request
from pagetide.senders import Senders, Stream
from pagetide.tokenizer import Tokenizer
from pagetide.version_settings import read_settings

log = logging.getLogger("pagetide")

INPUTS: tuple[tuple[str, str, list[int], bool], ...] = (
    ("text_input", "TYPE_STRING", [1], True),
    ("messages", "TYPE_STRING", [1], True),
    ("sampling_parameters", "TYPE_STRING", [1], True),
    *((name, "TYPE_BOOL", [1], True) for name in OPTIONS),
)
"""Name, type, shape, and whether it may be left out."""

OUTPUTS: tuple[tuple[str, str, list[int]], ...] = (
    ("text_output", "TYPE_STRING", [-1]),
    ("finish_reason", "TYPE_STRING", [-1]),
    ("cumulative_logprob", "TYPE_FP32", [-1]),
    ("logprobs", "TYPE_STRING", [-1]),
    ("prompt_logprobs", "TYPE_STRING", [-1]),
    ("num_input_tokens", "TYPE_UINT32", [1]),
    ("num_output_tokens", "TYPE_UINT32", [-1]),
)

MOST_BYTES_A_TOKEN = 32
"""A prompt with more bytes than this for each token of `max_model_len` is refused before it is tokenised:
text has about 4, deeply indented code 10."""

SWITCH_S = 0.0002
"""The engine thread gives the interpreter's lock away at every kernel; with Python's own 5 ms a busy sender
would keep it that long, several times a step."""

ANSWER_S = 10.0
"""What a broken engine's clients get to be told."""

DRAIN_S = 600.0
"""Triton calls `finalize` when no request is left; this only bounds an engine that hangs."""


class TritonPythonModel:
    """One model version in one stub process: Triton's thread calls these methods."""

    @staticmethod
    def auto_complete_config(config: Any) -> Any:
        for name, data_type, dims, optional in INPUTS:
            config.add_input({"name": name, "data_type": data_type, "dims": dims, "optional": optional})
        for name, data_type, dims in OUTPUTS:
            config.add_output({"name": name, "data_type": data_type, "dims": dims})
        config.set_max_batch_size(0)
        config.set_model_transaction_policy({"decoupled": True})
        return config

    def initialize(self, args: Mapping[str, str]) -> None:
        """Raises SettingsError or WeightsError; Triton then shows the message and keeps the version out."""
        _log_to_triton()
        directory = Path(args["model_repository"]) / args["model_version"]
        config = json.loads(args["model_config"])
        parameters = {name: value["string_value"] for name, value in config["parameters"].items()}
        settings = read_settings(directory, parameters, os.environ)
        # Only now: neither wrong settings nor the process that completes the configuration need torch.
        from pagetide.build import build

        labels = {"model": args["model_name"], "model_name": args["model_name"]}
        self._metrics = Metrics(lambda: _Registry(labels | {"version": args["model_version"]}))
        self._built = build(settings, directory, self._metrics.on_step, self._leave)
        engine = self._built.engine
        longest = min(settings.max_prompt_bytes, engine.max_model_len * MOST_BYTES_A_TOKEN)
        self._limits = Limits(longest, engine.max_model_len, self._built.vocab_size)
        self._senders = Senders(
            settings.num_senders, engine.abort, self._metrics, self._built.max_responses_per_s
        )
        self._ids = itertools.count()
        sys.setswitchinterval(SWITCH_S)
        for part in (self._metrics, self._senders, engine):
            part.start()

    def execute(self, requests: Sequence[Any]) -> None:
        """Takes each request in, or answers it with what is wrong; returns before any of them is done."""
        for request in requests:
            arrival_s = time.monotonic()
            channel = _Channel(request.get_response_sender())
            failure = self._take(request, channel, arrival_s)
            if failure is not None:
                channel.fail(failure)

    def finalize(self) -> None:
        """Finishes what runs, sends it, shows the last counts."""
        self._built.engine.drain(DRAIN_S)
        self._senders.stop(DRAIN_S)
        self._metrics.stop()

    def _leave(self) -> None:
        """The engine's loop is broken. Its clients get their errors, then this process ends: servers that
        never ask `is_ready` see a dead stub, and whoever supervises them starts again."""
        self._senders.stop(ANSWER_S)
        log.error("this model's process ends: %s", self._built.engine.health())
        os._exit(1)

    def is_ready(self) -> bool:
        """Asked by Triton 26.03 and newer: an engine that stopped or hangs makes the model not ready."""
        return self._built.engine.health() is None

    def _take(self, request: Any, channel: _Channel, arrival_s: float) -> Failure | None:
        try:
            self._submit(request, channel, arrival_s)
        except (InvalidArgumentError, ChatTemplateError, AdmissionError) as error:
            return Failure(ErrorCode.INVALID_ARG, str(error))
        except UnavailableError as error:
            return Failure(ErrorCode.UNAVAILABLE, str(error))
        except Exception as error:
            log.exception("a request was not taken")
            return Failure(ErrorCode.INTERNAL, f"{type(error).__name__}: {error}")
        return None

    def _submit(self, request: Any, channel: _Channel, arrival_s: float) -> None:
        tensors = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
        parsed = parse_request(tensors, request.parameters(), self._limits)
        channel.returned = parsed.returned
        self._enqueue(parsed, channel, arrival_s)

    def _enqueue(self, parsed: ParsedRequest, channel: _Channel, arrival_s: float) -> None:
        built = self._built
        encoded = _encode(parsed, built.tokenizer)
        prompt_ids = array("i", truncate(encoded, parsed.params, self._limits))
        params = fit(prompt_ids, parsed.params, self._limits)
        request_id = next(self._ids)
        stream = Stream(request_id, channel, Answer(parsed, prompt_ids, built.tokenizer))
        sender = self._senders[request_id]
        built.engine.submit(
            Request(
                id=request_id,
                prompt_ids=prompt_ids,
                params=spell(params, built.tokenizer, built.vocab_size),
                sink=lambda output: sender.deliver(stream, output),
                arrival_s=arrival_s,
                eos_token_ids=built.eos_token_ids,
                tenant=parsed.terms.tenant,
                priority=parsed.terms.priority,
                timeout_s=parsed.terms.timeout_s,
                cache_salt=parsed.terms.cache_salt,
            )
        )
        sender.watch(stream)


def _encode(parsed: ParsedRequest, tokenizer: Tokenizer) -> list[int]:
    """A chat template writes the model's BOS itself, where there is one."""
    if parsed.messages is None:
        return tokenizer.encode(parsed.prompt)
    prompt = tokenizer.apply_chat_template(parsed.messages, add_generation_prompt=True)
    return tokenizer.encode(prompt, add_special_tokens=False)


class _Channel:
    """A client's response sender. `returned` names the outputs it gets beside the text."""

    def __init__(self, sender: Any) -> None:
        self._sender = sender
        self.returned: frozenset[str] = frozenset()

    def send(self, reply: Reply, final: bool) -> None:
        tensors = [_strings("text_output", reply.text)]
        tensors += [_tensor(name, reply) for name in sorted(self.returned)]
        flags = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL if final else 0
        self._sender.send(pb_utils.InferenceResponse(tensors), flags=flags)

    def fail(self, failure: Failure) -> None:
        """A Triton stream carries an error's text and not its code, so the text tells what is not usual."""
        told = (
            failure.message
            if failure.code is ErrorCode.INVALID_ARG
            else f"{failure.code.name}: {failure.message}"
        )
        error = pb_utils.TritonError(told, getattr(pb_utils.TritonError, failure.code.name))
        response = pb_utils.InferenceResponse([], error)
        self._sender.send(response, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    def is_cancelled(self) -> bool:
        return bool(self._sender.is_cancelled())


def _tensor(name: str, reply: Reply) -> Any:
    """An additional output; a reply that is not the last has the finish reason "None", as vLLM's has."""
    if name == "finish_reason":
        return _strings(name, reply.finish_reason.value if reply.finish_reason else "None")
    if name in ("logprobs", "prompt_logprobs"):
        return _strings(name, getattr(reply, name))
    if name == "cumulative_logprob":
        return pb_utils.Tensor(name, np.array([reply.cumulative_logprob], dtype=np.float32))
    count = reply.num_prompt_tokens if name == "num_input_tokens" else reply.num_output_tokens
    return pb_utils.Tensor(name, np.array([count], dtype=np.uint32))


def _strings(name: str, text: str) -> Any:
    return pb_utils.Tensor(name, np.array([text.encode()], dtype=np.object_))


class _Registry:
    """Triton's metric families. Made, used and dropped on the metrics thread only."""

    def __init__(self, labels: Labels) -> None:
        self._labels = labels
        self._families: dict[str, Any] = {}

    def counter(self, name: str, text: str, labels: Labels) -> CounterHandle:
        metric: CounterHandle = self._metric(name, text, labels, pb_utils.MetricFamily.COUNTER)
        return metric

    def gauge(self, name: str, text: str, labels: Labels) -> GaugeHandle:
        metric: GaugeHandle = self._metric(name, text, labels, pb_utils.MetricFamily.GAUGE)
        return metric

    def _metric(self, name: str, text: str, labels: Labels, kind: Any) -> Any:
        if name not in self._families:
            self._families[name] = pb_utils.MetricFamily(name=name, description=text, kind=kind)
        return self._families[name].Metric(labels={**self._labels, **labels})


class _LogHandler(logging.Handler):
    """Sends log records to Triton's log, each at its own level."""

    def emit(self, record: logging.LogRecord) -> None:
        logger, message = pb_utils.Logger, self.format(record)
        if record.levelno >= logging.ERROR:
            logger.log_error(message)
        elif record.levelno >= logging.WARNING:
            logger.log_warn(message)
        else:
            logger.log_info(message)


def _log_to_triton() -> None:
    root = logging.getLogger("pagetide")
    root.handlers = [_LogHandler()]
    root.setLevel(logging.INFO)
    root.propagate = False
