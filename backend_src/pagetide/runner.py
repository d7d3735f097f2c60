"""StepPlan → tensors → forward → StepResult. Owns the KV cache; one packed step, no padding."""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from pagetide import sampler
from pagetide.config import BLOCK_SIZE
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
    config = model.config
    per_layer = 2 * config.num_kv_heads * BLOCK_SIZE * config.head_dim * model.kv_dtype.itemsize
    return per_layer * config.num_layers


class Runner:
    """Runs plans on one device. The KV cache, `num_blocks` blocks a layer, is claimed here and never grows.

    `kv_caches`, one a layer, of the model's `kv_dtype`: [num_blocks, 2 (K, V), num_kv_heads, BLOCK_SIZE,
    head_dim].
    Each step runs within `kernels()`, which may put other kernels in place of the device's own.
    """

    def __init__(
        self,
        model: Decoder,
        num_blocks: int,
        kernels: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self._model = model
        self._kernels = kernels
        config = model.config
        shape = (num_blocks, 2, config.num_kv_heads, BLOCK_SIZE, config.head_dim)
        self.kv_caches = [
            ops.empty(shape, model.kv_dtype, model.device).zero_() for _ in range(config.num_layers)
        ]

    @torch.inference_mode()
    def run(self, plan: StepPlan) -> StepResult:
        batch = _Batch(plan)
        with self._kernels():
            self._copy_blocks(plan.copies)
            states = self._model.states(
                self._to_device(np.frombuffer(plan.token_ids, np.int32)),
                self._to_device(batch.positions),
                self.kv_caches,
                self._attention(batch),
            )
            scores = [] if plan.scored is None else self._score(states, plan.scored)
            if not plan.sampled.params:
                return StepResult([], [], scores)
            logits = self._model.score(ops.gather_rows(states, self._to_device(batch.sampled_tokens)))
            return StepResult(*sampler.sample(logits, plan.sampled), scores)

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

    def _attention(self, batch: _Batch) -> AttentionBatch:
        return AttentionBatch(
            block_table=self._to_device(batch.block_table, torch.int32),
            query_starts=self._to_device(batch.query_starts, torch.int32),
            kv_lens=self._to_device(batch.kv_lens, torch.int32),
            slots=self._to_device(batch.slots),
            max_query_len=batch.max_query_len,
        )

    def _to_device(
        self, values: npt.NDArray[np.integer[Any]], dtype: torch.dtype = torch.int64
    ) -> torch.Tensor:
        return torch.from_numpy(values).to(self._model.device, dtype)


class _Batch:
    """The integer geometry of one step, B rows and T tokens; no Python loop runs over tokens."""

    def __init__(self, plan: StepPlan) -> None:
        num_new, num_computed = _ints(plan.num_new), _ints(plan.num_computed)
        self.query_starts: Ints = np.concatenate(([0], np.cumsum(num_new)))
        self.kv_lens: Ints = num_computed + num_new
        self.max_query_len = int(num_new.max())
        self.block_table = _pad(plan.block_tables)
        row = np.repeat(np.arange(len(num_new)), num_new)
        self.positions: Ints = np.arange(plan.num_tokens) + (num_computed - self.query_starts[:-1])[row]
        block = self.block_table[row, self.positions // BLOCK_SIZE].astype(np.int64)
        self.slots: Ints = block * BLOCK_SIZE + self.positions % BLOCK_SIZE
        self.sampled_tokens: Ints = self.query_starts[_ints(plan.sampled.rows) + 1] - 1


def _ints(values: array[int]) -> Ints:
    return np.frombuffer(values, np.int64) if values else np.zeros(0, np.int64)


def _pad(tables: list[array[int]]) -> npt.NDArray[np.int32]:
    """[B, longest] block ids; what lies beyond a row's own blocks is never read."""
    padded = np.zeros((len(tables), max(map(len, tables))), np.int32)
    for row, table in zip(padded, tables, strict=True):
        row[: len(table)] = table
    return padded
