"""The side of an engine: loads it once, then runs what the driver asks for and tells how long it took.

Runs in the engine's own environment, which has none of our packages: the standard library only.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

Generate = Callable[[Sequence[Sequence[int]], Sequence[int]], Sequence[Sequence[int]]]
"""Prompts' token ids and how many tokens each wants → the tokens of each, greedily, never ending early."""


def serve(load: Callable[[], tuple[Generate, dict[str, str]]]) -> None:
    """Answers one JSON line for each on stdin; whatever the engine prints goes to stderr."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    generate, versions = load()
    print(json.dumps({"versions": versions}), file=answers, flush=True)
    for line in sys.stdin:
        print(json.dumps(_run(generate, json.loads(line))), file=answers, flush=True)


def _run(generate: Generate, asked: dict[str, Any]) -> dict[str, Any]:
    started_s = time.perf_counter()
    outputs = generate(asked["prompts"], asked["counts"])
    wall_s = time.perf_counter() - started_s
    counts = [len(output) for output in outputs]
    if counts != asked["counts"]:
        raise RuntimeError(f"asked for {asked['counts']} tokens, got {counts}")
    return {
        "wall_s": wall_s,
        "peak_rss_mb": peak_rss_mb(),
        "first_tokens": [list(o[:16]) for o in outputs[:4]],
    }


def peak_rss_mb() -> int:
    """Of this process and everything it started, each at its own peak."""
    kib = 0
    for pid in (os.getpid(), *_descendants(os.getpid())):
        status = Path(f"/proc/{pid}/status")
        if status.exists():
            kib += sum(int(line.split()[1]) for line in status.read_text().splitlines() if "VmHWM" in line)
    return kib // 1024


def _descendants(pid: int) -> Iterator[int]:
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, children.read_text().split()):
            yield child
            yield from _descendants(child)
