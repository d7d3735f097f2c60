"""The header of a GGUF file, and its tensors.

Layout as in ggml's docs/gguf.md, versions 2 and 3, little-endian. The header is parsed here, not by
the `gguf` package, because a vocabulary of 50,000 strings takes that one three seconds and this one
a tenth; the package still dequantises.
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize

from pagetide.checkpoint import WeightsError

_MAGIC = b"GGUF"
_STRING, _ARRAY = 8, 9
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_DEFAULT_ALIGNMENT = 32
_MAX_DIMS = 4

Values = np.ndarray[Any, np.dtype[np.float32]]


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """`shape` is row-major (rows first); `offset` and `num_bytes` locate the data in the file."""

    name: str
    shape: tuple[int, ...]
    kind: GGMLQuantizationType
    offset: int
    num_bytes: int


class GgufFile:
    """A GGUF file, memory-mapped for as long as this object lives.

    `metadata` holds every key's value; `tensors` every tensor by name. Raises WeightsError when the
    file is not GGUF, is of another version, or ends before its last tensor does.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._bytes = _map(path)
        try:
            self.metadata, self.tensors = _Parser(self._bytes).parse()
        except WeightsError as error:
            raise WeightsError(f"{path} {error}") from None
        except (struct.error, UnicodeDecodeError, KeyError, IndexError, ValueError) as error:
            raise WeightsError(f"{path} is truncated or not GGUF: {error}; copy it again") from None
        self._check_size()

    def _check_size(self) -> None:
        for tensor in self.tensors.values():
            if tensor.offset + tensor.num_bytes > len(self._bytes):
                missing = tensor.offset + tensor.num_bytes - len(self._bytes)
                raise WeightsError(
                    f"{self.path} is truncated: tensor {tensor.name!r} lacks {missing} bytes; copy it again"
                )

    def read(self, name: str, rows: slice = slice(None)) -> Values:
        """The tensor, or the rows of it, dequantised to float32 in its row-major shape.

        Raises WeightsError for a quantisation that `gguf` cannot undo.
        """
        tensor = self.tensors[name]
        stored = np.frombuffer(self._bytes, np.uint8, tensor.num_bytes, tensor.offset)
        if len(tensor.shape) == 1:
            return self._dequantize(tensor, stored)[rows]
        return self._dequantize(tensor, stored.reshape(*tensor.shape[:-1], -1)[rows])

    def blocks(self, name: str, rows: slice) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """The rows of a quantised matrix as they are stored, [rows, blocks of a row, bytes of a block]."""
        tensor = self.tensors[name]
        stored = np.frombuffer(self._bytes, np.uint8, tensor.num_bytes, tensor.offset)
        _, block_bytes = GGML_QUANT_SIZES[tensor.kind]
        return stored.reshape(tensor.shape[0], -1, block_bytes)[rows].copy()

    def _dequantize(self, tensor: GgufTensor, stored: np.ndarray[Any, np.dtype[np.uint8]]) -> Values:
        try:
            values: Values = dequantize(stored, tensor.kind)
        except NotImplementedError:
            kind = tensor.kind.name
            raise WeightsError(
                f"{self.path} tensor {tensor.name!r} is {kind}, which cannot be read"
            ) from None
        return values if values.flags.writeable else values.copy()


def end_token_ids(metadata: dict[str, Any]) -> list[int]:
    """The ids that end a text, a turn or a message."""
    keys = [f"tokenizer.ggml.{name}_token_id" for name in ("eos", "eot", "eom")]
    return sorted({int(metadata[key]) for key in keys if key in metadata})


def _map(path: Path) -> mmap.mmap:
    try:
        with path.open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:
        raise WeightsError(f"{path} cannot be read: {error}") from None


class _Parser:
    """Reads the header front to back; `struct.error` means it ran over the end."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self._at = 0

    def parse(self) -> tuple[dict[str, Any], dict[str, GgufTensor]]:
        if self._data[: len(_MAGIC)] != _MAGIC:
            raise WeightsError("is not a GGUF file: it does not begin with 'GGUF'")
        self._at = len(_MAGIC)
        version, num_tensors, num_keys = self._unpack("IQQ")
        if version not in (2, 3):
            raise WeightsError(f"is GGUF version {version}; versions 2 and 3 can be read")
        metadata = {self._string(): self._value(self._one("I")) for _ in range(num_keys)}
        headers = [self._tensor_header() for _ in range(num_tensors)]
        alignment = int(metadata.get("general.alignment", _DEFAULT_ALIGNMENT))
        start = -(-self._at // alignment) * alignment
        return metadata, {header[0]: _tensor(*header, start) for header in headers}

    def _unpack(self, layout: str) -> tuple[Any, ...]:
        values = struct.unpack_from("<" + layout, self._data, self._at)
        self._at += struct.calcsize("<" + layout)
        return values

    def _one(self, layout: str) -> Any:
        return self._unpack(layout)[0]

    def _string(self) -> str:
        length = self._one("Q")
        end = self._at + length
        if end > len(self._data):
            raise struct.error("a string runs over the end of the file")
        text = self._data[self._at : end].decode("utf-8")
        self._at = end
        return text

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._string()
        if kind == _ARRAY:
            return self._array()
        return self._one(_SCALARS[kind])

    def _array(self) -> list[Any]:
        kind, length = self._unpack("IQ")
        if kind in _SCALARS:
            return list(self._unpack(f"{length}{_SCALARS[kind]}"))
        return [self._value(kind) for _ in range(length)]

    def _tensor_header(self) -> tuple[str, tuple[int, ...], int, int]:
        name, num_dims = self._string(), self._one("I")
        if num_dims > _MAX_DIMS:
            raise ValueError(f"tensor {name!r} has {num_dims} dimensions")
        return name, self._unpack(f"{num_dims}Q"), self._one("I"), self._one("Q")


def _tensor(name: str, dims: tuple[int, ...], kind: int, offset: int, start: int) -> GgufTensor:
    quantization = GGMLQuantizationType(kind)
    block_len, block_bytes = GGML_QUANT_SIZES[quantization]
    num_values = int(np.prod(dims, dtype=np.int64))
    if dims[0] % block_len:
        raise ValueError(f"tensor {name!r} has rows of {dims[0]}, no multiple of {block_len}")
    return GgufTensor(
        name, tuple(reversed(dims)), quantization, start + offset, num_values // block_len * block_bytes
    )
