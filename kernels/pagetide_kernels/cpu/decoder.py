"""The structures of decoder.h for ctypes, and calls of the compiled decoder step."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Sequence

import torch

from pagetide_kernels import cpu
from pagetide_kernels.binding import ArgumentError

_POINTER, _INT, _LONG, _FLOAT = ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64, ctypes.c_float

ALL_WANTED = -1


class Norm(ctypes.Structure):
    _fields_ = (("weight", _POINTER), ("eps", _FLOAT))


class CodedWeights(ctypes.Structure):
    _fields_ = (("bits", _INT), ("has_minimums", _INT), ("scales", _POINTER), ("input_sums", _POINTER))


class Linear(ctypes.Structure):
    _fields_ = (
        ("weight", _POINTER),
        ("bias", _POINTER),
        ("out_features", _INT),
        ("in_features", _INT),
        ("codes", CodedWeights),
    )


class Layer(ctypes.Structure):
    _fields_ = (
        *((name, Norm) for name in ("attn_in", "attn_out", "ffn_in", "ffn_out", "qk_norm")),
        *((name, Linear) for name in ("qkv", "out", "gate_up", "down")),
        ("rope", _INT),
        ("window", _INT),
        ("scale", _FLOAT),
        ("soft_cap", _FLOAT),
        ("activation", _INT),
    )


class Shape(ctypes.Structure):
    _fields_ = tuple(
        (name, _INT)
        for name in (
            "num_layers",
            "hidden_size",
            "intermediate_size",
            "num_heads",
            "num_kv_heads",
            "head_size",
        )
    )


class Rope(ctypes.Structure):
    _fields_ = (("frequencies", _POINTER), ("rotary_dim", _INT), ("amplitude", _FLOAT))


class Step(ctypes.Structure):
    _fields_ = (
        ("hidden", _POINTER),
        ("positions", _POINTER),
        ("kv_caches", ctypes.POINTER(_POINTER)),
        *((name, _POINTER) for name in ("block_table", "query_starts", "kv_lens", "slots", "wanted")),
        ("cache_stride", _LONG),
        ("table_stride", _LONG),
        *(
            (name, _INT)
            for name in (
                "num_tokens",
                "num_sequences",
                "table_width",
                "num_blocks",
                "num_wanted",
                "num_threads",
                "has_int8_caches",
            )
        ),
    )


class Handle:
    """A decoder in C++. The tensors that its parts point to must outlive it."""

    def __init__(
        self, shape: Shape, layers: Sequence[Layer], ropes: Sequence[Rope], norm: Norm, dtype: torch.dtype
    ) -> None:
        library = cpu.library()
        library.decoder_create.restype = _POINTER
        library.decoder_destroy.argtypes = [_POINTER]
        run = library[f"decoder_run_{cpu.SUFFIXES[dtype]}"]
        run.argtypes, run.restype = [_POINTER, ctypes.POINTER(Step)], ctypes.c_char_p
        self._run = run
        self._pointer = library.decoder_create(
            ctypes.byref(shape),
            (Layer * len(layers))(*layers),
            (Rope * len(ropes))(*ropes),
            len(ropes),
            ctypes.byref(norm),
        )
        weakref.finalize(self, library.decoder_destroy, self._pointer)

    def run(self, step: Step) -> None:
        """Runs one step, without the GIL.

        Raises:
            ArgumentError: indices that point outside the cache.
        """
        problem = self._run(self._pointer, ctypes.byref(step))
        if problem is not None:
            raise ArgumentError(problem.decode())
