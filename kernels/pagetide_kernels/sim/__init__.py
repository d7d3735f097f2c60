"""The CUDA kernels, simulated on a CPU: the backend of `ops.simulated_cuda`."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from pagetide_kernels.binding import Number
from pagetide_kernels.device_ops import DeviceOps
from pagetide_kernels.sim_launch import Simulator

_ops = DeviceOps(Simulator())


def paged_attention(tensors: Sequence[Tensor | None], scalars: Sequence[Number]) -> None:
    """See `ops.paged_attention`; arguments in the order of the signature."""
    _ops.paged_attention(tensors, scalars)
