"""Looks at a server's child processes through /proc, and cleans up after them."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

_STUB = b"triton_python_backend_stub"
_STUB_COMMAND = _STUB[:15].decode()
"""As the kernel cuts it, in /proc/PID/stat: all that is left of a zombie's name."""
_SHARED_MEMORY = Path("/dev/shm")


@dataclass(frozen=True)
class Stub:
    """One stub process: it runs one instance of one model version."""

    pid: int
    model: str
    version: str


def stubs(server_pid: int) -> list[Stub]:
    """The live stubs of a server; none once the server is gone."""
    found = (_stub(pid) for pid in children(server_pid))
    return [stub for stub in found if stub is not None]


def children(pid: int) -> list[int]:
    """Child process ids, zombies included; none when the process is gone."""
    ids: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            ids += map(int, task.read_text().split())
        except OSError:
            continue
    return ids


def dead_stubs(server_pid: int) -> set[int]:
    """Process ids of stubs that ended and that the server has not waited for."""
    return {pid for pid in children(server_pid) if _command(pid) == _STUB_COMMAND and is_dead(pid)}


def is_dead(pid: int) -> bool:
    """Whether the process is gone or a zombie that its parent has not waited for."""
    return _stat(pid).rpartition(")")[2].split()[:1] in ([], ["Z"], ["X"])


def _command(pid: int) -> str:
    return _stat(pid).partition("(")[2].rpartition(")")[0]


def _stat(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""


def ending_with_parent() -> list[str]:
    """The command prefix under which a program gets SIGTERM when its launcher is killed; may be empty."""
    setpriv = shutil.which("setpriv")
    return [setpriv, "--pdeathsig", "TERM", "--"] if setpriv else []


def shared_memory_prefix() -> str:
    """A name for this launcher's shared memory regions that no other launcher uses."""
    return f"pagetide_{os.getpid()}_{os.urandom(4).hex()}_"


def remove_shared_memory(prefix: str) -> list[str]:
    """Removes what a killed server left in /dev/shm under `prefix`; returns the names."""
    left = sorted(_SHARED_MEMORY.glob(f"{prefix}*"))
    for path in left:
        path.unlink(missing_ok=True)
    return [path.name for path in left]


def remove_orphaned_shared_memory() -> list[str]:
    """Removes regions of launchers that are no longer alive (killed, or lost with the power)."""
    removed: list[str] = []
    for path in _SHARED_MEMORY.glob("pagetide_*_*_*"):
        owner = path.name.split("_")[1]
        if owner.isdigit() and is_dead(int(owner)):
            removed += remove_shared_memory(path.name)
    return removed


def _stub(pid: int) -> Stub | None:
    try:
        arguments = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return None
    if len(arguments) < 2 or not arguments[0].endswith(_STUB):
        return None
    version = Path(os.fsdecode(arguments[1])).parent
    return Stub(pid, version.parent.name, version.name)
