"""Builds attention inputs in which reading anything foreign shows: it is NaN."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from pagetide_kernels import ops, reference

BLOCK = 16


@dataclass(frozen=True)
class AttentionCase:
    """Arguments of `ops.paged_attention`, by its names."""

    query: Tensor
    kv_cache: Tensor
    block_table: Tensor
    query_starts: Tensor
    kv_lens: Tensor
    scale: float
    window: int = 0
    soft_cap: float = 0.0

    def run(self, **changed: object) -> Tensor:
        return ops.paged_attention(**{**vars(self), **changed})

    def to(self, device: torch.device) -> AttentionCase:
        moved = {name: value.to(device) for name, value in vars(self).items() if isinstance(value, Tensor)}
        return replace(self, **moved)

    def expected(self) -> Tensor:
        """The float32 reference; on one thread, because its pieces are too small to share out."""
        num_threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            return reference.paged_attention(**vars(self))
        finally:
            torch.set_num_threads(num_threads)

    def rows(self, sequence: int) -> slice:
        return slice(*self.query_starts[sequence : sequence + 2].tolist())

    def only(self, sequence: int, last: int | None = None, first: int = 0) -> AttentionCase:
        """One sequence alone, its queries [first, last), with the KV up to the last of them."""
        query = self.query[self.rows(sequence)]
        dropped = 0 if last is None else len(query) - last
        query = query[first:last]
        return replace(
            self,
            query=query.contiguous(),
            block_table=self.block_table[sequence : sequence + 1],
            query_starts=torch.tensor([0, len(query)], dtype=torch.int32),
            kv_lens=self.kv_lens[sequence : sequence + 1] - dropped,
        )


GPU = pytest.param(
    "cuda", marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")]
)


@pytest.fixture(params=["cpu", "sim", GPU])
def device(request: pytest.FixtureRequest) -> Iterator[torch.device]:
    """Where an op's tensors are: run by the CPU's kernels, by simulated CUDA kernels, or by a GPU."""
    with _kernels(request.param) as place:
        yield place


@pytest.fixture(params=["sim", GPU])
def cuda_device(request: pytest.FixtureRequest) -> Iterator[torch.device]:
    """`device` for what only the CUDA kernels know."""
    with _kernels(request.param) as place:
        yield place


@contextmanager
def _kernels(name: str) -> Iterator[torch.device]:
    with ops.simulated_cuda() if name == "sim" else nullcontext():
        yield torch.device("cuda" if name == "cuda" else "cpu")


MakeCase = Callable[..., AttentionCase]


@pytest.fixture(scope="session")
def make_case() -> MakeCase:
    """make_case([(queries, kv_len), ...], heads=, kv_heads=, head_size=, dtype=, ...) -> AttentionCase"""
    return _make_case


def _make_case(
    sequences: Sequence[tuple[int, int]],
    heads: int = 3,
    kv_heads: int = 1,
    head_size: int = 64,
    dtype: torch.dtype = torch.float32,
    window: int = 0,
    soft_cap: float = 0.0,
    seed: int = 0,
) -> AttentionCase:
    generator = torch.Generator().manual_seed(seed)
    num_queries = [queries for queries, _ in sequences]
    kv_lens = [kv_len for _, kv_len in sequences]
    kv_cache, block_table = _scattered_kv(kv_lens, kv_heads, head_size, generator)
    query = torch.randn(sum(num_queries), heads, head_size, generator=generator)
    return AttentionCase(
        query.to(dtype),
        kv_cache.to(dtype),
        block_table,
        torch.tensor([0, *num_queries]).cumsum(0).to(torch.int32),
        torch.tensor(kv_lens, dtype=torch.int32),
        head_size**-0.5,
        window,
        soft_cap,
    )


def _scattered_kv(
    kv_lens: list[int], kv_heads: int, head_size: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """A cache in which only the sequences' own tokens are numbers, and the table that finds them.

    Unused table entries point outside the cache.
    """
    counts = [-(-kv_len // BLOCK) for kv_len in kv_lens]
    num_blocks = sum(counts) + 3
    order = torch.randperm(num_blocks, generator=generator).tolist()
    cache = torch.full((num_blocks, 2, kv_heads, BLOCK, head_size), torch.nan)
    table = torch.full((len(kv_lens), max(counts, default=0) + 1), 2**31 - 1, dtype=torch.int32)
    for i, kv_len in enumerate(kv_lens):
        for position in range(0, kv_len, BLOCK):
            block = table[i, position // BLOCK] = order.pop()
            tokens = min(BLOCK, kv_len - position)
            # Below 2, so that rounding an output to bf16 costs under 0.004.
            numbers = torch.randn(2, kv_heads, tokens, head_size, generator=generator).clamp(-1.99, 1.99)
            cache[int(block), :, :, :tokens] = numbers
    return cache, table
