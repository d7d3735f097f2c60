"""What happens to rows of hidden states between matrix products. Part of `pagetide_kernels.ops`."""

from __future__ import annotations

import torch
from torch import Tensor

from pagetide_kernels.backend import kernels_for
from pagetide_kernels.binding import ArgumentError
from pagetide_kernels.signatures import ACTIVATIONS


def add_rms_norm(residual: Tensor, added: Tensor | None, weight: Tensor, epsilon: float) -> Tensor:
    """residual += added, if there is any; then its RMSNorm (Zhang and Sennrich 2019, arXiv:1910.07467).

    The norm is of the sum as it was rounded, in float32, and rounded once.

    Args:
        residual: [T, H], changed in place; bfloat16, on a CPU float32, on a GPU float16 too. On a GPU H is a
            multiple of 8.
        added: [T, H] of its dtype, or None.
        weight: [H] float32.

    Returns:
        residual / sqrt(mean(residual²) + epsilon) * weight, [T, H] of residual's dtype.

    Raises:
        ArgumentError: an argument of the wrong kind.
    """
    kernels = kernels_for("add_rms_norm", "residual", residual)
    out = torch.empty_like(residual, memory_format=torch.contiguous_format)
    kernels.add_rms_norm((out, residual, added, weight), (epsilon,))
    return out


def activate_and_multiply(gate_up: Tensor, activation: str) -> Tensor:
    """activation(gate) * up (Shazeer 2020, arXiv:2002.05202).

    Args:
        gate_up: [T, 2, I], gate before up; dtypes as in `add_rms_norm`. On a GPU I is a multiple of 8.
        activation: one of `signatures.ACTIVATIONS`.

    Returns:
        [T, I] of gate_up's dtype.

    Raises:
        ArgumentError: an argument of the wrong kind.
    """
    kernels = kernels_for("activate_and_multiply", "gate_up", gate_up)
    if activation not in ACTIVATIONS:
        known = ", ".join(ACTIVATIONS)
        raise ArgumentError(f"activate_and_multiply: activation is {activation!r}; expected one of {known}")
    shape = (*gate_up.shape[:1], *gate_up.shape[2:])
    out = torch.empty(shape, dtype=gate_up.dtype, device=gate_up.device)
    kernels.activate_and_multiply((out, gate_up), (ACTIVATIONS.index(activation),))
    return out


def gather_rows(table: Tensor, ids: Tensor) -> Tensor:
    """Rows of a table: embeddings, or the last token of each sequence.

    Args:
        table: [N, H], rows at any distance; dtypes as in `add_rms_norm`. On a GPU H is a multiple of 8.
        ids: [S] int64 in [0, N). On a GPU another one gives zeros, unless PAGETIDE_DEBUG=1 refuses it.

    Returns:
        [S, H] of table's dtype.

    Raises:
        ArgumentError: an argument of the wrong kind, or an id outside the table.
    """
    kernels = kernels_for("gather_rows", "table", table)
    if not isinstance(ids, Tensor):
        raise ArgumentError(f"gather_rows: ids is a {type(ids).__name__}; expected a torch.Tensor")
    out = torch.empty((*ids.shape, *table.shape[1:]), dtype=table.dtype, device=table.device)
    kernels.gather_rows((out, table, ids))
    return out
