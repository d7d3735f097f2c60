"""A request that asks what the engine is doing, instead of text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy.typing as npt

from pagetide.model_io import STATISTICS
from pagetide.parse_values import InvalidArgumentError


def asks_statistics(tensors: Mapping[str, npt.NDArray[Any]]) -> bool:
    """Raises InvalidArgumentError if the request wants text as well."""
    if STATISTICS not in tensors:
        return False
    flag = tensors[STATISTICS]
    if flag.size != 1:
        raise InvalidArgumentError(f"{STATISTICS} has {flag.size} elements; it must have 1")
    others = [name for name in tensors if name != STATISTICS]
    if flag.item() and others:
        raise InvalidArgumentError(f"{STATISTICS} is true and {others[0]} is given; statistics come alone")
    return bool(flag.item())
