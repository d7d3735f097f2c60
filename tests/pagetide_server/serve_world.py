"""A model that counts instead of generating, and `pagetide serve` in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import IO

from pagetide_server.ports import Ports, free_ports

# A model without an engine: what is tested here is the server around it. Each instance appends one line
# to the file that LOADS names; each request streams RESPONSES numbers, PAUSE_S apart.
COUNTER = """\
import os, threading, time
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        config.add_input({"name": "text_input", "data_type": "TYPE_STRING", "dims": [1]})
        config.add_output({"name": "text_output", "data_type": "TYPE_STRING", "dims": [1]})
        config.set_max_batch_size(0)
        config.set_model_transaction_policy({"decoupled": True})
        return config

    def initialize(self, args):
        with open(os.environ["LOADS"], "a") as loads:
            loads.write(args["model_version"] + "\\n")

    def execute(self, requests):
        for request in requests:
            threading.Thread(target=count, args=(request.get_response_sender(),)).start()


def count(sender):
    last = int(os.environ["RESPONSES"]) - 1
    for i in range(last + 1):
        text = pb_utils.Tensor("text_output", np.array([str(i).encode()], dtype=object))
        final = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL if i == last else 0
        sender.send(pb_utils.InferenceResponse([text]), flags=final)
        time.sleep(float(os.environ["PAUSE_S"]))
"""
_INITIALIZE = "def initialize(self, args):\n"
_RAISE = '        raise ValueError("no such file: weights.bin")\n'
BROKEN = COUNTER.replace(_INITIALIZE, _INITIALIZE + _RAISE)


def write_version(repository: Path, source: str = COUNTER, version: int = 1, name: str = "counter") -> Path:
    directory = repository / name / str(version)
    directory.mkdir(parents=True)
    (directory / "model.py").write_text(source)
    return directory


def wait_until(condition: Callable[[], bool], timeout_s: float = 60) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout_s} s"
        time.sleep(0.05)


def open_stream(http_port: int) -> IO[bytes]:
    """A request whose answer is read as it comes."""
    url = f"http://127.0.0.1:{http_port}/v2/models/counter/generate_stream"
    request = urllib.request.Request(url, data=b'{"text_input": "x"}')
    return urllib.request.urlopen(request, timeout=60)


class Serve:
    """`pagetide serve` as a user runs it, in a process of its own."""

    def __init__(self, repository: Path, output: Path, *options: str) -> None:
        self.ports: Ports = free_ports()
        self.output = output
        command = [sys.executable, "-m", "pagetide_server", "serve", "-r", str(repository)]
        command += ["--log-file", str(output.with_suffix(".log")), "--poll-s", "1", *options]
        for name in ("http", "grpc", "metrics"):
            command += [f"--{name}-port", str(getattr(self.ports, name))]
        with output.open("wb") as out:
            self.process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT)

    @property
    def text(self) -> str:
        return self.output.read_text()

    def wait_for(self, text: str, times: int = 1) -> None:
        def seen() -> bool:
            assert self.process.poll() is None or self.text.count(text) >= times, self.text
            return self.text.count(text) >= times

        wait_until(seen)

    def server_pid(self) -> int:
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return int(children[0])

    def shared_memory(self) -> list[str]:
        return [name for name in os.listdir("/dev/shm") if name.startswith(f"pagetide_{self.process.pid}_")]
