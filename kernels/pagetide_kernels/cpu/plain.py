"""What happens to rows between matrix products, in plain torch: rounded where layers of their own would."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "relu": F.relu,
}

_SERIAL_ELEMENTS = 2**15 - 1
"""More than these torch shares out to threads (at::internal::GRAIN_SIZE)."""


def head_norm(heads: Tensor, weight: Tensor | None, epsilon: float) -> Tensor:
    """An RMSNorm of each head of [T, H, D] with its row of `weight` [H, D] float32; None: `heads`."""
    if weight is None:
        return heads
    return (F.rms_norm(heads.float(), weight.shape[-1:], None, epsilon) * weight).to(heads.dtype)


def rotate(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """RoPE of `heads` [T, H, D] over the dimensions of `cos` and `sin` [T, 1, R], computed in float32.

    Works on queries and keys side by side. Returns `heads`, changed in place.
    """
    rotary_dim = cos.shape[-1]
    turned = heads[..., :rotary_dim]
    swapped = turned.roll(rotary_dim // 2, -1)
    turned.copy_(torch.addcmul(turned * cos, swapped, sin))
    return heads


def add_rms_norm(out: Tensor, residual: Tensor, added: Tensor | None, weight: Tensor, epsilon: float) -> None:
    if added is not None:
        residual.add_(added)
    out.copy_(F.rms_norm(residual.float(), weight.shape, weight, epsilon))


def activate_and_multiply(out: Tensor, gate_up: Tensor, activation: str) -> None:
    """A few rows at a time: where torch's threads share elements out, the last of a share get other bits."""
    num_rows = max(1, _SERIAL_ELEMENTS // max(1, out.shape[1]))
    for first in range(0, len(out), num_rows):
        part, pair = out[first : first + num_rows], gate_up[first : first + num_rows]
        torch.mul(ACTIVATIONS[activation](pair[:, 0]), pair[:, 1], out=part)


def move_blocks(to: Tensor, source: Tensor, to_ids: Tensor | None, source_ids: Tensor | None) -> None:
    """Negative ids move nothing."""
    count = len(to_ids if to_ids is not None else source_ids if source_ids is not None else ())
    everything = torch.arange(count)
    targets = everything if to_ids is None else to_ids
    sources = everything if source_ids is None else source_ids
    moved = (targets >= 0) & (sources >= 0)
    to[targets[moved]] = source[sources[moved]]
