"""Triton's Python backend interface over the engine."""

from __future__ import annotations

import gc
import json
import logging
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from pagetide.answer import ErrorCode, Failure, Reply
from pagetide.calls import FAILED, Calls, is_call
from pagetide.faults import Faults
from pagetide.intake import Intake
from pagetide.metric_series import CounterHandle, GaugeHandle, Labels
from pagetide.metrics import Metrics
from pagetide.model_io import FINISH_REASON, INPUTS, OUTPUTS, TEXT, TOKEN_IDS, Spec
from pagetide.parse import parse_request
from pagetide.parse_limits import RequestLimits
from pagetide.parse_statistics import asks_statistics
from pagetide.parse_tensors import read_text
from pagetide.refusals import failure_of
from pagetide.senders import Senders
from pagetide.statistics import Statistics
from pagetide.triton_log import log_to_triton
from pagetide.version_settings import read_settings

log = logging.getLogger("pagetide")

_DTYPES = {"FP32": np.float32, "INT32": np.int32, "UINT32": np.uint32}

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
        for spec in INPUTS:
            config.add_input(_described(spec) | {"optional": True})
        for spec in OUTPUTS:
            config.add_output(_described(spec))
        config.set_max_batch_size(0)
        config.set_model_transaction_policy({"decoupled": True})
        return config

    def initialize(self, args: Mapping[str, str]) -> None:
        """Raises SettingsError or WeightsError; Triton then shows the message and keeps the version out."""
        log_to_triton()
        directory = Path(args["model_repository"]) / args["model_version"]
        config = json.loads(args["model_config"])
        parameters = {name: value["string_value"] for name, value in config["parameters"].items()}
        settings = read_settings(directory, parameters, os.environ)
        # Only now: neither wrong settings nor the process that completes the configuration need torch.
        from pagetide.build import build
        from pagetide.grammar_compiler import open_grammars

        labels = {"model": args["model_name"], "model_name": args["model_name"]}
        self._metrics = Metrics(lambda: _Registry(labels | {"version": args["model_version"]}))
        faults = Faults(os.environ)
        self._built = build(settings, directory, self._metrics.on_step, self._leave, faults)
        engine = self._built.engine
        self._limits = RequestLimits.of(settings, engine.max_model_len, self._built.vocab_size)
        grammars = open_grammars(self._built, settings, self._metrics)
        self._grammars = faults.within_methods(grammars, compile="grammar")
        self._senders = Senders(
            settings.num_senders, engine.abort, self._metrics, self._built.max_responses_per_s
        )
        self._calls = Calls(args["model_version"], engine.abort)
        self._intake = Intake(self._built, self._limits, self._senders, faults)
        sys.setswitchinterval(SWITCH_S)
        for part in (self._metrics, self._senders, engine):
            part.start()
        gc.freeze()  # all of this lives as long as the process: no search for cycles in it during steps

    def execute(self, requests: Sequence[Any]) -> None:
        """Takes each request in, or answers it with what is wrong; returns before any of them is done."""
        for request in requests:
            arrival_s = time.monotonic()
            channel = _Channel(request.get_response_sender(), is_call(request.request_id()))
            if self._calls.cancel(request.request_id()):
                channel.end()
                continue
            self._attempt(channel, partial(self._submit, request, channel, arrival_s))

    def finalize(self) -> None:
        """Finishes what runs, sends it, shows the last counts."""
        self._grammars.stop()
        self._built.engine.drain(DRAIN_S)
        self._senders.stop(DRAIN_S)
        self._metrics.stop()

    def _leave(self) -> None:
        """The engine's loop is broken. Its clients get their errors, then this process ends: servers that
        never ask `is_ready` see a dead stub. The last word goes to stderr: Triton's log may come too late."""
        print(f"this model's process ends: {self._built.engine.health()}", file=sys.stderr, flush=True)
        self._senders.stop(ANSWER_S)
        os._exit(1)

    def is_ready(self) -> bool:
        """Asked by Triton 26.03 and newer: an engine that stopped or hangs makes the model not ready."""
        return self._built.engine.health() is None

    def _attempt(self, channel: _Channel, work: Callable[[], None]) -> None:
        """Does it, or tells the client why not. Any thread. Never raises: others come after this one."""
        failure = failure_of(work, self._intake.ids)
        if failure is not None:
            self._metrics.on_refused(failure.code.name)
            try:
                channel.fail(failure)
            except Exception:
                log.exception("an error was not sent: %a", failure.told(with_code=True))

    def _submit(self, request: Any, channel: _Channel, arrival_s: float) -> None:
        self._calls.open(request.request_id(), channel)
        tensors = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
        if asks_statistics(tensors):
            self._intake.ask_statistics(channel)
            return
        parsed = parse_request(tensors, read_text("parameters", request.parameters), self._limits)
        channel.returned = tuple(spec for spec in OUTPUTS if spec.name in parsed.returned)
        submit = partial(self._intake.submit, parsed, channel, arrival_s)
        if parsed.grammar is None:
            submit(lambda: None)
        else:
            self._grammars.compile(
                parsed.grammar, lambda ready: self._attempt(channel, partial(submit, ready))
            )


