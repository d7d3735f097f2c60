"""Breaks the attention kernels on purpose, and sees that the simulator notices.

    python -m pagetide_kernels.sim.mutants [NAME ...]

runs every mutant (minutes), or those named, and exits with 1 if one survives. A mutant is caught when a
simulated run reports an error, gives wrong numbers, or is stopped by a sanitizer.
"""

from __future__ import annotations

import re
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from pagetide_kernels import reference
from pagetide_kernels.device_ops import DeviceOps
from pagetide_kernels.launch import SOURCES
from pagetide_kernels.sim_build import Sanitizer
from pagetide_kernels.sim_launch import SimulationError, Simulator

TOLERANCE = 0.008
# (queries, kv_len): several runs to merge, a draft, chunks; lengths that fill no block.
SEQUENCES = ((1, 1101), (3, 43), (20, 85), (40, 47), (1, 1))
_ORDERING = re.compile(r"__syncthreads\(\);|__syncwarp\(\);|__threadfence\(\);")


@dataclass(frozen=True)
class Mutant:
    """One change to one file: `old` becomes `new` at its `occurrence`. Run with heads of `head_dim`."""

    name: str
    file: str
    old: str
    new: str
    occurrence: int = 0
    head_dim: int = 64

    def write(self, folder: Path) -> None:
        """Copies the sources, changed, to `folder`."""
        for path in SOURCES.iterdir():
            if path.suffix in {".cu", ".cuh"}:
                shutil.copy(path, folder)
        parts = (folder / self.file).read_text().split(self.old)
        if len(parts) < self.occurrence + 2:
            raise ValueError(f"mutant {self.name}: {self.file} has no {self.old!r}")
        head = self.old.join(parts[: self.occurrence + 1])
        (folder / self.file).write_text(head + self.new + self.old.join(parts[self.occurrence + 1 :]))


WRITTEN = (
    Mutant(
        "wait-off-by-one", "attention_decode.cu", "cp_async_wait<kStages - 2>", "cp_async_wait<kStages - 1>"
    ),
    Mutant(
        "wrong-ring-stage", "attention_decode.cu", "ring[(i + kStages - 1) % kStages]", "ring[i % kStages]"
    ),
    Mutant("table-over-read", "attention_decode.cu", "block < end_ ? table_[block] : 0", "table_[block]"),
    Mutant("mask-off-by-one", "attention.cuh", "key >= end[i / 2]", "key > end[i / 2]"),
    Mutant(
        "window-off-by-one", "attention.cuh", "end_key(token) - window, 0", "end_key(token) - window - 1, 0"
    ),
    Mutant("causal-off-by-one", "attention.cuh", "num_queries + token + 1;", "num_queries + token + 2;"),
    Mutant(
        "wrong-swizzle", "kv_tile.cuh", "tile.at(lane % 16, first_column", "tile.at(lane % 15, first_column"
    ),
    Mutant(
        "tail-not-zeroed",
        "kv_tile.cuh",
        "row >= first_row && row < end_row",
        "row >= first_row && end_row > 0",
    ),
    Mutant("unshrunk-outputs", "attention.cuh", "o[n][i] *= shrink[i / 2]", "o[n][i] *= shrink[0]"),
    Mutant("prefill-keys-not-awaited", "attention_prefill.cu", "cp_async_wait<0>();", "cp_async_wait<1>();"),
    Mutant("counter-not-reset", "attention_decode.cu", "if (shared_answer) *arrivals = 0;", ""),
    Mutant(
        "divergent-shuffle",
        "attention.cuh",
        "sum[i] = sum_over<4>",
        "if (lane_index() < 9) sum[i] = sum_over<4>",
    ),
)


