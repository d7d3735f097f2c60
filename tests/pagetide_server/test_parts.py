"""Ports, logs, the environment of the server, and pip's progress."""

from __future__ import annotations

import io
import os
import socket
import sys
from pathlib import Path

import pytest

from pagetide_server import install, layout
from pagetide_server.errors import ServerError
from pagetide_server.launcher import environment
from pagetide_server.logs import LoadFailures, LogFollower, parse
from pagetide_server.ports import Ports, free_ports

ERROR = (
    "E1129 17:52:52.489533 22490 model_lifecycle.cc:642] \"failed to load 'toy' version 2: Internal: "
    'ValueError: bad\\n\\nAt:\\n  /models/toy/2/model.py(14): initialize\\n"'
)
LOADED = "I1129 17:52:53.489533 22490 model_lifecycle.cc:839] \"successfully loaded 'toy'\""


def test_a_failure_to_load_is_news_once_until_the_model_loads() -> None:
    failures = LoadFailures()
    first = failures.read(parse(ERROR))
    assert str(first) == "toy version 2 could not be loaded: ValueError: bad"
    assert failures.read(parse(ERROR)) is None
    assert list(failures) == [first]
    failures.read(parse(LOADED))
    assert list(failures) == []
    assert failures.read(parse(ERROR)) == first


def test_a_log_is_read_in_whole_lines_each_once(tmp_path: Path) -> None:
    log = tmp_path / "log"
    follower = LogFollower(log)
    assert list(follower.lines()) == []
    log.write_text(f"{LOADED}\nhalf a li")
    assert [line.text for line in follower.lines()] == ["successfully loaded 'toy'"]
    assert list(follower.lines()) == []
    with log.open("a") as out:
        out.write("ne\n")
    assert [line.text for line in follower.lines()] == ["half a line"]


def test_a_line_that_a_model_logged_is_known_by_its_source() -> None:
    assert parse('I1129 17:52:53.489533 22490 model.py:7] "hello"').is_from_model
    assert not parse(LOADED).is_from_model


@pytest.mark.parametrize(
    ("ports", "message"), [(Ports(0, 1, 2), "a port is 1 to 65535"), (Ports(7, 7, 8), "differ")]
)
def test_ports_that_cannot_be_are_refused(ports: Ports, message: str) -> None:
    with pytest.raises(ServerError, match=message):
        ports.check_free("127.0.0.1")


def test_free_ports_are_three_and_free() -> None:
    free_ports().check_free("127.0.0.1")


def test_a_port_somebody_listens_on_is_named_with_its_option() -> None:
    ports = free_ports()
    with (
        socket.create_server(("127.0.0.1", ports.metrics)),
        pytest.raises(ServerError, match="--metrics-port"),
    ):
        ports.check_free("127.0.0.1")


def test_the_layout_is_made_once_and_a_damaged_one_again(tmp_path: Path) -> None:
    laid_out = layout.prepare(tmp_path)
    stub = laid_out.backends / "python" / "triton_python_backend_stub"
    assert os.access(stub, os.X_OK)
    inode = stub.stat().st_ino
    assert layout.prepare(tmp_path) == laid_out
    assert stub.stat().st_ino == inode
    os.truncate(stub, 10)
    layout.prepare(tmp_path)
    assert stub.stat().st_size > 10


def test_a_stub_finds_this_environment_and_the_users_variables_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", "/of/the/user")
    laid_out = layout.prepare(tmp_path)
    variables = environment(laid_out, "cpu", {"OMP_NUM_THREADS": "1"})
    assert variables["PATH"].split(os.pathsep)[0] == f"{sys.prefix}/bin"
    assert variables["LD_LIBRARY_PATH"].split(os.pathsep)[-1] == "/of/the/user"
    assert (variables["PAGETIDE_DEVICE"], variables["OMP_NUM_THREADS"]) == ("cpu", "1")


def test_progress_counts_the_lines_of_the_lock_that_apply() -> None:
    progress = install.Progress("packages", 3, io.StringIO())
    progress.read("Ignoring tomli: markers 'python_version < \"3.11\"' don't match your environment")
    progress.read("Collecting anyio==4.16.0 (from -r requirements/serve.txt (line 5))")
    assert "packages: 1 of 2, looking for anyio==4.16.0" in progress.line()
    progress.read("  Downloading torch-2.13.0-cp311-cp311-manylinux_2_28_x86_64.whl (188.1 MB)")
    assert "fetching torch (188.1 MB)" in progress.line()


def test_a_failed_installation_gives_the_error_and_the_remedy() -> None:
    output = ["Collecting torch\n", "ERROR: Could not install: [Errno 28] No space left on device\n"]
    text = install.explain("packages", output)
    assert "No space left on device" in text
    assert "the disk is full" in text