def _described(spec: Spec) -> dict[str, Any]:
    return {"name": spec.name, "data_type": f"TYPE_{spec.data_type}", "dims": list(spec.dims)}


class _Channel:
    """A client's response sender. `returned` are the outputs it gets beside the text.

    `request_ids` are the engine's, once it has the request; `left` says that a front ended its call.
    """

    def __init__(self, sender: Any, for_front: bool) -> None:
        self._sender = sender
        self._for_front = for_front
        self.request_ids: Sequence[int] = ()
        self.left = False
        self.returned: tuple[Spec, ...] = ()

    def greet(self, version: str) -> None:
        self._sender.send(pb_utils.InferenceResponse([_tensor(TEXT, [version])]))

    def end(self) -> None:
        self._sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    def send(self, reply: Reply, final: bool) -> None:
        self.send_all((reply,), final)

    def send_all(self, replies: Sequence[Reply], final: bool) -> None:
        tensors = [_tensor(TEXT, [reply.text for reply in replies])]
        tensors += [_tensor(spec, [reply.values[spec.name] for reply in replies]) for spec in self.returned]
        flags = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL if final else 0
        self._sender.send(pb_utils.InferenceResponse(tensors), flags=flags)

    def tell(self, state: Statistics | None) -> None:
        """The only response to who asked for statistics; None is an engine that stopped before it had any."""
        if state is None:
            self.fail(Failure(ErrorCode.UNAVAILABLE, "the engine stopped"))
        else:
            self.send(Reply(state.to_json(), None, {}), final=True)

    def fail(self, failure: Failure) -> None:
        """A Triton stream carries an error's text and not its code, so the text tells what is not usual."""
        if self._for_front:
            text = _tensor(TEXT, [failure.told(with_code=True)])
            response = pb_utils.InferenceResponse([text, _tensor(FINISH_REASON, [FAILED])])
        else:
            told = failure.told(with_code=failure.code is not ErrorCode.INVALID_ARG)
            error = pb_utils.TritonError(told, getattr(pb_utils.TritonError, failure.code.name))
            response = pb_utils.InferenceResponse([], error)
        self._sender.send(response, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    def is_cancelled(self) -> bool:
        return self.left or bool(self._sender.is_cancelled())


def _tensor(spec: Spec, values: Sequence[Any]) -> Any:
    """`values` are the samples'."""
    if spec.dims == (1,):
        values = values[:1]
    if spec.data_type == "STRING":
        return pb_utils.Tensor(spec.name, np.array([value.encode() for value in values], dtype=np.object_))
    if spec is TOKEN_IDS:
        values = [token_id for ids in values for token_id in ids]
    return pb_utils.Tensor(spec.name, np.array(values, dtype=_DTYPES[spec.data_type]))


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
