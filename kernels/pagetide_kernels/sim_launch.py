"""Carries out launches on the simulator (sim/): the CUDA sources, run on a CPU, block by block.

Far too slow to serve with; it is how the kernels are tested where there is no GPU.
"""

from __future__ import annotations

import ctypes
import os
import struct
import subprocess
import tempfile
import threading
from collections.abc import Callable
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from pagetide_kernels.binding import Kind
from pagetide_kernels.launch import SOURCES, Argument, Kernel, Launch
from pagetide_kernels.sim_build import Sanitizer, library, program

_CTYPES: dict[Kind, type[ctypes._SimpleCData[int]] | type[ctypes._SimpleCData[float]]] = {
    "pointer": ctypes.c_uint64,
    "i32": ctypes.c_int32,
    "i64": ctypes.c_int64,
    "f32": ctypes.c_float,
}
_FORMATS: dict[Kind, str] = {"pointer": "<Q", "i32": "<i4x", "i64": "<q", "f32": "<f4x"}
_SANITIZER_ENV = {"ASAN_OPTIONS": "detect_leaks=0", "TSAN_OPTIONS": "halt_on_error=1 report_signal_unsafe=0"}


class SimulationError(RuntimeError):
    """The kernel broke a rule of CUDA; the message names the block, the thread and the line."""


class _Shape(ctypes.Structure):
    _fields_ = (
        ("grid", ctypes.c_uint32 * 3),
        ("block", ctypes.c_uint32 * 3),
        ("shared_bytes", ctypes.c_size_t),
        ("seed", ctypes.c_uint64),
    )


class Simulator:
    """A launcher (see `launch.Launcher`) for CPU tensors.

    `seed` chooses the order of blocks and warps and when async copies land. With a sanitizer each launch
    runs in a process of its own. `sources` is where the .cu files are.
    """

    # A small machine, so that small tests have work for several rounds and several splits.
    num_multiprocessors = 2

    def __init__(self, seed: int = 1, sanitizer: Sanitizer = Sanitizer.NONE, sources: Path = SOURCES) -> None:
        self.seed = seed
        self._sanitizer = sanitizer
        self._sources = sources
        self._entries: dict[Kernel, Callable[..., bytes | None]] = {}
        self._scratch = torch.empty(0, dtype=torch.uint8)
        self._counters = torch.zeros(0, dtype=torch.int32)

    def blocks_per_multiprocessor(self, kernel: Kernel, threads: int, shared_bytes: int) -> int:
        return 1

    def workspace(self, num_bytes: int) -> Tensor:
        """Filled with NaN each time: nothing may rely on what an earlier launch left."""
        if len(self._scratch) < num_bytes:
            with torch.inference_mode(False):  # kept for calls outside it
                self._scratch = torch.empty(num_bytes, dtype=torch.uint8)
        return self._scratch.fill_(0xFF)

    def counters(self, count: int) -> Tensor:
        if len(self._counters) < count:
            self._counters = torch.zeros(count, dtype=torch.int32)
        return self._counters

    def launch(self, launch: Launch) -> None:
        """Raises SimulationError when the kernel breaks a rule or a sanitizer finds something."""
        if self._sanitizer is Sanitizer.NONE:
            self._run_here(launch)
        else:
            self._run_apart(launch)

    def _run_here(self, launch: Launch) -> None:
        values = [_CTYPES[kind](_number(value)) for kind, value in _arguments(launch)]  # type: ignore[arg-type]
        addresses = (ctypes.c_void_p * len(values))(*map(ctypes.addressof, values))
        shape = _Shape(launch.grid, launch.block, launch.shared_bytes, self.seed)
        with _lock:
            error = self._entry(launch.kernel)(ctypes.byref(shape), addresses)
        if error is not None:
            raise SimulationError(f"{launch.kernel.label}: {error.decode()}")

    def _entry(self, kernel: Kernel) -> Callable[..., bytes | None]:
        if kernel not in self._entries:
            built = ctypes.CDLL(str(library(kernel, self._sources)))
            arity = getattr(built, f"{kernel.entry}_arity")()
            if arity != len(kernel.kinds):
                raise SimulationError(
                    f"{kernel.label} takes {arity} arguments, its table {len(kernel.kinds)}"
                )
            entry = getattr(built, f"{kernel.entry}_launch")
            entry.restype = ctypes.c_char_p
            self._entries[kernel] = entry
        return self._entries[kernel]

    def _run_apart(self, launch: Launch) -> None:
        executable = program(launch.kernel, self._sanitizer, self._sources)
        with tempfile.NamedTemporaryFile(suffix=".launch") as file:
            replay = _Replay(launch, self.seed)
            Path(file.name).write_bytes(replay.header + replay.buffers + replay.arguments)
            env = {**os.environ, **_SANITIZER_ENV}
            done = subprocess.run([executable, file.name], capture_output=True, text=True, env=env)
            if done.returncode:
                raise SimulationError(f"{launch.kernel.label} under {self._sanitizer.value}:\n{done.stderr}")
            replay.take_back(Path(file.name).read_bytes()[len(replay.header) :])


_lock = threading.Lock()


def _arguments(launch: Launch) -> list[tuple[Kind, Argument]]:
    return list(zip(launch.kernel.kinds, launch.args, strict=True))


def _number(value: Argument) -> int | float:
    return 0 if value is None else value


class _Replay:
    """A launch as the file that sim/replay.h reads: shape, sizes of the buffers, buffers, arguments.

    A buffer is a whole storage, so tensors that share memory go on sharing it.
    """

    def __init__(self, launch: Launch, seed: int) -> None:
        self._launch = launch
        storages = [tensor.untyped_storage() for tensor in launch.tensors if tensor is not None]
        unique = {storage.data_ptr(): storage for storage in storages}
        self._memory = [torch.empty(0, dtype=torch.uint8).set_(storage) for storage in unique.values()]
        sizes = [len(memory) for memory in self._memory]
        shape: tuple[int, ...] = (*launch.grid, *launch.block, launch.shared_bytes, seed)
        numbers = (*shape, len(sizes), *sizes)
        self.header = struct.pack(f"<{len(numbers)}Q", *numbers)

    @property
    def buffers(self) -> bytes:
        return b"".join(memory.numpy().tobytes() for memory in self._memory)

    @cached_property
    def arguments(self) -> bytes:
        parts = [struct.pack("<Q", len(self._launch.args))]
        for kind, value in _arguments(self._launch):
            buffer, place = self._place(value) if kind == "pointer" else (-1, value)
            parts.append(struct.pack("<q", buffer) + struct.pack(_FORMATS[kind], _number(place)))
        return b"".join(parts)

    def _place(self, address: Argument) -> tuple[int, Argument]:
        """The buffer an address lies in, and where; (-1, 0) for a null pointer."""
        for index, memory in enumerate(self._memory):
            start = memory.data_ptr()
            if address is not None and len(memory) and start <= address < start + len(memory):
                return index, int(address) - start
        return -1, 0

    def take_back(self, data: bytes) -> None:
        for memory in filter(len, self._memory):
            memory.copy_(torch.frombuffer(bytearray(data[: len(memory)]), dtype=torch.uint8))
            data = data[len(memory) :]
