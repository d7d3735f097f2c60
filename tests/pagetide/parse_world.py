"""Requests as Triton hands them over, and limits small enough to reach."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import numpy.typing as npt

from pagetide.parse import ParsedRequest, parse_request
from pagetide.parse_limits import RequestLimits

LIMITS = RequestLimits(
    max_prompt_bytes=1000,
    max_model_len=100,
    vocab_size=500,
    max_request_bytes=2**22,
    max_prompt_tokens=100,
    max_output_tokens=2**62,
    max_n=8,
    max_logprobs=20,
    max_grammar_bytes=4096,
)

Tensor = npt.NDArray[Any]


def text(*values: str | bytes) -> Tensor:
    return np.array([v.encode() if isinstance(v, str) else v for v in values], dtype=np.object_)


def flag(value: bool) -> Tensor:
    return np.array([value], dtype=np.bool_)


def number(value: float, kind: type[np.generic] = np.int32) -> Tensor:
    return np.array([value], dtype=kind)


def parse(
    parameters: dict[str, Any] | str | None = None, limits: RequestLimits = LIMITS, **tensors: Tensor
) -> ParsedRequest:
    """The prompt is "Hello" unless an input of a prompt is given."""
    given = parameters if isinstance(parameters, str) else json.dumps(parameters or {})
    if not tensors.keys() & {"text_input", "messages", "input_ids"}:
        tensors["text_input"] = text("Hello")
    return parse_request(tensors, given, limits)
