"""Building the CPU kernels: once for each content, safe in parallel, one clear line when it cannot be."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pagetide_kernels import build, cpu

SOURCE = 'extern "C" __attribute__((visibility("default"))) int answer() { return %d; }\n'


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A library of one small file, and an empty cache."""
    monkeypatch.setenv("PAGETIDE_CACHE", str(tmp_path / "cache"))
    sources = tmp_path / "sources"
    sources.mkdir()
    (sources / "answer.cpp").write_text(SOURCE % 42)
    return sources


def library(project: Path, flags: tuple[str, ...] = (), lines: list[str] | None = None) -> Path:
    progress = None if lines is None else lines.append
    units = [build.Unit(project / "answer.cpp")]
    return build.shared_library("answer", units, project, flags=flags, progress=progress)


def test_a_second_build_of_the_same_content_does_nothing(project: Path):
    lines: list[str] = []
    first = library(project, lines=lines)
    assert any("compiled answer.cpp" in line for line in lines)
    lines.clear()
    assert library(project, lines=lines) == first
    assert lines == []


def test_another_source_another_flag_or_another_header_is_another_library(project: Path):
    names = {library(project), library(project, flags=("-DX",))}
    (project / "answer.h").write_text("")
    names.add(library(project))
    (project / "answer.cpp").write_text(SOURCE % 43)
    names.add(library(project))
    assert len(names) == 4


def test_nothing_half_built_is_left_in_the_cache(project: Path):
    (project / "answer.cpp").write_text("int broken( {")
    with pytest.raises(build.BuildError, match=r"failed \(1\): .*error: "):
        library(project)
    assert list(build.cache_directory().iterdir()) == []


def test_processes_that_build_at_once_get_the_same_whole_library(project: Path):
    code = (
        "import ctypes, sys; from pathlib import Path; from pagetide_kernels import build;"
        "project = Path(sys.argv[1]);"
        "path = build.shared_library('answer', [build.Unit(project / 'answer.cpp')], project);"
        "print(path, ctypes.CDLL(str(path)).answer())"
    )
    command = [sys.executable, "-c", code, str(project)]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    outputs = {process.communicate()[0] for process in running}
    assert len(outputs) == 1
    assert outputs.pop().endswith(".so 42\n")
    assert len(list(build.cache_directory().iterdir())) == 1


def test_a_missing_compiler_is_one_line_with_the_remedy(project: Path):
    environment = {**os.environ, "CXX": "no-such-compiler"}
    command = [sys.executable, "-m", "pagetide_kernels.build"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr == (
        "error: no-such-compiler not found: install g++ 11 or newer, or name a C++ compiler in $CXX\n"
    )


def test_a_cache_that_cannot_be_written_is_named(project: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PAGETIDE_CACHE", str(project / "answer.cpp"))
    with pytest.raises(build.BuildError, match=r"cannot write .*answer\.cpp/kernels .*\$PAGETIDE_CACHE"):
        library(project)


def test_an_instruction_set_can_be_forced_and_a_wrong_one_is_refused():
    before = cpu.isa()
    with cpu.use_isa("plain"):
        assert cpu.isa() == "plain"
    assert cpu.isa() == before
    with pytest.raises(ValueError, match="is 'sse9'; expected one this CPU has: plain"), cpu.use_isa("sse9"):
        pass


def test_the_environment_forces_an_instruction_set():
    environment = {**os.environ, "PAGETIDE_CPU_ISA": "plain"}
    command = [sys.executable, "-c", "from pagetide_kernels import cpu; print(cpu.isa())"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    assert done.stdout == "plain\n"
