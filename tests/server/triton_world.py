"""A running server as a client sees it: raw gRPC streams, HTTP, and the metrics page."""

from __future__ import annotations

import json
import re
import shutil
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import numpy.typing as npt
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc
from tritonclient.utils import deserialize_bytes_tensor, np_to_triton_dtype, triton_to_np_dtype

from pagetide_server.launcher import Server

MODEL = "smollm2"
SMALL = "small"
"""The same weights with a pool far below the model's length and few places to run, see conftest.py."""
SMALL_BLOCKS = 90
ENSEMBLE = "ensemble"
INFER = f"{MODEL}_infer"
SMOLLM2_BLOCK_BYTES = 30 * 2 * 3 * 16 * 64 * 2
DEADLINE_S = 120.0
SHIPPED = Path(__file__).parents[2] / "model_repository"
IDLE = {
    "vllm:num_requests_running": 0.0,
    "vllm:num_requests_waiting": 0.0,
    'pagetide:kv_blocks{state="used"}': 0.0,
}

_SAMPLE = re.compile(r"^([\w:]+)(?:\{(.*)\})? (\S+)$")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_EVERYWHERE = ("model", "model_name", "version")
CONTENTS = {
    "BYTES": "bytes_contents",
    "BOOL": "bool_contents",
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
}


def copy_of_the_shipped_repository(target: Path) -> Path:
    shutil.copytree(SHIPPED, target, ignore=shutil.ignore_patterns("__pycache__"))
    return target


def wait_until(holds: Callable[[], bool], what: str, deadline_s: float = DEADLINE_S) -> None:
    """Looks again until `holds`; fails after the deadline, saying `what` did not come."""
    end = time.monotonic() + deadline_s
    while not holds():
        assert time.monotonic() < end, f"not after {deadline_s:g} s: {what}"
        time.sleep(0.02)


@dataclass(frozen=True)
class Response:
    """One message of a stream. `outputs` holds each tensor's one element, or the list of them."""

    outputs: Mapping[str, Any] = field(default_factory=dict)
    is_final: bool = False
    error: str = ""
    version: str = ""

    @property
    def text(self) -> str:
        return str(self.outputs.get("text_output", ""))


class Call:
    """One request on a gRPC stream of its own; iterate for its responses."""

    def __init__(
        self, stub: service_pb2_grpc.GRPCInferenceServiceStub, request: pb.ModelInferRequest
    ) -> None:
        self._call = stub.ModelStreamInfer(iter([request]), timeout=DEADLINE_S)

    def __iter__(self) -> Iterator[Response]:
        for message in self._call:
            yield _response(message)

    def all(self) -> list[Response]:
        return list(self)

    def text(self) -> str:
        """The joined text. Fails on an error."""
        responses = self.all()
        assert not any(response.error for response in responses), responses
        return "".join(response.text for response in responses)

    def cancel(self) -> None:
        self._call.cancel()


