"""What a request wants continued: a text, a conversation, or token ids."""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from pagetide.model_io import PROMPTS
from pagetide.parse_messages import Messages, Tools, parse_messages, parse_tools
from pagetide.parse_tensors import Tensor, Tensors, decoded, single_bytes
from pagetide.parse_values import InvalidArgumentError


@dataclass(frozen=True, slots=True)
class Conversation:
    """For the model's chat template."""

    messages: Messages
    tools: Tools | None = None


Prompt: TypeAlias = "str | Conversation | array[int]"
"""Token ids are an `array("i")`."""


def parse_prompt(tensors: Tensors, max_bytes: int, vocab_size: int) -> tuple[str, Prompt]:
    """The input that holds the prompt, and the prompt. Raises InvalidArgumentError."""
    source = _source(tensors)
    if source == "input_ids":
        return source, _token_ids(source, tensors[source], vocab_size)
    data = single_bytes(source, tensors[source])
    if not data:
        raise InvalidArgumentError(f"{source} is empty; it must hold at least 1 byte")
    _check_length(source, data, max_bytes)
    if source == "text_input":
        return source, decoded(source, data)
    return source, Conversation(parse_messages(data), _tools(tensors, max_bytes))


def _source(tensors: Tensors) -> str:
    given = [name for name in PROMPTS if name in tensors]
    if not given:
        raise InvalidArgumentError(
            "text_input is missing; it must hold the prompt, or messages a conversation, or input_ids tokens"
        )
    if len(given) > 1:
        raise InvalidArgumentError(f"{given[0]} and {given[1]} are both given; leave one of them out")
    if "tools" in tensors and given != ["messages"]:
        raise InvalidArgumentError(f"tools is given with {given[0]}; it goes with messages only")
    return given[0]


def _tools(tensors: Tensors, max_bytes: int) -> Tools | None:
    if "tools" not in tensors:
        return None
    data = single_bytes("tools", tensors["tools"])
    _check_length("tools", data, max_bytes)
    return parse_tools(data)


def _check_length(name: str, data: bytes, max_bytes: int) -> None:
    if len(data) > max_bytes:
        raise InvalidArgumentError(f"{name} has {len(data)} bytes; it must have at most {max_bytes}")


def _token_ids(name: str, tensor: Tensor, vocab_size: int) -> array[int]:
    ids: Any = tensor.reshape(-1)
    if ids.size == 0:
        raise InvalidArgumentError(f"{name} is empty; it must hold at least 1 token id")
    unknown = np.flatnonzero((ids < 0) | (ids >= vocab_size))
    if unknown.size:
        index = int(unknown[0])
        raise InvalidArgumentError(
            f"{name}[{index}] is {ids[index]}; it must be a whole number, 0 to {vocab_size - 1}"
        )
    return array("i", ids.astype(np.intc).tobytes())
