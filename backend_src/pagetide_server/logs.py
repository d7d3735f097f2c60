"""Reads a tritonserver log: what was loaded, what failed and why."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_LINE = re.compile(r'^([IWEF])\d{4} \d\d:\d\d:\d\d\.\d+ \d+ [\w.]+:\d+\] "?(.*?)"?$')


@dataclass(frozen=True)
class LogLine:
    """One line of the log; `level` is I, W, E, F, or empty for what a model printed itself."""

    level: str
    text: str


def parse(line: str) -> LogLine:
    match = _LINE.match(line)
    return LogLine(match[1], match[2]) if match else LogLine("", line)


def reasons(path: Path) -> list[str]:
    """The errors in a log, each once, in order."""
    errors = (line.text for line in _lines(path) if line.level in ("E", "F"))
    return list(dict.fromkeys(errors))


def tail(path: Path, count: int = 5) -> str:
    """The last lines of a log on one line; for when there is no error line."""
    lines = [line.text.strip() for line in _lines(path) if line.text.strip()]
    return " | ".join(lines[-count:])


def _lines(path: Path) -> Iterator[LogLine]:
    try:
        text = path.read_text(errors="replace")
    except OSError:
        return
    yield from (parse(line) for line in text.splitlines())