def ordering_mutants() -> Iterator[Mutant]:
    """Each barrier and fence of the attention kernels, taken out."""
    for file in ("attention_decode.cu", "attention_prefill.cu", "work_item.cuh"):
        text = (SOURCES / file).read_text()
        seen: Counter[str] = Counter()
        for match in _ORDERING.finditer(text):
            index = seen[match[0]]
            seen[match[0]] += 1
            parks_query = "rows.fragment(step);" in text[: match.start()].splitlines()[-2]
            name = f"{file}-without-{match[0][2:-3]}-{index}"
            yield Mutant(name, file, match[0], "", index, 256 if parks_query else 64)


def all_mutants() -> dict[str, Mutant]:
    return {mutant.name: mutant for mutant in (*WRITTEN, *ordering_mutants())}


def how_caught(mutant: Mutant) -> str | None:
    """What noticed the mutant, or None. The cheap looks come first."""
    with tempfile.TemporaryDirectory() as folder:
        mutant.write(Path(folder))
        for sanitizer, seed in _looks():
            if found := _complaint(Path(folder), mutant.head_dim, sanitizer, seed):
                return found
    return None


def _looks() -> Iterator[tuple[Sanitizer, int]]:
    for seed in range(1, 4):
        yield Sanitizer.NONE, seed
    for seed in range(1, 4):  # the order of blocks decides whose fence matters
        yield Sanitizer.THREAD, seed
    yield Sanitizer.ADDRESS, 1


def _complaint(sources: Path, head_dim: int, sanitizer: Sanitizer, seed: int) -> str | None:
    ops = DeviceOps(Simulator(seed, sanitizer, sources))
    for window in (0, 50):
        tensors, expected = _case(head_dim, window)
        try:
            for _ in range(2):  # the second call finds the counters as the first left them
                tensors[0].fill_(torch.nan)
                ops.paged_attention(tensors, (head_dim**-0.5, window, 0.0))
        except SimulationError as error:
            return f"{_gist(str(error))} [{sanitizer.value}]"
        worst = (tensors[0].float() - expected).abs().max().item()
        if not worst <= TOLERANCE:
            return f"off by {worst} [{sanitizer.value}, seed {seed}]"
    return None


def _gist(report: str) -> str:
    """The line of a report that says what happened."""
    lines = report.strip().splitlines()
    return next((line for line in lines if "SUMMARY" in line), lines[0])[:160]


@cache
def _case(head_dim: int, window: int) -> tuple[tuple[Tensor, ...], Tensor]:
    """Arguments of `paged_attention`, and the right answer. Foreign memory is NaN."""
    generator = torch.Generator().manual_seed(1)
    counts = [-(-kv_len // 16) for _, kv_len in SEQUENCES]
    order = torch.randperm(sum(counts), generator=generator).to(torch.int32)
    table = torch.full((len(SEQUENCES), max(counts)), 2**31 - 1, dtype=torch.int32)
    cache_shape = (sum(counts), 2, 2, 16, head_dim)
    kv_cache = torch.randn(cache_shape, generator=generator).clamp(-1.99, 1.99).bfloat16()
    for i, ((_, kv_len), blocks) in enumerate(zip(SEQUENCES, torch.split(order, counts), strict=True)):
        table[i, : len(blocks)] = blocks
        kv_cache[int(blocks[-1]), :, :, (kv_len - 1) % 16 + 1 :] = torch.nan
    lens = torch.tensor([kv_len for _, kv_len in SEQUENCES], dtype=torch.int32)
    starts = torch.tensor([0, *(queries for queries, _ in SEQUENCES)]).cumsum(0).to(torch.int32)
    query = torch.randn(int(starts[-1]), 8, head_dim, generator=generator).bfloat16()
    expected = reference.paged_attention(query, kv_cache, table, starts, lens, head_dim**-0.5, window)
    return (torch.empty_like(query), query, kv_cache, table, starts, lens), expected


def main(names: list[str]) -> int:
    mutants = all_mutants()
    survivors = 0
    for name in names or mutants:
        found = how_caught(mutants[name])
        survivors += found is None
        print(f"{name}: {found or 'SURVIVED'}", flush=True)
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
