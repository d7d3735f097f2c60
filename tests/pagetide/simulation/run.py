"""`make simulate`: many seeds under both loops on every core, or one seed step by step.

python -m simulation.run --seeds 10000 --seed-start 0
python -m simulation.run --replay 1234 --loop overlapped
"""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import os
import sys
import time
from collections import Counter

from simulation.simulation import Simulation, SimulationError

from pagetide.loops import OverlappedLoop, PlainLoop

LOOPS = {"plain": PlainLoop, "overlapped": OverlappedLoop}
CHUNK = 20
MOST_SHOWN = 5


def main() -> int:
    options = _options()
    if options.replay is not None:
        return _replay(options.replay, options.loop)
    seeds = range(options.seed_start, options.seed_start + options.seeds)
    started_s = time.monotonic()
    with multiprocessing.Pool(options.processes) as pool:
        runs = [(seed, loop) for seed in seeds for loop in LOOPS]
        results = list(pool.imap(_simulate, runs, CHUNK))
    failures = [failure for failure, _ in results if failure is not None]
    for failure in failures[:MOST_SHOWN]:
        print(failure, end="\n\n")
    print(", ".join(f"{count} {what}" for what, count in sum((c for _, c in results), Counter()).items()))
    elapsed_s = time.monotonic() - started_s
    print(f"{len(seeds)} seeds under {len(LOOPS)} loops, {len(failures)} failed, {elapsed_s:.0f} s")
    return int(bool(failures))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Simulate the scheduler under many seeded worlds.")
    parser.add_argument("--seeds", type=int, default=1000, help="how many seeds to run")
    parser.add_argument("--seed-start", type=int, default=0, help="the first seed")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument("--replay", type=int, metavar="SEED", help="show one seed step by step")
    parser.add_argument("--loop", choices=LOOPS, default="plain", help="under which loop to show it")
    return parser.parse_args()


def _simulate(run: tuple[int, str]) -> tuple[str | None, Counter[str]]:
    """What went wrong, if anything, and what happened on the way."""
    logging.disable(logging.CRITICAL)
    seed, loop = run
    simulation = Simulation(seed, loop=LOOPS[loop])
    try:
        simulation.run()
    except SimulationError as error:
        return f"{error}\nreplay: make simulate REPLAY={seed} LOOP={loop}", simulation.coverage
    return None, simulation.coverage


def _replay(seed: int, loop: str) -> int:
    logging.disable(logging.CRITICAL)
    simulation = Simulation(seed, trace=True, loop=LOOPS[loop])
    try:
        simulation.run()
    except SimulationError as error:
        print(*simulation.lines, error, sep="\n")
        return 1
    print(*simulation.lines, f"seed {seed} holds: {simulation.device.num_steps} steps", sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
