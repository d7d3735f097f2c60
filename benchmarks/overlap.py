"""What overlapping hides: steps per second of the plain and the overlapped loop, on a device that sleeps.

    python -m benchmarks.overlap

The device stands for a GPU whose decode step takes a given time, whatever is in it. All else is real:
receiving, planning, the step's index arrays, updating, delivering. Medians over decode steps.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from array import array
from collections.abc import Callable
from dataclasses import dataclass

from pagetide.batch import Batch
from pagetide.block_pool import BlockPool
from pagetide.engine import Engine
from pagetide.limits import Limits
from pagetide.loops import MakeLoop, OverlappedLoop, PlainLoop
from pagetide.request import Request, SamplingParams
from pagetide.scheduler import Scheduler
from pagetide.step import StepPlan, StepResult

PROMPT, WARM_UP, STEPS = 200, 10, 200
LOOPS: dict[str, MakeLoop] = {"plain": PlainLoop, "overlapped": OverlappedLoop}


@dataclass
class SleepingDevice:
    """Takes steps in order, `step_s` each, without the host: who wants a result sleeps until it is there."""

    step_s: float
    free_s: float = 0.0

    def run(self, plan: StepPlan) -> StepResult:
        return self.launch(plan).result()

    def launch(self, plan: StepPlan) -> Sleep:
        Batch(plan)
        self.free_s = max(time.perf_counter(), self.free_s) + self.step_s
        return Sleep(self.free_s, len(plan.sampled.rows))


@dataclass
class Sleep:
    ends_s: float
    num_sampled: int

    def sample(self) -> None:
        pass

    def result(self) -> StepResult:
        time.sleep(max(0.0, self.ends_s - time.perf_counter()))
        return StepResult([1] * self.num_sampled, [None] * self.num_sampled)


def step_s(loop: MakeLoop, num_running: int, device_s: float) -> float:
    """Median seconds from the end of one decode step to the end of the next."""
    num_blocks = num_running * (PROMPT + 2 * STEPS) // 8
    limits = Limits(max_step_tokens=2048, max_running=num_running, max_model_len=4096)
    scheduler = Scheduler(BlockPool(num_blocks), limits, root=lambda salt: salt)
    engine = Engine(scheduler, SleepingDevice(device_s), num_running, lambda stats: None, loop=loop)
    fill(engine, num_running)
    ends_s = []
    for _ in range(WARM_UP + STEPS):
        engine.turn(wait=False)
        ends_s.append(time.perf_counter())
    measured = ends_s[WARM_UP:]
    return statistics.median(after - before for before, after in itertools.pairwise(measured))


def fill(engine: Engine, num_running: int) -> None:
    """Until every request has its first token."""
    started: set[int] = set()
    params = SamplingParams(max_tokens=PROMPT + 2 * STEPS, temperature=0.0, ignore_eos=True)
    for number in range(num_running):
        prompt = array("i", ((number * 7 + i * i) % 31 for i in range(PROMPT)))
        engine.submit(Request(number, prompt, params, adds(started, number), time.monotonic()))
    while len(started) < num_running:
        engine.turn(wait=False)


def adds(started: set[int], number: int) -> Callable[[object], None]:
    return lambda output: started.add(number)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--running", type=int, default=256, help="sequences that decode")
    parser.add_argument("--device-ms", type=float, nargs="+", default=[4.0], help="what a step takes there")
    options = parser.parse_args()
    for device_ms in options.device_ms:
        for name, loop in LOOPS.items():
            found_s = step_s(loop, options.running, device_ms / 1e3)
            print(
                f"device {device_ms:g} ms, {options.running} running, {name}: {1e3 * found_s:.2f} ms a step, "
                f"{1 / found_s:.0f} steps/s, host not hidden {1e3 * found_s - device_ms:.2f} ms"
            )


if __name__ == "__main__":
    main()
