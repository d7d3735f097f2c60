"""A model repository on disk: names, versions, and directories that appear whole or not at all."""

from __future__ import annotations

import os
import py_compile
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import cache_from_source
from pathlib import Path

from pagetide_server.errors import ServerError
from pagetide_server.processes import is_dead

MODEL_PY = '''\
"""The class that Triton's Python backend looks for; what it serves is in `model.json` beside this file."""

from pagetide.triton_adapter import TritonPythonModel

__all__ = ["TritonPythonModel"]
'''
_NAME = re.compile(r"[A-Za-z0-9][\w.-]*", re.ASCII)


def check_name(name: str) -> None:
    """Raises ServerError for a name that Triton's paths and URLs do not take."""
    if not _NAME.fullmatch(name):
        raise ServerError(
            f"model name {name!r}: use letters, digits, '.', '-' and '_', a letter or digit first"
        )


def versions(model: Path) -> list[int]:
    """The version numbers of a model, in order; none when it does not exist."""
    names = (path.name for path in model.iterdir() if path.is_dir()) if model.is_dir() else ()
    return sorted(int(name) for name in names if name.isdigit() and int(name) > 0)


def new_version(model: Path, version: int | None) -> int:
    """`version`, or the next one. Raises ServerError when it exists or is not a version."""
    existing = versions(model)
    if version is None:
        return max(existing, default=0) + 1
    if version < 1:
        raise ServerError(f"version is {version}; versions start at 1")
    if version in existing:
        raise ServerError(f"{model / str(version)} exists; leave --version out to take {max(existing) + 1}")
    return version


@contextmanager
def staging(repository: Path, name: str) -> Iterator[Path]:
    """A directory beside the repository, on its file system, gone afterwards.

    It cannot lie inside: Triton takes every directory there for a model. What killed processes left
    is removed. Raises ServerError when the repository is the root of its file system.
    """
    parent = repository.resolve().parent
    if parent.stat().st_dev != repository.stat().st_dev:
        raise ServerError(f"{repository} is a mount point; use a directory inside it, to rename models into")
    prefix = f".{repository.resolve().name}-adding-"
    _remove_abandoned(parent, prefix)
    path = parent / f"{prefix}{os.getpid()}" / name
    path.mkdir(parents=True)
    try:
        yield path
    finally:
        shutil.rmtree(path.parent, ignore_errors=True)


def publish(staged_model: Path, model: Path, version: int) -> Path:
    """Renames the staged version into place, with its model's directory if that is new."""
    staged = staged_model / str(version)
    compile_model(staged)
    target = model / str(version)
    try:
        if model.exists():
            staged.rename(target)
        else:
            staged_model.rename(model)
    except OSError as error:
        raise ServerError(f"{target} could not be put in place: {error.strerror}") from None
    return target


def compile_model(version_directory: Path) -> None:
    """Writes the bytecode of `model.py` for this Python.

    Without it the first import writes it, and Triton's poll mode loads the changed directory again. It is
    checked against the source's content, so it stays valid when the directory is copied.
    """
    source = version_directory / "model.py"
    py_compile.compile(
        str(source),
        cfile=cache_from_source(str(source)),
        doraise=True,
        invalidation_mode=py_compile.PycInvalidationMode.CHECKED_HASH,
    )


def _remove_abandoned(parent: Path, prefix: str) -> None:
    for path in parent.glob(f"{prefix}*"):
        owner = path.name.removeprefix(prefix)
        if owner.isdigit() and is_dead(int(owner)):
            shutil.rmtree(path, ignore_errors=True)
