"""The server's side of the process that compiles grammars (pagetide.grammar_worker)."""

from __future__ import annotations

import logging
import pickle
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time

from pagetide.grammar import Grammar
from pagetide.grammar_job import COMPILED, STARTED, Job, Vocabulary, read_all

log = logging.getLogger(__name__)

_START_S = 60.0
"""How long the process may take to be ready, on a machine with other work."""

_STOP_S = 10.0

_PLACE = re.compile(r"^\[[\d:]+\] \S+:\d+: ")


class CompileError(ValueError):
    """The grammar can't be compiled here; the message says why."""


class GrammarProcess:
    """Compiles run at the same time, each in a fork of its own. Any thread may ask for one."""

    def __init__(self, vocabulary: Vocabulary, max_s: float, max_bytes: int) -> None:
        self._vocabulary = vocabulary
        self._max_s = max_s
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None

    @property
    def pid(self) -> int | None:
        """The process's id, None while there is none."""
        return None if self._process is None else self._process.pid

    def compile(self, grammar: Grammar) -> str:
        """The compiled grammar, in the compiler's JSON.

        Raises CompileError, and RuntimeError when the process can't be had.
        """
        with self._give(Job(grammar, self._max_s, self._max_bytes)) as peer:
            started = peer.recv(1)
            started_s = time.monotonic()
            reply = read_all(peer)
        if started != STARTED:
            raise RuntimeError("the process that compiles grammars ended")
        if not reply:
            raise CompileError(self._limit(time.monotonic() - started_s))
        text = reply[1:].decode(errors="replace")
        if reply[:1] != COMPILED:
            raise CompileError(_reason(text))
        return text

    def stop(self) -> None:
        with self._lock:
            if self._control is not None and self._process is not None:
                self._control.close()
                self._process.wait(_STOP_S)
            self._control = self._process = None

    def _give(self, job: Job) -> socket.socket:
        ours, theirs = socket.socketpair()
        ours.settimeout(self._max_s + _START_S)
        with theirs, self._lock:
            socket.send_fds(self._running(), [b"\0"], [theirs.fileno()])
        ours.sendall(pickle.dumps(job))
        ours.shutdown(socket.SHUT_WR)
        return ours

    def _limit(self, took_s: float) -> str:
        """Why a fork ended without a word."""
        if took_s > 0.9 * self._max_s:
            return f"it takes more than {self._max_s:g} s"
        return f"it takes more than {self._max_bytes} bytes of memory, or breaks the compiler"

    def _running(self) -> socket.socket:
        """The way to a live process: the one there is, or a new one."""
        if self._control is None or self._process is None or self._process.poll() is not None:
            if self._process is not None:
                log.error("the process that compiles grammars ended with %s", self._process.returncode)
            self._control, self._process = self._start()
        return self._control

    def _start(self) -> tuple[socket.socket, subprocess.Popen[bytes]]:
        """In a session of its own: what ends the server's group leaves it to finish and see the end."""
        ours, theirs = socket.socketpair()
        with theirs, tempfile.TemporaryFile() as vocabulary:
            pickle.dump(self._vocabulary, vocabulary)
            vocabulary.seek(0)
            process = subprocess.Popen(
                [sys.executable, "-m", "pagetide.grammar_worker", str(theirs.fileno())],
                stdin=vocabulary,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        return ours, process


def _reason(text: str) -> str:
    """The compiler's words without the time and the place in its source; each once, on one line."""
    if "bad_alloc" in text:
        return "it takes too much memory"
    lines = [_PLACE.sub("", line).strip() for line in text.splitlines()]
    return "; ".join(dict.fromkeys(filter(None, lines)))
