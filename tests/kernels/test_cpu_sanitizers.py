"""The CPU kernels under AddressSanitizer and UndefinedBehaviorSanitizer, on random steps and layers."""

from __future__ import annotations

import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pagetide_kernels import build, cpu

DRIVER = Path(__file__).parent / "cpu_driver"
CHECKED = ("-O1", "-g", "-Werror", "-fno-omit-frame-pointer", "-fno-sanitize-recover=all")


@pytest.mark.timeout(900)
def test_random_steps_and_layers_are_clean_and_right(tmp_path: Path):
    program = _build_driver(tmp_path, "-fsanitize=address,undefined")
    environment = {**os.environ, "OMP_NUM_THREADS": "3", "OMP_WAIT_POLICY": "PASSIVE"}
    done = subprocess.run([program, "12"], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr[:4000]
    assert done.stdout.count("rows right") == len(cpu.supported_isas())


def _build_driver(directory: Path, sanitize: str) -> Path:
    include = f"-I{build.HERE / 'cpu'}"
    units = build.cpu_units() + [build.Unit(source, (include,)) for source in sorted(DRIVER.glob("*.cpp"))]
    flags = (*build.BASE_FLAGS, *build.QUIET_FLAGS, *build.EXACT_FLAGS, *CHECKED, sanitize)
    objects = [directory / f"{i}.o" for i in range(len(units))]

    def compile_unit(unit: build.Unit, out: Path) -> None:
        _run(["g++", *flags, *unit.flags, "-c", unit.source, "-o", out])

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(compile_unit, units, objects))
    program = directory / "driver"
    _run(["g++", *flags, *objects, "-o", program])
    return program


def _run(command: list[str | Path]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[:4000]
