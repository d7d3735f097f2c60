"""What `pagetide serve` shows: progress while models load, what to try next, errors as they come."""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path

from pagetide_server.api import ModelState
from pagetide_server.front import is_front
from pagetide_server.launcher import Server
from pagetide_server.logs import LogLine, load_failure

_LOADING = re.compile(r"^loading: (\S+):(\d+)$")
_LOADED = re.compile(r"^successfully (un)?loaded '([^']+)'(?: version (\d+))?$")
_NOISE = re.compile(r"CudaDriverHelper|ERROR: Failed to create instance|Internal: failed to load all models")
_SPINNER = "|/-\\"


class Console:
    """Writes to stdout, errors to stderr; a moving line only where stdout is a terminal."""

    def __init__(self) -> None:
        self._moving = sys.stdout.isatty()
        self._started = time.monotonic()
        self._ticks = 0
        self._told: set[str] = set()
        self._announced = False

    def say(self, text: str) -> None:
        self._clear()
        print(text, flush=True)

    def complain(self, text: str) -> None:
        self._clear()
        print(f"pagetide: {text}", file=sys.stderr, flush=True)

    def restart_clock(self) -> None:
        self._started = time.monotonic()

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self._started

    def tick(self, doing: str) -> None:
        """Shows that something moves."""
        if self._moving:
            self._ticks += 1
            sys.stdout.write(f"\r\x1b[K{_SPINNER[self._ticks % 4]} {doing}, {self.elapsed_s:.0f} s")
            sys.stdout.flush()

    def relay(self, line: LogLine) -> None:
        """Shows the log lines a user wants: errors, what models say, versions that come and go.

        A failure to load is told once, not at each of Triton's attempts; so is any other error.
        """
        if line.is_error:
            self._relay_error(line)
        elif line.is_from_model:
            self.say(f"  {line.text}")
        elif match := _LOADING.match(line.text):
            self._tell_once(self.say, f"  loading {match[1]} version {match[2]}")
        elif match := _LOADED.match(line.text):
            done = f"{match[2]} {'version ' + match[3] if match[3] else ''}".strip()
            self.say(f"  {'unloaded' if match[1] else 'loaded'} {done}")
            self._told -= {text for text in self._told if match[2] in text.split()}

    def _relay_error(self, line: LogLine) -> None:
        failure = load_failure(line)
        if failure is not None:
            self._tell_once(self.complain, str(failure))
        elif not _NOISE.match(line.text):
            self._tell_once(self.complain, line.text)

    def _tell_once(self, tell: Callable[[str], None], text: str) -> None:
        if text not in self._told:
            self._told.add(text)
            tell(text)

    def ready(self, server: Server, states: list[ModelState]) -> None:
        """What is served, and what to try next."""
        served = [f"{state.name} version {state.version}" for state in states if state.ready]
        if not served:
            self.say(f"Ready. No model in {server.repository} yet; put one there:")
            self.say(f"  {command()} add CHECKPOINT --name NAME")
            return
        self.say(f"Ready in {self.elapsed_s:.1f} s: {', '.join(served)}")
        if not self._announced:
            self.say(f"\n{next_steps(server, _to_try(server, states))}\n")
        self._announced = True

    def _clear(self) -> None:
        if self._moving:
            sys.stdout.write("\r\x1b[K")


def _to_try(server: Server, states: list[ModelState]) -> str:
    """A ready model, rather one that has an engine than a front."""
    ready = [state.name for state in states if state.ready]
    return min(ready, key=lambda name: is_front(server.repository / name))


def next_steps(server: Server, model: str) -> str:
    """Commands that work as they stand in the user's shell."""
    body = _json(text_input="Hello", stream=True, sampling_parameters=_json(max_tokens=16, temperature=0))
    flags = "" if model == "smollm2" else f" --model {model}"
    flags += "" if server.grpc_port == 8001 else f" --url {server.host}:{server.grpc_port}"
    return "\n".join(
        [
            f'  {command()} generate "The capital of France is" --max-tokens 32{flags}',
            f"  curl -N {server.host}:{server.http_port}/v2/models/{model}/generate_stream -d '{body}'",
            f"  curl {server.host}:{server.metrics_port}/metrics",
            f"  log: {shown(server.log)}",
            "",
            "Ctrl-C finishes what runs, then stops.",
        ]
    )


def _json(**fields: object) -> str:
    return json.dumps(fields, separators=(",", ":"))


def command() -> str:
    """How to call `pagetide` from here: by name, or by the path of this environment's script."""
    script = Path(sys.prefix) / "bin" / "pagetide"
    if str(script.parent) in os.environ.get("PATH", "").split(os.pathsep):
        return "pagetide"
    return shown(script)


def shown(path: Path) -> str:
    """Relative where it lies below the current directory."""
    return os.path.relpath(path) if path.is_relative_to(Path.cwd()) else str(path)
