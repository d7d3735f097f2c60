"""Tensors as Triton hands them over, and the values in them. A scalar may have any shape of one element."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from pagetide.model_io import PARAMETERS
from pagetide.parse_sampling import not_utf8
from pagetide.parse_values import InvalidArgumentError

Tensor = npt.NDArray[Any]
Tensors = Mapping[str, Tensor]

_SETS = {spec.name: parameter for spec, parameter in PARAMETERS}
_LISTS = frozenset(spec.name for spec, _ in PARAMETERS if spec.dims == (-1,))


def num_bytes(tensors: Tensors) -> int:
    """What the tensors hold, strings by their own length."""
    return sum(
        sum(map(len, tensor.flat)) if tensor.dtype == np.object_ else tensor.nbytes
        for tensor in tensors.values()
    )


def single(name: str, tensor: Tensor) -> Any:
    """The one element: bytes, bool, int or float. Raises InvalidArgumentError if there are more or none."""
    if tensor.size != 1:
        raise InvalidArgumentError(f"{name} has {tensor.size} elements; it must have 1")
    return _plain(tensor.flat[0])


def single_bytes(name: str, tensor: Tensor) -> bytes:
    value = single(name, tensor)
    return value if isinstance(value, bytes) else str(value).encode()


def decoded(name: str, data: bytes) -> str:
    """Raises InvalidArgumentError unless `data` is UTF-8."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise InvalidArgumentError(not_utf8(name, error)) from None


def read_text(name: str, read: Callable[[], str]) -> str:
    """What `read` returns. Raises InvalidArgumentError where that is made of bytes that are not UTF-8."""
    try:
        return read()
    except UnicodeDecodeError as error:
        raise InvalidArgumentError(not_utf8(name, error)) from None


def own_parameters(tensors: Tensors) -> dict[str, Any]:
    """The sampling parameters that came as inputs of their own, by the parameters' names.

    Raises InvalidArgumentError where two inputs set the same one.
    """
    setters: dict[str, str] = {}
    for name in tensors.keys() & _SETS.keys():
        other = setters.setdefault(_SETS[name], name)
        if other != name:
            first, second = sorted((other, name))
            raise InvalidArgumentError(f"{first} and {second} are both given; leave one of them out")
    values = {parameter: _value(name, tensors[name]) for parameter, name in setters.items()}
    return {parameter: value for parameter, value in values.items() if value != []}


def _value(name: str, tensor: Tensor) -> Any:
    """Empty strings in a list ask for nothing: TensorRT-LLM's clients send them."""
    if name not in _LISTS:
        return single(name, tensor)
    values = [_plain(each) for each in tensor.flat]
    return [decoded(name, each) if isinstance(each, bytes) else each for each in values if each != b""]


def _plain(element: Any) -> Any:
    """A float32 counts as the shortest number that it can stand for: 0.8, not 0.800000011920929."""
    if isinstance(element, np.float32):
        return float(str(element))
    return element.item() if isinstance(element, np.generic) else element
