"""What a checkpoint is on disk, and the one error it can raise."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

GGUF_SUFFIX = ".gguf"


class WeightsError(ValueError):
    """A checkpoint is missing a piece, or a piece is not what it says; one line naming the file."""


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file. Raises WeightsError when it is missing or not a whole JSON object."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise WeightsError(f"{path} is missing; a checkpoint directory needs it") from None
    except (OSError, ValueError) as error:
        raise WeightsError(f"{path} is not readable JSON: {error}; copy it again") from None
    if not isinstance(values, dict):
        raise WeightsError(f"{path} holds a {type(values).__name__}; it must hold a JSON object")
    return values


def read_optional_json(path: Path) -> dict[str, Any]:
    """As `read_json`, with an empty object for a file that is not there."""
    return read_json(path) if path.exists() else {}


def is_gguf(path: Path) -> bool:
    return path.suffix.lower() == GGUF_SUFFIX


def locate(path: Path) -> Path:
    """The GGUF file or Hugging Face directory that `path` means.

    A directory with exactly one GGUF file and no `config.json` means that file.
    Raises WeightsError when there is neither, or when the GGUF to take is not clear.
    """
    if not path.exists():
        raise WeightsError(f"{path} does not exist; give a checkpoint directory or a GGUF file")
    if is_gguf(path) or (path / "config.json").exists():
        return path
    if path.is_file():
        raise WeightsError(f"{path} is not a GGUF file; give a checkpoint directory or a *.gguf file")
    files = sorted(file for file in path.iterdir() if is_gguf(file))
    if len(files) != 1:
        found = ", ".join(file.name for file in files) or "none"
        raise WeightsError(f"{path} has no config.json and not exactly one GGUF file (found: {found})")
    return files[0]
