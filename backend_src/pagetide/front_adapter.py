"""Triton's Python backend interface of the fronts: requests go on by BLS, responses come back.

A thread of its own reads each call's responses: BLS has no other way. Nothing here loads a model: a front's
process holds no weights and never imports torch.
"""

from __future__ import annotations

import json
import logging
import secrets
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar

import triton_python_backend_utils as pb_utils

from pagetide.answer import ErrorCode
from pagetide.calls import CALL, CANCEL, FAILED
from pagetide.front import Front, OneAnswer, read_target
from pagetide.front_trtllm import TensorRtLlm
from pagetide.front_watch import Watch
from pagetide.model_io import Spec
from pagetide.parse_tensors import Tensors
from pagetide.parse_values import InvalidArgumentError
from pagetide.triton_log import log_to_triton

log = logging.getLogger("pagetide")

MOST_CALLS = 1024
"""More requests than this at once are refused: each has a thread."""

_FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
_UNFINISHED = b"None"

Parameters = dict[str, bool | int | str]


class _Call:
    """One client's request at work. Its thread sends; the watch only asks `has_left`.

    `name` is what the target knows it by, `version` the version that took it, None until then.
    """

    def __init__(self, sender: Any) -> None:
        self.name = secrets.token_hex(16)
        self.version: int | None = None
        self._sender = sender
        self._is_open = True
        self._asking = threading.Lock()

    def send(self, tensors: Tensors, final: bool) -> None:
        named = [pb_utils.Tensor(name, tensor) for name, tensor in tensors.items()]
        self._send(pb_utils.InferenceResponse(named), final)

    def fail(self, error: Any) -> None:
        if self._is_open:
            self._send(pb_utils.InferenceResponse([], error), final=True)

    def has_left(self) -> bool:
        """The last response deletes what the server looks at here, so nobody asks from then on."""
        with self._asking:
            return self._is_open and bool(self._sender.is_cancelled())

    def _send(self, response: Any, final: bool) -> None:
        if final:
            with self._asking:
                self._is_open = False
        self._sender.send(response, flags=_FINAL if final else 0)


class _FrontModel:
    """One front in one stub process: Triton's thread calls these methods."""

    front: ClassVar[Front]

    @classmethod
    def auto_complete_config(cls, config: Any) -> Any:
        for spec in cls.front.inputs:
            config.add_input(_described(spec) | {"optional": spec.name not in cls.front.required})
        for spec in cls.front.outputs:
            config.add_output(_described(spec))
        config.set_max_batch_size(cls.front.max_batch_size)
        config.set_model_transaction_policy({"decoupled": cls.front.streams})
        return config

    def initialize(self, args: Mapping[str, str]) -> None:
        """Raises SettingsError; Triton then shows the message and keeps the version out."""
        log_to_triton()
        self._target = read_target(Path(args["model_repository"]) / args["model_version"])
        self._pool = ThreadPoolExecutor(MOST_CALLS, thread_name_prefix="pagetide-call")
        self._watch = Watch(self._give_up)
        self._watch.start()

    def execute(self, requests: Sequence[Any]) -> None:
        """Starts each request, or answers it with what is wrong; returns before any of them is done."""
        for request in requests:
            call = _Call(request.get_response_sender())
            try:
                self._start(call, self.front.ask(_arrays(request.inputs())), _parameters(request))
            except InvalidArgumentError as error:
                call.fail(_error(ErrorCode.INVALID_ARG, str(error)))

    def finalize(self) -> None:
        self._pool.shutdown()
        self._watch.stop()

    def _start(self, call: _Call, tensors: Tensors, parameters: Parameters) -> None:
        if len(self._watch) >= MOST_CALLS:
            told = f"{MOST_CALLS} requests are at work here; send this one again later"
            call.fail(_error(ErrorCode.UNAVAILABLE, told))
            return
        self._watch.add(call)
        self._pool.submit(self._serve, call, tensors, parameters)

    def _serve(self, call: _Call, tensors: Tensors, parameters: Parameters) -> None:
        try:
            if not pb_utils.is_model_ready(self._target):
                call.fail(_error(ErrorCode.UNAVAILABLE, f"model {self._target} is not ready"))
                return
            for response in self._ask_target(CALL + call.name, -1, tensors, parameters):
                self._pass_on(call, response)
            call.fail(_error(ErrorCode.INTERNAL, f"{self._target} ended its answer before it was whole"))
        except Exception as error:
            log.exception("a request was not passed on")
            call.fail(_error(ErrorCode.INTERNAL, f"{type(error).__name__}: {error}"))
        finally:
            self._watch.discard(call)

    def _ask_target(
        self, request_id: str, version: int, tensors: Tensors, parameters: Parameters
    ) -> Iterator[Any]:
        """Blocks until the first response. A version of -1 is the latest."""
        request = pb_utils.InferenceRequest(
            model_name=self._target,
            model_version=version,
            request_id=request_id,
            requested_output_names=[],
            inputs=[pb_utils.Tensor(name, tensor) for name, tensor in tensors.items()],
            parameters=parameters,
        )
        responses: Iterator[Any] = request.exec(decoupled=True)
        return responses

    def _pass_on(self, call: _Call, response: Any) -> None:
        if response.has_error():
            call.fail(_error(ErrorCode.INTERNAL, response.error().message()))
            return
        outputs = _arrays(response.output_tensors())
        reason = outputs["finish_reason"].flat[0] if "finish_reason" in outputs else b""
        if reason == FAILED.encode():
            name, _, message = outputs["text_output"].flat[0].decode().partition(": ")
            call.fail(_error(ErrorCode[name], message))
        elif call.version is None:
            call.version = int(outputs["text_output"].flat[0])
        else:
            call.send(self.front.tell(outputs), final=not self.front.streams or reason != _UNFINISHED)

    def _give_up(self, call: _Call) -> None:
        """Ends the call in the engine. One that isn't taken yet can't be ended yet: the watch asks again.

        A version that is being unloaded takes no request any more, so its calls run to their end.
        """
        if call.version is None:
            return
        self._watch.discard(call)
        if pb_utils.is_model_ready(self._target, str(call.version)):
            for _ in self._ask_target(CANCEL + call.name, call.version, {}, {}):
                pass


def _described(spec: Spec) -> dict[str, Any]:
    return {"name": spec.name, "data_type": f"TYPE_{spec.data_type}", "dims": list(spec.dims)}


def _arrays(tensors: Sequence[Any]) -> dict[str, Any]:
    return {tensor.name(): tensor.as_numpy() for tensor in tensors}


def _parameters(request: Any) -> Parameters:
    """BLS takes no fractions as parameters; the engine's model reads them from strings too."""
    given: dict[str, Any] = json.loads(request.parameters() or "{}")
    return {name: str(value) if isinstance(value, float) else value for name, value in given.items()}


def _error(code: ErrorCode, message: str) -> Any:
    """A Triton stream carries an error's text and not its code, so the text tells what is not usual."""
    told = message if code is ErrorCode.INVALID_ARG else f"{code.name}: {message}"
    return pb_utils.TritonError(told, getattr(pb_utils.TritonError, code.name))


class OneAnswerModel(_FrontModel):
    front = OneAnswer()


class TensorRtLlmModel(_FrontModel):
    front = TensorRtLlm()


class TensorRtLlmUint32Model(_FrontModel):
    front = TensorRtLlm("UINT32")
