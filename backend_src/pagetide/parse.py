"""From a request's tensors and parameters to what the engine needs, or an error that names what is wrong.

Inputs and their meaning are those of the Triton vLLM backend (docs/design.md, "Contracts").
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from pagetide.parse_messages import Messages, parse_messages
from pagetide.parse_sampling import load_object, not_utf8, sampling_params
from pagetide.parse_terms import Terms, take_terms
from pagetide.parse_values import InvalidArgumentError, boolean
from pagetide.request import SamplingParams

Tensors = Mapping[str, npt.NDArray[Any]]

RETURNED = (
    "finish_reason",
    "cumulative_logprob",
    "logprobs",
    "prompt_logprobs",
    "num_input_tokens",
    "num_output_tokens",
)
"""Outputs a client gets beside the text if it sets `return_<name>`."""

OPTIONS = ("stream", "exclude_input_in_output", *(f"return_{name}" for name in RETURNED))
"""The boolean inputs. A request parameter of the same name counts where the tensor is missing."""

_TRITONS_OWN = frozenset(
    ("sequence_id", "sequence_start", "sequence_end", "priority", "timeout", "headers", "binary_data_output")
)
_TRITONS_PREFIX = "triton_"


@dataclass(frozen=True, slots=True)
class Limits:
    """What one request may ask of this model version. `max_model_len` counts prompt + output tokens."""

    max_prompt_bytes: int
    max_model_len: int
    vocab_size: int


@dataclass(frozen=True, slots=True)
class ParsedRequest:
    """`echo` is the text before the output in the first response: the prompt, or nothing.

    A conversation has `messages` for the chat template, and no `prompt`.
    """

    prompt: str
    echo: str
    stream: bool
    returned: frozenset[str]
    params: SamplingParams
    terms: Terms = field(default_factory=Terms)
    messages: Messages | None = None


def parse_request(tensors: Tensors, parameters: str, limits: Limits) -> ParsedRequest:
    """`parameters` is the JSON object of the request's parameters. Raises InvalidArgumentError."""
    given = load_object("parameters", parameters) if parameters else {}
    own = {name: value for name, value in given.items() if _is_ours(name)}
    options = {name: _option(name, tensors, own) for name in OPTIONS}
    messages = _messages(tensors, limits.max_prompt_bytes)
    prompt = _prompt(tensors, limits.max_prompt_bytes) if messages is None else ""
    returned = frozenset(name for name in RETURNED if options[f"return_{name}"])
    asked = _asked(tensors, own)
    terms = take_terms(asked)
    params = sampling_params(asked, limits.vocab_size)
    if "cumulative_logprob" in returned and params.logprobs is None:
        params = replace(params, logprobs=0)
    echo = _echo(prompt, options)
    return ParsedRequest(prompt, echo, bool(options["stream"]), returned, params, terms, messages)


def truncate(prompt_ids: Sequence[int], params: SamplingParams, limits: Limits) -> Sequence[int]:
    """The last `truncate_prompt_tokens`; -1 keeps what leaves room for `max_tokens`, as vLLM does."""
    most = params.truncate_prompt_tokens
    if most is None:
        return prompt_ids
    return prompt_ids[-(most if most > 0 else max(1, limits.max_model_len - params.max_tokens)) :]


def fit(prompt_ids: Sequence[int], params: SamplingParams, limits: Limits) -> SamplingParams:
    """`params` with `max_tokens` cut to what the model's length leaves after the prompt, as vLLM does.

    Raises InvalidArgumentError if the prompt leaves no room for `min_tokens`, or for one token.
    """
    room = limits.max_model_len - len(prompt_ids)
    if not prompt_ids:
        raise InvalidArgumentError("text_input has no tokens; it must have at least 1")
    if room < 1:
        raise InvalidArgumentError(
            f"text_input has {len(prompt_ids)} tokens; it must have at most {limits.max_model_len - 1}, "
            f"as prompt and output together take at most {limits.max_model_len}"
        )
    if params.min_tokens > room:
        raise InvalidArgumentError(
            f"min_tokens is {params.min_tokens}; after a prompt of {len(prompt_ids)} tokens "
            f"at most {room} are left of {limits.max_model_len}"
        )
    return replace(params, max_tokens=min(params.max_tokens, room))


def _is_ours(name: str) -> bool:
    return name not in _TRITONS_OWN and not name.startswith(_TRITONS_PREFIX)


def _option(name: str, tensors: Tensors, parameters: dict[str, Any]) -> bool | None:
    """The option's value, taken out of `parameters`; None if it was not given."""
    value = parameters.pop(name, None)
    if name in tensors:
        value = _single(name, tensors[name])
        value = bool(value) if isinstance(value, np.bool_) else value
    return None if value is None else boolean(name, value)


def _messages(tensors: Tensors, max_bytes: int) -> Messages | None:
    if "messages" not in tensors:
        return None
    if "text_input" in tensors:
        raise InvalidArgumentError("text_input and messages are both given; leave one of them out")
    return parse_messages(_bytes("messages", tensors["messages"]), max_bytes)


def _prompt(tensors: Tensors, max_bytes: int) -> str:
    if "text_input" not in tensors:
        raise InvalidArgumentError(
            "text_input is missing; it must hold the prompt, or messages a conversation"
        )
    data = _bytes("text_input", tensors["text_input"])
    if not data:
        raise InvalidArgumentError("text_input is empty; it must hold at least 1 byte")
    if len(data) > max_bytes:
        raise InvalidArgumentError(f"text_input has {len(data)} bytes; it must have at most {max_bytes}")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise InvalidArgumentError(not_utf8("text_input", error)) from None


def _asked(tensors: Tensors, parameters: dict[str, Any]) -> dict[str, Any]:
    """The sampling parameters and terms: the tensor's, else the request parameters'."""
    in_parameters = parameters.pop("sampling_parameters", None)
    if "sampling_parameters" in tensors:
        text = _bytes("sampling_parameters", tensors["sampling_parameters"])
        return load_object("sampling_parameters", text)
    if isinstance(in_parameters, str):
        return load_object("sampling_parameters", in_parameters)
    return parameters


def _echo(prompt: str, options: Mapping[str, bool | None]) -> str:
    excluded = options["exclude_input_in_output"]
    if options["stream"] and excluded is False:
        raise InvalidArgumentError(
            "exclude_input_in_output is false; with stream it must be true or left out, as a stream holds "
            "only the output"
        )
    return "" if options["stream"] or excluded else prompt


def _bytes(name: str, tensor: npt.NDArray[Any]) -> bytes:
    value = _single(name, tensor)
    return value if isinstance(value, bytes) else str(value).encode()


def _single(name: str, tensor: npt.NDArray[Any]) -> Any:
    if tensor.size != 1:
        raise InvalidArgumentError(f"{name} has {tensor.size} elements; it must have 1")
    return tensor.reshape(-1)[0]
