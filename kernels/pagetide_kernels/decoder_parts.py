"""The parts of a decoder's layers: what describes them, what they must be, how C++ reads them.

Part of `pagetide_kernels.decoder`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pagetide_kernels.binding import ArgumentError
from pagetide_kernels.cpu import decoder as compiled
from pagetide_kernels.ops import PackedCodes, PackedLinear
from pagetide_kernels.signatures import ACTIVATIONS, GROUP, LANES

MAX_HEAD_DIM = 512
_NORMS = ("attn_in", "attn_out", "ffn_in", "ffn_out", "qk_norm")


@dataclass(frozen=True, slots=True)
class Norm:
    """An RMSNorm; `weight` float32, [H], or [Hq + Hkv, D] for the norm of queries and keys."""

    weight: Tensor
    eps: float


@dataclass(frozen=True, slots=True)
class Rope:
    """A rotary embedding: position p turns pair i by p * `frequencies` [rotary_dim / 2] float32 radians.

    `amplitude` is that of cos and sin.
    """

    frequencies: Tensor
    amplitude: float = 1.0

    @property
    def rotary_dim(self) -> int:
        return 2 * len(self.frequencies)


@dataclass(frozen=True, slots=True)
class Projection:
    """A linear layer over packed weights; `bias` [num_outputs] of their dtype."""

    weight: PackedLinear | PackedCodes
    bias: Tensor | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One residual layer: attention, then a gated feed-forward, each between optional norms.

    `qkv` gives queries, keys and values side by side, `gate_up` the gate before the other half. `rope` is an
    index into the decoder's ropes; `window`, `scale` and `soft_cap` are as in `ops.paged_attention`;
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
            if getattr(self, name) % LANES:
                return f"{name} is {getattr(self, name)}; expected a multiple of {LANES}"
        if self.head_dim > MAX_HEAD_DIM:
            return f"head_dim is {self.head_dim}; expected at most {MAX_HEAD_DIM}"
        return None


def expect(subject: str, actual: object, expected: object) -> None:
    if actual != expected:
        raise ArgumentError(f"{subject} {actual}; expected {expected}")


def check_tensor(name: str, tensor: Tensor, shape: Sequence[int], dtype: torch.dtype) -> None:
    expect(f"{name} is of shape", list(tensor.shape), list(shape))
    expect(f"{name} is of dtype", tensor.dtype, dtype)
    expect(f"{name} is on device", tensor.device.type, "cpu")
    expect(f"{name} is contiguous:", tensor.is_contiguous(), True)


def check_layer(name: str, layer: Layer, sizes: Sizes, dtype: torch.dtype) -> None:
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
            check_tensor(f"{name} {part} weight", norm.weight, shape, torch.float32)
    if layer.activation not in ACTIVATIONS:
        expect(f"{name} activation is", layer.activation, f"one of {', '.join(ACTIVATIONS)}")


def check_ends(layers: Sequence[Layer], ropes: Sequence[Rope], norm: Norm | None, sizes: Sizes) -> None:
    """What stands before the first layer and after the last."""
    num_ropes = 1 + max(layer.rope for layer in layers)
    if len(ropes) < num_ropes:
        expect("decoder: the number of ropes is", len(ropes), num_ropes)
    for i, rope in enumerate(ropes):
        half = len(rope.frequencies)
        check_tensor(f"decoder: ropes[{i}] frequencies", rope.frequencies, (half,), torch.float32)
        if rope.rotary_dim > sizes.head_dim:
            expect(f"decoder: ropes[{i}] turns dimensions", rope.rotary_dim, f"at most {sizes.head_dim}")
    if norm is not None:
        check_tensor("decoder: norm weight", norm.weight, (sizes.hidden_size,), torch.float32)


def _check_projection(
    name: str, projection: Projection, num_outputs: int, num_inputs: int, dtype: torch.dtype
) -> None:
    weight = projection.weight
    expect(f"{name} is", [weight.num_outputs, weight.num_inputs], [num_outputs, num_inputs])
    columns = -(-num_outputs // LANES)
    if isinstance(weight, PackedCodes):
        _check_codes(name, weight, columns, dtype)
    else:
        check_tensor(f"{name} packed weight", weight.data, (columns, num_inputs, LANES), dtype)
    if projection.bias is not None:
        check_tensor(f"{name} bias", projection.bias, (num_outputs,), dtype)


def _check_codes(name: str, weight: PackedCodes, columns: int, dtype: torch.dtype) -> None:
    expect(f"{name} codes are for dtype", weight.dtype, dtype)
    groups, parts = weight.num_inputs // GROUP, 1 + weight.has_minimums
    group_bytes = weight.bits * GROUP * LANES // 8
    check_tensor(f"{name} codes", weight.codes, (columns, groups, group_bytes), torch.uint8)
    check_tensor(f"{name} scales", weight.scales, (columns, groups, parts, LANES), torch.float16)


def flat_layer(layer: Layer) -> compiled.Layer:
    return compiled.Layer(
        *(
            flat_norm(getattr(layer, name))
            for name in ("attn_in", "attn_out", "ffn_in", "ffn_out", "qk_norm")
        ),
        *(_flat_linear(getattr(layer, name)) for name in ("qkv", "out", "gate_up", "down")),
        layer.rope,
        layer.window,
        layer.scale,
        layer.soft_cap,
        ACTIVATIONS.index(layer.activation),
    )


def flat_norm(norm: Norm | None) -> compiled.Norm:
    return compiled.Norm() if norm is None else compiled.Norm(norm.weight.data_ptr(), norm.eps)


def flat_rope(rope: Rope) -> compiled.Rope:
    return compiled.Rope(rope.frequencies.data_ptr(), rope.rotary_dim, rope.amplitude)


def _flat_linear(projection: Projection) -> compiled.Linear:
    weight, bias = projection.weight, projection.bias
    bias_pointer = None if bias is None else bias.data_ptr()
    sizes = weight.num_outputs, weight.num_inputs
    if isinstance(weight, PackedLinear):
        return compiled.Linear(weight.data.data_ptr(), bias_pointer, *sizes)
    codes = compiled.CodedWeights(weight.bits, weight.has_minimums, weight.scales.data_ptr())
    return compiled.Linear(weight.codes.data_ptr(), bias_pointer, *sizes, codes)
