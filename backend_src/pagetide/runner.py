"""StepPlan → tensors → forward → StepResult. Owns the KV cache; one packed step, no padding."""

from __future__ import annotations

import itertools
import math
from array import array
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from pagetide import sampler
from pagetide.config import BLOCK_SIZE
from pagetide.grammar_masks import MaskThread
from pagetide.layers import AttentionBatch
from pagetide.logprobs import describe
from pagetide.model import Decoder
from pagetide.request import TokenLogprobs
from pagetide.step import BlockCopy, ScoredRows, StepPlan, StepResult
from pagetide_kernels import ops

Ints = npt.NDArray[np.int64]

_SCORED_BYTES = 2**25
"""Logits that log-probabilities of prompts are read from at a time; their reading takes as much again."""


def kv_block_bytes(model: Decoder) -> int:
    """Bytes of one block: keys and values of BLOCK_SIZE tokens in every layer."""
    return math.prod(_kv_shape(model, 1)) * model.kv_dtype.itemsize * model.config.num_layers


def new_kv_caches(model: Decoder, num_blocks: int) -> list[torch.Tensor]:
    """A layer's cache each, on the model's device, zeros."""
    shape = _kv_shape(model, num_blocks)
    layers = range(model.config.num_layers)
    return [ops.empty(shape, model.kv_dtype, model.device).zero_() for _ in layers]


def _kv_shape(model: Decoder, num_blocks: int) -> tuple[int, ...]:
    config = model.config
    return ops.kv_cache_shape(num_blocks, config.num_kv_heads, config.head_dim, model.kv_dtype)


