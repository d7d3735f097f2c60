"""Builds the simulator around one CUDA source: a library, or a program under a sanitizer."""

from __future__ import annotations

import enum
import hashlib
import shutil
import subprocess
import tempfile
from pathlib import Path

from pagetide_kernels.build import BuildError, cache_directory
from pagetide_kernels.launch import SOURCES, Kernel

SIM = Path(__file__).parent / "sim"
_WARNINGS = ("-Wall", "-Wextra", "-Werror", "-Wno-unknown-pragmas", "-Wno-psabi")
_COMMON = ("-std=c++17", "-g", "-fPIC", "-fvisibility=hidden", "-mf16c", "-ffp-contract=off", *_WARNINGS)
# A copying loop must stay a loop: as a call of memcpy the race detector would see it.
_RUNTIME = (*_COMMON, "-O2", "-fno-tree-loop-distribute-patterns")
_LIBRARY_SOURCES = ("fiber", "block", "machine", "async_copy", "collectives")


class Sanitizer(enum.Enum):
    """What watches the kernel. THREAD finds races: shared memory without a barrier between two threads,
    global memory without a fence between two blocks."""

    NONE = "none"
    ADDRESS = "address"
    THREAD = "thread"


# The runtime gets only the define: instrumented, its bookkeeping would look like the kernel's memory.
_RUNTIME_FLAGS = {
    Sanitizer.NONE: (),
    Sanitizer.ADDRESS: ("-DSIM_ASAN",),
    Sanitizer.THREAD: ("-DSIM_TSAN",),
}
_KERNEL_FLAGS = {
    Sanitizer.NONE: ("-O2",),
    Sanitizer.ADDRESS: ("-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"),
    Sanitizer.THREAD: ("-O1", "-fsanitize=thread"),
}


def library(kernel: Kernel, sources: Path = SOURCES) -> Path:
    """A shared library that exports `<entry>_launch` (sim/dialect.h), built if it is not in the cache.

    `sources` is where the .cu files are: a test may pass a changed copy.

    Raises:
        BuildError: the compiler is missing or refuses the kernel.
    """
    return _build(kernel, sources, Sanitizer.NONE, ("-shared",))


def program(kernel: Kernel, sanitizer: Sanitizer, sources: Path = SOURCES) -> Path:
    """A program that carries out one launch read from a file (sim/replay.cpp), under a sanitizer."""
    return _build(kernel, sources, sanitizer, _KERNEL_FLAGS[sanitizer])


def _build(kernel: Kernel, sources: Path, sanitizer: Sanitizer, link_flags: tuple[str, ...]) -> Path:
    is_program = "-shared" not in link_flags
    defines = tuple(f"-D{name}={value}" for name, value in kernel.defines)
    flags = (*_COMMON, *_KERNEL_FLAGS[sanitizer], f"-I{SIM}", f"-I{sources}", *defines)
    names = (kernel.entry, kernel.source, sanitizer.value, str(is_program), *defines, *_COMMON)
    digest = hashlib.sha256(repr(names).encode() + _digest(sources) + _digest(SIM)).hexdigest()[:16]
    target = cache_directory() / f"sim-{kernel.entry}-{digest}"
    if not target.exists():
        with _scratch() as scratch:
            unit = scratch / "kernel.cpp"
            unit.write_text(_unit(kernel, is_program))
            _compile([*flags, *link_flags, str(unit), *_runtime(sanitizer), "-o", str(scratch / "out")])
            (scratch / "out").replace(target)
    return target


def _unit(kernel: Kernel, is_program: bool) -> str:
    """The one translation unit that holds the kernel."""
    lines = ['#include "dialect.h"', f'#include "{kernel.source}"', f"SIM_EXPORT({kernel.entry})"]
    if is_program:
        lines += [f"#define ENTRY {kernel.entry}_launch", '#include "replay.h"']
    return "\n".join(lines) + "\n"


def _runtime(sanitizer: Sanitizer) -> list[str]:
    """The simulator's own object files, shared by all kernels."""
    digest = hashlib.sha256(_digest(SIM) + repr((_RUNTIME, sanitizer)).encode()).hexdigest()[:16]
    return [str(_object(name, sanitizer, digest)) for name in _LIBRARY_SOURCES]


def _object(name: str, sanitizer: Sanitizer, digest: str) -> Path:
    target = cache_directory() / f"sim-{name}-{digest}.o"
    if not target.exists():
        with _scratch() as scratch:
            source = str(SIM / f"{name}.cpp")
            _compile([*_RUNTIME, *_RUNTIME_FLAGS[sanitizer], "-c", source, "-o", str(scratch / "out")])
            (scratch / "out").replace(target)
    return target


def _digest(folder: Path) -> bytes:
    digest = hashlib.sha256()
    for path in sorted(folder.iterdir()):
        if path.suffix in {".h", ".cpp", ".cu", ".cuh"}:
            digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.digest()


class _scratch:  # noqa: N801
    """A directory beside the cache's files, so that a finished file is renamed into place."""

    def __enter__(self) -> Path:
        cache_directory().mkdir(parents=True, exist_ok=True)
        self._path = Path(tempfile.mkdtemp(prefix=".sim-", dir=cache_directory()))
        return self._path

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self._path, ignore_errors=True)


def _compile(arguments: list[str]) -> None:
    compiler = shutil.which("g++")
    if compiler is None:
        raise BuildError("g++ not found: install g++ 11 or newer to simulate CUDA kernels")
    done = subprocess.run([compiler, *arguments], capture_output=True, text=True)
    if done.returncode:
        raise BuildError(f"g++ failed on a simulated kernel:\n{done.stderr}")
