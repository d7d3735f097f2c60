"""Decode steps padded to a graph's size, with graphs that are computed anew instead of replayed.

What a GPU's graphs add is the replay itself: tests/pagetide/test_gpu_loop.py.
"""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from test_runner import sim_checkpoint
from test_sampling_engine import ASKED, load, prompts, run

from pagetide import weights
from pagetide.batch import Batch, padded, size_for, sizes
from pagetide.config import BLOCK_SIZE
from pagetide.graphs import DecodeGraphs, Run
from pagetide.layers import Linear
from pagetide.request import SamplingParams
from pagetide.runner import Runner
from pagetide.step import SampledRows, StepPlan
from pagetide_kernels import ops

CPU = torch.device("cpu")
NUM_BLOCKS = 40
TABLES = [[7, 30, 2], [11], [12, 5], [39, 0, 21]]
LENS = [33, 1, 17, 32]
"""Tokens computed so far: within a block, at its first token, and at a block's edge."""

Make = Callable[[Path], Runner]


def again(compute: Run) -> Run:
    return compute


def plan(tokens: list[list[int]], computed: list[int], temperature: float = 0.0) -> StepPlan:
    """A step that computes `tokens` of each row after `computed` of them, and samples from all."""
    count = len(tokens)
    return StepPlan(
        list(range(count)),
        array("i", itertools.chain.from_iterable(tokens)),
        array("q", map(len, tokens)),
        array("q", computed),
        [array("i", table) for table in TABLES[:count]],
        SampledRows(
            array("q", range(count)),
            [SamplingParams(temperature=temperature)] * count,
            array("Q", [0] * count),
            array("Q", [start + len(each) for start, each in zip(computed, tokens, strict=True)]),
        ),
    )


def on_cpu(folder: Path, dtype: torch.dtype = torch.float32) -> Runner:
    return Runner(weights.load(sim_checkpoint(folder), dtype=dtype, device=CPU), NUM_BLOCKS)


def on_cpu_in_bfloat16(folder: Path) -> Runner:
    return on_cpu(folder, torch.bfloat16)


def on_sim(folder: Path) -> Runner:
    model = weights.load(sim_checkpoint(folder), dtype=torch.bfloat16, device=CPU, make_linear=Linear)
    return Runner(model, NUM_BLOCKS, ops.simulated_cuda)


def filled(make: Make, folder: Path, num_rows: int) -> Runner:
    """The rows' first tokens are computed; every block that no row has is full of NaN."""
    runner = make(folder)
    owned = {block for table in TABLES[:num_rows] for block in table}
    for cache in runner.kv_caches:
        cache[[block for block in range(NUM_BLOCKS) if block not in owned]] = torch.nan
    tokens = [[(7 * row + i) % 250 for i in range(count)] for row, count in enumerate(LENS[:num_rows])]
    runner.run(plan(tokens, [0] * num_rows))
    return runner


def add_graphs(runner: Runner, most: int) -> list[int]:
    """Sizes that were asked for, in order."""
    captured: list[int] = []

    def capture(compute: Run) -> Run:
        captured.append(compute.args[0])  # type: ignore[attr-defined]
        return compute

    runner.graphs = DecodeGraphs(runner._model, runner.kv_caches, sizes(most), max_blocks=8, capture=capture)
    return captured


@pytest.mark.parametrize("make", [on_cpu, on_cpu_in_bfloat16, on_sim], ids=lambda make: make.__name__)
@pytest.mark.parametrize("num_rows", [1, 3, 4])
@pytest.mark.parametrize("most", [4, 16])
def test_padding_changes_no_bit_of_a_row_and_touches_no_block(
    tmp_path: Path, make: Make, num_rows: int, most: int
) -> None:
    eager, graphed = (filled(make, tmp_path / name, num_rows) for name in ("eager", "graphed"))
    add_graphs(graphed, most)
    if num_rows < most:
        graphed.graphs._sizes = [most]  # type: ignore[attr-defined]
    lens = LENS[:num_rows]
    for step in range(15):
        batch = Batch(plan([[step + row] for row in range(num_rows)], lens, temperature=1.0))
        assert graphed.graphs.takes(batch)
        expected, logits = (runner.forward(batch, None).logits for runner in (eager, graphed))
        assert expected is not None
        assert logits is not None
        assert expected.isfinite().all()
        assert torch.equal(logits, expected)
        lens = [min(each + 1, len(table) * BLOCK_SIZE - 1) for each, table in zip(lens, TABLES, strict=False)]
    for ours, theirs in zip(graphed.kv_caches, eager.kv_caches, strict=True):
        assert torch.equal(ours.view(torch.uint8), theirs.view(torch.uint8))
        assert int(ours.isnan().flatten(1).any(1).sum()) == NUM_BLOCKS - sum(map(len, TABLES[:num_rows]))


def test_sizes_are_powers_of_two_and_then_every_sixteenth() -> None:
    assert sizes(1) == [1]
    assert sizes(3) == [1, 2, 3]
    assert sizes(16) == [1, 2, 4, 8, 16]
    assert sizes(50) == [1, 2, 4, 8, 16, 32, 48, 50]
    assert sizes(256)[-3:] == [224, 240, 256]
    for most in range(1, 300):
        found = sizes(most)
        assert found == sorted(set(found))
        assert all(size_for(rows, found) - rows < max(16, rows) for rows in range(1, most + 1))


def test_rows_of_padding_have_no_slot_and_no_keys() -> None:
    assert padded(Batch(plan([[1], [2]], [33, 5])), 4).tolist() == [
        [33, 5, 0, 0],
        [2 * BLOCK_SIZE + 1, 11 * BLOCK_SIZE + 5, -1, -1],
        [34, 6, 0, 0],
    ]


def test_only_steps_of_one_sampled_token_a_row_run_as_graphs(tmp_path: Path) -> None:
    runner = on_cpu(tmp_path)
    assert add_graphs(runner, 3) == [3, 2, 1]
    takes = runner.graphs.takes
    assert takes(Batch(plan([[1], [2]], [33, 0])))
    assert not takes(Batch(plan([[1], [2, 3]], [33, 0]))), "a prompt beside a stream"
    assert not takes(Batch(plan([[1]] * 4, LENS))), "more rows than the largest graph"
    chunk = plan([[1], [2]], [33, 0])
    chunk.sampled.rows.pop()
    assert not takes(Batch(chunk)), "a prompt's chunk of one token"


@pytest.mark.parametrize("overlap", [False, True])
def test_an_engine_gives_the_same_tokens_with_graphs(tiny_llama: Path, overlap: bool) -> None:
    asked = list(zip(prompts(), ASKED, strict=True))
    built = load(tiny_llama, overlap=overlap)
    steps = built.engine._loop._runner  # type: ignore[attr-defined]
    runner: Runner = steps._runner if overlap else steps
    blocks = 512 // BLOCK_SIZE
    runner.graphs = DecodeGraphs(runner._model, runner.kv_caches, sizes(64), blocks, again)
    assert run(built, asked) == run(load(tiny_llama), asked)
