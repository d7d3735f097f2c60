"""The decoder's parts. Each is called with tensors and returns a tensor; none knows which family it serves.

T is the number of tokens in a step, D the head size, Hq and Hkv the query and KV heads of this rank.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F  # noqa: N812

from pagetide.rope import Rope, frequencies
from pagetide_kernels import ops

Layer = Callable[[torch.Tensor], torch.Tensor]

ACTIVATIONS: dict[str, Layer] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "relu": F.relu,
}


@dataclass(frozen=True, slots=True)
class AttentionBatch:
    """Where the T tokens of a step sit: B rows of a varlen batch over the paged KV cache.

    `block_table` [B, M] int32 holds block ids; `query_starts` [B + 1] int32 the rows' first tokens;
    `kv_lens` [B] int32 each row's tokens including its new ones; `slots` [T] int64 where each token's
    KV goes (block id * 16 + offset, negative: nowhere). `max_query_len` is the longest row's new tokens.
    """

    block_table: torch.Tensor
    query_starts: torch.Tensor
    kv_lens: torch.Tensor
    slots: torch.Tensor
    max_query_len: int


@dataclass(frozen=True, slots=True)
class Rotation:
    """One step's angles: `cos` and `sin` [T, 1, rotary_dim] float32, `sin` negated in its first half."""

    cos: torch.Tensor
    sin: torch.Tensor


@dataclass(frozen=True, slots=True)
class Linear:
    """`x @ weight.T + bias` with `weight` [out, in]. Whatever replaces it maps [T, in] to [T, out] too."""

    weight: torch.Tensor
    bias: torch.Tensor | None = None

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.weight, self.bias)


class PackedLinear:
    """A Linear whose weight lies as the CPU kernels stream it, owned by no other tensor.

    It is faster than Linear for few rows, and a row's result does not depend on how many there are.
    """

    __slots__ = ("bias", "packed")

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        self.packed = ops.pack_linear(weight)
        self.bias = bias

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return ops.linear(x, self.packed, self.bias)

    def rows(self, ids: torch.Tensor) -> torch.Tensor:
        """Rows [S, in] of the weight: an embedding that a head shares."""
        return self.packed.rows(ids)


LinearFactory = Callable[[torch.Tensor, "torch.Tensor | None"], Layer]
"""Makes a linear of `weight` [out, in] and `bias` [out] or None; it owns both from then on."""


def linear_for(device: torch.device, dtype: torch.dtype) -> LinearFactory:
    """What makes the fastest linears there are for `dtype` on `device`."""
    packs = device.type == "cpu" and dtype in (torch.bfloat16, torch.float32)
    return PackedLinear if packs else Linear


@dataclass(frozen=True, slots=True)
class RMSNorm:
    """Zhang and Sennrich 2019, arXiv:1910.07467, over the last dimension. Float32 weights and arithmetic."""

    weight: torch.Tensor
    eps: float

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x.float(), self.weight.shape, self.weight, self.eps).to(x.dtype)


@dataclass(frozen=True, slots=True)
class HeadNorm:
    """An RMSNorm of each head in [T, Hq + Hkv, D], `weight` [Hq + Hkv, D]: q and k norm in one."""

    weight: torch.Tensor
    eps: float

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return (F.rms_norm(x.float(), self.weight.shape[-1:], None, self.eps) * self.weight).to(x.dtype)


def identity(x: torch.Tensor) -> torch.Tensor:
    """Stands where a family has no norm."""
    return x


class Rotary:
    """Turns positions into the angles that `rotate` applies; once a step, for every layer that shares it."""

    def __init__(self, rope: Rope, device: torch.device) -> None:
        self._frequencies = frequencies(rope).repeat(2).to(device)
        self._cos_scale = torch.tensor(rope.amplitude, device=device)
        half = rope.rotary_dim // 2
        self._sin_scale = torch.tensor([-rope.amplitude] * half + [rope.amplitude] * half, device=device)

    def __call__(self, positions: torch.Tensor) -> Rotation:
        angles = (positions[:, None] * self._frequencies)[:, None]
        return Rotation(angles.cos() * self._cos_scale, angles.sin() * self._sin_scale)


def rotate(heads: torch.Tensor, rotation: Rotation) -> torch.Tensor:
    """RoPE of `heads` [T, H, D] over their first rotary_dim dimensions, computed in float32.

    Works on q and k side by side. Returns `heads`, changed in place.
    """
    rotary_dim = rotation.cos.shape[-1]
    turned = heads[..., :rotary_dim]
    swapped = turned.roll(rotary_dim // 2, -1)
    turned.copy_(torch.addcmul(turned * rotation.cos, swapped, rotation.sin))
    return heads


@dataclass(frozen=True, slots=True)
class Attention:
    """Grouped-query attention (Ainslie et al. 2023, arXiv:2305.13245) over a paged KV cache."""

    qkv: Layer
    out: Layer
    qk_norm: Layer
    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    window: int
    soft_cap: float

    def __call__(
        self, x: torch.Tensor, rotation: Rotation, kv_cache: torch.Tensor, batch: AttentionBatch
    ) -> torch.Tensor:
        num_tokens, num_rotated = x.shape[0], self.num_heads + self.num_kv_heads
        heads = self.qkv(x).view(num_tokens, num_rotated + self.num_kv_heads, self.head_dim)
        rotated = rotate(self.qk_norm(heads[:, :num_rotated]), rotation)
        query, key, value = rotated[:, : self.num_heads], rotated[:, self.num_heads :], heads[:, num_rotated:]
        ops.write_kv(key, value, kv_cache, batch.slots)
        attended = ops.paged_attention(
            query,
            kv_cache,
            batch.block_table,
            batch.query_starts,
            batch.kv_lens,
            self.scale,
            self.window,
            self.soft_cap,
            max_query_len=batch.max_query_len,
        )
        return self.out(attended.view(num_tokens, -1))


@dataclass(frozen=True, slots=True)
class GatedMLP:
    """`down(activation(gate(x)) * up(x))` (Shazeer 2020, arXiv:2002.05202); gate and up are one linear."""

    gate_up: Layer
    down: Layer
    activation: Layer

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = self.gate_up(x).chunk(2, -1)
        return self.down(self.activation(gate).mul_(up))


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of `weight` [V, hidden] as they lie in memory."""

    weight: torch.Tensor

    def __call__(self, ids: torch.Tensor) -> torch.Tensor:
        return F.embedding(ids, self.weight)


@dataclass(frozen=True, slots=True)
class Embedding:
    """Rows [T, hidden] of the weight that `rows` looks up, times `scale` rounded to their dtype."""

    rows: Layer
    scale: float = 1.0

    def __call__(self, token_ids: torch.Tensor) -> torch.Tensor:
        rows = self.rows(token_ids)
        return rows if self.scale == 1.0 else rows.mul_(torch.tensor(self.scale, dtype=rows.dtype))


@dataclass(frozen=True, slots=True)
class Head:
    """Hidden states to float32 logits, capped at ±`soft_cap` by a tanh when it is not 0."""

    linear: Layer
    soft_cap: float = 0.0

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        logits = self.linear(x).float()
        return logits if self.soft_cap == 0.0 else torch.tanh(logits / self.soft_cap) * self.soft_cap