class Runner:
    """Runs plans on one device. The KV cache, `num_blocks` blocks a layer, is claimed here and never grows.

    `kv_caches`, one a layer, are of the model's `kv_dtype` and of `ops.kv_cache_shape`.
    Each step runs within `kernels()`, which may put other kernels in place of the device's own. Attention is
    given at most `most_queries` of a sequence at once, 0 being all: another kernel takes the larger ones.
    """

    def __init__(
        self,
        model: Decoder,
        num_blocks: int,
        kernels: Callable[[], AbstractContextManager[None]] = nullcontext,
        most_queries: int = 0,
    ) -> None:
        self._model = model
        self._kernels = kernels
        self._most_queries = most_queries
        self._masks = MaskThread(model.config.vocab_size)
        self.kv_caches = new_kv_caches(model, num_blocks)

    @torch.inference_mode()
    def run(self, plan: StepPlan) -> StepResult:
        batch = _Batch(plan)
        geometry = batch.cut(self._most_queries) if self._most_queries else batch.geometry
        with self._kernels(), self._masks.filling(plan.sampled.constrained) as masks:
            self._copy_blocks(plan.copies)
            states = self._model.states(
                self._to_device(np.frombuffer(plan.token_ids, np.int32)),
                self._to_device(batch.positions),
                self.kv_caches,
                self._attention(geometry, batch.slots),
            )
            scores = [] if plan.scored is None else self._score(states, plan.scored)
            if not plan.sampled.params:
                return StepResult([], [], scores)
            logits = self._model.score(ops.gather_rows(states, self._to_device(batch.sampled_tokens)))
            return StepResult(*sampler.sample(logits, plan.sampled, masks()), scores)

    def _score(self, states: torch.Tensor, scored: ScoredRows) -> list[tuple[TokenLogprobs, ...]]:
        """A few rows' logits at a time: those of a whole step could be more than there is memory."""
        starts, counts = _ints(scored.starts), _ints(scored.counts)
        shifts: Ints = np.repeat(starts - np.cumsum(counts) + counts, counts)
        rows = self._to_device(np.arange(len(shifts)) + shifts)
        targets = self._to_device(np.frombuffer(scored.targets, np.int32))
        num_top = np.repeat(_ints(scored.num_top), counts).tolist()
        most = max(1, _SCORED_BYTES // (4 * self._model.config.vocab_size))
        found: list[TokenLogprobs] = []
        for start in range(0, len(num_top), most):
            part = slice(start, start + most)
            logprobs = self._model.score(ops.gather_rows(states, rows[part])).log_softmax(dim=-1)
            found += describe(logprobs, targets[part], num_top[part])
        each = iter(found)
        return [tuple(itertools.islice(each, count)) for count in scored.counts]

    def _copy_blocks(self, copies: list[BlockCopy]) -> None:
        """No target is another's source, so all go at once."""
        if copies:
            sources = self._to_device(np.array([copy.source for copy in copies]))
            targets = self._to_device(np.array([copy.target for copy in copies]))
            for cache in self.kv_caches:
                ops.move_blocks(cache, cache, targets, sources)

    def _attention(self, geometry: _Geometry, slots: Ints) -> AttentionBatch:
        return AttentionBatch(
            block_table=self._to_device(geometry.block_table, torch.int32),
            query_starts=self._to_device(geometry.query_starts, torch.int32),
            kv_lens=self._to_device(geometry.kv_lens, torch.int32),
            slots=self._to_device(slots),
            max_query_len=geometry.max_query_len,
        )

    def _to_device(
        self, values: npt.NDArray[np.integer[Any]], dtype: torch.dtype = torch.int64
    ) -> torch.Tensor:
        return torch.from_numpy(values).to(self._model.device, dtype)


@dataclass(frozen=True, slots=True)
class _Geometry:
    """The rows of a step as attention sees them; fields as in AttentionBatch."""

    block_table: npt.NDArray[np.int32]
    query_starts: Ints
    kv_lens: Ints

    @property
    def max_query_len(self) -> int:
        return int(np.diff(self.query_starts).max())


class _Batch:
    """The integer geometry of one step, B rows and T tokens; no Python loop runs over tokens."""

    def __init__(self, plan: StepPlan) -> None:
        num_new, num_computed = _ints(plan.num_new), _ints(plan.num_computed)
        starts = np.concatenate(([0], np.cumsum(num_new)))
        self.geometry = _Geometry(_pad(plan.block_tables), starts, num_computed + num_new)
        row = np.repeat(np.arange(len(num_new)), num_new)
        self.positions: Ints = np.arange(plan.num_tokens) + (num_computed - starts[:-1])[row]
        block = self.geometry.block_table[row, self.positions // BLOCK_SIZE].astype(np.int64)
        self.slots: Ints = block * BLOCK_SIZE + self.positions % BLOCK_SIZE
        self.sampled_tokens: Ints = starts[_ints(plan.sampled.rows) + 1] - 1

    def cut(self, most_queries: int) -> _Geometry:
        """Longer rows become several with the same blocks: all KV is written before any is read."""
        whole = self.geometry
        counts = -(-np.diff(whole.query_starts) // most_queries)
        row = np.repeat(np.arange(len(counts)), counts)
        part = np.arange(len(row)) - (np.cumsum(counts) - counts)[row]
        starts = whole.query_starts[row] + part * most_queries
        row_ends = whole.query_starts[row + 1]
        ends = np.minimum(starts + most_queries, row_ends)
        return _Geometry(
            whole.block_table[row],
            np.concatenate((starts, row_ends[-1:])),
            whole.kv_lens[row] - (row_ends - ends),
        )


def _ints(values: array[int]) -> Ints:
    return np.frombuffer(values, np.int64) if values else np.zeros(0, np.int64)


def _pad(tables: list[array[int]]) -> npt.NDArray[np.int32]:
    """[B, longest] block ids; what lies beyond a row's own blocks is never read. Joined as bytes: a numpy
    row at a time takes four times as long."""
    longest = max(map(len, tables))
    zeros = bytes(4 * longest)
    flat = bytearray().join(part for table in tables for part in (table, zeros[4 * len(table) :]))
    return np.frombuffer(flat, np.int32).reshape(len(tables), longest)
