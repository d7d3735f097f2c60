"""Each missing piece is one line that names its remedy."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from types import SimpleNamespace

import pytest

from pagetide_server import preflight

ROOT = Path(__file__).parents[2]


def test_it_parses_on_the_oldest_python_that_may_run_it() -> None:
    ast.parse(Path(preflight.__file__).read_text(), feature_version=(3, 5))


@pytest.mark.parametrize("version", [(3, 9, 0), (3, 14, 0)])
def test_an_unfit_python_is_told_how_to_name_another(
    version: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "version_info", version)
    (problem,) = preflight.unfit_python()
    assert f"Python {version[0]}.{version[1]};" in problem
    assert "make PYTHON=" in problem


def test_another_platform_is_sent_to_the_container(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight.platform, "machine", lambda: "aarch64")
    (problem,) = preflight.unfit_python()
    assert "aarch64" in problem
    assert "docker-compose.yml" in problem


@pytest.mark.parametrize(("name", "version"), [("glibc", "2.31"), ("", "")])
def test_a_c_library_that_the_server_cannot_run_on_is_named(
    name: str, version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preflight.platform, "libc_ver", lambda: (name, version))
    (problem,) = preflight.unfit_python()
    assert "needs glibc 2.35" in problem


def test_a_missing_compiler_is_named_with_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "g++-of-nowhere")
    assert preflight.no_compiler() == "the C++ compiler g++-of-nowhere is missing; apt install g++"


def test_a_missing_libpython_is_named_with_its_package(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sysconfig, "get_config_var", lambda name: str(tmp_path))
    monkeypatch.setattr(sys, "base_prefix", str(tmp_path))
    monkeypatch.setattr(os.path, "exists", lambda path: False)
    version = "{}.{}".format(*sys.version_info)
    problem = preflight.no_libpython()
    assert problem is not None
    assert problem.startswith(f"libpython{version}.so.1.0 is missing; apt install libpython{version}")


def test_a_python_without_ensurepip_is_told_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight.importlib.util, "find_spec", lambda name: None)
    problem = preflight.no_venv_module()
    assert problem is not None
    assert "apt install python3" in problem


def test_too_little_disk_is_told_in_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=2**30))
    problem = preflight.no_room()
    assert problem is not None
    assert problem.startswith("1.0 GiB free in ")


def test_a_machine_with_a_gpu_needs_room_for_the_cuda_build(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=5 * 2**30))
    monkeypatch.setattr(preflight, "GPU", str(tmp_path / "none"))
    assert preflight.no_room() is None
    monkeypatch.setattr(preflight, "GPU", str(tmp_path))
    problem = preflight.no_room()
    assert problem is not None
    assert problem.endswith("the installation takes 9 GiB; make room")


def make_venv(path: Path, interpreter: str) -> None:
    (path / "bin").mkdir(parents=True)
    (path / "bin" / "python").symlink_to(interpreter)
    (path / "bin" / "pip").write_text(f"#!{path}/bin/python\n")


def test_a_moved_environment_is_noticed(tmp_path: Path) -> None:
    make_venv(tmp_path / "a", sys.executable)
    assert preflight.existing_venv(str(tmp_path / "a")) == []
    (tmp_path / "a").rename(tmp_path / "b")
    (problem,) = preflight.existing_venv(str(tmp_path / "b"))
    assert "made in another folder; remove it (rm -rf " in problem


def test_an_environment_whose_python_is_gone_is_noticed(tmp_path: Path) -> None:
    make_venv(tmp_path / "a", "/nowhere/python3")
    (problem,) = preflight.existing_venv(str(tmp_path / "a"))
    assert problem.startswith("the Python that made ")


def test_choosing_another_python_than_the_environment_has_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_venv(tmp_path / "a", sys.executable)
    monkeypatch.setenv("PYTHON_CHOSEN", "1")
    assert preflight.existing_venv(str(tmp_path / "a")) == []
    monkeypatch.setattr(sys, "version_info", (3, 9, 0))
    (problem,) = preflight.existing_venv(str(tmp_path / "a"))
    assert "rm -rf" in problem


def test_make_says_in_one_line_that_python_is_missing() -> None:
    done = subprocess.run(
        ["make", "-s", "check", "PYTHON=python3-of-nowhere"],
        cwd=ROOT,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert done.stderr.startswith("pagetide: python3-of-nowhere is missing; apt install python3 python3-venv")
