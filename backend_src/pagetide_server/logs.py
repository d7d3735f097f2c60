"""Reads a tritonserver log: what was loaded, what failed and why."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_FAILED = re.compile(
    r"(?:failed to load(?: model)?|Poll failed for model directory) '([^']+)'(?: version (\d+))?: (.*)"
)
_LOADED = re.compile(r"successfully loaded '([^']+)'")
_TRACE = re.compile(r"(?:\\n)+At:\\n.*|(?:\\n)+$")
_LINE = re.compile(r'^([IWEF])\d{4} \d\d:\d\d:\d\d\.\d+ \d+ ([\w./-]+):\d+\] "?(.*?)"?$')


@dataclass(frozen=True)
class LogLine:
    """One line of the log. `level` is I, W, E or F, and empty for what was printed without one."""

    level: str
    source: str
    text: str

    @property
    def is_error(self) -> bool:
        return self.level in ("E", "F")

    @property
    def is_from_model(self) -> bool:
        """Whether a model's Python code logged it."""
        return self.source.endswith(".py")


@dataclass(frozen=True)
class LoadFailure:
    """Why a model, or one version of it, could not be loaded; `version` is empty for the whole model."""

    name: str
    version: str
    reason: str

    def __str__(self) -> str:
        version = f" version {self.version}" if self.version else ""
        return f"{self.name}{version} could not be loaded: {self.reason}"


class LoadFailures:
    """What failed to load and has not loaded since. Triton tries again at each poll, its index forgets."""

    def __init__(self) -> None:
        self._failed: dict[tuple[str, str], LoadFailure] = {}

    def read(self, line: LogLine) -> LoadFailure | None:
        """Follows one line; returns the failure it tells of if that is news."""
        if loaded := _LOADED.fullmatch(line.text):
            self._failed = {key: each for key, each in self._failed.items() if key[0] != loaded[1]}
        failure = load_failure(line)
        if failure is None or self._failed.get((failure.name, failure.version)) == failure:
            return None
        self._failed[failure.name, failure.version] = failure
        return failure

    def __iter__(self) -> Iterator[LoadFailure]:
        return iter(self._failed.values())


class LogFollower:
    """Hands out the lines of a growing log, each once."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def lines(self) -> Iterator[LogLine]:
        """The whole lines written since the last call."""
        try:
            with self._path.open("rb") as log:
                log.seek(self._offset)
                whole, newline, _ = log.read().rpartition(b"\n")
        except FileNotFoundError:
            return
        self._offset += len(whole) + len(newline)
        if newline:
            yield from map(parse, whole.decode(errors="replace").split("\n"))


def parse(line: str) -> LogLine:
    match = _LINE.match(line)
    return LogLine(match[1], match[2], match[3]) if match else LogLine("", "", line)


def load_failure(line: LogLine) -> LoadFailure | None:
    """The failure that an error line tells of, without Triton's error code and the Python frames."""
    match = _FAILED.fullmatch(line.text) if line.is_error else None
    if match is None:
        return None
    reason = _TRACE.sub("", match[3]).removeprefix("Internal: ").replace("\\n", " ")
    return LoadFailure(match[1], match[2] or "", reason)


def reasons(path: Path) -> list[str]:
    """The errors in a log, each once, in order."""
    errors = (line.text for line in LogFollower(path).lines() if line.is_error)
    return list(dict.fromkeys(errors))


def tail(path: Path, count: int = 5) -> str:
    """The last lines of a log on one line; for when there is no error line."""
    lines = [line.text.strip() for line in LogFollower(path).lines() if line.text.strip()]
    return " | ".join(lines[-count:])
