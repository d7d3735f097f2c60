"""One real tritonserver with the default CPU model for the whole test session."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from triton_world import MODEL, Triton

from pagetide_server.launcher import Server

SHIPPED = Path(__file__).parents[2] / "model_repository"


def copy_of_the_shipped_repository(target: Path) -> Path:
    ignore = shutil.ignore_patterns("__pycache__")
    shutil.copytree(SHIPPED, target, ignore=ignore)
    return target


@pytest.fixture(scope="session")
def triton(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Triton]:
    place = tmp_path_factory.mktemp("triton")
    repository = copy_of_the_shipped_repository(place / "repository")
    with Server(repository, device="cpu", log_path=place / "server.log") as server:
        server.wait_ready(MODEL)
        yield Triton(server)


@pytest.fixture
def idle(triton: Triton) -> Iterator[Triton]:
    """The server, idle before the test and left without a block in use after it."""
    triton.wait_until_idle()
    yield triton
    triton.wait_until_idle()
