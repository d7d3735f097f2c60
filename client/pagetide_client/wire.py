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
from pagetide_client.options import DEFAULT_MODEL, Ask, Prompt
from pagetide_client.results import Delta, Logprob, ModelVersion
from pagetide_client.statistics import Statistics, parse

_LOOPBACK = ("127.", "localhost:", "[::1]:")

_OUTPUTS = ("finish_reason", "num_input_tokens", "num_output_tokens")
_LOGPROBS = ("logprobs", "cumulative_logprob")
_DETAILS = ("stop_reason", "token_ids", "num_cached_tokens", "queue_time_s", "prefill_time_s")
_UNFINISHED = ("", "None")
_NUMBERS = {"FP32": "f", "UINT32": "I", "INT32": "i"}


def infer_request(model: str, ask: Ask) -> Any:
    """The ModelInferRequest of one generation."""
    request = pb.ModelInferRequest(model_name=model, model_version=ask.version, id=ask.request_id)
    _add_prompt(request, ask.prompt)
    if ask.tools is not None:
        _add_string(request, "tools", json.dumps(list(ask.tools), ensure_ascii=False))
    _add_string(request, "sampling_parameters", json.dumps(ask.sampling, default=list))
    _add_flag(request, "exclude_input_in_output", True)
    _add_flag(request, "stream", ask.stream)
    request.outputs.add(name="text_output")
    for output in _outputs(ask):
        _add_flag(request, f"return_{output}", True)
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


def deltas(message: Any) -> list[Delta]:
    """What one ModelStreamInferResponse has of each sample; raises the PagetideError it carries instead."""
    if message.error_message:
        raise from_message(message.error_message)
    response = message.infer_response
    values = {
        tensor.name: _values(tensor.datatype, raw)
        for tensor, raw in zip(response.outputs, response.raw_output_contents, strict=True)
    }
    return [_delta(values, sample) for sample in range(len(values.get("text_output", ())))]


def _delta(values: Mapping[str, list[Any]], sample: int) -> Delta:
    def value(name: str) -> Any:
        found = values.get(name)
        return found[sample] if found else None

    return Delta(
        text=value("text_output"),
        num_output_tokens=value("num_output_tokens") or 0,
        num_input_tokens=values.get("num_input_tokens", [None])[0],
        finish_reason=None if value("finish_reason") in _UNFINISHED else value("finish_reason"),
        cumulative_logprob=value("cumulative_logprob"),
        logprobs=_logprobs(value("logprobs")),
        sample=sample,
        stop_reason=json.loads(value("stop_reason") or "null"),
        token_ids=_token_ids(values, sample),
        num_cached_tokens=value("num_cached_tokens"),
        queue_time_s=value("queue_time_s"),
        prefill_time_s=value("prefill_time_s"),
    )


def _token_ids(values: Mapping[str, list[Any]], sample: int) -> tuple[int, ...]:
    """The samples' ids stand one after the other."""
    counts = values.get("num_output_tokens", [])
    start = sum(counts[:sample])
    return tuple(values.get("token_ids", [])[start : start + counts[sample]]) if counts else ()


def statistics(messages: Sequence[Any], url: str) -> Statistics:
    """What a call with a `statistics_request` brought; raises the PagetideError it carries instead."""
    if not messages:
        raise ServerError(f"the server at {url} ended the call without statistics")
    return parse(deltas(messages[0])[0].text)


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


def _outputs(ask: Ask) -> tuple[str, ...]:
    logprobs = _LOGPROBS if ask.sampling.get("logprobs") is not None else ()
    return (*_OUTPUTS, *logprobs, *(_DETAILS if ask.details else ()))


def _add_prompt(request: Any, prompt: Prompt) -> None:
    if isinstance(prompt, str):
        _add_string(request, "text_input", prompt)
    elif not prompt or isinstance(prompt[0], Mapping):
        _add_string(request, "messages", json.dumps(list(prompt), ensure_ascii=False))
    else:
        tensor = request.inputs.add(name="input_ids", datatype="INT32", shape=[len(prompt)])
        try:
            tensor.contents.int_contents.extend(prompt)
        except (TypeError, ValueError) as error:
            raise InvalidRequest(f"the prompt is no list of token ids: {error}") from None


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
