"""Linear layers over weights in the layout their device reads fastest. Part of `pagetide_kernels.ops`."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pagetide_kernels import cpu
from pagetide_kernels.binding import ArgumentError
from pagetide_kernels.quantised import PackedCodes
from pagetide_kernels.row_ops import gather_rows
from pagetide_kernels.sampling_ops import likeliest


@dataclass(frozen=True, slots=True)
class PackedLinear:
    """A weight [num_outputs, num_inputs] in the layout that `linear` reads fastest on its device."""

    data: Tensor
    num_outputs: int
    num_inputs: int

    @property
    def nbytes(self) -> int:
        return self.data.nbytes

    def rows(self, ids: Tensor) -> Tensor:
        """Rows of the weight, [S, num_inputs] for ids [S] int64: an embedding that is tied to the head.

        Raises:
            ArgumentError: an argument of the wrong kind, or an id outside the weight.
        """
        if self.data.device.type == "cpu":
            return cpu.unpacked_rows(self.data, self.num_outputs, ids)
        return gather_rows(self.data, ids)


def pack_linear(weight: Tensor) -> PackedLinear:
    """Packs a linear layer's weight once, at load time; the weight itself is not needed afterwards.

    Args:
        weight: [N, K], bfloat16 or float32; K even.

    Raises:
        ArgumentError: another dtype or shape.
    """
    if weight.dim() != 2 or weight.dtype not in (torch.bfloat16, torch.float32) or weight.shape[1] % 2:
        actual = f"{str(weight.dtype).removeprefix('torch.')} of shape {list(weight.shape)}"
        raise ArgumentError(f"pack_linear: weight is {actual}; expected bfloat16 or float32 [N, K], K even")
    data = cpu.pack_linear(weight) if weight.device.type == "cpu" else weight
    return PackedLinear(data, *weight.shape)


def linear(
    input: Tensor, weight: PackedLinear | PackedCodes, bias: Tensor | None = None, widened: bool = False
) -> Tensor:
    """input weight^T + bias, accumulated in float32, rounded once.

    On a CPU a row's result is the same bits whatever the other rows are, and however many.

    Args:
        input: [T, K] of weight's dtype, rows at any distance.
        bias: [N] of the same dtype.
        widened: whether the result, rounded or not, is told in float32.

    Returns:
        [T, N] of input's dtype, or float32.

    Raises:
        ArgumentError: an argument of the wrong kind.
    """
    if isinstance(weight, PackedCodes):
        out = torch.empty((len(input), weight.num_outputs), dtype=weight.dtype)
        cpu.quantised_linear((out, input, weight.codes, weight.scales, bias), ())
        return out.float() if widened else out
    if weight.data.device.type != "cpu":
        out = torch.nn.functional.linear(input, weight.data, bias)
        return out.float() if widened else out
    dtype = torch.float32 if widened else weight.data.dtype
    out = torch.empty((len(input), weight.num_outputs), dtype=dtype)
    cpu.linear((out, input, weight.data, bias), (), widened)
    return out


def linear_likeliest(input: Tensor, weight: PackedLinear | PackedCodes) -> Tensor:
    """The `likeliest` of what `linear` gives, widened; where it can, without ever writing that.

    Args:
        input: as `linear` takes it.

    Returns:
        [T] int64.

    Raises:
        ArgumentError: an argument of the wrong kind.
    """
    if isinstance(weight, PackedCodes) or weight.data.device.type != "cpu":
        return likeliest(linear(input, weight, widened=True))
    tokens = torch.empty(len(input), dtype=torch.int64)
    cpu.linear_likeliest((tokens, input, weight.data), weight.num_outputs)
    return tokens
