"""Between host and device without making either wait for the other. On a CPU both are one, and nothing moves.

On a GPU copies go through page-locked ("pinned") memory, or the host would wait for the device's whole queue.
torch keeps that memory and gives a piece of it out again only when the copies from or to it are over.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy.typing as npt
import torch


def upload(values: npt.NDArray[Any], device: torch.device, dtype: torch.dtype | None = None) -> torch.Tensor:
    """The array as a tensor on the device, in the order of its current stream.

    On a CPU the tensor shares the array's memory, unless `dtype` is another one.
    """
    tensor = torch.from_numpy(values)
    if device.type == "cuda":
        tensor = tensor.to(dtype).pin_memory()
    return tensor.to(device, dtype, non_blocking=True)


def stage(values: npt.NDArray[Any], target: torch.Tensor) -> None:
    """Overwrites a tensor that stays where it is, in the order of its device's current stream."""
    tensor = torch.from_numpy(values)
    target.copy_(tensor.pin_memory() if target.is_cuda else tensor, non_blocking=True)


def download(*tensors: torch.Tensor) -> Callable[[], tuple[torch.Tensor, ...]]:
    """Starts to bring the tensors of one device to the host; what it returns waits until they are there."""
    if tensors[0].device.type != "cuda":
        return lambda: tensors
    copies = tuple(torch.empty_like(each, device="cpu", pin_memory=True) for each in tensors)
    for copy, tensor in zip(copies, tensors, strict=True):
        copy.copy_(tensor, non_blocking=True)
    arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
    arrived.record()

    def wait() -> tuple[torch.Tensor, ...]:
        arrived.synchronize()
        return copies

    return wait
