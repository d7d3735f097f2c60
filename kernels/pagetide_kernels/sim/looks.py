"""Short simulated runs that a broken kernel does not survive: each gives right numbers, breaks no rule of
CUDA, and shows no sanitizer anything.

The tests look at the kernels as they are; `mutants` looks at each of them broken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from pagetide_kernels import reference
from pagetide_kernels.backend import Kernels
from pagetide_kernels.cpu.ops import CpuOps
from pagetide_kernels.device_ops import DeviceOps
from pagetide_kernels.launch import SOURCES
from pagetide_kernels.sim_build import Sanitizer
from pagetide_kernels.sim_launch import SimulationError, Simulator

TOLERANCE = 0.008
# (queries, kv_len): a draft, chunks, nothing to do; lengths that fill no block. Both blocks of threads get
# runs of the first, so that one merges what the other left: else no fence would matter.
SEQUENCES = ((1, 1101), (3, 43), (20, 85), (40, 47), (0, 3), (1, 1))

Run = Callable[[DeviceOps], float]
"""Calls kernels; returns how far the worst number is from right."""


@dataclass(frozen=True)
class Look:
    """One simulator to run a subject on."""

    sanitizer: Sanitizer
    seed: int

    def complaint(self, run: Run, sources: Path = SOURCES) -> str | None:
        """What is wrong with the kernels in `sources`, as far as `run` shows; None: nothing."""
        try:
            worst = run(DeviceOps(Simulator(self.seed, self.sanitizer, sources)))
        except SimulationError as error:
            return f"{_gist(str(error))} [{self.sanitizer.value}]"
        return None if worst <= TOLERANCE else f"off by {worst} [{self.sanitizer.value}, seed {self.seed}]"


def looks() -> Iterator[Look]:
    """The cheap ones come first. The seed orders blocks and warps, which decides whose fence matters."""
    yield from (Look(Sanitizer.NONE, seed) for seed in range(1, 4))
    yield from (Look(Sanitizer.THREAD, seed) for seed in range(1, 4))
    yield Look(Sanitizer.ADDRESS, 1)


def attention(head_dim: int) -> Run:
    def run(ops: DeviceOps) -> float:
        worst = 0.0
        for window in (0, 50):
            tensors, expected = _attention_case(head_dim, window)
            for _ in range(2):  # the second call finds the counters as the first left them
                tensors[0].fill_(torch.nan)
                ops.paged_attention(tensors, (head_dim**-0.5, window, 0.0, 1.0, 1.0))
                worst = max(worst, _distance(tensors[0], expected))
        return worst

    return run


def rows(ops: DeviceOps) -> float:
    generator = torch.Generator().manual_seed(2)
    residual, weight = torch.randn(3, 1096, generator=generator).half(), torch.ones(1096)
    out = torch.full_like(residual, torch.nan)
    ops.add_rms_norm((out, residual, None, weight), (1e-5,))
    x = residual.float()
    return _distance(out, x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5))


def sampling(ops: DeviceOps) -> float:
    """Penalties on tokens that a mask then forbids, the likeliest, and a draw through every filter; as on a
    CPU."""
    ours, theirs = _sampled(ops), _sampled(CpuOps())
    return max(_distance(mine, right) for mine, right in zip(ours, theirs, strict=True))


def _sampled(ops: Kernels) -> tuple[Tensor, ...]:
    logits = torch.randn(2, 1003, generator=torch.Generator().manual_seed(3))
    drawn, some = torch.full((2,), -1), torch.tensor([0.7, 0.7])
    top_k = torch.tensor([40, 0], dtype=torch.int32)
    ops.sample((drawn, logits.clone(), some, top_k, some, some * 0.01, some.double()))
    rows, starts = torch.tensor([1, 0]), torch.tensor([0, 500, 1000])
    seen, mask = torch.arange(1000, dtype=torch.int32), torch.full((2, 32), -1, dtype=torch.int32)
    mask[:, :16] = 0
    ops.penalise((logits, rows, starts, seen, seen % 3, some, some, some))
    ops.apply_bitmask((logits, rows, mask))
    tokens, logprobs = torch.full((2, 3), -1), torch.full((2, 3), torch.nan)
    ops.greedy((tokens, logprobs, logits))
    return drawn, logits, tokens, logprobs


def _distance(actual: Tensor, expected: Tensor) -> float:
    """The largest difference; infinite where only one is a number."""
    same = actual == expected
    difference = (actual.double() - expected.double()).abs().masked_fill(same, 0.0)
    return float(difference.nan_to_num(torch.inf).max())


def _gist(report: str) -> str:
    """The line of a report that says what happened."""
    lines = report.strip().splitlines()
    return next((line for line in lines if "SUMMARY" in line), lines[0])[:160]


@cache
def _attention_case(head_dim: int, window: int) -> tuple[tuple[Tensor, ...], Tensor]:
    """Tensors of `paged_attention`, and the right answer. Foreign memory is NaN."""
    generator = torch.Generator().manual_seed(1)
    counts = [-(-kv_len // 16) for _, kv_len in SEQUENCES]
    order = torch.randperm(sum(counts), generator=generator).to(torch.int32)
    table = torch.full((len(SEQUENCES), max(counts)), 2**31 - 1, dtype=torch.int32)
    cache_shape = (sum(counts), 2, 2, 16, head_dim)
    kv_cache = torch.randn(cache_shape, generator=generator).clamp(-1.99, 1.99).bfloat16()
    for i, ((_, kv_len), blocks) in enumerate(zip(SEQUENCES, torch.split(order, counts), strict=True)):
        table[i, : len(blocks)] = blocks
        kv_cache[blocks[-1:].long(), :, :, (kv_len - 1) % 16 + 1 :] = torch.nan
    lens = torch.tensor([kv_len for _, kv_len in SEQUENCES], dtype=torch.int32)
    starts = torch.tensor([0, *(queries for queries, _ in SEQUENCES)]).cumsum(0).to(torch.int32)
    query = torch.randn(int(starts[-1]), 8, head_dim, generator=generator).bfloat16()
    expected = reference.paged_attention(query, kv_cache, table, starts, lens, head_dim**-0.5, window)
    return (torch.empty_like(query), query, kv_cache, table, starts, lens), expected
