"""The installed command, in pipes and on a terminal."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tritonclient.grpc import service_pb2 as pb

PAGETIDE = str(Path(sys.executable).with_name("pagetide"))
DEADLINE_S = 60.0

_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def response(text: str, finish_reason: str = "None") -> pb.ModelStreamInferResponse:
    """One message of a stream, as the server writes it."""
    message = pb.ModelStreamInferResponse()
    for name, value in (("text_output", text), ("finish_reason", finish_reason)):
        message.infer_response.outputs.add(name=name, datatype="BYTES", shape=[1])
        data = value.encode()
        message.infer_response.raw_output_contents.append(len(data).to_bytes(4, "little") + data)
    message.infer_response.parameters["triton_final_response"].bool_param = finish_reason != "None"
    return message


def run_pagetide(*arguments: str, stdin: bytes = b"", **env: str) -> subprocess.CompletedProcess[bytes]:
    """Runs the installed command with pipes for stdin, stdout and stderr."""
    return subprocess.run(
        [PAGETIDE, *arguments], input=stdin, capture_output=True, timeout=120, env=os.environ | env
    )


class Terminal:
    """A command on a terminal of its own: what a person types, and what they see."""

    def __init__(self, arguments: Sequence[str], url: str) -> None:
        env = os.environ | {"PAGETIDE_URL": url, "TERM": "xterm-256color", "COLUMNS": "80", "LINES": "24"}
        self._fd, theirs = pty.openpty()
        self._process = subprocess.Popen(
            [PAGETIDE, *arguments],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=env,
            start_new_session=True,
        )
        os.close(theirs)
        os.set_blocking(self._fd, False)
        self.raw = b""
        self._seen = 0

    @property
    def text(self) -> str:
        return _ESCAPES.sub("", self.raw.decode(errors="replace"))

    def type(self, keys: str) -> None:
        os.write(self._fd, keys.encode())

    def interrupt(self) -> None:
        """Ctrl-C."""
        self._process.send_signal(signal.SIGINT)

    def wait_for(self, pattern: str) -> re.Match[str]:
        """The first match after what was waited for before."""
        deadline_s = time.monotonic() + DEADLINE_S
        while not (match := re.compile(pattern).search(self.text, self._seen)):
            assert time.monotonic() < deadline_s, f"{pattern!r} never came after {self.text!r}"
            self._read()
        self._seen = match.end()
        return match

    def wait_for_end(self) -> int:
        code = self._process.wait(DEADLINE_S)
        self._read()
        return code

    def close(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        os.close(self._fd)

    def _read(self) -> None:
        try:
            self.raw += os.read(self._fd, 65536)
        except BlockingIOError:
            time.sleep(0.02)
        except OSError:
            assert self._process.poll() is not None
