"""The launcher on a real tritonserver, with a model that counts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from serve_world import BROKEN, open_stream, wait_until, write_version

from pagetide_server import processes
from pagetide_server.errors import ServerError
from pagetide_server.launcher import Server

pytestmark = pytest.mark.server


def test_a_model_without_config_is_served_and_nothing_is_left_in_shared_memory(
    repository: Path, server: Server
) -> None:
    write_version(repository)
    before = set(os.listdir("/dev/shm"))
    with server:
        server.wait_ready("counter", "1")
        with open_stream(server.http_port) as stream:
            assert stream.read().count(b"text_output") == 3
        made = set(os.listdir("/dev/shm")) - before
        assert made
    assert server.returncode == 0
    assert not made & set(os.listdir("/dev/shm"))


def test_a_version_loads_once_though_its_bytecode_is_missing(
    repository: Path, server: Server, loads: Path
) -> None:
    write_version(repository)
    with server:
        server.wait_ready("counter")
        hand_made = write_version(repository.parent / "elsewhere", version=2)
        hand_made.rename(repository / "counter" / "2")
        server.wait_ready("counter", "2")
        wait_for_polls(server, repository, 3)
        assert loads.read_text().split() == ["1", "2"]


def wait_for_polls(server: Server, repository: Path, count: int) -> None:
    """Each poll of Triton complains anew about a directory that holds no model."""
    (repository / "empty").mkdir()
    wait_until(lambda: server.log.read_text().count("Poll failed for model directory 'empty'") >= count)


def test_a_version_that_fails_to_load_gives_its_reason_and_the_one_before_serves_on(
    repository: Path, server: Server
) -> None:
    write_version(repository)
    with server:
        server.wait_ready("counter", "1")
        write_version(repository.parent / "elsewhere", BROKEN, version=2).rename(repository / "counter" / "2")
        with pytest.raises(ServerError, match=r"counter version 2 .*: no such file: weights\.bin$"):
            server.wait_ready("counter", "2")
        assert server.is_ready("counter", "1")
        with open_stream(server.http_port) as stream:
            assert stream.read().count(b"text_output") == 3


def test_stopping_lets_a_running_stream_end_whole(
    repository: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RESPONSES", "30")
    monkeypatch.setenv("PAUSE_S", "0.1")
    write_version(repository)
    server.start()
    server.wait_ready("counter")
    with open_stream(server.http_port) as stream:
        first = stream.readline()
        server.terminate()
        rest = stream.read()
    assert (first + rest).count(b"text_output") == 30
    assert server.stop() == 0


def test_a_busy_port_is_named_with_the_option_that_changes_it(repository: Path, server: Server) -> None:
    write_version(repository)
    with server:
        server.wait_ready("counter")
        second = Server(repository, ports=server.ports, log_path=server.log.with_suffix(".second"))
        with pytest.raises(ServerError, match=rf"port {server.http_port} .*--http-port"):
            second.start()


def test_a_server_goes_down_with_a_launcher_that_is_killed(repository: Path, loads: Path) -> None:
    write_version(repository)
    code = (
        "import os, sys; from pathlib import Path; from pagetide_server.launcher import Server\n"
        "server = Server(Path(sys.argv[1]), log_path=Path(sys.argv[1]).with_name('log')).start()\n"
        "server.wait_ready('counter'); print(server.pid, flush=True); os.kill(os.getpid(), 9)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(repository)], stdout=subprocess.PIPE, check=False)
    assert done.returncode == -signal.SIGKILL
    wait_until(lambda: processes.is_dead(int(done.stdout)))