@dataclass
class Triton:
    server: Server

    def __post_init__(self) -> None:
        self.address = f"127.0.0.1:{self.server.grpc_port}"
        self.channel = grpc.insecure_channel(self.address)
        self.stub = service_pb2_grpc.GRPCInferenceServiceStub(self.channel)

    def start(self, prompt: str | bytes = "Hello", **options: Any) -> Call:
        """Options are those of `infer_request`."""
        return Call(self.stub, infer_request(prompt, **options))

    def text(self, prompt: str, **options: Any) -> str:
        return self.start(prompt, **options).text()

    def error(self, prompt: str | bytes = "Hello", **options: Any) -> str:
        """The message of the one error a bad request gets."""
        (response,) = self.start(prompt, **options).all()
        assert response.error, response
        return response.error

    def together(self, requests: Sequence[Mapping[str, Any]]) -> list[list[Response]]:
        """The responses to requests that run at the same time, each on its own stream."""
        with ThreadPoolExecutor(len(requests)) as pool:
            return list(pool.map(lambda options: self.start(**options).all(), requests))

    def post(self, path: str, body: Mapping[str, Any] | bytes, model: str = MODEL) -> tuple[int, str]:
        """Status and body of a POST to the model's HTTP endpoint."""
        url = f"{self.server.url}/v2/models/{model}/{path}"
        request = urllib.request.Request(url, body if isinstance(body, bytes) else json.dumps(body).encode())
        try:
            with urllib.request.urlopen(request, timeout=DEADLINE_S) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def metrics_page(self) -> str:
        url = f"http://127.0.0.1:{self.server.metrics_port}/metrics"
        with urllib.request.urlopen(url, timeout=10) as answer:
            return str(answer.read().decode())

    def metrics(self, model: str = MODEL) -> dict[str, float]:
        """The model's samples by name and labels, `name{label="value"}`, without those all of its have."""
        found: dict[str, float] = {}
        for line in self.metrics_page().splitlines():
            match = _SAMPLE.match(line)
            labels = dict(_LABEL.findall(match[2] or "")) if match else {}
            if match and match[1].startswith(("vllm:", "pagetide:")) and labels.get("model") == model:
                extra = [f'{k}="{v}"' for k, v in sorted(labels.items()) if k not in _EVERYWHERE]
                name = match[1] + (f"{{{','.join(extra)}}}" if extra else "")
                found[name] = found.get(name, 0.0) + float(match[3])
        return found

    def wait_for_metrics(self, expected: Mapping[str, float], model: str = MODEL) -> None:
        """Looks until they are as expected: they are published twice a second."""
        end = time.monotonic() + 60
        while True:
            shown = self.metrics(model)
            wrong = {
                name: (shown.get(name), want) for name, want in expected.items() if shown.get(name) != want
            }
            if not wrong:
                return
            assert time.monotonic() < end, f"shown, expected: {wrong}"
            time.sleep(0.05)

    def wait_until_idle(self, model: str = MODEL) -> None:
        """Nothing runs or waits, and no block is lost or held."""
        wait_until(lambda: self.metrics(model).get("pagetide:kv_blocks_total", 0) > 0, "metrics are shown")
        self.wait_for_metrics(IDLE, model)
        shown = self.metrics(model)
        blocks = [shown[f'pagetide:kv_blocks{{state="{state}"}}'] for state in ("used", "cached", "free")]
        assert sum(blocks) == shown["pagetide:kv_blocks_total"]


def infer_request(
    prompt: str | bytes | None = "Hello",
    *,
    stream: bool | None = True,
    sampling: Mapping[str, Any] | str | bytes | None = None,
    parameters: Mapping[str, Any] | None = None,
    model: str = MODEL,
    version: str = "",
    tensors: Mapping[str, npt.NDArray[Any]] | None = None,
    **flags: bool,
) -> pb.ModelInferRequest:
    """`sampling` goes into the `sampling_parameters` tensor, `flags` into boolean tensors of their name.

    A text in `tensors` is an array of bytes.
    """
    request = pb.ModelInferRequest(model_name=model, model_version=version)
    if prompt is not None:
        _add_bytes(request, "text_input", prompt)
    if sampling is not None:
        text = json.dumps(sampling) if isinstance(sampling, Mapping) else sampling
        _add_bytes(request, "sampling_parameters", text)
    for name, value in ({"stream": stream} | flags).items():
        if value is not None:
            tensor = request.inputs.add(name=name, datatype="BOOL", shape=[1])
            tensor.contents.bool_contents.append(value)
    for name, array in (tensors or {}).items():
        kind = np_to_triton_dtype(array.dtype)
        tensor = request.inputs.add(name=name, datatype=kind, shape=array.shape)
        getattr(tensor.contents, CONTENTS[kind]).extend(array.flat)
    for name, parameter in (parameters or {}).items():
        _set_parameter(request.parameters[name], parameter)
    return request


def _add_bytes(request: pb.ModelInferRequest, name: str, value: str | bytes) -> None:
    tensor = request.inputs.add(name=name, datatype="BYTES", shape=[1])
    tensor.contents.bytes_contents.append(value.encode() if isinstance(value, str) else value)


def _set_parameter(parameter: pb.InferParameter, value: Any) -> None:
    kinds = {bool: "bool_param", int: "int64_param", float: "double_param", str: "string_param"}
    setattr(parameter, kinds[type(value)], value)


def _response(message: pb.ModelStreamInferResponse) -> Response:
    answer = message.infer_response
    outputs = {
        output.name: _value(output.datatype, raw)
        for output, raw in zip(answer.outputs, answer.raw_output_contents, strict=True)
    }
    is_final = answer.parameters["triton_final_response"].bool_param
    return Response(outputs, is_final, message.error_message, answer.model_version)


def _value(datatype: str, raw: bytes) -> Any:
    if datatype == "BYTES":
        values = [each.decode() for each in deserialize_bytes_tensor(raw)]
    else:
        values = np.frombuffer(raw, triton_to_np_dtype(datatype)).tolist()
    return values[0] if len(values) == 1 else values
