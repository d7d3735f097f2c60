"""StepPlan → tensors → forward → StepResult. Owns the KV cache; one packed step, padded for graphs only."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from pagetide import sampler
from pagetide.batch import Batch, Geometry, Ints, ints
from pagetide.grammar_masks import MaskThread, StepMasks
from pagetide.graphs import Graphs, NoGraphs
from pagetide.layers import AttentionBatch
from pagetide.logprobs import describe
from pagetide.model import Decoder
from pagetide.request import TokenLogprobs
from pagetide.step import BlockCopy, ScoredRows, StepPlan, StepResult
from pagetide.transfer import upload
from pagetide_kernels import ops

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
        self._newest: Launched | None = None
        self.graphs: Graphs = NoGraphs()
        self.kv_caches = new_kv_caches(model, num_blocks)

    def run(self, plan: StepPlan) -> StepResult:
        return self.launch(plan).result()

    def launch(self, plan: StepPlan) -> Launched:
        """Put the step on the device, behind those launched before; on a CPU it is over when this returns.

        Tokens that the plan carries are those of the step launched last.
        """
        launched = self.prepare(plan)
        launched.forward()
        if not plan.sampled.is_open:
            launched.sample()
        return launched

    def prepare(self, plan: StepPlan) -> Launched:
        """All of a launch that reads block tables. Changes nothing on the device."""
        self._newest = Launched(self, plan, self._newest if plan.carried.places else None)
        return self._newest

    def fence(self) -> Callable[[], None]:
        """What it returns waits until a copy of blocks comes after all that was launched so far: the device's
        stream keeps that order by itself."""
        return lambda: None

    def fill_masks(self, plan: StepPlan) -> Callable[[], StepMasks | None]:
        return self._masks.fill(plan.sampled.constrained)

    @torch.inference_mode()
    def forward(self, batch: Batch, carried: torch.Tensor | None) -> Forwarded:
        """What the plan's tokens lead to. `carried` [S'] int64 are the tokens of the step before."""
        plan = batch.plan
        geometry = batch.cut(self._most_queries) if self._most_queries else batch.geometry
        with self._kernels():
            self._copy_blocks(plan.copies)
            token_ids = self._token_ids(plan, carried)
            if self.graphs.takes(batch):
                return Forwarded(logits=self.graphs.logits(batch, token_ids))
            wanted = None if batch.wanted_tokens is None else self._to_device(batch.wanted_tokens)
            states = self._model.states(
                token_ids,
                self._to_device(batch.positions),
                self.kv_caches,
                self._attention(geometry, batch.slots),
                wanted,
            )
            scores = [] if plan.scored is None else self._score(states, plan.scored)
            if not plan.sampled.params:
                return Forwarded(scores)
            if wanted is None:
                states = ops.gather_rows(states, self._to_device(batch.sampled_tokens))
            if sampler.needs_logits(plan.sampled):
                return Forwarded(scores, logits=self._model.score(states))
            return Forwarded(scores, chosen=sampler.take_likeliest(self._model.likeliest(states)))

    @torch.inference_mode()
    def sample(self, logits: torch.Tensor, plan: StepPlan, masks: StepMasks | None) -> sampler.Chosen:
        with self._kernels():
            return sampler.sample(logits, plan.sampled, masks)

    def _token_ids(self, plan: StepPlan, carried: torch.Tensor | None) -> torch.Tensor:
        """A row that got NO_TOKEN goes on with any other: it has ended, which the plan could not know."""
        ids = self._to_device(np.frombuffer(plan.token_ids, np.int32))
        if carried is not None:
            places, entries = (self._to_device(ints(e)) for e in (plan.carried.places, plan.carried.entries))
            ids.index_copy_(0, places, carried.index_select(0, entries).clamp_(min=0))
        return ids

    def _score(self, states: torch.Tensor, scored: ScoredRows) -> Scores:
        """A few rows' logits at a time: those of a whole step could be more than there is memory."""
        starts, counts = ints(scored.starts), ints(scored.counts)
        shifts: Ints = np.repeat(starts - np.cumsum(counts) + counts, counts)
        rows = self._to_device(np.arange(len(shifts)) + shifts)
        targets = self._to_device(np.frombuffer(scored.targets, np.int32))
        num_top = np.repeat(ints(scored.num_top), counts).tolist()
        most = max(1, _SCORED_BYTES // (4 * self._model.config.vocab_size))
        found: list[TokenLogprobs] = []
        for start in range(0, len(num_top), most):
            part = slice(start, start + most)
            logprobs = self._model.score(ops.gather_rows(states, rows[part])).log_softmax(dim=-1)
            found += describe(logprobs, targets[part], num_top[part])()
        each = iter(found)
        return [tuple(itertools.islice(each, count)) for count in scored.counts]

    def _copy_blocks(self, copies: list[BlockCopy]) -> None:
        """No target is another's source, so all go at once."""
        if copies:
            sources = self._to_device(np.array([copy.source for copy in copies]))
            targets = self._to_device(np.array([copy.target for copy in copies]))
            for cache in self.kv_caches:
                ops.move_blocks(cache, cache, targets, sources)

    def _attention(self, geometry: Geometry, slots: Ints) -> AttentionBatch:
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
        return upload(values, self._model.device, dtype)


Scores = list[tuple[TokenLogprobs, ...]]


@dataclass(frozen=True, slots=True)
class Forwarded:
    """What is told of prompts; of the sampled rows, if there are any, logits [S, V] or the chosen tokens."""

    scores: Scores = field(default_factory=list)
    logits: torch.Tensor | None = None
    chosen: sampler.Chosen | None = None


class Launched:
    """A step on its way through the runner: `forward`, then `sample`, in the order of the launches."""

    def __init__(self, runner: Runner, plan: StepPlan, before: Launched | None) -> None:
        self._runner = runner
        self._batch = Batch(plan)
        self._before = before
        self._masks = None if plan.sampled.is_open else runner.fill_masks(plan)
        self._forwarded = Forwarded()

    @property
    def tokens(self) -> torch.Tensor:
        """[S] int64, a token, or NO_TOKEN, for each entry of the sampled rows."""
        if self._forwarded.chosen is None:
            raise RuntimeError("the step before failed: it has no tokens for this one")
        return self._forwarded.chosen.tokens

    def forward(self) -> None:
        before, self._before = self._before, None
        carried = None if before is None else before.tokens
        self._forwarded = self._runner.forward(self._batch, carried)

    def sample(self) -> None:
        """No-op the second time."""
        logits, scores = self._forwarded.logits, self._forwarded.scores
        if logits is None:
            return
        self._forwarded = Forwarded(scores)
        plan = self._batch.plan
        masks = self._masks or self._runner.fill_masks(plan)
        self._forwarded = Forwarded(scores, chosen=self._runner.sample(logits, plan, masks()))

    def result(self) -> StepResult:
        chosen = self._forwarded.chosen
        tokens, logprobs = chosen.read() if chosen is not None else ([], [])
        return StepResult(tokens, logprobs, self._forwarded.scores)
