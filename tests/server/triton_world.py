"""A running server as a client sees it: raw gRPC streams, HTTP, and the metrics page."""

from __future__ import annotations

import json
import re
import struct
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import grpc
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc

from pagetide_server.launcher import Server

MODEL = "smollm2"
DEADLINE_S = 120.0
SETTLED = {"vllm:num_requests_running": 0.0, "vllm:num_requests_waiting": 0.0}

_SAMPLE = re.compile(r"^([\w:]+)(?:\{(.*)\})? (\S+)$")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_FORMATS = {"FP32": "<f", "UINT32": "<I"}


def wait_until(holds: Callable[[], bool], what: str, deadline_s: float = DEADLINE_S) -> None:
    """Looks again until `holds`; fails after the deadline, saying `what` did not come."""
    end = time.monotonic() + deadline_s
    while not holds():
        assert time.monotonic() < end, f"not after {deadline_s:g} s: {what}"
        time.sleep(0.02)


@dataclass(frozen=True)
class Response:
    """One message of a stream. `outputs` holds the single element of each tensor."""

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
        self._open = threading.Event()
        self._call = stub.ModelStreamInfer(self._requests(request), timeout=DEADLINE_S)

    def _requests(self, request: pb.ModelInferRequest) -> Iterator[pb.ModelInferRequest]:
        yield request

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

    def post(self, path: str, body: Mapping[str, Any]) -> tuple[int, str]:
        """Status and body of a POST to the model's HTTP endpoint."""
        url = f"{self.server.url}/v2/models/{MODEL}/{path}"
        request = urllib.request.Request(url, json.dumps(body).encode())
        try:
            with urllib.request.urlopen(request, timeout=DEADLINE_S) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def metrics_page(self) -> str:
        url = f"http://127.0.0.1:{self.server.metrics_port}/metrics"
        with urllib.request.urlopen(url, timeout=10) as answer:
            return str(answer.read().decode())

    def metrics(self) -> dict[str, float]:
        """Samples by name and labels, as `name{label="value"}`, without those every series has."""
        found = {}
        for line in self.metrics_page().splitlines():
            match = _SAMPLE.match(line)
            if match and (match[1].startswith(("vllm:", "pagetide:"))):
                labels = [f'{k}="{v}"' for k, v in _LABEL.findall(match[2] or "")]
                extra = sorted(each for each in labels if not each.startswith(("model", "version")))
                found[match[1] + (f"{{{','.join(extra)}}}" if extra else "")] = float(match[3])
        return found

    def metric(self, name: str) -> float:
        return self.metrics()[name]

    def wait_for_metrics(self, expected: Mapping[str, float]) -> None:
        """Published twice a second: looks until they are as expected."""

        def holds() -> bool:
            shown = self.metrics()
            return all(shown.get(name) == value for name, value in expected.items())

        try:
            wait_until(holds, "", 30)
        except AssertionError:
            shown = self.metrics()
            raise AssertionError({name: (shown.get(name), want) for name, want in expected.items()}) from None

    def wait_until_idle(self) -> None:
        """Nothing runs or waits, and no block is lost or held."""
        total = self.metric("pagetide:kv_blocks_total")
        self.wait_for_metrics(SETTLED | {'pagetide:kv_blocks{state="used"}': 0.0})
        blocks = self.metrics()
        assert sum(blocks[f'pagetide:kv_blocks{{state="{s}"}}'] for s in ("used", "cached", "free")) == total


def infer_request(
    prompt: str | bytes | None = "Hello",
    *,
    stream: bool | None = True,
    sampling: Mapping[str, Any] | str | bytes | None = None,
    parameters: Mapping[str, Any] | None = None,
    version: str = "",
    **flags: bool,
) -> pb.ModelInferRequest:
    """`sampling` goes into the `sampling_parameters` tensor, `flags` into boolean tensors of their name."""
    request = pb.ModelInferRequest(model_name=MODEL, model_version=version)
    if prompt is not None:
        _add_bytes(request, "text_input", prompt)
    if sampling is not None:
        text = json.dumps(sampling) if isinstance(sampling, Mapping) else sampling
        _add_bytes(request, "sampling_parameters", text)
    for name, value in ({"stream": stream} | flags).items():
        if value is not None:
            tensor = request.inputs.add(name=name, datatype="BOOL", shape=[1])
            tensor.contents.bool_contents.append(value)
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
        (length,) = struct.unpack_from("<I", raw)
        assert len(raw) == 4 + length, "one element"
        return raw[4:].decode()
    (value,) = struct.unpack(_FORMATS[datatype], raw)
    return value
