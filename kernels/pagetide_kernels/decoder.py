"""All layers of a decoder as one call: no Python and one parallel region between the first norm and the last.

The parts are described by tensors, checked once, and held by the decoder; each step is checked at this
boundary as in `pagetide_kernels.ops`. Runs on the CPU.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from pagetide_kernels import cpu
from pagetide_kernels.binding import ArgumentError, Layout, Signature, TensorParam
from pagetide_kernels.cpu import decoder as compiled
from pagetide_kernels.ops import PackedCodes, PackedLinear
from pagetide_kernels.signatures import ACTIVATIONS, BLOCK_SIZE, GROUP

MAX_HEAD_DIM = 512
_LANES = 16
_ELEMENTS = (torch.bfloat16, torch.float32)
_NORMS = ("attn_in", "attn_out", "ffn_in", "ffn_out", "qk_norm")
_ROWS = Layout.ROWS

_STEP = Signature(
    "decoder",
    tensors=(
        TensorParam("hidden", ("T", "H"), "element", align=16),
        TensorParam(
            "kv_caches[0]", ("N", 2, "Hkv", BLOCK_SIZE, "D"), "element", layout=Layout.ROWS, align=16
        ),
        TensorParam("block_table", ("B", "M"), torch.int32, layout=_ROWS),
        TensorParam("query_starts", ("B+1",), torch.int32),
        TensorParam("kv_lens", ("B",), torch.int32),
        TensorParam("slots", ("T",), torch.int64),
    ),
    dtypes={"element": _ELEMENTS},
)


@dataclass(frozen=True, slots=True)
class Norm:
    """An RMSNorm; `weight` float32, [H], or [Hq + Hkv, D] for the norm of queries and keys."""

    weight: Tensor
    eps: float


@dataclass(frozen=True, slots=True)
class Projection:
    """A linear layer over packed weights; `bias` [num_outputs] of their dtype."""

    weight: PackedLinear | PackedCodes
    bias: Tensor | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One residual layer: attention, then a gated feed-forward, each between optional norms.

    `qkv` gives queries, keys and values side by side, `gate_up` the gate before the other half. `rope` is an
    index into a step's rotations; `window`, `scale` and `soft_cap` are as in `ops.paged_attention`;
    `activation` one of ACTIVATIONS.
    """

    qkv: Projection
    out: Projection
    gate_up: Projection
    down: Projection
    scale: float
    activation: str
    attn_in: Norm | None = None
    attn_out: Norm | None = None
    ffn_in: Norm | None = None
    ffn_out: Norm | None = None
    qk_norm: Norm | None = None
    rope: int = 0
    window: int = 0
    soft_cap: float = 0.0


@dataclass(frozen=True, slots=True)
class Sizes:
    """What all layers share; `hidden_size`, `intermediate_size` and `head_dim` are multiples of 16."""

    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int

    @property
    def problem(self) -> str | None:
        """Which size the compiled step cannot take, and why; None: it takes them."""
        for name in ("hidden_size", "intermediate_size", "head_dim"):
            if getattr(self, name) % _LANES:
                return f"{name} is {getattr(self, name)}; expected a multiple of {_LANES}"
        if self.head_dim > MAX_HEAD_DIM:
            return f"head_dim is {self.head_dim}; expected at most {MAX_HEAD_DIM}"
        return None


def is_fast() -> bool:
    """Whether this CPU has the instructions that the compiled step was made for."""
    return cpu.isa() == "avx512"


