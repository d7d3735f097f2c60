"""The loop on a GPU: the same tokens with everything on and off, and nothing that waits.

Run with `pytest -m gpu`; skipped where there is no GPU.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

if not torch.cuda.is_available():
    pytest.skip(
        "no GPU: test_overlap.py and test_graphs.py have the parts that need none", allow_module_level=True
    )

from test_graphs import plan
from test_runner import sim_checkpoint
from test_sampling_engine import ASKED, Answer, prompts, run

from pagetide.batch import Batch
from pagetide.build import Built, build
from pagetide.config import Settings
from pagetide.graphs import DecodeGraphs
from pagetide.runner import Runner

pytestmark = pytest.mark.gpu

OFF = {"overlap": False, "max_graph_rows": 0}


def load(checkpoint: Path, **settings: Any) -> Built:
    values = {"model": str(checkpoint), "device": "cuda", "dtype": "bfloat16", "kv_cache_bytes": 2**24}
    values |= {"deterministic": True, "max_running": 24}
    return build(Settings.from_mapping(values | settings), checkpoint, lambda stats: None)


def runner_of(built: Built) -> Runner:
    runner = built.engine._loop._runner  # type: ignore[attr-defined]
    assert isinstance(runner, Runner)
    return runner


def answers(built: Built) -> list[Answer]:
    return run(built, list(zip(prompts(), ASKED, strict=True)))


@pytest.mark.parametrize("settings", [{}, {"max_graph_rows": 0}, {"overlap": False}], ids=str)
def test_tokens_do_not_depend_on_the_loop_or_on_graphs(tmp_path: Path, settings: dict[str, Any]) -> None:
    """`deterministic`, so that padding can not choose another product for a row."""
    checkpoint = sim_checkpoint(tmp_path)
    assert answers(load(checkpoint, **settings)) == answers(load(checkpoint, **OFF))


def test_a_replayed_graph_gives_the_bits_of_its_computation_at_every_length(tmp_path: Path) -> None:
    runner = runner_of(load(sim_checkpoint(tmp_path)))
    graphs = runner.graphs
    assert isinstance(graphs, DecodeGraphs)
    for computed in range(40):
        batch = Batch(plan([[computed], [7]], [computed % 47, computed % 15]))
        ids = torch.tensor([computed, 7], device="cuda")
        replayed = graphs.logits(batch, ids).clone()
        assert torch.equal(replayed, graphs._compute(2)[:2])


def test_a_launch_waits_for_nothing(tmp_path: Path) -> None:
    """A slow kernel holds the stream; the launches behind it must not notice."""
    runner = runner_of(load(sim_checkpoint(tmp_path)))
    first = runner.launch(plan([[1], [2]], [33, 0]))
    first.result()
    torch.cuda._sleep(2_000_000_000)
    held = torch.cuda.Event()
    held.record()
    torch.cuda.set_sync_debug_mode("error")
    try:
        launched = [runner.launch(plan([[1], [2]], [33 + i, 1 + i])) for i in range(2)]
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert not held.query()
    assert all(len(each.result().token_ids) == 2 for each in launched)
