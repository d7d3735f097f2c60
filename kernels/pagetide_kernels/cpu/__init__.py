"""The C++ build of the kernels: built on first use, called through ctypes without the GIL.

The instruction set is the best the CPU has, or what PAGETIDE_CPU_ISA names (plain, avx2, avx512, amx).
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import TypeAlias

import torch  # loads its libgomp before ours looks for one, so that both share one pool of threads
from torch import Tensor

from pagetide_kernels import build
from pagetide_kernels.binding import ArgumentError, Number, Signature
from pagetide_kernels.cpu import memory
from pagetide_kernels.signatures import (
    DRAW,
    INT8_CACHE,
    LANES,
    LIKELIEST,
    LINEAR,
    LINEAR_LIKELIEST,
    LINEAR_WIDENED,
    PAGED_ATTENTION,
    QUANTISED_LINEAR,
    UNPACK_ROWS,
    WRITE_KV,
)

ISAS = ("plain", "avx2", "avx512", "amx")

_CTYPES: dict[str, type[ctypes.c_void_p | ctypes.c_int64 | ctypes.c_int32 | ctypes.c_float]] = {
    "pointer": ctypes.c_void_p,
    "i64": ctypes.c_int64,
    "i32": ctypes.c_int32,
    "f32": ctypes.c_float,
}
SUFFIXES = {torch.bfloat16: "bf16", torch.float32: "f32"}

_SIGNATURES = (
    PAGED_ATTENTION,
    WRITE_KV,
    LINEAR,
    LINEAR_WIDENED,
    LINEAR_LIKELIEST,
    QUANTISED_LINEAR,
    LIKELIEST,
    DRAW,
    UNPACK_ROWS,
)

_Function: TypeAlias = Callable[..., bytes | None]


def pack_linear(weight: Tensor) -> Tensor:
    """[N, K] to [C, K, 16]: C columns of sixteen outputs, each a stream over K; zeros beyond N.

    In bfloat16 two neighbours of K lie side by side, as the CPU's dot product wants them.
    """
    num_outputs, num_inputs = weight.shape
    per_word = 4 // weight.itemsize
    padded = torch.nn.functional.pad(weight, (0, 0, 0, -num_outputs % LANES))
    words = padded.view(-1, LANES, num_inputs // per_word, per_word)
    columns = words.transpose(1, 2)
    return memory.empty(columns.shape, weight.dtype).copy_(columns).view(-1, num_inputs, LANES)


def unpacked_rows(packed: Tensor, num_rows: int, ids: Tensor) -> Tensor:
    """Rows [S, K] of the weight [num_rows, K] that `pack_linear` packed, for [S] int64."""
    rows = torch.empty((len(ids), packed.shape[1]), dtype=packed.dtype)
    call(UNPACK_ROWS, (rows, packed, ids), (num_rows,))
    return rows


def linear(tensors: Sequence[Tensor | None], scalars: Sequence[Number], widened: bool = False) -> None:
    """See `ops.linear`; arguments in the order of the signature."""
    call(LINEAR_WIDENED if widened else LINEAR, tensors, scalars)


def linear_likeliest(tensors: Sequence[Tensor], num_outputs: int) -> None:
    """See `ops.linear_likeliest`; tensors in the order of the signature."""
    call(LINEAR_LIKELIEST, tensors, (num_outputs,))


def quantised_linear(tensors: Sequence[Tensor | None], scalars: Sequence[Number]) -> None:
    """See `ops.linear`; arguments in the order of the signature."""
    call(QUANTISED_LINEAR, tensors, scalars)


def supported_isas() -> tuple[str, ...]:
    """Instruction sets this CPU can run, slowest first."""
    return tuple(isa for number, isa in enumerate(ISAS) if library().pagetide_supports(number))


def isa() -> str:
    """The instruction set the kernels run with."""
    return ISAS[library().pagetide_current_isa()]


@contextmanager
def use_isa(name: str) -> Iterator[None]:
    """Runs the kernels with another instruction set, in every thread, until the context ends.

    Raises:
        ValueError: `name` is not an instruction set, or this CPU lacks it.
    """
    before = isa()
    _set_isa(library(), name)
    try:
        yield
    finally:
        _set_isa(library(), before)


def call(signature: Signature, tensors: Sequence[Tensor | None], scalars: Sequence[Number]) -> None:
    """Calls the C++ function of that signature, built for the element type at hand.

    Raises:
        ArgumentError: an argument of the wrong kind, or an index that points outside.
    """
    bound = signature.bind(tensors, scalars)
    problem = _function(signature.name, bound.form.dtypes["element"])(*bound.args)
    if problem is not None:
        raise ArgumentError(problem.decode())


_functions: dict[tuple[str, torch.dtype], _Function] = {}


def _function(name: str, dtype: torch.dtype) -> _Function:
    function = _functions.get((name, dtype))
    if function is None:
        coded = (INT8_CACHE[each.name] for each in (PAGED_ATTENTION, WRITE_KV))
        for signature in (*_SIGNATURES, *coded):
            _export(signature)
        function = _functions[name, dtype]
    return function


def _export(signature: Signature) -> None:
    for dtype in signature.dtypes["element"]:
        function = library()[f"{signature.name}_{SUFFIXES[dtype]}"]
        function.argtypes = [_CTYPES[kind] for kind in signature.kinds]
        function.restype = ctypes.c_char_p
        _functions[signature.name, dtype] = function


@cache
def library() -> ctypes.CDLL:
    library = ctypes.CDLL(str(build.cpu_library()))
    if wanted := os.environ.get("PAGETIDE_CPU_ISA"):
        _set_isa(library, wanted)
    return library


def _set_isa(library: ctypes.CDLL, name: str) -> None:
    supported = [isa for number, isa in enumerate(ISAS) if library.pagetide_supports(number)]
    if name not in supported:
        raise ValueError(
            f"CPU instruction set is {name!r}; expected one this CPU has: {', '.join(supported)}"
        )
    library.pagetide_use_isa(ISAS.index(name))
