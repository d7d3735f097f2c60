"""A Hugging Face checkpoint directory: `config.json` and safetensors files, as a source of tensors."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from pagetide.checkpoint import WeightsError, read_json, read_optional_json
from pagetide.family import Family, read_family
from pagetide_kernels.ops import QuantisedWeight

_SINGLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"


class HuggingFaceCheckpoint:
    """The tensors of a directory, memory-mapped. Raises WeightsError naming a missing or broken file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        config = path / "config.json"
        self.family: Family = read_family(
            read_json(config), read_optional_json(path / "generation_config.json"), str(config)
        )
        self.files: Sequence[Path] = _files(path)
        self._open = [_open(file) for file in self.files]
        self._where = {name: i for i, file in enumerate(self._open) for name in file.keys()}  # noqa: SIM118

    def file_of(self, name: str) -> Path:
        """The file that holds the tensor, or the one to blame when none does."""
        return self.files[self._where[name]] if name in self._where else self.path / self._blame()

    def _blame(self) -> str:
        return _INDEX if (self.path / _INDEX).exists() else self.files[0].name

    def dtype(self, name: str) -> torch.dtype:
        return self._slice(name)[:0].dtype  # type: ignore[no-any-return]

    def shape(self, name: str) -> tuple[int, ...]:
        """Raises WeightsError when there is no such tensor."""
        return tuple(self._slice(name).get_shape())

    def read(self, name: str, index: tuple[slice, ...]) -> torch.Tensor:
        """The part of the tensor that `index` selects, in the dtype it is stored in."""
        return self._slice(name)[index]  # type: ignore[no-any-return]

    def codes(self, name: str, index: tuple[slice, ...]) -> QuantisedWeight | None:
        """None: nothing is stored as codes."""
        return None

    def _slice(self, name: str) -> Any:
        if name not in self._where:
            raise WeightsError(
                f"{self.file_of(name)} has no tensor {name!r}, which {self.family.architecture} needs"
            )
        return self._open[self._where[name]].get_slice(name)


def _files(path: Path) -> list[Path]:
    index = path / _INDEX
    if not index.exists():
        files = [path / _SINGLE] if (path / _SINGLE).exists() else []
    else:
        weight_map = read_json(index).get("weight_map")
        if not isinstance(weight_map, dict):
            raise WeightsError(f"{index} has no weight_map; copy it again")
        files = [path / name for name in sorted(set(weight_map.values()))]
    if not files:
        raise WeightsError(f"{path / _SINGLE} is missing, and so is {_INDEX}; no weights to load")
    for file in files:
        if not file.exists():
            raise WeightsError(f"{file} is missing, but {_INDEX} lists it; copy it too")
    return files


def _open(file: Path) -> Any:
    try:
        opened: Any = safe_open(file, framework="pt")
        return opened.__enter__()
    except (SafetensorError, OSError) as error:
        raise WeightsError(f"{file} is truncated or not safetensors ({error}); copy it again") from None
