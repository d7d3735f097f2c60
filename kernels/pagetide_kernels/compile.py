"""Compiles the kernels with NVRTC. Needs no GPU and no driver.

    python -m pagetide_kernels.compile --arch sm_90

prints registers, shared memory and spills of every kernel.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from cuda.core import Program, ProgramOptions
from cuda.core.utils import FileStreamProgramCache

from pagetide_kernels.builds import all_builds
from pagetide_kernels.launch import SOURCES, Kernel

_INCLUDE = re.compile(r'^#include "([^"]+)"$', re.MULTILINE)
_FIELDS = {
    "registers": r"Used (\d+) registers",
    "static_shared_bytes": r"(\d+) bytes smem",
    "stack_bytes": r"(\d+) bytes stack frame",
    "spill_store_bytes": r"(\d+) bytes spill stores",
    "spill_load_bytes": r"(\d+) bytes spill loads",
}


class CompileError(RuntimeError):
    """NVRTC refused a kernel; the message holds its log."""


@dataclass(frozen=True)
class Resources:
    """What ptxas says a kernel takes, per thread and per block."""

    registers: int
    static_shared_bytes: int
    stack_bytes: int
    spill_store_bytes: int
    spill_load_bytes: int

    @property
    def spill_bytes(self) -> int:
        return self.spill_store_bytes + self.spill_load_bytes


class _Log:
    def __init__(self) -> None:
        self.text = ""

    def write(self, text: str) -> None:
        self.text += text


@cache
def source_text(name: str) -> str:
    """A source file with its includes in place, each once: one string that NVRTC compiles and caches."""
    seen: set[str] = set()

    def expand(file: str) -> str:
        if file in seen:
            return ""
        seen.add(file)
        text = (SOURCES / file).read_text().replace("#pragma once\n", "\n")
        body = _INCLUDE.sub(lambda match: expand(match[1]) + f'\n#line 1 "{file}"', text)
        return f'#line 1 "{file}"\n{body}'

    return expand(name)


def compile_cubin(kernel: Kernel, arch: str, *, cached: bool = True) -> tuple[bytes, str]:
    """The machine code of a kernel for `arch` ("sm_90"), and the log (empty when it came from the cache).

    Raises:
        CompileError: with NVRTC's log.
    """
    log = _Log()
    options = ProgramOptions(
        std="c++17",
        arch=arch,
        define_macro=list(kernel.defines) or None,
        ptxas_options=["-v", "--warn-on-spills"],
        device_as_default_execution_space=True,
    )
    try:
        program = Program(source_text(kernel.source), "c++", options)
        code = program.compile("cubin", logs=log, cache=_disk_cache() if cached else None)
    except Exception as error:
        raise CompileError(f"{kernel.label} for {arch}: {error}\n{log.text}") from error
    return bytes(code.code), log.text


@cache
def _disk_cache() -> FileStreamProgramCache:
    folder = os.environ.get("PAGETIDE_CACHE", Path.home() / ".cache" / "pagetide")
    return FileStreamProgramCache(Path(folder) / "cubins")


def resources(kernel: Kernel, arch: str) -> Resources:
    """Compiles anew (a cached cubin has no log) and reads ptxas' report."""
    _, log = compile_cubin(kernel, arch, cached=False)
    log = log.partition(f"Function properties for {kernel.entry}\n")[2].partition("Function properties")[0]
    found = {name: re.search(pattern, log) for name, pattern in _FIELDS.items()}
    return Resources(**{name: int(match[1]) if match else 0 for name, match in found.items()})


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m pagetide_kernels.compile", description=__doc__)
    parser.add_argument("--arch", default="sm_90", help="sm_80, sm_89, sm_90, sm_100 ...")
    arch = parser.parse_args(arguments).arch
    print(f"{'kernel for ' + arch:<44} registers  shared bytes  spilled bytes")
    spilled = 0
    for build in all_builds():
        used = resources(build.kernel, arch)
        shared = used.static_shared_bytes + build.shared_bytes
        print(f"{build.kernel.label:<44} {used.registers:>9} {shared:>13} {used.spill_bytes:>14}")
        spilled += used.spill_bytes
    return 1 if spilled else 0


if __name__ == "__main__":
    sys.exit(main())
