"""Builds the C++ kernels with g++ into a cache, once for each content: `python -m pagetide_kernels.build`.

A library's name holds a hash of its sources, its flags and the compiler, so a stale one is never loaded.
It is renamed into place when it is whole: processes that build at once do double work, no harm.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent

# gcc 12 says "used uninitialized" of its own AVX-512 headers (gcc bug 105593).
BASE_FLAGS = ("-std=c++17", "-O3", "-fPIC", "-fopenmp", "-fvisibility=hidden", "-Wall", "-Wextra")
QUIET_FLAGS = ("-Wno-uninitialized", "-Wno-maybe-uninitialized")
# Contraction would round differently wherever the compiler sees a chance, and results must not depend on it.
EXACT_FLAGS = ("-ffp-contract=off",)
# What is missing shows when it is built, not when it is loaded.
COMPLETE_FLAGS = ("-Wl,--no-undefined",)
PER_ISA_SOURCES = (
    "attend.cpp",
    "block_masses.cpp",
    "decoder_rows.cpp",
    "first_largest.cpp",
    "project.cpp",
    "project_quantised.cpp",
)
AVX2_FLAGS = ("-mavx2", "-mfma")
AVX512_FLAGS = (
    *AVX2_FLAGS,
    "-mavx512f",
    "-mavx512bw",
    "-mavx512vl",
    "-mavx512dq",
    "-mavx512vbmi",
    "-mavx512bf16",
)
AMX_FLAGS = (*AVX512_FLAGS, "-mamx-tile", "-mamx-bf16")

Progress = Callable[[str], None]


class BuildError(RuntimeError):
    """The kernels could not be built; the first line says why and what to do."""


@dataclass(frozen=True)
class Unit:
    """One source file, compiled with flags of its own."""

    source: Path
    flags: tuple[str, ...] = ()


def cpu_units() -> list[Unit]:
    """The CPU kernels: what computes once for each instruction set, the rest once."""
    isas: list[tuple[str, ...]] = [()]
    if platform.machine() in ("x86_64", "AMD64"):
        isas += [AVX2_FLAGS, AVX512_FLAGS, AMX_FLAGS]
    sources = sorted((HERE / "cpu").glob("*.cpp"))
    return [
        Unit(source, flags)
        for source in sources
        for flags in (isas if source.name in PER_ISA_SOURCES else [()])
    ]


def cpu_library(progress: Progress | None = None) -> Path:
    """Path of the CPU kernels' shared library, built if it is not in the cache.

    Raises:
        BuildError: no compiler, a compile error, or a cache directory that cannot be written.
    """
    return shared_library("pagetide_cpu", cpu_units(), HERE / "cpu", COMPLETE_FLAGS, progress)


def shared_library(
    name: str,
    units: Sequence[Unit],
    sources: Path,
    flags: Sequence[str] = (),
    progress: Progress | None = None,
) -> Path:
    """Compiles `units` and links them to `<cache>/<name>-<hash>.so`, unless it is there.

    `sources` is the directory whose files the units include; `flags` are added to each compilation and
    to linking.

    Raises:
        BuildError: as in `cpu_library`.
    """
    compiler = _compiler()
    all_flags = (*BASE_FLAGS, *QUIET_FLAGS, *EXACT_FLAGS, *flags)
    library = cache_directory() / f"{name}-{_key(compiler, units, sources, all_flags)}.so"
    if not library.exists():
        _build(compiler, units, all_flags, library, progress or _silent)
    return library


def cache_directory() -> Path:
    """$PAGETIDE_CACHE, else .cache of the source checkout, else the user's cache directory."""
    if configured := os.environ.get("PAGETIDE_CACHE"):
        return Path(configured) / "kernels"
    checkout = HERE.parents[1]
    if (checkout / "pyproject.toml").exists() and os.access(checkout, os.W_OK):
        return checkout / ".cache" / "kernels"
    user = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(user) / "pagetide" / "kernels"


def _compiler() -> str:
    wanted = os.environ.get("CXX") or "g++"
    found = shutil.which(wanted)
    if found is None:
        raise BuildError(f"{wanted} not found: install g++ 11 or newer, or name a C++ compiler in $CXX")
    return found


def _key(compiler: str, units: Sequence[Unit], sources: Path, flags: Sequence[str]) -> str:
    digest = hashlib.sha256()
    for path in sorted(path for path in sources.iterdir() if path.is_file() and path.suffix != ".py"):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    recipe = [(unit.source.name, unit.flags) for unit in units]
    digest.update(repr((recipe, tuple(flags), _version(compiler), platform.machine())).encode())
    return digest.hexdigest()[:16]


def _version(compiler: str) -> str:
    return _run([compiler, "--version"])


def _build(
    compiler: str, units: Sequence[Unit], flags: Sequence[str], library: Path, progress: Progress
) -> None:
    start = time.monotonic()
    progress(f"building {library.name} with {compiler} ...")
    with _scratch_beside(library) as scratch:
        objects = [Path(scratch, f"{i}-{unit.source.stem}.o") for i, unit in enumerate(units)]

        def compile_unit(unit: Unit, out: Path) -> None:
            _run([compiler, *flags, *unit.flags, "-c", str(unit.source), "-o", str(out)])
            progress(f"  compiled {unit.source.name} {' '.join(unit.flags)}".rstrip())

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(compile_unit, units, objects))
        linked = Path(scratch, library.name)
        _run([compiler, "-shared", *flags, *map(str, objects), "-o", str(linked)])
        linked.replace(library)
    progress(f"built {library} in {time.monotonic() - start:.1f} s")


def _scratch_beside(library: Path) -> tempfile.TemporaryDirectory[str]:
    try:
        library.parent.mkdir(parents=True, exist_ok=True)
        return tempfile.TemporaryDirectory(prefix=".build-", dir=library.parent)
    except OSError as error:
        raise BuildError(f"cannot write {library.parent} ({error.strerror}): set $PAGETIDE_CACHE") from error


def _run(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        reason = next((line for line in done.stderr.splitlines() if "error" in line), "no message")
        raise BuildError(f"{command[0]} failed ({done.returncode}): {reason}\n{done.stderr}")
    return done.stdout


def _silent(_: str) -> None:
    pass


def main() -> int:
    try:
        library = cpu_library(progress=lambda line: print(line, flush=True))
    except BuildError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"CPU kernels: {library}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
