"""The CUDA kernels on a GPU: the backend of `ops` for CUDA tensors."""

from __future__ import annotations

from functools import cache

import torch

from pagetide_kernels.cuda_launch import CudaLauncher
from pagetide_kernels.device_ops import DeviceOps


@cache
def kernels_for(device: torch.device) -> DeviceOps:
    """The ops of one GPU; launches of all its users share one stream (see CudaLauncher)."""
    return DeviceOps(CudaLauncher(device))
