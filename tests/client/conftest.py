"""A real server for the whole session, and a scripted one for what a real one does only when it fails."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest
from client_world import run_pagetide
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc

from pagetide_client import Client
from pagetide_client.metrics import scrape
from pagetide_server.launcher import Server

SHIPPED = Path(__file__).parents[2] / "model_repository"
SETTLE_S = 60.0

Script = Callable[[pb.ModelInferRequest, grpc.ServicerContext], Iterator[Any]]


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    place = tmp_path_factory.mktemp("client")
    repository = place / "repository"
    shutil.copytree(SHIPPED, repository, ignore=shutil.ignore_patterns("__pycache__"))
    with Server(repository, device="cpu", log_path=place / "server.log") as running:
        running.wait_ready("smollm2")
        yield running


@pytest.fixture(scope="session")
def url(server: Server) -> str:
    return f"{server.host}:{server.grpc_port}"


@pytest.fixture(scope="session")
def metrics_url(server: Server) -> str:
    return f"http://{server.host}:{server.metrics_port}/metrics"


@pytest.fixture
def client(url: str) -> Iterator[Client]:
    with Client(url) as connected:
        yield connected


@pytest.fixture
def wait_until_running(metrics_url: str) -> Callable[[int], None]:
    """Waits until the server runs that many requests, and for 0 until it holds no block either."""

    def settled(count: int) -> bool:
        (reading,) = scrape(metrics_url).readings.values()
        running = reading.values["vllm:num_requests_running"] + reading.values["vllm:num_requests_waiting"]
        return running == count and (count > 0 or reading.blocks["used"] == 0)

    def wait(count: int) -> None:
        deadline_s = time.monotonic() + SETTLE_S
        while not settled(count):
            assert time.monotonic() < deadline_s, f"the server never ran {count} requests"
            time.sleep(0.05)

    return wait


def _answers_nothing(request: pb.ModelInferRequest, context: grpc.ServicerContext) -> Iterator[Any]:
    yield from ()


@pytest.fixture
def scripted() -> Iterator[Callable[..., str]]:
    """Starts a gRPC server whose streams answer as a function says; gives its address.

    `states` are those of its one model, each time it is asked for; the last one stays.
    """
    servers = []

    def start(script: Script = _answers_nothing, states: Sequence[str] = ("READY",)) -> str:
        server = grpc.server(ThreadPoolExecutor(8))
        service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(_Scripted(script, states), server)
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        servers.append(server)
        return f"127.0.0.1:{port}"

    yield start
    for server in servers:
        server.stop(0).wait()


class _Scripted(service_pb2_grpc.GRPCInferenceServiceServicer):
    def __init__(self, script: Script, states: Sequence[str]) -> None:
        self._script = script
        self._states = list(states)

    def ServerLive(self, request: Any, context: Any) -> Any:  # noqa: N802 - the name of the gRPC method
        return pb.ServerLiveResponse(live=True)

    def RepositoryIndex(self, request: Any, context: Any) -> Any:  # noqa: N802
        index = pb.RepositoryIndexResponse()
        state = self._states.pop(0) if len(self._states) > 1 else self._states[0]
        index.models.add(name="scripted", version="1", state=state)
        return index

    def ModelStreamInfer(self, requests: Any, context: Any) -> Iterator[Any]:  # noqa: N802
        yield from self._script(next(requests), context)


@pytest.fixture(scope="session")
def cli(url: str, metrics_url: str) -> Callable[..., subprocess.CompletedProcess[bytes]]:
    """`run_pagetide` against the real server."""
    return partial(run_pagetide, PAGETIDE_URL=url, PAGETIDE_METRICS_URL=metrics_url)
