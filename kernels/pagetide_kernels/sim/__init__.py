"""The CUDA kernels, simulated on a CPU: the backend of `ops.simulated_cuda`."""

from __future__ import annotations

import torch

from pagetide_kernels.device_ops import DeviceOps
from pagetide_kernels.sim_launch import Simulator


def kernels_for(device: torch.device) -> DeviceOps:
    return DeviceOps(Simulator())
