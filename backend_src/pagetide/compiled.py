"""Runs a decoder's layers as one call into C++ where the CPU and the parts allow it.

`PAGETIDE_CPU_STEP=torch` keeps to the layers in `pagetide.layers`, for comparison.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import torch

from pagetide.family import Family
from pagetide.layers import (
    NO_NORM,
    AttentionBatch,
    Layer,
    Norm,
    PackedLinear,
    RMSNorm,
    Rotary,
)
from pagetide.model import Body, DecoderLayer, LayerByLayer, Stack
from pagetide_kernels import decoder as kernels

_SWITCH = "PAGETIDE_CPU_STEP"


def stack_for(body: Body, family: Family, dtype: torch.dtype, device: torch.device) -> Stack:
    """The fastest stack of a body, which is one rank's and `family` with it."""
    if device.type != "cpu" or os.environ.get(_SWITCH) == "torch" or not kernels.is_fast():
        return LayerByLayer(body)
    sizes = kernels.Sizes(
        family.hidden_size,
        family.intermediate_size,
        family.num_heads,
        family.num_kv_heads,
        family.head_dim,
    )
    if sizes.problem or not (_is_norm(body.norm) and all(map(_is_describable, body.layers))):
        return LayerByLayer(body)
    return CompiledStack(body, sizes, dtype)


class CompiledStack:
    """A stack without Python between its layers. Shares their weights, and changes hidden states in place."""

    def __init__(self, body: Body, sizes: kernels.Sizes, dtype: torch.dtype) -> None:
        layers = [_described(layer) for layer in body.layers]
        ropes = [_rope(rotary) for rotary in body.rotaries]
        self._step = kernels.DecoderStep(layers, ropes, _norm(body.norm), sizes, dtype)

    def __call__(
        self,
        hidden: torch.Tensor,
        positions: torch.Tensor,
        kv_caches: Sequence[torch.Tensor],
        batch: AttentionBatch,
        wanted: torch.Tensor | None = None,
    ) -> torch.Tensor:
        tables = (batch.block_table, batch.query_starts, batch.kv_lens, batch.slots)
        return self._step.run(hidden, positions, kv_caches, *tables, wanted)


def _is_describable(layer: DecoderLayer) -> bool:
    linears = (layer.attention.qkv, layer.attention.out, layer.ffn.gate_up, layer.ffn.down)
    norms = (layer.attn_in, layer.attn_out, layer.ffn_in, layer.ffn_out)
    return all(isinstance(linear, PackedLinear) for linear in linears) and all(map(_is_norm, norms))


def _is_norm(norm: Norm) -> bool:
    return norm is NO_NORM or isinstance(norm, RMSNorm)


def _described(layer: DecoderLayer) -> kernels.Layer:
    attention, ffn = layer.attention, layer.ffn
    return kernels.Layer(
        qkv=_projection(attention.qkv),
        out=_projection(attention.out),
        gate_up=_projection(ffn.gate_up),
        down=_projection(ffn.down),
        scale=attention.scale,
        activation=ffn.activation,
        attn_in=_norm(layer.attn_in),
        attn_out=_norm(layer.attn_out),
        ffn_in=_norm(layer.ffn_in),
        ffn_out=_norm(layer.ffn_out),
        qk_norm=None if attention.qk_norm is None else kernels.Norm(attention.qk_norm, attention.norm_eps),
        rope=layer.rope,
        window=attention.window,
        soft_cap=attention.soft_cap,
    )


def _projection(linear: Layer) -> kernels.Projection:
    assert isinstance(linear, PackedLinear)
    return kernels.Projection(linear.packed, linear.bias)


def _rope(rotary: Rotary) -> kernels.Rope:
    return kernels.Rope(rotary.frequencies, rotary.amplitude)


def _norm(norm: Norm) -> kernels.Norm | None:
    return kernels.Norm(norm.weight, norm.eps) if isinstance(norm, RMSNorm) else None
