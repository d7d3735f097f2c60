"""What the setting `deterministic` costs, and what it is good for: the default model's linears, three ways.

    python -m benchmarks.deterministic

CPU milliseconds of one thread for the linears of 6 layers, by the number of rows, medians of turns; and of
the rows that were computed alone too, how many got other bits in the batch.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Sequence

import torch

from pagetide.layers import FixedLinear, Layer, Linear, PackedLinear

SHAPES = ((960, 576), (576, 576), (3072, 576), (576, 1536))
"""(outputs, inputs) of a layer of SmolLM2-135M: q, k and v; out; gate and up; down."""

NUM_LAYERS = 6
ROWS = (1, 8, 32, 64, 512)
KINDS: dict[str, Callable[[torch.Tensor], Layer]] = {
    "F.linear": Linear,
    "fixed": FixedLinear,
    "packed": PackedLinear,
}
REPEATS = 5
MOST_COMPARED = 8


def model(make: Callable[[torch.Tensor], Layer], dtype: torch.dtype) -> list[tuple[Layer, int]]:
    """Every linear with the number of its inputs."""
    generator = torch.Generator().manual_seed(0)
    return [
        (make(torch.randn(shape, generator=generator).to(dtype)), shape[1])
        for _ in range(NUM_LAYERS)
        for shape in SHAPES
    ]


def seconds(linears: Sequence[tuple[Layer, int]], rows: int, dtype: torch.dtype) -> float:
    inputs = {width: torch.randn(rows, width).to(dtype) for _, width in SHAPES}
    started_s = time.process_time()
    for linear, width in linears:
        linear(inputs[width])
    return time.process_time() - started_s


def num_changed(linears: Sequence[tuple[Layer, int]], rows: int, dtype: torch.dtype) -> int:
    """Of the first rows through each of one layer's linears, those that differ from the same row alone."""
    changed = 0
    for linear, width in linears[: len(SHAPES)]:
        x = torch.randn(rows, width, generator=torch.Generator().manual_seed(1)).to(dtype)
        batch = linear(x)
        same = [torch.equal(linear(x[i : i + 1])[0], batch[i]) for i in range(min(rows, MOST_COMPARED))]
        changed += same.count(False)
    return changed


@torch.inference_mode()
def main() -> None:
    torch.set_num_threads(1)
    print(f"load average {os.getloadavg()[0]:.1f}, 1 thread")
    print("| dtype | rows | " + " | ".join(f"{kind}, ms | other bits" for kind in KINDS) + " |")
    print("| --- | ---: |" + " ---: | ---: |" * len(KINDS))
    for dtype in (torch.float32, torch.bfloat16):
        models = {kind: model(make, dtype) for kind, make in KINDS.items()}
        for rows in ROWS:
            times: dict[str, list[float]] = {kind: [] for kind in KINDS}
            for _ in range(REPEATS):
                for kind, linears in models.items():
                    times[kind].append(seconds(linears, rows, dtype))
            cells = [
                f"{1e3 * statistics.median(times[kind]):.1f} | "
                f"{num_changed(linears, rows, dtype)} of {min(rows, MOST_COMPARED) * len(SHAPES)}"
                for kind, linears in models.items()
            ]
            print(f"| {str(dtype)[6:]} | {rows} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
