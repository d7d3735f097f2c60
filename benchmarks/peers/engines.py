"""Who is measured, and how each comes to be: its environment, its weights, its process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
WORK = ROOT / ".bench" / "peers"
"""Environments, weights and logs; may be deleted at any time."""


class PeerError(RuntimeError):
    """An engine that can't be installed, loaded or run; the message says what happened."""


@dataclass(frozen=True)
class Peer:
    """`environment` names a requirements file, "" our own; `weights` what its worker is given."""

    name: str
    environment: str
    worker: str
    weights: str = "checkpoint"
    argument: str = ""


PEERS = (
    Peer("Pagetide engine", "", "pagetide_worker.py", argument="engine"),
    Peer("Pagetide through Triton", "", "pagetide_worker.py", argument="triton"),
    Peer("vLLM-CPU", "vllm", "vllm_worker.py"),
    Peer("OpenVINO GenAI", "openvino", "openvino_worker.py", weights="openvino"),
    Peer("transformers, continuous", "transformers", "transformers_worker.py", argument="continuous"),
    Peer("transformers, static", "transformers", "transformers_worker.py", argument="static"),
)


def prepare(peer: Peer, gguf: Path) -> None:
    """Installs the peer and makes its weights, unless they are there."""
    if not peer.environment:
        return
    python("transformers")
    checkpoint = WORK / "checkpoint"
    if not (checkpoint / "model.safetensors").exists():
        _run([python("transformers"), HERE / "convert.py", gguf, checkpoint])
    python(peer.environment)
    if peer.weights == "openvino" and not (WORK / "openvino" / "openvino_model.xml").exists():
        command = [python("openvino").parent / "optimum-cli", "export", "openvino", "-m", checkpoint]
        _run([*command, "--task", "text-generation-with-past", "--weight-format", "fp16", WORK / "openvino"])


def python(environment: str) -> Path:
    """The interpreter of a peer's environment, which is installed from exact versions on first use."""
    directory = WORK / f"venv-{environment}"
    interpreter, done = directory / "bin" / "python", directory / "installed"
    if not done.exists():
        venv.create(directory, with_pip=True, clear=True)
        pip = [interpreter, "-m", "pip"]
        _run([*pip, "install", "--quiet", "-r", HERE / "requirements" / f"{environment}.txt"])
        # They come as CUDA builds, which a CPU build of torch can't load.
        _run([*pip, "uninstall", "--quiet", "-y", "torchvision", "torchaudio", "torchcodec"])
        done.touch()
    return interpreter


def _run(command: Sequence[str | Path]) -> None:
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, env=_environment())
    if done.returncode:
        last = (done.stderr or done.stdout).strip().splitlines()[-1:]
        raise PeerError(f"{Path(command[0]).name} {command[1]} failed: {''.join(last)}")


def _environment() -> Mapping[str, str]:
    return os.environ | {"OMP_NUM_THREADS": "2", "OMP_WAIT_POLICY": "PASSIVE", "PYTHONPATH": f"{HERE}:{ROOT}"}


class Running:
    """A peer's process: one JSON line in, one out."""

    def __init__(self, peer: Peer) -> None:
        interpreter = python(peer.environment) if peer.environment else Path(sys.executable)
        words = [str(WORK / peer.weights)] if peer.environment else []
        command = [str(interpreter), str(HERE / peer.worker), *words, *filter(None, [peer.argument])]
        self._name = peer.name
        self._log = WORK / f"{Path(peer.worker).stem}-{peer.argument or 'log'}.txt"
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log.open("w"),
            text=True,
            env=_environment(),
        )
        self.versions: dict[str, str] = self._answer()["versions"]

    def run(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        print(json.dumps(asked), file=self._process.stdin, flush=True)
        return self._answer()

    def stop(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            last = self._log.read_text().strip().splitlines()[-1:]
            raise PeerError(f"{self._name} ended: {''.join(last)} (more in {self._log})")
        answer: dict[str, Any] = json.loads(line)
        return answer