class DecoderStep:
    """A decoder's layers, ready to run.

    `dtype` is the weights' and the hidden states', bfloat16 or float32. Holds the tensors of `layers` and the
    memory it works in, which grows to what the largest step needs. Not for concurrent calls.

    Raises:
        ArgumentError: names the part that does not fit, what it is and what was expected.
    """

    def __init__(self, layers: Sequence[Layer], sizes: Sizes, dtype: torch.dtype) -> None:
        if sizes.problem:
            raise ArgumentError(f"decoder: {sizes.problem}")
        for i, layer in enumerate(layers):
            _check_layer(f"decoder: layer {i}", layer, sizes, dtype)
        self._layers, self._sizes, self._dtype = tuple(layers), sizes, dtype
        self._num_ropes = 1 + max(layer.rope for layer in layers)
        shape = compiled.Shape(len(self._layers), *(getattr(sizes, part.name) for part in fields(sizes)))
        self._handle = compiled.Handle(shape, [_flat_layer(layer) for layer in layers], dtype)

    def run(
        self,
        hidden: Tensor,
        rotations: Sequence[tuple[Tensor, Tensor]],
        kv_caches: Sequence[Tensor],
        block_table: Tensor,
        query_starts: Tensor,
        kv_lens: Tensor,
        slots: Tensor,
    ) -> Tensor:
        """Takes T tokens of B sequences through all layers; their keys and values go to the caches.

        A row's result does not depend on the other rows, nor on how its sequence was cut into steps.

        Args:
            hidden: [T, H], changed in place.
            rotations: for each rope, cos and sin [T, 1, rotary_dim] float32, sin negated in its first half.
            kv_caches: a layer's [N, 2, Hkv, 16, D] each, of one shape and one stride.
            block_table, query_starts, kv_lens, slots: as in `ops.paged_attention` and `ops.write_kv`; kv_lens
                no less than a sequence's queries.

        Returns:
            `hidden`.

        Raises:
            ArgumentError: an argument of the wrong kind, or indices that point outside the cache.
        """
        self._check_step(hidden, rotations, kv_caches)
        tables = (block_table, query_starts, kv_lens, slots)
        sizes = _STEP.bind((hidden, kv_caches[0], *tables)).form.sizes
        self._handle.run(
            compiled.Step(
                hidden.data_ptr(),
                (compiled.Rotation * len(rotations))(*(_flat_rotation(*rotation) for rotation in rotations)),
                (ctypes.c_void_p * len(kv_caches))(*(cache.data_ptr() for cache in kv_caches)),
                *(table.data_ptr() for table in tables),
                kv_caches[0].stride(0),
                block_table.stride(0),
                *(sizes[name] for name in ("T", "B", "M", "N")),
                torch.get_num_threads(),  # OpenMP's own number is each thread's, and not yet set in a new one
            )
        )
        return hidden

    def _check_step(
        self, hidden: Tensor, rotations: Sequence[tuple[Tensor, Tensor]], kv_caches: Sequence[Tensor]
    ) -> None:
        sizes = self._sizes
        _expect("decoder: hidden is of shape", list(hidden.shape), [len(hidden), sizes.hidden_size])
        _expect("decoder: hidden is of dtype", hidden.dtype, self._dtype)
        _expect("decoder: the number of kv_caches is", len(kv_caches), len(self._layers))
        like = _form(kv_caches[0])
        heads = [2, sizes.num_kv_heads, BLOCK_SIZE, sizes.head_dim]
        _expect("decoder: kv_caches[0] is of shape [N] +", list(kv_caches[0].shape[1:]), heads)
        for i, cache in enumerate(kv_caches):
            if _form(cache) != like:
                _expect(f"decoder: kv_caches[{i}] has shape, strides, dtype, device", _form(cache), like)
        if len(rotations) < self._num_ropes:
            _expect("decoder: the number of rotations is", len(rotations), self._num_ropes)
        for i, rotation in enumerate(rotations):
            _check_rotation(f"decoder: rotations[{i}]", rotation, len(hidden), sizes.head_dim)


def _expect(subject: str, actual: object, expected: object) -> None:
    if actual != expected:
        raise ArgumentError(f"{subject} {actual}; expected {expected}")


def _form(tensor: Tensor) -> tuple[object, ...]:
    return tensor.shape, tensor.stride(), tensor.dtype, tensor.device


def _check_tensor(name: str, tensor: Tensor, shape: Sequence[int], dtype: torch.dtype) -> None:
    _expect(f"{name} is of shape", list(tensor.shape), list(shape))
    _expect(f"{name} is of dtype", tensor.dtype, dtype)
    _expect(f"{name} is on device", tensor.device.type, "cpu")
    _expect(f"{name} is contiguous:", tensor.is_contiguous(), True)


