"""Who carries an op out: the kernels of the device its tensors are on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from typing import Protocol, cast

import torch
from torch import Tensor

from pagetide_kernels.binding import ArgumentError, Number

Tensors = Sequence[Tensor | None]


class Kernels(Protocol):
    """One device's kernels, a method for each op: tensors and scalars in the order of its signature.

    Each raises ArgumentError when an argument is of the wrong kind, or an index is found to point outside.
    """

    def paged_attention(
        self, tensors: Tensors, scalars: Sequence[Number], max_query_len: int | None
    ) -> None: ...
    def write_kv(self, tensors: Tensors, scalars: Sequence[Number]) -> None: ...
    def split_qkv(self, tensors: Tensors, scalars: Sequence[Number]) -> None: ...
    def add_rms_norm(self, tensors: Tensors, scalars: Sequence[Number]) -> None: ...
    def activate_and_multiply(self, tensors: Tensors, scalars: Sequence[Number]) -> None: ...
    def gather_rows(self, tensors: Tensors) -> None: ...
    def move_blocks(self, tensors: Tensors) -> None: ...
    def penalise(self, tensors: Tensors) -> None: ...
    def apply_bitmask(self, tensors: Tensors) -> None: ...
    def greedy(self, tensors: Tensors) -> None: ...
    def sample(self, tensors: Tensors) -> None: ...


_MODULES = {"cpu": "pagetide_kernels.cpu.ops", "cuda": "pagetide_kernels.cuda"}


def kernels_for(op: str, argument: str, tensor: object) -> Kernels:
    """The kernels of the device that `tensor`, an op's argument of that name, is on.

    Raises:
        ArgumentError: it is no tensor, or on a device that has no kernels.
    """
    if not isinstance(tensor, Tensor):
        raise ArgumentError(f"{op}: {argument} is a {type(tensor).__name__}; expected a torch.Tensor")
    module = _MODULES.get(tensor.device.type)
    if module is None:
        known = " or ".join(_MODULES)
        raise ArgumentError(f"{op}: {argument} is on device {tensor.device}; expected {known}")
    return _kernels(module, tensor.device)


@contextmanager
def simulated_cuda() -> Iterator[None]:
    """Until the context ends, CPU tensors run through the simulated CUDA kernels."""
    before = _MODULES["cpu"]
    _MODULES["cpu"] = "pagetide_kernels.sim"
    try:
        yield
    finally:
        _MODULES["cpu"] = before


@cache
def _kernels(module: str, device: torch.device) -> Kernels:
    return cast(Kernels, import_module(module).kernels_for(device))
