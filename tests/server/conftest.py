"""One real tritonserver with the default CPU model for the whole test session."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from triton_world import (
    ENSEMBLE,
    INFER,
    MODEL,
    SMALL,
    SMALL_BLOCKS,
    SMOLLM2_BLOCK_BYTES,
    Triton,
    copy_of_the_shipped_repository,
)

from pagetide_server.front import Kind, add_front
from pagetide_server.launcher import Server

LIMITED = {"kv_cache_bytes": f"{SMALL_BLOCKS * SMOLLM2_BLOCK_BYTES}", "max_running": 4}


def add_small_model(repository: Path) -> None:
    version = repository / SMALL / "1"
    shutil.copytree(repository / MODEL / "1", version)
    settings = json.loads((version / "model.json").read_text())
    (version / "model.json").write_text(json.dumps(settings | LIMITED))


@pytest.fixture(scope="session")
def triton(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Triton]:
    place = tmp_path_factory.mktemp("triton")
    repository = copy_of_the_shipped_repository(place / "repository")
    add_small_model(repository)
    for kind in (Kind.trtllm, Kind.infer):
        add_front(MODEL, kind, model_repository=repository)
    with Server(repository, device="cpu", log_path=place / "server.log") as server:
        for model in (MODEL, SMALL, ENSEMBLE, INFER):
            server.wait_ready(model)
        yield Triton(server)


@pytest.fixture
def repository_copy(tmp_path: Path) -> Path:
    """For a test that starts a server of its own."""
    return copy_of_the_shipped_repository(tmp_path / "repository")


@pytest.fixture
def idle(triton: Triton) -> Iterator[Triton]:
    """The server, idle before the test and left without a block in use after it."""
    triton.wait_until_idle()
    yield triton
    triton.wait_until_idle()
