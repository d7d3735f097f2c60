"""Decode steps as CUDA graphs: one launch instead of hundreds, each for a fixed number of rows.

A step of B rows runs as the smallest graph of at least B; the rows beyond are padding. A padded row writes no
KV (its slot is -1), reads none (its kv_len is 0), and nobody looks at what it computes: it touches no block.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

import torch

from pagetide.batch import Batch, padded, size_for
from pagetide.layers import AttentionBatch
from pagetide.model import Decoder
from pagetide.transfer import stage

Run = Callable[[], torch.Tensor]
Capture = Callable[[Run], Run]
"""Makes of a computation over fixed tensors one that repeats it on what they hold by then."""


class Graphs(Protocol):
    """Which steps run as graphs."""

    def takes(self, batch: Batch) -> bool: ...

    def logits(self, batch: Batch, token_ids: torch.Tensor) -> torch.Tensor:
        """[B, V] float32 of a step that it takes, until the next one. `token_ids` [B] are the rows'."""


class NoGraphs:
    def takes(self, batch: Batch) -> bool:
        return False

    def logits(self, batch: Batch, token_ids: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError


class DecodeGraphs:
    """Graphs of `sizes` rows, for sequences of up to `max_blocks` blocks.

    Their inputs lie in tensors of their own, shared by all: steps run one after the other. The largest graph
    is captured first, so that the others find its memory.
    """

    def __init__(
        self,
        model: Decoder,
        kv_caches: Sequence[torch.Tensor],
        sizes: Sequence[int],
        max_blocks: int,
        capture: Capture,
    ) -> None:
        self._model = model
        self._kv_caches = kv_caches
        self._sizes = sorted(sizes)
        most, device = max(sizes), model.device
        self._ids = torch.zeros(most, dtype=torch.int64, device=device)
        self._block_table = torch.zeros(most, max_blocks, dtype=torch.int32, device=device)
        self._query_starts = torch.arange(most + 1, dtype=torch.int32, device=device)
        self._numbers = {size: torch.zeros(3, size, dtype=torch.int64, device=device) for size in sizes}
        for numbers in self._numbers.values():
            numbers[1] = -1
        self._graphs = {size: capture(partial(self._compute, size)) for size in reversed(self._sizes)}

    def takes(self, batch: Batch) -> bool:
        """One token for each sequence, and all of them to be followed by another."""
        plan = batch.plan
        num_rows = len(plan.num_new)
        decodes = plan.num_tokens == num_rows == len(plan.sampled.rows) and plan.scored is None
        return decodes and num_rows <= self._sizes[-1]

    def logits(self, batch: Batch, token_ids: torch.Tensor) -> torch.Tensor:
        num_rows, table = len(token_ids), batch.geometry.block_table
        size = size_for(num_rows, self._sizes)
        self._ids[:num_rows].copy_(token_ids)
        stage(padded(batch, size), self._numbers[size])
        stage(table, self._block_table[:num_rows, : table.shape[1]])
        return self._graphs[size]()[:num_rows]

    def _compute(self, size: int) -> torch.Tensor:
        positions, slots, kv_lens = self._numbers[size]
        batch = AttentionBatch(
            block_table=self._block_table[:size],
            query_starts=self._query_starts[: size + 1],
            kv_lens=kv_lens.to(torch.int32),
            slots=slots,
            max_query_len=1,
        )
        return self._model.score(self._model.states(self._ids[:size], positions, self._kv_caches, batch))


class CudaCapture:
    """Captures computations of one device into graphs that share a pool of memory.

    Each is run once before, as the kernels' launcher wants it. Whoever takes a graph's output must be done
    with it, on the same stream, before any of the graphs is run again.
    """

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, run: Run) -> Run:
        run()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            output = run()

        def replay() -> torch.Tensor:
            graph.replay()
            return output

        return replay
