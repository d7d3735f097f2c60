"""Carries out launches on a GPU through cuda.core, on torch's current stream.

Kernels are compiled on first use for the device they run on, and kept on disk; a warm start loads them in
milliseconds. Launching allocates nothing and waits for nothing, so launches may be captured in a CUDA
graph, provided the same call was made once before; else CaptureError says what was missing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import torch
from cuda.bindings import driver
from cuda.core import Device, LaunchConfig, ObjectCode, launch
from torch import Tensor

from pagetide_kernels.binding import Kind
from pagetide_kernels.compile import compile_cubin
from pagetide_kernels.launch import Argument, Kernel, Launch

# cuda.core packs a bare int as a pointer and a bare float as a double.
_PACKED: dict[Kind, Callable[[Any], Any]] = {
    "pointer": lambda value: int(value or 0),
    "i32": np.int32,
    "i64": np.int64,
    "f32": np.float32,
}
_DEFAULT_SHARED_BYTES = 48 * 1024


class CaptureError(RuntimeError):
    """Something that must happen before a CUDA graph is captured would have happened during it."""


@dataclass
class CudaLauncher:
    """A launcher (see `launch.Launcher`) for the tensors of one device.

    Its launches share scratch memory, so they must be ordered, as on one stream; a second stream that runs
    beside the first needs a launcher of its own.
    """

    device: torch.device
    _kernels: dict[Kernel, Any] = field(default_factory=dict)
    _scratch: list[Tensor] = field(default_factory=list)
    _zeros: list[Tensor] = field(default_factory=list)

    @property
    def num_multiprocessors(self) -> int:
        return int(torch.cuda.get_device_properties(self.device).multi_processor_count)

    def blocks_per_multiprocessor(self, kernel: Kernel, threads: int, shared_bytes: int) -> int:
        return _resident_blocks(self._kernel(kernel, shared_bytes), threads, shared_bytes)

    def launch(self, launch_: Launch) -> None:
        """Puts the call on torch's current stream, read anew each time: in a capture it is another one."""
        kernel = self._kernel(launch_.kernel, launch_.shared_bytes)
        config = LaunchConfig(grid=launch_.grid, block=launch_.block, shmem_size=launch_.shared_bytes)
        values = zip(launch_.kernel.kinds, launch_.args, strict=True)
        launch(torch.cuda.current_stream(self.device), config, kernel, *(_pack(k, v) for k, v in values))

    def workspace(self, num_bytes: int) -> Tensor:
        return self._at_least(self._scratch, num_bytes, torch.uint8)

    def counters(self, count: int) -> Tensor:
        return self._at_least(self._zeros, count, torch.int32)

    def _at_least(self, grown: list[Tensor], count: int, dtype: torch.dtype) -> Tensor:
        """The last of `grown`, longer ones added as needed. The shorter stay: captured graphs hold them."""
        if not grown or len(grown[-1]) < count:
            _refuse_in_capture(f"scratch for {count} values")
            grown.append(torch.zeros(count, dtype=dtype, device=self.device))
        return grown[-1]

    def _kernel(self, kernel: Kernel, shared_bytes: int) -> Any:
        if kernel not in self._kernels:
            _refuse_in_capture(f"loading {kernel.label}")
            self._kernels[kernel] = _load(kernel, _arch(self.device), shared_bytes)
        return self._kernels[kernel]


def _pack(kind: Kind, value: Argument) -> Any:
    return _PACKED[kind](value)


def _refuse_in_capture(what: str) -> None:
    if torch.cuda.is_current_stream_capturing():
        raise CaptureError(
            f"{what} is first needed inside a CUDA graph capture; run the same call once before"
        )


def _arch(device: torch.device) -> str:
    major, minor = torch.cuda.get_device_capability(device)
    return f"sm_{major}{minor}"


def _load(kernel: Kernel, arch: str, shared_bytes: int) -> Any:
    Device(torch.cuda.current_device()).set_current()
    cubin, _ = compile_cubin(kernel, arch)
    loaded = ObjectCode.from_cubin(cubin).get_kernel(kernel.entry)
    if shared_bytes > _DEFAULT_SHARED_BYTES:
        attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        device = driver.CUdevice(torch.cuda.current_device())
        handle = driver.CUkernel(int(loaded.handle))
        _check(driver.cuKernelSetAttribute(attribute, shared_bytes, handle, device))
    return loaded


def _check(result: tuple[Any, ...]) -> None:
    if result[0] != driver.CUresult.CUDA_SUCCESS:
        raise RuntimeError(f"CUDA driver: {result[0].name}")


@cache
def _resident_blocks(kernel: Any, threads: int, shared_bytes: int) -> int:
    return max(1, int(kernel.occupancy.max_active_blocks_per_multiprocessor(threads, shared_bytes)))
