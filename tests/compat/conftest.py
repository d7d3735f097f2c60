"""The client packages of others, in a virtual environment of their own: they don't go with our pins."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from triton_world import MODEL, Triton, copy_of_the_shipped_repository

from pagetide_server.front import Kind, add_front
from pagetide_server.launcher import Server

HERE = Path(__file__).parent
PINS = HERE.parents[1] / "requirements" / "compat.txt"
VENV = Path(sys.prefix) / "compat"

Ask = Callable[..., Any]


@pytest.fixture(scope="session")
def python() -> Path:
    """The Python that has the clients. It is made once for each state of the pins."""
    stamp, wanted = VENV / "pins", hashlib.sha256(PINS.read_bytes()).hexdigest()
    if not stamp.exists() or stamp.read_text() != wanted:
        subprocess.run([sys.executable, "-m", "venv", "--clear", "--without-pip", VENV], check=True)
        pip = [sys.executable, "-m", "pip", "--python", str(VENV / "bin" / "python")]
        options = ["--quiet", "--no-deps", "--no-compile", "--only-binary", ":all:", "-r", str(PINS)]
        done = subprocess.run([*pip, "install", *options], stderr=subprocess.PIPE, text=True)
        if "No matching distribution" in done.stderr:
            pytest.skip(f"no client for this Python and index: {done.stderr.strip().splitlines()[-1]}")
        assert done.returncode == 0, done.stderr
        stamp.write_text(wanted)
    return VENV / "bin" / "python"


@pytest.fixture(scope="session")
def ask(python: Path) -> Ask:
    """Runs a client's script; returns the JSON that it prints."""

    def run(script: str, *arguments: str) -> Any:
        command = [str(python), str(HERE / script), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return run


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Triton]:
    place = tmp_path_factory.mktemp("compat")
    repository = copy_of_the_shipped_repository(place / "repository")
    for kind in Kind:
        add_front(MODEL, kind, model_repository=repository)
    with Server(repository, device="cpu", log_path=place / "server.log") as server:
        for path in repository.iterdir():
            if path.is_dir():
                server.wait_ready(path.name)
        yield Triton(server)
