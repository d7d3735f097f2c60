"""Which part of a stored tensor one rank keeps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Axis:
    """One dimension of a stored tensor: its whole size, and the part of it this rank keeps."""

    size: int
    kept: slice

    @property
    def length(self) -> int:
        return int(self.kept.stop - self.kept.start)


Parts = Mapping[str, tuple[Axis, ...]]
"""Tensors that lie one below the other, by name, and what is kept of each."""


def whole(size: int) -> Axis:
    return Axis(size, slice(0, size))


def share(count: int, rank: int, world: int, width: int = 1) -> Axis:
    """The rank's part of `count` units of `width`; with fewer units than ranks, neighbours share one."""
    start, length = rank * count // world, max(1, count // world)
    return Axis(count * width, slice(start * width, (start + length) * width))
