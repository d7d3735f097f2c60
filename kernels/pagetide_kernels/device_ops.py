"""The ops over the kernels in `cuda/`, for whoever launches them: a GPU or the simulator."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from pagetide_kernels import device_attention
from pagetide_kernels.binding import Number
from pagetide_kernels.device_signatures import PAGED_ATTENTION
from pagetide_kernels.launch import Launcher

_NO_SCALE = 1.0


class DeviceOps:
    """One method for each op of `ops` that these kernels have, with its arguments in their order.

    Scalars that only these kernels take may follow the others; left out, they change nothing.
    """

    def __init__(self, launcher: Launcher) -> None:
        self._launcher = launcher

    def paged_attention(
        self,
        tensors: Sequence[Tensor | None],
        scalars: Sequence[Number],
        max_query_len: int | None = None,
    ) -> None:
        """See `device_attention.paged_attention`; the cache's scales are 1 when left out."""
        missing = len(PAGED_ATTENTION.scalars) - len(scalars)
        device_attention.paged_attention(
            self._launcher, tensors, (*scalars, *[_NO_SCALE] * missing), max_query_len
        )
