"""How a kernel's arguments are described, checked once at the boundary, and flattened for C.

A `Signature` knows nothing of devices. Binding it to tensors and scalars gives a `Bound` call whose
`args` have the one order that every build of the kernel shares (CUDA, simulator, CPU):

    a pointer for each tensor (None where an optional one is absent),
    the row stride, in elements and as i64, of each tensor whose layout is ROWS,
    the sizes named in `dims`, as i32,
    the scalars.

`Signature.kinds` names the C type of each of them.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, NoReturn, TypeAlias

import torch
from torch import Tensor

Kind: TypeAlias = Literal["pointer", "i32", "i64", "f32"]
Dim: TypeAlias = int | str
Number: TypeAlias = int | float

_INT_LIMITS = {"i32": 2**31, "i64": 2**63}
_POINTER_ALIGNMENT = 64
_MAX_FORMS = 4096


class ArgumentError(ValueError):
    """A kernel was called with an argument it cannot take; says which, its value and what fits."""


class Layout(enum.Enum):
    """DENSE: contiguous. ROWS: entries of the first dimension are contiguous, at any distance apart."""

    DENSE = "contiguous"
    ROWS = "contiguous within each entry of the first dimension"


@dataclass(frozen=True)
class TensorParam:
    """A tensor argument.

    `dims` holds literal sizes, symbols ("T"), a symbol plus one ("B+1") and sums ("Hq + 2 Hkv", "16 D + 64").
    `dtype` is a dtype, or the name of an entry of `Signature.dtypes`. Each row must start at a multiple of
    `align` bytes. An `output` is checked last, so that what is wrong with an input is not said of it.
    """

    name: str
    dims: tuple[Dim, ...]
    dtype: torch.dtype | str
    layout: Layout = Layout.DENSE
    optional: bool = False
    output: bool = False
    align: int = 1


@dataclass(frozen=True)
class ScalarParam:
    name: str
    kind: Literal["i32", "i64", "f32"]


@dataclass(frozen=True, slots=True)
class Form:
    """A checked call without its pointers: `tail` is what follows them in the C argument list."""

    tail: list[Number]
    sizes: dict[str, int]
    dtypes: dict[str, torch.dtype]
    device: torch.device


@dataclass(frozen=True, slots=True)
class Bound:
    """One checked call: the flat C arguments, and the form they have."""

    args: list[Number | None]
    form: Form


@dataclass(frozen=True)
class Signature:
    """A kernel's arguments: `dtypes` maps a dtype symbol to what it may be, `multiples` a size to
    another size or a number that must divide it, `at_most` a size to one that it must not pass."""

    name: str
    tensors: tuple[TensorParam, ...]
    scalars: tuple[ScalarParam, ...] = ()
    dims: tuple[str, ...] = ()
    dtypes: Mapping[str, tuple[torch.dtype, ...]] = field(default_factory=dict)
    multiples: Mapping[str, Dim] = field(default_factory=dict)
    at_most: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def kinds(self) -> tuple[Kind, ...]:
        pointers: list[Kind] = ["pointer"] * len(self.tensors)
        strides: list[Kind] = ["i64" for tensor in self.tensors if tensor.layout is Layout.ROWS]
        sizes: list[Kind] = ["i32"] * len(self.dims)
        return (*pointers, *strides, *sizes, *(scalar.kind for scalar in self.scalars))

    def bind(self, tensors: Sequence[Tensor | None], scalars: Sequence[Number] = ()) -> Bound:
        """Checks every argument and flattens them.

        Tensors and scalars come in the order of the signature. A form is remembered, because a model
        calls a kernel with the same shapes in every layer.

        Raises:
            ArgumentError: names the argument, what it is and what was expected.
        """
        pointers = [tensor.data_ptr() if isinstance(tensor, Tensor) else None for tensor in tensors]
        key = (*map(_description, tensors, pointers), *scalars)
        form = self._forms.get(key)
        if form is None:
            form = self._remember(key, _Binder(self).bind(tensors, scalars))
        return Bound([*pointers, *form.tail], form)

    @cached_property
    def _forms(self) -> dict[object, Form]:
        return {}

    def _remember(self, key: object, form: Form) -> Form:
        if len(self._forms) >= _MAX_FORMS:
            self._forms.clear()
        self._forms[key] = form
        return form


def _description(tensor: Tensor | None, pointer: int | None) -> object:
    """Everything about a tensor that the checks depend on."""
    if not isinstance(tensor, Tensor):
        return tensor
    alignment = (pointer or 0) % _POINTER_ALIGNMENT
    return alignment, tensor.dtype, tensor.device, tensor.shape, tensor.stride()


class _Binder:
    """Checks one call; collects sizes and dtypes on the way."""

    def __init__(self, signature: Signature) -> None:
        self._signature = signature
        self._sizes: dict[str, int] = {}
        self._dtypes: dict[str, torch.dtype] = {}
        self._device: torch.device | None = None

    def bind(self, tensors: Sequence[Tensor | None], scalars: Sequence[Number]) -> Form:
        signature = self._signature
        devices = Counter(tensor.device for tensor in tensors if isinstance(tensor, Tensor))
        self._device = devices.most_common(1)[0][0] if devices else None
        pairs = list(zip(signature.tensors, tensors, strict=True))
        for param, tensor in sorted(pairs, key=lambda pair: pair[0].output):
            self._check_tensor(param, tensor)
        self._check_sums()
        self._check_multiples()
        self._check_limits()
        if self._device is None:
            self._fail("any tensor", "absent", "at least one tensor")
        tail: list[Number] = [
            tensor.stride(0) if isinstance(tensor, Tensor) else 0
            for param, tensor in pairs
            if param.layout is Layout.ROWS
        ]
        tail += [self._int(f"size {dim}", self._sizes[dim], "i32") for dim in signature.dims]
        tail += [self._scalar(param, value) for param, value in zip(signature.scalars, scalars, strict=True)]
        return Form(tail, self._sizes, self._dtypes, self._device)

    def _check_tensor(self, param: TensorParam, tensor: Tensor | None) -> None:
        if not isinstance(tensor, Tensor):
            self._check_absent(param, tensor)
            return
        self._check_dtype(param, tensor.dtype)
        self._check_device(param, tensor.device)
        self._check_shape(param, tensor.shape)
        self._check_layout(param, tensor)

    def _check_absent(self, param: TensorParam, value: object) -> None:
        if value is not None or not param.optional:
            self._fail(param.name, f"a {type(value).__name__}", "a torch.Tensor")

    def _check_dtype(self, param: TensorParam, dtype: torch.dtype) -> None:
        allowed: tuple[torch.dtype, ...]
        if isinstance(param.dtype, str):
            known = self._dtypes.setdefault(param.dtype, dtype)
            allowed = (known,) if known is not dtype else self._signature.dtypes[param.dtype]
        else:
            allowed = (param.dtype,)
        if dtype not in allowed:
            self._fail(param.name, f"of dtype {_short(dtype)}", " or ".join(map(_short, allowed)))

    def _check_device(self, param: TensorParam, device: torch.device) -> None:
        if device != self._device:
            self._fail(param.name, f"on device {device}", f"{self._device}, where the other arguments are")

    def _check_shape(self, param: TensorParam, shape: torch.Size) -> None:
        known = dict(self._sizes)
        if len(shape) != len(param.dims) or not all(map(self._fits, param.dims, shape)):
            self._fail(param.name, f"of shape {list(shape)}", _expected_shape(param, known))

    def _fits(self, dim: Dim, size: int) -> bool:
        if isinstance(dim, int):
            return size == dim
        if dim.endswith("+1"):
            dim, size = dim[:-2], size - 1
        return size >= 0 and self._sizes.setdefault(dim, size) == size

    def _check_layout(self, param: TensorParam, tensor: Tensor) -> None:
        rows = param.layout is Layout.ROWS
        if not tensor.is_contiguous() and not (rows and _rows_are_contiguous(tensor)):
            self._fail(param.name, f"of strides {list(tensor.stride())}", param.layout.value)
        row_bytes = tensor.stride(0) * tensor.itemsize if rows else 0
        if (tensor.data_ptr() | row_bytes) % param.align:
            actual = f"at address {tensor.data_ptr():#x} with rows {row_bytes} bytes apart"
            self._fail(param.name, actual, f"rows that start at multiples of {param.align} bytes")

    def _check_multiples(self) -> None:
        for dim, divisor in self._signature.multiples.items():
            step = self._sizes[divisor] if isinstance(divisor, str) else divisor
            size = self._sizes[dim]
            if step < 1 or size < 1 or size % step:
                by = f"{divisor} = {step}" if isinstance(divisor, str) else str(step)
                self._fail(f"size {dim}", str(size), f"a positive multiple of {by}")

    def _check_sums(self) -> None:
        for param in self._signature.tensors:
            for dim in param.dims:
                if isinstance(dim, str) and " + " in dim and dim in self._sizes:
                    total = sum(map(self._term, dim.split(" + ")))
                    if self._sizes[dim] != total:
                        self._fail(param.name, f"of size {self._sizes[dim]}", f"{dim} = {total}")

    def _term(self, term: str) -> int:
        """ "Hkv", "2 Hkv" or "64"."""
        factor, _, symbol = term.rpartition(" ")
        if symbol.isdigit():
            return int(symbol)
        return int(factor or 1) * self._sizes[symbol]

    def _check_limits(self) -> None:
        for dim, limit in self._signature.at_most.items():
            if self._sizes[dim] > self._sizes[limit]:
                most = f"at most {limit} = {self._sizes[limit]}"
                self._fail(f"size {dim}", str(self._sizes[dim]), most)

    def _scalar(self, param: ScalarParam, value: Number) -> Number:
        if isinstance(value, bool) or not isinstance(value, int | float):
            self._fail(param.name, f"a {type(value).__name__}", f"a number that fits {param.kind}")
        if param.kind == "f32":
            return float(value)
        if not isinstance(value, int):
            self._fail(param.name, repr(value), "an integer")
        return self._int(param.name, value, param.kind)

    def _int(self, name: str, value: int, kind: str) -> int:
        limit = _INT_LIMITS[kind]
        if not -limit <= value < limit:
            self._fail(name, str(value), f"an integer that fits {kind}")
        return value

    def _fail(self, name: str, actual: str, expected: str) -> NoReturn:
        raise ArgumentError(f"{self._signature.name}: {name} is {actual}; expected {expected}")


def _expected_shape(param: TensorParam, known: dict[str, int]) -> str:
    symbols = [dim.removesuffix("+1") for dim in param.dims if isinstance(dim, str)]
    sizes = [f"{symbol} = {known[symbol]}" for symbol in symbols if symbol in known]
    shape = f"[{', '.join(map(str, param.dims))}]"
    return f"{shape} with {', '.join(sizes)}" if sizes else shape


def _rows_are_contiguous(tensor: Tensor) -> bool:
    expected = 1
    for size, stride in zip(reversed(tensor.shape[1:]), reversed(tensor.stride()[1:]), strict=True):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return tensor.dim() > 0 and tensor.stride(0) >= expected


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
