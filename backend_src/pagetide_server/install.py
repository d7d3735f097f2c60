"""Runs pip with a log file and one moving line instead of its output; standard library only.

    python install.py "the packages" NUM_PACKAGES PIP_ARGUMENT...

What pip prints goes to `pip.log` in the environment. On a failure the errors and the remedy are shown.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TextIO

LOG = Path(sys.prefix) / "pip.log"
_LINE = re.compile(r"^(?:Collecting|Processing|Requirement already satisfied:) (\S+).*\(line (\d+)\)")
_SKIPPED = re.compile(r"^Ignoring ([\w.-]+): markers")
_DOWNLOAD = re.compile(r"^\s*(?:Downloading|Using cached) ([\w.]+?)-\d\S* \(([^)]*)\)")
_BUILD = re.compile(r"^\s*Building wheel for ([\w.-]+)")
_REMEDIES = (
    ("No space left", "the disk is full; free some and run make again (it goes on where it stopped)"),
    ("Python.h", "Python's headers are missing; apt install python3-dev, then run make again"),
    ("No matching distribution", "no package index has it; see pip's settings with `pip config list`"),
    ("onnection", "the package index does not answer; check the network and run make again"),
)


class Progress:
    """What pip is at, told on one line that moves each second (a terminal) or twice a minute (a log)."""

    def __init__(self, what: str, total: int, out: TextIO) -> None:
        self.what, self.total, self.out = what, total, out
        self.started = time.monotonic()
        self.lines: set[str] = set()
        self.skipped = 0
        self.now = "starting"
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._tick, daemon=True)

    def __enter__(self) -> Progress:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()
        if self.out.isatty():
            self.out.write("\r\x1b[K")

    def read(self, line: str) -> None:
        """Follows one line of pip's output."""
        if match := _LINE.match(line):
            self.lines.add(match[2])
            self.now = f"looking for {Path(match[1]).name}"
        elif _SKIPPED.match(line):
            self.skipped += 1
        elif match := _DOWNLOAD.match(line):
            self.now = f"fetching {match[1]} ({match[2]})"
        elif match := _BUILD.match(line):
            self.now = f"compiling {match[1]}"
        elif line.startswith("Installing collected packages"):
            self.now = "unpacking all of them (the longest part)"

    def line(self) -> str:
        total = self.total - self.skipped
        count = f"{min(len(self.lines), total)} of {total}"
        return f"  {self.what}: {count}, {self.now}, {time.monotonic() - self.started:.0f} s"

    def _tick(self) -> None:
        terminal = self.out.isatty()
        while not self._done.wait(1 if terminal else 30):
            text = self.line()
            self.out.write(f"\r\x1b[K{text[:100]}" if terminal else f"{text}\n")
            self.out.flush()


def main(arguments: list[str]) -> int:
    """Returns pip's exit code."""
    what, total, *options = arguments
    started = time.monotonic()
    with Progress(what, int(total), sys.stdout) as progress:
        code, output = run_pip(options, progress)
    if code:
        sys.stderr.write(explain(what, output))
    elif time.monotonic() - started > 3:
        print(f"  {what}: done in {time.monotonic() - started:.0f} s")
    return code


def run_pip(options: list[str], progress: Progress) -> tuple[int, list[str]]:
    """Returns pip's exit code and its output, line by line."""
    command = [sys.executable, "-m", "pip", "install", *options]
    quiet = {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1", "PYTHONUNBUFFERED": "1"}
    output: list[str] = []
    with (
        LOG.open("a") as log,
        subprocess.Popen(
            command, env=os.environ | quiet, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as pip,
    ):
        assert pip.stdout is not None
        for line in pip.stdout:
            log.write(line)
            output.append(line)
            progress.read(line)
    return pip.returncode, output


def explain(what: str, output: list[str]) -> str:
    """pip's errors, each once, then what to do."""
    errors = [line for line in output if line.lstrip().startswith(("ERROR:", "error:"))] or output[-5:]
    text = "".join(dict.fromkeys(errors))
    remedy = next((remedy for sign, remedy in _REMEDIES if any(sign in line for line in output)), "")
    return f"{text}pagetide: {what} could not be installed; {remedy or 'see the log'} (log: {LOG})\n"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
