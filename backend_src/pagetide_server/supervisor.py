"""Keeps a server running: watches its process and its stubs, restarts what died, stops on a signal."""

from __future__ import annotations

import signal
import time
from collections import deque
from collections.abc import Callable
from types import FrameType

from pagetide_server import processes
from pagetide_server.console import Console
from pagetide_server.errors import ServerError
from pagetide_server.launcher import KILL_MARGIN_S, Server
from pagetide_server.logs import LogFollower

POLL_S = 0.2
MAX_RESTARTS = 5
RESTART_WINDOW_S = 600.0
KILLED_EXIT_CODE = 130


class Supervisor:
    """Runs one server after another, made by `make_server`, until it is told to stop or cannot go on."""

    def __init__(self, make_server: Callable[[], Server], console: Console) -> None:
        self._make_server = make_server
        self._console = console
        self._signals = 0
        self._restarts: deque[float] = deque(maxlen=MAX_RESTARTS)

    def run(self) -> int:
        """Returns the exit code: 0 after a clean stop, 1 when the server could not start or go on.

        SIGINT, SIGTERM and SIGHUP let running requests finish; a second one ends everything at once.
        """
        for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(each, self._on_signal)
        while True:
            server = self._make_server()
            try:
                why = self._serve(server)
                if why is None:
                    return self._stop(server)
            finally:
                server.kill()
            if not self._may_restart():
                self._console.complain(f"{why}, after {MAX_RESTARTS} restarts; giving up (log: {server.log})")
                return 1
            self._console.complain(f"{why}; starting again (its log becomes {server.log}.previous)")

    def _serve(self, server: Server) -> str | None:
        """Returns None when told to stop, else why the server has to be started anew.

        Raises ServerError when it does not come up.
        """
        self._console.restart_clock()
        server.start()
        log = LogFollower(server.log)
        if not self._wait_until_up(server, log):
            return None
        self._announce(server)
        return self._watch(server, log)

    def _wait_until_up(self, server: Server, log: LogFollower) -> bool:
        """The endpoints open once every model has loaded or failed to. False when told to stop first."""
        while not server.is_live():
            if self._signals:
                return False
            server.check_alive()
            self._relay(log)
            self._console.tick("starting tritonserver and loading models")
            time.sleep(POLL_S)
        self._relay(log)
        return True

    def _announce(self, server: Server) -> None:
        states = server.index()
        if server.failures() and not any(state.ready for state in states):
            raise ServerError(f"no model could be loaded (log: {server.log})")
        self._console.ready(server, states)

    def _watch(self, server: Server, log: LogFollower) -> str | None:
        watch = StubWatch(server)
        while not self._signals:
            self._relay(log)
            if server.returncode is not None:
                return f"tritonserver ended with code {server.returncode}"
            dead = watch.dead()
            if dead:
                return f"the process that served {', '.join(dead)} died"
            time.sleep(POLL_S)
        return None

    def _stop(self, server: Server) -> int:
        self._console.say(
            f"Stopping: running requests have {server.exit_timeout_s} s to finish; Ctrl-C again ends them"
        )
        self._console.restart_clock()
        server.terminate()
        deadline = time.monotonic() + server.exit_timeout_s + KILL_MARGIN_S
        while server.returncode is None and self._signals < 2 and time.monotonic() < deadline:
            self._console.tick("stopping")
            time.sleep(POLL_S)
        if server.returncode is None:
            server.kill()
            return KILLED_EXIT_CODE
        self._console.say("Stopped")
        return 0 if server.returncode == 0 else 1

    def _relay(self, log: LogFollower) -> None:
        for line in log.lines():
            self._console.relay(line)

    def _may_restart(self) -> bool:
        """At most MAX_RESTARTS within RESTART_WINDOW_S."""
        now = time.monotonic()
        full = len(self._restarts) == MAX_RESTARTS
        if full and now - self._restarts[0] < RESTART_WINDOW_S:
            return False
        self._restarts.append(now)
        return True

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._signals += 1


class StubWatch:
    """Finds stubs that died under a living server, which itself goes on answering that it is ready.

    A stub that its server ends on purpose is a zombie for a moment, so only one seen dead twice counts.
    """

    def __init__(self, server: Server) -> None:
        self._server = server
        self._names: dict[int, str] = {}
        self._suspects: set[int] = set()

    def dead(self) -> list[str]:
        """What the dead stubs served."""
        self._names |= {stub.pid: f"{stub.model} version {stub.version}" for stub in self._server.stubs()}
        dead = processes.dead_stubs(self._server.pid)
        confirmed = dead & self._suspects
        self._suspects = dead
        return [self._names.get(pid, "a model") for pid in sorted(confirmed)]
