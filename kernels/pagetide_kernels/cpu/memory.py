"""Memory in pages of 2 MiB, for what the kernels stream: small pages cost a fifth to a third of its speed.

Each tensor's place is never handed out again, but its pages go back with the last tensor of their chunk.
"""

from __future__ import annotations

import math
import mmap
import threading
from collections.abc import Sequence

import torch
from torch import Tensor

_HUGE_PAGE = 2 << 20
_CHUNK = 32 << 20
_ALIGNMENT = 64


class _Arena:
    """Hands out pieces of chunks, one after the other."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._left = torch.empty(0, dtype=torch.uint8)

    def take(self, num_bytes: int) -> Tensor:
        with self._lock:
            if num_bytes > len(self._left):
                self._left = _mapped(max(num_bytes, _CHUNK))
            piece, self._left = self._left[:num_bytes], self._left[-(-num_bytes // _ALIGNMENT) * _ALIGNMENT :]
        return piece


_arena = _Arena()


def empty(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """A CPU tensor in huge pages, where the system has them to give; zeros until written."""
    num_bytes = math.prod(shape) * dtype.itemsize
    return _arena.take(num_bytes).view(dtype).view(*shape)


def _mapped(num_bytes: int) -> Tensor:
    mapping = mmap.mmap(-1, num_bytes + _HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        mapping.madvise(mmap.MADV_HUGEPAGE)
    memory = torch.frombuffer(mapping, dtype=torch.uint8)
    start = -memory.data_ptr() % _HUGE_PAGE
    return memory[start : start + num_bytes]
