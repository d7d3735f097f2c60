"""The CUDA kernels on a GPU: the backend of `ops` for CUDA tensors."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import torch
from torch import Tensor

from pagetide_kernels.binding import ArgumentError, Number
from pagetide_kernels.cuda_launch import CudaLauncher
from pagetide_kernels.device_ops import DeviceOps, Tensors


def paged_attention(tensors: Tensors, scalars: Sequence[Number], max_query_len: int | None = None) -> None:
    """See `ops.paged_attention`; arguments in the order of the signature."""
    ops_for(_device(tensors)).paged_attention(tensors, scalars, max_query_len)


def write_kv(tensors: Tensors, scalars: Sequence[Number] = ()) -> None:
    """See `ops.write_kv`; arguments in the order of the signature."""
    ops_for(_device(tensors)).write_kv(tensors, scalars)


@cache
def ops_for(device: torch.device) -> DeviceOps:
    """The ops of one GPU; launches of all its users share one stream (see CudaLauncher)."""
    return DeviceOps(CudaLauncher(device))


def _device(tensors: Tensors) -> torch.device:
    for tensor in tensors:
        if isinstance(tensor, Tensor):
            return tensor.device
    raise ArgumentError("no argument is a torch.Tensor; expected CUDA tensors")