def _check_rotation(name: str, rotation: tuple[Tensor, Tensor], num_tokens: int, head_dim: int) -> None:
    rotary_dim = rotation[0].shape[-1]
    if rotary_dim > head_dim or rotary_dim % 2:
        _expect(f"{name} turns dimensions", rotary_dim, f"an even number up to {head_dim}")
    for part, tensor in zip(("cos", "sin"), rotation, strict=True):
        _check_tensor(f"{name} {part}", tensor, (num_tokens, 1, rotary_dim), torch.float32)


def _check_layer(name: str, layer: Layer, sizes: Sizes, dtype: torch.dtype) -> None:
    hidden, inner, head_dim = sizes.hidden_size, sizes.intermediate_size, sizes.head_dim
    rotated = sizes.num_heads + sizes.num_kv_heads
    shapes = {
        "qkv": ((rotated + sizes.num_kv_heads) * head_dim, hidden),
        "out": (hidden, sizes.num_heads * head_dim),
        "gate_up": (2 * inner, hidden),
        "down": (hidden, inner),
    }
    for part, (num_outputs, num_inputs) in shapes.items():
        _check_projection(f"{name} {part}", getattr(layer, part), num_outputs, num_inputs, dtype)
    for part in _NORMS:
        norm = getattr(layer, part)
        shape = (rotated, head_dim) if part == "qk_norm" else (hidden,)
        if norm is not None:
            _check_tensor(f"{name} {part} weight", norm.weight, shape, torch.float32)
    if layer.activation not in ACTIVATIONS:
        _expect(f"{name} activation is", layer.activation, f"one of {', '.join(ACTIVATIONS)}")


def _check_projection(
    name: str, projection: Projection, num_outputs: int, num_inputs: int, dtype: torch.dtype
) -> None:
    weight = projection.weight
    _expect(f"{name} is", [weight.num_outputs, weight.num_inputs], [num_outputs, num_inputs])
    columns = -(-num_outputs // _LANES)
    if isinstance(weight, PackedCodes):
        _check_codes(name, weight, columns, dtype)
    else:
        _check_tensor(f"{name} packed weight", weight.data, (columns, num_inputs, _LANES), dtype)
    if projection.bias is not None:
        _check_tensor(f"{name} bias", projection.bias, (num_outputs,), dtype)


def _check_codes(name: str, weight: PackedCodes, columns: int, dtype: torch.dtype) -> None:
    _expect(f"{name} codes are for dtype", weight.dtype, dtype)
    groups, parts = weight.num_inputs // GROUP, 1 + weight.has_minimums
    group_bytes = weight.bits * GROUP * _LANES // 8
    _check_tensor(f"{name} codes", weight.codes, (columns, groups, group_bytes), torch.uint8)
    _check_tensor(f"{name} scales", weight.scales, (columns, groups, parts, _LANES), torch.float16)


def _flat_layer(layer: Layer) -> compiled.Layer:
    return compiled.Layer(
        *(
            _flat_norm(getattr(layer, name))
            for name in ("attn_in", "attn_out", "ffn_in", "ffn_out", "qk_norm")
        ),
        *(_flat_linear(getattr(layer, name)) for name in ("qkv", "out", "gate_up", "down")),
        layer.rope,
        layer.window,
        layer.scale,
        layer.soft_cap,
        ACTIVATIONS.index(layer.activation),
    )


def _flat_norm(norm: Norm | None) -> compiled.Norm:
    return compiled.Norm() if norm is None else compiled.Norm(norm.weight.data_ptr(), norm.eps)


def _flat_linear(projection: Projection) -> compiled.Linear:
    weight, bias = projection.weight, projection.bias
    bias_pointer = None if bias is None else bias.data_ptr()
    sizes = weight.num_outputs, weight.num_inputs
    if isinstance(weight, PackedLinear):
        return compiled.Linear(weight.data.data_ptr(), bias_pointer, *sizes)
    codes = compiled.CodedWeights(weight.bits, weight.has_minimums, weight.scales.data_ptr())
    return compiled.Linear(weight.codes.data_ptr(), bias_pointer, *sizes, codes)


def _flat_rotation(cos: Tensor, sin: Tensor) -> compiled.Rotation:
    return compiled.Rotation(cos.data_ptr(), sin.data_ptr(), cos.shape[-1])
