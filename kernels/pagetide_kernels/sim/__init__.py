"""The CUDA kernels, simulated on a CPU: the backend of `ops.simulated_cuda`."""

from __future__ import annotations

from pagetide_kernels.device_ops import DeviceOps
from pagetide_kernels.sim_launch import Simulator

device_ops = DeviceOps(Simulator())
paged_attention = device_ops.paged_attention
write_kv = device_ops.write_kv
