"""Lays out tritonserver and its Python backend from the `nvidia-pytriton` wheel, for the running Python."""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
import tempfile
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from pagetide_server.errors import ServerError

WHEEL = "nvidia-pytriton"
STUB_FLAG = "PAGETIDE_STUB"
"""Environment variable that tells the interpreter inside a stub to write no bytecode, see `quiet_stub`."""

_STUB = "triton_python_backend_stub"
_BACKEND_FILES = ("libtriton_python.so", "triton_python_backend_utils.py")
_PTH = f'import os, sys; sys.dont_write_bytecode = sys.dont_write_bytecode or "{STUB_FLAG}" in os.environ\n'


@dataclass(frozen=True)
class Layout:
    """A tritonserver ready to start: the binary, its backend directory, the directories its loader needs."""

    binary: Path
    backends: Path
    libraries: tuple[Path, ...]


def state_directory() -> Path:
    """Where this installation keeps what it made: inside the virtual environment, else in ~/.cache."""
    inside = Path(sys.prefix)
    if sys.prefix != sys.base_prefix and os.access(inside, os.W_OK):
        return inside / "var" / "pagetide"
    return Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "pagetide"


def prepare(state: Path | None = None) -> Layout:
    """Returns the layout, making what is missing; a second call only looks.

    Raises ServerError when the wheel, its stub for this Python, or the shared libpython is missing.
    """
    wheel, version = _wheel()
    server = wheel / "pytriton" / "tritonserver"
    stub = server / "python_backend_stubs" / _python() / _STUB
    if not stub.is_file():
        raise ServerError(f"{WHEEL} {version} has no stub for Python {_python()}; use Python 3.10 to 3.13")
    backends = (state or state_directory()) / f"triton-{version}-python{_python()}"
    sources = [server / "backends" / "python" / name for name in _BACKEND_FILES] + [stub]
    _lay_out(sources, backends / "python")
    binary = server / "bin" / "tritonserver"
    _executable(binary)
    quiet_stub()
    return Layout(binary, backends, (wheel / "nvidia_pytriton.libs", libpython_directory()))


def libpython_directory() -> Path:
    """The directory of this Python's shared library, which the stub links. Raises ServerError without one."""
    name = f"libpython{_python()}.so.1.0"
    candidates = [Path(sysconfig.get_config_var("LIBDIR") or "/nowhere"), Path(sys.base_prefix) / "lib"]
    candidates += sorted(Path("/usr/lib").glob(f"*-linux-gnu/{name}"))
    for candidate in candidates:
        directory = candidate.parent if candidate.name == name else candidate
        if (directory / name).exists():
            return directory
    raise ServerError(
        f"{name} is missing and Triton's stub needs it; `apt install libpython{_python()}`, "
        "or use a Python built with --enable-shared"
    )


def quiet_stub() -> None:
    """Keeps a stub of this environment from writing `__pycache__` beside a `model.py`.

    Triton's poll mode takes the new directory for a changed model and loads it a second time. The stub
    ignores PYTHONDONTWRITEBYTECODE (isolated mode) but reads the environment's `.pth` files.
    """
    pth = Path(sysconfig.get_path("purelib")) / "pagetide_stub.pth"
    if not pth.exists() or pth.read_text() != _PTH:
        pth.write_text(_PTH)


def _python() -> str:
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def _wheel() -> tuple[Path, str]:
    try:
        distribution = metadata.distribution(WHEEL)
    except metadata.PackageNotFoundError:
        raise ServerError(f"{WHEEL} is not installed in {sys.prefix}; run `make setup`") from None
    return Path(str(distribution.locate_file(""))), distribution.version


def _lay_out(sources: list[Path], target: Path) -> None:
    if all(_same(source, target / source.name) for source in sources):
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    staged = Path(tempfile.mkdtemp(prefix=".python-", dir=target.parent))
    for source in sources:
        shutil.copy2(source, staged / source.name)
    _executable(staged / _STUB)
    staged.chmod(0o755)
    shutil.rmtree(target, ignore_errors=True)
    staged.rename(target)


def _same(source: Path, copy: Path) -> bool:
    return copy.is_file() and copy.stat().st_size == source.stat().st_size


def _executable(path: Path) -> None:
    if not os.access(path, os.X_OK):
        path.chmod(path.stat().st_mode | 0o755)
