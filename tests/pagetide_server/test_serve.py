"""`pagetide serve` as a user runs it: what it says, what it survives, how it ends."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from serve_world import BROKEN, Serve, open_stream, wait_until, write_version

from pagetide_server import processes
from pagetide_server.launcher import Server
from pagetide_server.supervisor import StubWatch

pytestmark = pytest.mark.server


def stub_pid(serving: Serve) -> int:
    (stub,) = processes.stubs(serving.server_pid())
    return stub.pid


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_lets_running_requests_finish_and_leaves_nothing(
    number: int, repository: Path, serve: Callable[..., Serve], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RESPONSES", "20")
    monkeypatch.setenv("PAUSE_S", "0.1")
    write_version(repository)
    serving = serve()
    serving.wait_for("Ready in")
    assert serving.shared_memory()
    with open_stream(serving.ports.http) as stream:
        stream.readline()
        serving.process.send_signal(number)
        assert stream.read().count(b"text_output") == 19
    assert serving.process.wait(60) == 0
    assert serving.shared_memory() == []


def test_a_second_signal_ends_it_at_once(
    repository: Path, serve: Callable[..., Serve], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RESPONSES", "1000")
    monkeypatch.setenv("PAUSE_S", "0.1")
    write_version(repository)
    serving = serve("--exit-timeout-s", "100")
    serving.wait_for("Ready in")
    server = serving.server_pid()
    with open_stream(serving.ports.http) as stream:
        stream.readline()
        serving.process.send_signal(signal.SIGINT)
        serving.wait_for("Stopping")
        serving.process.send_signal(signal.SIGINT)
        assert serving.process.wait(30) == 130
    assert processes.is_dead(server)
    assert serving.shared_memory() == []


def test_a_stub_that_died_before_anyone_looked_is_found(repository: Path, server: Server) -> None:
    write_version(repository)
    with server:
        server.wait_ready("counter")
        (stub,) = server.stubs()
        os.kill(stub.pid, signal.SIGKILL)
        wait_until(lambda: processes.is_dead(stub.pid))
        watch = StubWatch(server)
        assert [watch.dead(), watch.dead()] == [[], ["a model"]]


@pytest.mark.parametrize("victim", ["stub", "server"])
def test_what_dies_is_started_again(victim: str, repository: Path, serve: Callable[..., Serve]) -> None:
    write_version(repository)
    serving = serve()
    serving.wait_for("Ready in")
    os.kill(stub_pid(serving) if victim == "stub" else serving.server_pid(), signal.SIGKILL)
    serving.wait_for("Ready in", times=2)
    assert "starting again" in serving.text
    with open_stream(serving.ports.http) as stream:
        assert stream.read().count(b"text_output") == 3
    assert len(serving.shared_memory()) == 1


def test_what_to_try_next_names_the_ports_in_use(repository: Path, serve: Callable[..., Serve]) -> None:
    write_version(repository)
    serving = serve()
    serving.wait_for("Ctrl-C finishes what runs")
    assert "generate_stream -d '{" in serving.text
    for port in (serving.ports.http, serving.ports.grpc, serving.ports.metrics):
        assert f"127.0.0.1:{port}" in serving.text


def test_a_repository_in_which_nothing_loads_ends_with_the_reason(
    repository: Path, serve: Callable[..., Serve]
) -> None:
    write_version(repository, BROKEN)
    serving = serve()
    assert serving.process.wait(60) == 1
    assert "counter version 1 could not be loaded: ValueError: no such file: weights.bin\n" in serving.text
    assert serving.text.count("no such file") == 1


def test_a_broken_model_does_not_keep_others_from_being_served(
    repository: Path, serve: Callable[..., Serve]
) -> None:
    write_version(repository)
    write_version(repository, BROKEN, name="broken")
    serving = serve()
    serving.wait_for("Ready in")
    assert "Ready in" in serving.text
    assert "broken version 1 could not be loaded" in serving.text
    with open_stream(serving.ports.http) as stream:
        assert stream.read().count(b"text_output") == 3


def test_an_empty_repository_waits_for_a_model(repository: Path, serve: Callable[..., Serve]) -> None:
    serving = serve()
    serving.wait_for("No model in")
    write_version(repository.parent / "elsewhere").parent.rename(repository / "counter")
    serving.wait_for("loaded counter")


def test_shared_memory_of_a_killed_launcher_is_removed_at_the_next_start(
    repository: Path, serve: Callable[..., Serve]
) -> None:
    write_version(repository)
    first = serve()
    first.wait_for("Ready in")
    server = first.server_pid()
    os.kill(first.process.pid, signal.SIGSTOP)
    os.kill(server, signal.SIGKILL)
    first.process.kill()
    first.process.wait()
    wait_until(lambda: processes.is_dead(server))
    assert first.shared_memory()
    serve().wait_for("Ready in")
    assert first.shared_memory() == []
