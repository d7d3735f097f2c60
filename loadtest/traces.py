"""Recorded arrivals and lengths, read from the files as published and made to fit the server under test.

- Azure LLM inference traces (Patel et al., Splitwise, 2024): CSV `TIMESTAMP,ContextTokens,GeneratedTokens`.
- Mooncake traces (Qin et al., 2024): JSON lines with `timestamp` (ms), `input_length`, `output_length` and
  `hash_ids`, one for each 512 tokens of the prompt: equal ids are equal text, so prefix hits are too.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from random import Random

from loadtest.workloads import Prompt, words

MOONCAKE_BLOCK = 512
"""Tokens that one hash id stands for."""


@dataclass(frozen=True)
class Recorded:
    """One request of a trace, `at_s` seconds after its first."""

    at_s: float
    prompt_tokens: int
    output_tokens: int
    block_ids: tuple[int, ...] = ()


@dataclass(frozen=True)
class Fit:
    """How to make a trace fit: `speed` times as fast, lengths times `lengths`, then cut at the limits."""

    speed: float = 1.0
    lengths: float = 1.0
    max_prompt: int = 4096
    max_output: int = 1024

    def __post_init__(self) -> None:
        for name in ("speed", "lengths", "max_prompt", "max_output"):
            if getattr(self, name) <= 0:
                raise ValueError(f"trace {name} is {getattr(self, name)}; it must be above 0")


def read(path: Path) -> Iterator[Recorded]:
    """Yields the requests in the file's order.

    Raises FileNotFoundError, or ValueError naming the file and line that is not of a known format.
    """
    readers = {".csv": _azure, ".jsonl": _mooncake}
    if path.suffix not in readers:
        raise ValueError(f"{path}: a trace is an Azure .csv or a Mooncake .jsonl file")
    with path.open() as lines:
        yield from readers[path.suffix](path, lines)


def replay(trace: Iterator[Recorded], fit: Fit, seed: int) -> Iterator[tuple[float, Prompt]]:
    """(seconds from the start, what to send), in order of time."""
    for i, recorded in enumerate(sorted(trace, key=lambda r: r.at_s)):
        count = _scaled(recorded.prompt_tokens, fit.lengths, fit.max_prompt)
        text = _text(recorded, count, fit, seed + i)
        output = _scaled(recorded.output_tokens, fit.lengths, fit.max_output)
        yield recorded.at_s / fit.speed, Prompt("trace", text, output)


def _scaled(tokens: int, factor: float, limit: int) -> int:
    return max(1, min(limit, round(tokens * factor)))


def _text(recorded: Recorded, count: int, fit: Fit, seed: int) -> str:
    """Blocks shrink with the lengths, so two prompts share the same part of themselves as in the trace."""
    if not recorded.block_ids:
        return words(Random(seed), count)
    block = max(1, round(MOONCAKE_BLOCK * fit.lengths))
    needed = recorded.block_ids[: -(-count // block)]
    text = " ".join(words(Random(each), block) for each in needed).split()
    return " ".join(text[:count])


def _azure(path: Path, lines: Iterator[str]) -> Iterator[Recorded]:
    start: datetime | None = None
    for number, row in enumerate(csv.DictReader(lines), 2):
        try:
            # Seven decimals; datetime reads six.
            at = datetime.fromisoformat(row["TIMESTAMP"][:26])
            prompt, output = int(row["ContextTokens"]), int(row["GeneratedTokens"])
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{path}:{number}: not a line of an Azure trace: {error!r}") from error
        start = start or at
        yield Recorded((at - start).total_seconds(), prompt, output)


def _mooncake(path: Path, lines: Iterator[str]) -> Iterator[Recorded]:
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
            at_s = row["timestamp"] / 1000
            recorded = Recorded(at_s, row["input_length"], row["output_length"], tuple(row["hash_ids"]))
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{path}:{number}: not a line of a Mooncake trace: {error!r}") from error
        yield recorded
