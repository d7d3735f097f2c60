"""Requests and responses as Triton's gRPC messages; the sync and the asyncio client share it.

Strings travel as Triton's BYTES: each element is its length, 4 bytes little endian, then the bytes.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import grpc
from tritonclient.grpc import service_pb2 as pb

from pagetide_client.errors import InvalidRequest, ModelNotFound, ServerError, ServerUnavailable, from_message
from pagetide_client.options import DEFAULT_MODEL, Prompt
from pagetide_client.results import Delta, Logprob, ModelVersion
from pagetide_client.statistics import Statistics, parse

_LOOPBACK = ("127.", "localhost:", "[::1]:")

_FLAGS = (
    "exclude_input_in_output",
    "return_finish_reason",
    "return_num_input_tokens",
    "return_num_output_tokens",
)
_OUTPUTS = ("text_output", "finish_reason", "num_input_tokens", "num_output_tokens")
_UNFINISHED = ("", "None")
_NUMBERS = {"FP32": "f", "UINT32": "I"}


def infer_request(
    model: str, version: str, request_id: str, prompt: Prompt, stream: bool, sampling: Mapping[str, Any]
) -> Any:
    """The ModelInferRequest of one generation."""
    request = pb.ModelInferRequest(model_name=model, model_version=version, id=request_id)
    if isinstance(prompt, str):
        _add_string(request, "text_input", prompt)
    else:
        _add_string(request, "messages", json.dumps(list(prompt), ensure_ascii=False))
    _add_string(request, "sampling_parameters", json.dumps(sampling, default=list))
    with_logprobs = sampling.get("logprobs") is not None
    for flag in _FLAGS + (("return_logprobs", "return_cumulative_logprob") if with_logprobs else ()):
        _add_flag(request, flag, True)
    _add_flag(request, "stream", stream)
    for output in _OUTPUTS + (("logprobs", "cumulative_logprob") if with_logprobs else ()):
        request.outputs.add(name=output)
    return request


def statistics_request(model: str, version: str) -> Any:
    """The ModelInferRequest that asks an engine what it is doing."""
    request = pb.ModelInferRequest(model_name=model, model_version=version)
    _add_flag(request, "statistics", True)
    request.outputs.add(name="text_output")
    return request


def is_last(message: Any) -> bool:
    """Whether nothing but the end of the call follows this ModelStreamInferResponse."""
    final = message.infer_response.parameters.get("triton_final_response")
    return bool(message.error_message) or (final is not None and final.bool_param)


def delta(message: Any) -> Delta:
    """The delta in one ModelStreamInferResponse; raises the PagetideError it carries instead."""
    if message.error_message:
        raise from_message(message.error_message)
    response = message.infer_response
    values = {
        tensor.name: _values(tensor.datatype, raw)
        for tensor, raw in zip(response.outputs, response.raw_output_contents, strict=True)
    }
    reason = _first(values, "finish_reason")
    return Delta(
        text=_first(values, "text_output") or "",
        num_output_tokens=_first(values, "num_output_tokens") or 0,
        num_input_tokens=_first(values, "num_input_tokens"),
        finish_reason=None if reason in _UNFINISHED else reason,
        cumulative_logprob=_first(values, "cumulative_logprob"),
        logprobs=_logprobs(_first(values, "logprobs")),
    )


def statistics(messages: Sequence[Any], url: str) -> Statistics:
    """What a call with a `statistics_request` brought; raises the PagetideError it carries instead."""
    if not messages:
        raise ServerError(f"the server at {url} ended the call without statistics")
    return parse(delta(messages[0]).text)


def channel_options(url: str) -> tuple[tuple[str, int], ...]:
    """Messages of any size; no proxy on the way to this machine, whatever `http_proxy` says."""
    unlimited = (("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1))
    return (*unlimited, ("grpc.enable_http_proxy", 0)) if url.startswith(_LOOPBACK) else unlimited


def unreachable(url: str, error: grpc.RpcError) -> ServerUnavailable:
    details = error.details() or error.code().name
    reason = details.rpartition(": ")[2]
    return ServerUnavailable(f"no server answers at {url} ({reason}); start one with `pagetide serve`")


def model_versions(index: Any) -> list[ModelVersion]:
    """The entries of a RepositoryIndexResponse, by name and version."""
    models = [ModelVersion(m.name, m.version, m.state or "UNKNOWN", m.reason) for m in index.models]
    return sorted(models, key=lambda m: (m.name, int(m.version or 0)))


def choose_model(models: Iterable[ModelVersion], url: str) -> str:
    """The model meant when none is named: the only ready one, or the default among several."""
    ready = sorted({model.name for model in models if model.ready})
    if len(ready) == 1:
        return ready[0]
    if DEFAULT_MODEL in ready:
        return DEFAULT_MODEL
    if not ready:
        raise ModelNotFound(f"no model is ready at {url}")
    raise ModelNotFound(f"several models are ready at {url}, name one of {', '.join(ready)}")


def _add_string(request: Any, name: str, value: str) -> None:
    try:
        data = value.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequest(
            f"{name} is not Unicode text: a lone surrogate at position {error.start}"
        ) from None
    request.inputs.add(name=name, datatype="BYTES", shape=[1]).contents.bytes_contents.append(data)


def _add_flag(request: Any, name: str, value: bool) -> None:
    request.inputs.add(name=name, datatype="BOOL", shape=[1]).contents.bool_contents.append(value)


def _values(datatype: str, raw: bytes) -> list[Any]:
    if datatype == "BYTES":
        return list(_strings(raw))
    if datatype not in _NUMBERS:
        raise ServerError(f"the server answered with datatype {datatype}, which no output of the model has")
    return list(struct.unpack(f"<{len(raw) // 4}{_NUMBERS[datatype]}", raw))


def _strings(raw: bytes) -> Iterable[str]:
    offset = 0
    while offset < len(raw):
        (length,) = struct.unpack_from("<I", raw, offset)
        offset += 4 + length
        yield raw[offset - length : offset].decode(errors="replace")


def _first(values: Mapping[str, list[Any]], name: str) -> Any:
    found = values.get(name)
    return found[0] if found else None


def _logprobs(text: str | None) -> tuple[tuple[Logprob, ...], ...]:
    """vLLM's shape: a list over tokens of `{token id: {logprob, rank, decoded_token}}`."""
    tokens = json.loads(text) if text else None
    return tuple(
        tuple(
            Logprob(int(token_id), entry["logprob"], entry.get("rank"), entry.get("decoded_token"))
            for token_id, entry in candidates.items()
        )
        for candidates in tokens or ()
    )
