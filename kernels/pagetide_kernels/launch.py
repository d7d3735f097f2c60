"""What a launch of a kernel from `cuda/` is, whoever carries it out: a GPU or the simulator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from torch import Tensor

from pagetide_kernels.binding import Kind

SOURCES = Path(__file__).parent / "cuda"
WARP_SIZE = 32

Dim3 = tuple[int, int, int]
Argument = int | float | None


@dataclass(frozen=True)
class Kernel:
    """One compiled form of an entry point: the source file, and what its macros are set to.

    `kinds` names the C type of each argument.
    """

    source: str
    entry: str
    kinds: tuple[Kind, ...]
    defines: tuple[tuple[str, str], ...] = ()

    @property
    def label(self) -> str:
        values = ",".join(value for name, value in self.defines if name != "SHARED_BYTES")
        return f"{self.entry}<{values}>" if values else self.entry


@dataclass(frozen=True)
class Launch:
    """One call of a kernel. `args` run beside `kernel.kinds`; pointers are addresses.

    `tensors` are the tensors behind the pointers: they must stay alive until the call is done, and a
    simulator that runs in another process copies them there and back.
    """

    kernel: Kernel
    grid: Dim3
    block: Dim3
    args: Sequence[Argument]
    tensors: Sequence[Tensor | None]
    shared_bytes: int = 0


class Launcher(Protocol):
    """Carries launches out in order. `workspace` and `counters` are scratch memory that stays in place
    between calls of one stream, so that a captured graph may hold their addresses."""

    @property
    def num_multiprocessors(self) -> int: ...

    def blocks_per_multiprocessor(self, kernel: Kernel, threads: int, shared_bytes: int) -> int: ...

    def launch(self, launch: Launch) -> None: ...

    def workspace(self, num_bytes: int) -> Tensor: ...

    def counters(self, count: int) -> Tensor: ...
