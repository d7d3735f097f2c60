"""`pagetide add`: a checkpoint becomes a model version, checked first and visible only when it is whole."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from pagetide_server import repository
from pagetide_server.errors import ServerError

Progress = Callable[[str, int, int], None]
"""Called with a file's name, the bytes copied so far, and the bytes of all files."""

_OTHER_FORMATS = frozenset({".bin", ".gguf", ".h5", ".msgpack", ".onnx", ".pt", ".pth", ".py", ".pyc"})
_CHUNK_BYTES = 16 * 2**20


def add_model(
    checkpoint: Path,
    name: str,
    *,
    version: int | None = None,
    model_repository: Path,
    settings: Mapping[str, str] | None = None,
    link: bool = False,
    progress: Progress = lambda name, done, total: None,
) -> Path:
    """Puts a Hugging Face directory or a GGUF file into the repository; returns the version's directory.

    `link` makes hard links instead of copies. `settings` go into `model.json`. A running server in poll
    mode loads the version when it appears. Raises ServerError, naming the file, when the checkpoint is
    not whole, of an unknown family, or the version exists; then nothing of it is in the repository.
    """
    repository.check_name(name)
    if not model_repository.is_dir():
        raise ServerError(f"model repository {model_repository} is not a directory")
    number = repository.new_version(model_repository / name, version)
    values = check_settings(settings or {})
    files = check_checkpoint(checkpoint)
    if not link:
        _check_room(files, model_repository)
    with repository.staging(model_repository, name) as staged:
        target = staged / str(number)
        target.mkdir()
        _link(files, target) if link else _copy(files, target, progress)
        (target / "model.py").write_text(repository.MODEL_PY)
        (target / "model.json").write_text(json.dumps({"model": ".", **values}, indent=2) + "\n")
        return repository.publish(staged, model_repository / name, number)


def check_checkpoint(checkpoint: Path) -> list[Path]:
    """The files that make up a checkpoint, all there and whole.

    Headers are read and extents compared with file sizes, by the code that will load it. Raises ServerError.
    """
    from pagetide import tokenizer
    from pagetide.checkpoint import WeightsError, is_gguf, locate
    from pagetide.weights import open_checkpoint

    try:
        found = locate(checkpoint)
        opened = open_checkpoint(found)
        for tensor in _indexed(found):
            opened.shape(tensor)
        tokenizer.load(found)
    except WeightsError as error:
        raise ServerError(str(error)) from None
    if is_gguf(found):
        return [found]
    return sorted(path for path in found.iterdir() if _belongs(path))


def check_settings(settings: Mapping[str, str]) -> dict[str, str]:
    """Settings as `model.json` takes them. Raises ServerError for one that is unknown or out of range."""
    from pagetide.config import Settings, SettingsError

    try:
        Settings.from_mapping(settings)
    except SettingsError as error:
        raise ServerError(str(error)) from None
    return dict(settings)


def _indexed(checkpoint: Path) -> Sequence[str]:
    index = checkpoint / "model.safetensors.index.json"
    return list(json.loads(index.read_text())["weight_map"]) if index.is_file() else []


def _belongs(path: Path) -> bool:
    return path.is_file() and not path.name.startswith(".") and path.suffix.lower() not in _OTHER_FORMATS


def _check_room(files: Sequence[Path], model_repository: Path) -> None:
    needed = sum(path.stat().st_size for path in files)
    free = shutil.disk_usage(model_repository).free
    if free < needed:
        gib = 2.0**30
        raise ServerError(
            f"the checkpoint takes {needed / gib:.1f} GiB and {model_repository} has "
            f"{free / gib:.1f} GiB free; make room, or use --link on the same file system"
        )


def _link(files: Sequence[Path], target: Path) -> None:
    for path in files:
        try:
            os.link(path.resolve(), target / path.name)
        except OSError as error:
            raise ServerError(
                f"{path} cannot be linked ({error.strerror}); leave --link out to copy"
            ) from None


def _copy(files: Sequence[Path], target: Path, progress: Progress) -> None:
    total = sum(path.stat().st_size for path in files)
    done = 0
    for path in files:
        try:
            with path.open("rb") as source, (target / path.name).open("wb") as copy:
                while chunk := source.read(_CHUNK_BYTES):
                    copy.write(chunk)
                    done += len(chunk)
                    progress(path.name, done, total)
        except OSError as error:
            raise ServerError(f"{path} could not be copied: {error.strerror}") from None
