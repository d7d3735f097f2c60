"""Breaks the kernels on purpose, and sees that the simulator notices.

    python -m pagetide_kernels.sim.mutants [NAME ...]

runs every mutant (minutes), or those named, and exits with 1 if one survives. A mutant is caught when one
of `looks` complains: wrong numbers, a broken rule of CUDA, or a sanitizer's report. The tests take the same
looks at the kernels as they are, so what is caught here turns them red when it is done by hand.
"""

from __future__ import annotations

import re
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pagetide_kernels.launch import SOURCES
from pagetide_kernels.sim import looks

_ORDERING = re.compile(r"__syncthreads\(\);|__syncwarp\(\);|__threadfence\(\);|cp_async_wait<[^>]*>\(\);")
_PRIMITIVES = "prim.cuh"
# What runs a file; attention runs the others.
_RUNS: dict[str, tuple[looks.Run, ...]] = {
    "rows.cu": (looks.rows,),
    "sampling.cu": (looks.sampling,),
    "vector.cuh": (looks.rows, looks.sampling),
}


@dataclass(frozen=True)
class Mutant:
    """One change to one file: `old` becomes `new` at its `occurrence`. Attention has heads of `head_dim`."""

    name: str
    file: str
    old: str
    new: str
    occurrence: int = 0
    head_dim: int = 64

    @property
    def runs(self) -> tuple[looks.Run, ...]:
        return _RUNS.get(self.file) or (looks.attention(self.head_dim),)

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
    Mutant("counter-not-reset", "attention_decode.cu", "if (shared_answer) *arrivals = 0;", ""),
    Mutant(
        "divergent-shuffle",
        "attention.cuh",
        "sum[i] = sum_over<4>",
        "if (lane_index() < 9) sum[i] = sum_over<4>",
    ),
)


def ordering_mutants() -> Iterator[Mutant]:
    """Each barrier, fence and wait of the kernels, taken out."""
    for path in sorted(SOURCES.iterdir()):
        if path.suffix not in {".cu", ".cuh"} or path.name == _PRIMITIVES:
            continue
        text, seen = path.read_text(), Counter[str]()
        for match in _ORDERING.finditer(text):
            index = seen[match[0]]
            seen[match[0]] += 1
            parks_query = "rows.fragment(step);" in text[: match.start()].splitlines()[-2]
            what = "".join(re.findall(r"\w+", match[0]))
            name = f"{path.name}-without-{what}-{index}"
            yield Mutant(name, path.name, match[0], "", index, 256 if parks_query else 64)


def all_mutants() -> dict[str, Mutant]:
    return {mutant.name: mutant for mutant in (*WRITTEN, *ordering_mutants())}


def how_caught(mutant: Mutant) -> str | None:
    """What noticed the mutant, or None."""
    with tempfile.TemporaryDirectory() as folder:
        mutant.write(Path(folder))
        found = (look.complaint(run, Path(folder)) for run in mutant.runs for look in looks.looks())
        return next(filter(None, found), None)


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
