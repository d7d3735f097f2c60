"""One tritonserver process: started, waited for, stopped, and nothing of it left behind."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

from pagetide_server import api, layout, processes
from pagetide_server.errors import ServerError
from pagetide_server.logs import LoadFailure, LoadFailures, LogFollower, reasons, tail
from pagetide_server.ports import Ports, free_ports

KILL_MARGIN_S = 15.0
"""Past `exit_timeout_s` the server only has `finalize` left to run."""


@dataclass
class Server:
    """A tritonserver over one model repository, in its own process group, bound to `host`.

    Use it as a context manager, or call `start` and `stop`. `env` is laid over the environment of the
    server and its stubs. `log_path` takes everything the server and its models print.
    """

    repository: Path
    ports: Ports | None = None
    host: str = "127.0.0.1"
    device: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    log_path: Path | None = None
    exit_timeout_s: int = 30
    poll_s: int = 1
    log_verbose: int = 0
    arguments: Sequence[str] = ()

    def __post_init__(self) -> None:
        self.ports = self.ports or free_ports(self.host)
        self.log_path = self.log_path or _default_log(self.ports)
        self._shared_memory = processes.shared_memory_prefix()
        self._process: subprocess.Popen[bytes] | None = None
        self._follower = LogFollower(self.log_path)
        self._failures = LoadFailures()

    @property
    def http_port(self) -> int:
        return self._ports.http

    @property
    def grpc_port(self) -> int:
        return self._ports.grpc

    @property
    def metrics_port(self) -> int:
        return self._ports.metrics

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.http_port}"

    @property
    def log(self) -> Path:
        assert self.log_path is not None
        return self.log_path

    @property
    def pid(self) -> int:
        """Raises ServerError before `start`."""
        if self._process is None:
            raise ServerError("the server has not been started")
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """None while the process runs; negative when a signal ended it."""
        return None if self._process is None else self._process.poll()

    def start(self) -> Server:
        """Starts the process and returns at once. Raises ServerError on a busy port or a missing part."""
        if not self.repository.is_dir():
            raise ServerError(f"model repository {self.repository} is not a directory")
        self._ports.check_free(self.host)
        laid_out = layout.prepare()
        with self._fresh_log() as log:
            self._process = subprocess.Popen(
                self._command(laid_out),
                env=environment(laid_out, self.device, self.env),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return self

    def wait_ready(
        self, model: str | None = None, version: str | None = None, timeout_s: float = 120
    ) -> None:
        """Returns when the server, or that model, is ready.

        Raises ServerError when the process ends, a model it waits for failed to load, or time is up.
        """
        deadline = time.monotonic() + timeout_s
        while not self.is_ready(model, version):
            self.check_alive()
            failed = self.failures(model, version)
            if failed:
                raise ServerError("; ".join(map(str, failed)))
            if time.monotonic() > deadline:
                raise ServerError(
                    f"{model or 'the server'} is not ready after {timeout_s:g} s; log: {self.log}"
                )
            time.sleep(0.05)

    def is_ready(self, model: str | None = None, version: str | None = None) -> bool:
        """Whether the server, that model, or that version of it answers that it is ready."""
        if model is None:
            return api.answers(self.url, "/v2/health/ready")
        path = f"/v2/models/{model}" + (f"/versions/{version}" if version else "")
        return api.answers(self.url, f"{path}/ready")

    def is_live(self) -> bool:
        """Whether the endpoints are open; they open once every model has loaded or failed to."""
        return api.answers(self.url, "/v2/health/live")

    def check_alive(self) -> None:
        """Raises ServerError with the reason when the process has ended."""
        code = self.returncode
        if code is not None:
            why = "; ".join(reasons(self.log)) or tail(self.log)
            raise ServerError(f"tritonserver ended with code {code}: {why} (log: {self.log})")

    def index(self) -> list[api.ModelState]:
        """Every model version the server knows; none while it does not answer yet."""
        try:
            return api.repository_index(self.url)
        except OSError:
            return []

    def failures(self, model: str | None = None, version: str | None = None) -> list[LoadFailure]:
        """What failed to load and has not loaded since, each with its reason."""
        for line in self._follower.lines():
            self._failures.read(line)
        return [
            each
            for each in self._failures
            if model in (None, each.name) and (version is None or each.version in ("", version))
        ]

    def stubs(self, model: str | None = None) -> list[processes.Stub]:
        """The live stub processes, of one model or of all."""
        return [stub for stub in processes.stubs(self.pid) if model in (None, stub.model)]

    def stop(self) -> int:
        """Lets running requests finish for `exit_timeout_s`, then stops; returns the exit code.

        Removes what the process left in /dev/shm. A process that does not end is killed.
        """
        if self._process is None:
            return 0
        self.terminate()
        try:
            self._process.wait(self.exit_timeout_s + KILL_MARGIN_S)
        except subprocess.TimeoutExpired:
            return self.kill()
        self._clean()
        return self._process.returncode

    def terminate(self) -> None:
        """Asks the process to finish what runs and end; returns at once."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)

    def kill(self) -> int:
        """Ends the process and its stubs at once; running requests are lost."""
        if self._process is None:
            return 0
        self._clean()
        return self._process.wait()

    def __enter__(self) -> Server:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def _ports(self) -> Ports:
        assert self.ports is not None
        return self.ports

    def _fresh_log(self) -> BinaryIO:
        """The log of the run before, which may tell of a crash, is kept as `*.previous`."""
        self.log.parent.mkdir(parents=True, exist_ok=True)
        if self.log.exists():
            self.log.rename(self.log.with_name(f"{self.log.name}.previous"))
        return self.log.open("wb")

    def _clean(self) -> None:
        """The group outlives a server that crashed: its stubs still hold the shared memory."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        processes.remove_shared_memory(self._shared_memory)

    def _command(self, laid_out: layout.Layout) -> list[str]:
        return [
            *processes.ending_with_parent(),
            str(laid_out.binary),
            *self._options(laid_out),
            *self.arguments,
        ]

    def _options(self, laid_out: layout.Layout) -> Iterator[str]:
        yield f"--model-repository={self.repository.resolve()}"
        yield f"--backend-directory={laid_out.backends}"
        yield f"--backend-config=python,shm-region-prefix-name={self._shared_memory}"
        for name, port in asdict(self._ports).items():
            yield f"--{name}-address={self.host}"
            yield f"--{name}-port={port}"
        yield "--model-control-mode=poll"
        yield f"--repository-poll-secs={self.poll_s}"
        yield f"--exit-timeout-secs={self.exit_timeout_s}"
        yield "--exit-on-error=false"
        yield f"--allow-gpu-metrics={str(Path('/dev/nvidiactl').exists()).lower()}"
        yield f"--log-verbose={self.log_verbose}"


def environment(
    laid_out: layout.Layout, device: str | None = None, extra: Mapping[str, str] | None = None
) -> dict[str, str]:
    """The environment in which a stub finds this Python, its packages and its shared library.

    Idle OpenMP threads sleep (OMP_WAIT_POLICY): spinning ones take the cores that the server needs.
    """
    variables = dict(os.environ)
    variables.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    variables[layout.STUB_FLAG] = "1"
    if device:
        variables["PAGETIDE_DEVICE"] = device
    _prepend(variables, "PATH", [Path(sys.prefix) / "bin"])
    _prepend(variables, "LD_LIBRARY_PATH", laid_out.libraries)
    variables.update(extra or {})
    return variables


def _prepend(variables: dict[str, str], name: str, directories: Sequence[Path]) -> None:
    old = [variables[name]] if variables.get(name) else []
    variables[name] = os.pathsep.join([*map(str, directories), *old])


def _default_log(ports: Ports) -> Path:
    return layout.state_directory() / "log" / f"tritonserver-{ports.http}.log"
