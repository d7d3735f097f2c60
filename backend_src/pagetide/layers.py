"""The decoder's parts. Each is called with tensors and returns a tensor; none knows which family it serves.

T is the number of tokens in a step, D the head size, Hq and Hkv the query and KV heads of this rank.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F  # noqa: N812

from pagetide.rope import Rope, frequencies
from pagetide_kernels import ops

Layer = Callable[[torch.Tensor], torch.Tensor]


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


FIXED_ROWS = 64


@dataclass(frozen=True, slots=True)
class FixedLinear:
    """A Linear whose products all have FIXED_ROWS rows: the last one's are filled up with zeros.

    Libraries choose a kernel, and with it the order of a row's sums, by the number of rows. With one number
    a row's result does not depend on what is computed beside it.
    """

    weight: torch.Tensor
    bias: torch.Tensor | None = None

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([self._product(rows) for rows in torch.split(x, FIXED_ROWS)])

    def _product(self, rows: torch.Tensor) -> torch.Tensor:
        filled = F.pad(rows, (0, 0, 0, FIXED_ROWS - len(rows)))
        return F.linear(filled, self.weight, self.bias)[: len(rows)]


class PackedLinear:
    """A Linear whose weight lies as the CPU kernels stream it, owned by no other tensor.

    It is faster than Linear for few rows, and a row's result does not depend on how many there are.
    """

    __slots__ = ("bias", "packed")

    packed: ops.PackedLinear | ops.PackedCodes

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        self.packed = ops.pack_linear(weight)
        self.bias = bias

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return ops.linear(x, self.packed, self.bias)

    def widened(self, x: torch.Tensor) -> torch.Tensor:
        """The same in float32, without a pass that converts."""
        return ops.linear(x, self.packed, self.bias, widened=True)

    def likeliest(self, x: torch.Tensor) -> torch.Tensor:
        """Where the largest of each row's outputs is, [T] int64, without writing them if there is no bias."""
        if self.bias is not None:
            return ops.likeliest(self.widened(x))
        return ops.linear_likeliest(x, self.packed)

    def rows(self, ids: torch.Tensor) -> torch.Tensor:
        """Rows [S, in] of the weight: an embedding that a head shares."""
        return self.packed.rows(ids)


class QuantisedLinear(PackedLinear):
    """A PackedLinear whose weight is small integers in groups, multiplied as they are.

    Inputs and outputs are of `dtype`; results have the precision of the dequantised weight in float32.
    """

    __slots__ = ()

    def __init__(self, weight: ops.QuantisedWeight, bias: torch.Tensor | None, dtype: torch.dtype) -> None:
        self.packed = ops.pack_codes(weight, dtype)
        self.bias = bias


LinearFactory = Callable[[torch.Tensor, "torch.Tensor | None"], Layer]
"""Makes a linear of `weight` [out, in] and `bias` [out] or None; it owns both from then on."""


def linear_for(device: torch.device, dtype: torch.dtype) -> LinearFactory:
    """What makes the fastest linears there are for `dtype` on `device`."""
    packs = device.type == "cpu" and dtype in (torch.bfloat16, torch.float32)
    return PackedLinear if packs else Linear


class Norm(Protocol):
    """What stands before or after a sublayer. Maps [T, hidden] to the same."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor: ...

    def after_adding(self, residual: torch.Tensor, change: torch.Tensor | None) -> torch.Tensor:
        """Adds `change`, if there is any, to `residual` in place; returns the sum's norm."""


@dataclass(frozen=True, slots=True)
class RMSNorm:
    """Zhang and Sennrich 2019, arXiv:1910.07467, over the last dimension. Float32 weights and arithmetic."""

    weight: torch.Tensor
    eps: float

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return ops.add_rms_norm(x, None, self.weight, self.eps)

    def after_adding(self, residual: torch.Tensor, change: torch.Tensor | None) -> torch.Tensor:
        return ops.add_rms_norm(residual, change, self.weight, self.eps)


class NoNorm:
    """Stands where a family has no norm."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return x

    def after_adding(self, residual: torch.Tensor, change: torch.Tensor | None) -> torch.Tensor:
        return residual if change is None else residual.add_(change)


NO_NORM = NoNorm()


class Rotary:
    """Turns positions into the angles of a step; once, for every layer that shares it.

    `frequencies` [rotary_dim / 2] float32 are radians a position, `amplitude` is that of cos and sin.
    """

    def __init__(self, rope: Rope, device: torch.device) -> None:
        self.frequencies = frequencies(rope).to(device)
        self.amplitude = rope.amplitude
        self._twice = self.frequencies.repeat(2)
        self._cos_scale = torch.tensor(rope.amplitude, device=device)
        half = rope.rotary_dim // 2
        self._sin_scale = torch.tensor([-rope.amplitude] * half + [rope.amplitude] * half, device=device)

    def __call__(self, positions: torch.Tensor) -> Rotation:
        angles = (positions[:, None] * self._twice)[:, None]
        return Rotation(angles.cos() * self._cos_scale, angles.sin() * self._sin_scale)


@dataclass(frozen=True, slots=True)
class Attention:
    """Grouped-query attention (Ainslie et al. 2023, arXiv:2305.13245) over a paged KV cache.

    `qk_norm` [Hq + Hkv, D] float32 are the weights of an RMSNorm of each query and key head, or None.
    """

    qkv: Layer
    out: Layer
    head_dim: int
    scale: float
    window: int = 0
    soft_cap: float = 0.0
    qk_norm: torch.Tensor | None = None
    norm_eps: float = 0.0

    def __call__(
        self, x: torch.Tensor, rotation: Rotation, kv_cache: torch.Tensor, batch: AttentionBatch
    ) -> torch.Tensor:
        query = ops.split_qkv(
            self.qkv(x).view(len(x), -1, self.head_dim),
            rotation.cos,
            rotation.sin,
            kv_cache,
            batch.slots,
            self.qk_norm,
            self.norm_eps,
        )
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
        return self.out(attended.view(len(x), -1))


@dataclass(frozen=True, slots=True)
class GatedMLP:
    """`down(activation(gate(x)) * up(x))` (Shazeer 2020, arXiv:2002.05202); gate and up are one linear.

    `activation` is one of `pagetide_kernels.signatures.ACTIVATIONS`.
    """

    gate_up: Layer
    down: Layer
    activation: str

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        gate_up = self.gate_up(x).view(len(x), 2, -1)
        return self.down(ops.activate_and_multiply(gate_up, self.activation))


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of `weight` [V, hidden] as they lie in memory."""

    weight: torch.Tensor

    def __call__(self, ids: torch.Tensor) -> torch.Tensor:
        return ops.gather_rows(self.weight, ids)


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
        linear = self.linear
        logits = linear.widened(x) if isinstance(linear, PackedLinear) else linear(x).float()
        return logits if self.soft_cap == 0.0 else torch.tanh(logits / self.soft_cap) * self.soft_cap

    def likeliest(self, x: torch.Tensor) -> torch.Tensor:
        """The `ops.likeliest` of the logits, [S] int64. A cap may make equals of two that were not."""
        if self.soft_cap == 0.0 and isinstance(self.linear, PackedLinear):
            return self.linear.likeliest(x)
        return ops.likeliest(self(x))
