"""The integer geometry of a step: where its rows and tokens sit. Arrays only; nothing here imports torch."""

from __future__ import annotations

import bisect
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pagetide.config import BLOCK_SIZE
from pagetide.step import StepPlan

Ints = npt.NDArray[np.int64]

_EVERY = 16
"""Above this many rows sizes are its multiples, so that at most one less is padding; below, powers of two."""


@dataclass(frozen=True, slots=True)
class Geometry:
    """The rows of a step as attention sees them; fields as in AttentionBatch."""

    block_table: npt.NDArray[np.int32]
    query_starts: Ints
    kv_lens: Ints

    @property
    def max_query_len(self) -> int:
        return int(np.diff(self.query_starts).max())


class Batch:
    """The integer geometry of one step, B rows and T tokens; no Python loop runs over tokens."""

    def __init__(self, plan: StepPlan) -> None:
        self.plan = plan
        num_new, num_computed = ints(plan.num_new), ints(plan.num_computed)
        starts, row = _starts(num_new, plan.num_tokens)
        self.geometry = Geometry(_pad(plan.block_tables), starts, num_computed + num_new)
        self.positions: Ints = np.arange(plan.num_tokens) + (num_computed - starts[:-1])[row]
        block = self.geometry.block_table[row, self.positions // BLOCK_SIZE].astype(np.int64)
        self.slots: Ints = block * BLOCK_SIZE + self.positions % BLOCK_SIZE
        self.sampled_tokens: Ints = starts[ints(plan.sampled.rows) + 1] - 1

        rises = bool(np.all(np.diff(self.sampled_tokens) > 0))
        self.wanted_tokens: Ints | None = self.sampled_tokens if rises and plan.scored is None else None
        """Those whose states are all that is asked for, if they rise; else None."""

    def cut(self, most_queries: int) -> Geometry:
        """Longer rows become several with the same blocks: all KV is written before any is read."""
        whole = self.geometry
        counts = -(-np.diff(whole.query_starts) // most_queries)
        row = np.repeat(np.arange(len(counts)), counts)
        part = np.arange(len(row)) - (np.cumsum(counts) - counts)[row]
        starts = whole.query_starts[row] + part * most_queries
        row_ends = whole.query_starts[row + 1]
        ends = np.minimum(starts + most_queries, row_ends)
        return Geometry(
            whole.block_table[row],
            np.concatenate((starts, row_ends[-1:])),
            whole.kv_lens[row] - (row_ends - ends),
        )


def _starts(num_new: Ints, num_tokens: int) -> tuple[Ints, Ints]:
    """[B + 1] where each row's tokens start, and [T] the row of each."""
    if num_tokens == len(num_new):
        starts = np.arange(num_tokens + 1)
        return starts, starts[:-1]
    return np.concatenate(([0], np.cumsum(num_new))), np.repeat(np.arange(len(num_new)), num_new)


def ints(values: array[int]) -> Ints:
    return np.frombuffer(values, np.int64) if values else np.zeros(0, np.int64)


def _pad(tables: list[array[int]]) -> npt.NDArray[np.int32]:
    """[B, longest] block ids; what lies beyond a row's own blocks is never read. Joined as bytes: a numpy
    row at a time takes four times as long."""
    longest = max(map(len, tables))
    zeros = bytes(4 * longest)
    flat = bytearray().join(part for table in tables for part in (table, zeros[4 * len(table) :]))
    return np.frombuffer(flat, np.int32).reshape(len(tables), longest)


def sizes(most: int) -> list[int]:
    """How many rows graphs have, for steps of 1 to `most`: at least 1."""
    powers = [2**i for i in range(_EVERY.bit_length()) if 2**i < most]
    return [*powers, *range(2 * _EVERY, most, _EVERY), most]


def size_for(num_rows: int, sizes: Sequence[int]) -> int:
    """The smallest of the rising `sizes` that holds the rows; one does."""
    return sizes[bisect.bisect_left(sizes, num_rows)]


def padded(batch: Batch, size: int) -> Ints:
    """[3, size] positions, slots and kv_lens of a batch of one token a row. Rows beyond it touch no block."""
    filled = np.zeros((3, size), np.int64)
    num_rows = len(batch.positions)
    filled[1, num_rows:] = -1
    filled[:, :num_rows] = batch.positions, batch.slots, batch.geometry.kv_lens
    return filled
