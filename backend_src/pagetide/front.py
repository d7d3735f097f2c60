"""Fronts: models without an engine that pass their requests on to one that has it (docs/compatibility.md)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Protocol

import numpy as np

from pagetide.config import SettingsError
from pagetide.model_io import INPUTS, OUTPUTS, Spec
from pagetide.parse_tensors import Tensor, Tensors, single
from pagetide.parse_values import InvalidArgumentError, boolean

FILE = "model.json"
KEY = "target"


class Front(Protocol):
    """What a front takes and gives. `max_batch_size` 1 adds a dimension of 1 before those of each input."""

    inputs: tuple[Spec, ...]
    required: frozenset[str]
    outputs: tuple[Spec, ...]
    max_batch_size: int
    streams: bool

    def ask(self, tensors: Tensors) -> Tensors:
        """The target's inputs; where there may be a stream, they ask for `finish_reason`.

        Raises InvalidArgumentError.
        """

    def tell(self, outputs: Tensors) -> Tensors:
        """One response of the target as the client gets it."""


class OneAnswer:
    """The target as it is, with one response a request, for clients of plain `infer`.

    Such clients want the output alone, so `exclude_input_in_output` is true unless it is given.
    """

    inputs = INPUTS
    required: frozenset[str] = frozenset()
    outputs = OUTPUTS
    max_batch_size = 0
    streams = False

    def ask(self, tensors: Tensors) -> Tensors:
        if "stream" in tensors and boolean("stream", single("stream", tensors["stream"])):
            raise InvalidArgumentError("stream is true; this model answers once, ask its target for a stream")
        return {"exclude_input_in_output": flag(True), **tensors}

    def tell(self, outputs: Tensors) -> Tensors:
        return outputs


def flag(value: bool) -> Tensor:
    return np.array([value])


def text(value: str) -> Tensor:
    return np.array([value.encode()], dtype=np.object_)


def read_target(directory: Path) -> str:
    """The model that `model.json` in a front's version directory names. Raises SettingsError."""
    path = directory / FILE
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise SettingsError(f"{path}: {error}") from None
    target = values.get(KEY) if isinstance(values, dict) and len(values) == 1 else None
    if not isinstance(target, str):
        raise SettingsError(f'{path} must hold {{"{KEY}": the name of the model to pass requests on to}}')
    return target
