"""Weights as small integers in groups: what they mean, how they are made, and how the CPU kernels read them.

`weight[n, k] = scales[n, k // GROUP] * codes[n, k] + minimums[n, k // GROUP]`, GGUF's Q4_0, Q4_1 and Q8_0
among them. cpu/codes.h draws the packed layout.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from pagetide_kernels.binding import ArgumentError
from pagetide_kernels.cpu import memory
from pagetide_kernels.signatures import GROUP, LANES

_ROWS_AT_ONCE = 4096
_ELEMENTS = (torch.bfloat16, torch.float32)


@dataclass(frozen=True, slots=True)
class QuantisedWeight:
    """A weight [N, K] in groups of GROUP inputs.

    `codes` [N, K] int8 are of 8 `bits`, -127 to 127, or of 4: 0 to 15 with minimums, -8 to 7 without.
    `scales` and `minimums` [N, K / GROUP] are float16; minimums None: 0, always so for 8 bits.
    """

    codes: Tensor
    scales: Tensor
    minimums: Tensor | None
    bits: int

    def map(self, change: Callable[[Tensor], Tensor]) -> QuantisedWeight:
        """With `change` made of each of its tensors: of their rows."""
        minimums = None if self.minimums is None else change(self.minimums)
        return QuantisedWeight(change(self.codes), change(self.scales), minimums, self.bits)

    def inputs(self, kept: slice) -> QuantisedWeight:
        """Those from one multiple of GROUP to another."""
        groups = slice(kept.start // GROUP, kept.stop // GROUP)
        minimums = None if self.minimums is None else self.minimums[:, groups]
        return QuantisedWeight(self.codes[:, kept], self.scales[:, groups], minimums, self.bits)

    def dequantised(self) -> Tensor:
        """[N, K] float32."""
        parts = [self.scales] if self.minimums is None else [self.scales, self.minimums]
        return _values(self.codes, torch.stack(parts, -1))


@dataclass(frozen=True, slots=True)
class PackedCodes:
    """A QuantisedWeight as `ops.linear` reads it on a CPU, for inputs and outputs of `dtype`.

    `codes` [C, G, bytes] uint8 and `scales` [C, G, parts, LANES] float16: scales, then minimums if any.
    """

    codes: Tensor
    scales: Tensor
    num_outputs: int
    num_inputs: int
    dtype: torch.dtype

    @property
    def bits(self) -> int:
        return 8 * self.codes.shape[-1] // (GROUP * LANES)

    @property
    def has_minimums(self) -> bool:
        return self.scales.shape[2] == 2

    @property
    def nbytes(self) -> int:
        return self.codes.nbytes + self.scales.nbytes

    def rows(self, ids: Tensor) -> Tensor:
        """Rows of the weight, [S, K] of `dtype` for ids [S] int64: an embedding that is tied to the head."""
        column, lane = ids // LANES, ids % LANES
        codes = _unpacked(self.codes, column, lane, 0 if self.has_minimums else 8)
        return _values(codes, self.scales[column, :, :, lane]).to(self.dtype)


def quantise(weight: Tensor, bits: int) -> QuantisedWeight:
    """The nearest codes to `weight` [N, K]: 8 bits around 0, 4 bits from a group's least to its largest.

    Raises:
        ArgumentError: K is no multiple of GROUP, or `bits` is neither 4 nor 8.
    """
    if bits not in (4, 8):
        raise ArgumentError(f"quantise: bits is {bits}; expected 4 or 8")
    if weight.dim() != 2 or weight.shape[1] % GROUP or not weight.shape[1]:
        raise ArgumentError(
            f"quantise: weight is of shape {list(weight.shape)}; expected [N, K], K a multiple of {GROUP}"
        )
    to_codes = _around_zero if bits == 8 else _from_minimums
    parts = [to_codes(_cut(rows.float(), GROUP)) for rows in torch.split(weight, _ROWS_AT_ONCE)]
    codes, scales, minimums = zip(*parts, strict=True)
    return QuantisedWeight(
        torch.cat(codes).flatten(1),
        torch.cat(scales),
        None if bits == 8 else torch.cat(minimums),
        bits,
    )


def pack_codes(weight: QuantisedWeight, dtype: torch.dtype) -> PackedCodes:
    """Packs a weight once, at load time; `weight` itself is not needed afterwards.

    Args:
        dtype: of the inputs and outputs it will be used with, bfloat16 or float32.

    Raises:
        ArgumentError: another dtype, a weight that is not on a CPU, or a code of -128.
    """
    if dtype not in _ELEMENTS or weight.codes.device.type != "cpu":
        raise ArgumentError(
            f"pack_codes: weight is on {weight.codes.device} for {dtype}; expected cpu, bfloat16 or float32"
        )
    if weight.bits == 8 and (weight.codes == -128).any():
        raise ArgumentError("pack_codes: codes hold -128; expected -127 to 127")
    num_outputs, num_inputs = weight.codes.shape
    parts = [weight.scales] if weight.minimums is None else [weight.scales, weight.minimums]
    scales = _in_columns(torch.stack(parts, -1)).permute(0, 2, 3, 1)
    codes = _packed(_in_columns(weight.codes), weight.bits, weight.minimums is None)
    return PackedCodes(_in_huge_pages(codes), _in_huge_pages(scales), num_outputs, num_inputs, dtype)


def _values(codes: Tensor, scales: Tensor) -> Tensor:
    """[S, K] float32 of codes [S, K] and scales [S, G, parts]."""
    values = _cut(codes, GROUP) * scales[:, :, :1].float()
    if scales.shape[2] == 2:
        values += scales[:, :, 1:].float()
    return values.flatten(1)


def _cut(tensor: Tensor, *sizes: int) -> Tensor:
    """The last dimension as pieces of `sizes`."""
    return tensor.reshape(*tensor.shape[:-1], -1, *sizes)


Grouped = tuple[Tensor, Tensor, Tensor]
"""Codes [n, G, GROUP] int8, scales and minimums [n, G] float16."""


def _around_zero(groups: Tensor) -> Grouped:
    scales = (groups.abs().amax(-1) / 127).half()
    return _codes(groups, scales, -127, 127), scales, torch.zeros_like(scales)


def _from_minimums(groups: Tensor) -> Grouped:
    least, most = groups.aminmax(dim=-1)
    scales, minimums = ((most - least) / 15).half(), least.half()
    return _codes(groups - minimums.float()[..., None], scales, 0, 15), scales, minimums


def _codes(groups: Tensor, scales: Tensor, least: int, most: int) -> Tensor:
    """A scale of 0 is of a group whose values are all alike."""
    inverse = torch.where(scales > 0, 1 / scales.float(), 0.0)
    return (groups * inverse[..., None]).round_().clamp_(least, most).to(torch.int8)


def _in_columns(rows: Tensor) -> Tensor:
    """[N, ...] to [C, LANES, ...], zeros beyond N."""
    missing = -len(rows) % LANES
    padded = torch.cat([rows, rows.new_zeros(missing, *rows.shape[1:])]) if missing else rows
    return padded.view(-1, LANES, *rows.shape[1:])


def _packed(codes: Tensor, bits: int, around_zero: bool) -> Tensor:
    """[C, LANES, K] to [C, G, bytes]."""
    groups = _cut(codes, GROUP)
    if bits == 8:
        return _cut(groups, 4).permute(0, 2, 3, 1, 4).flatten(2).view(torch.uint8)
    nibbles = (groups + (8 if around_zero else 0)).to(torch.uint8)
    nibbles = _cut(nibbles, 4, 2).permute(0, 2, 3, 1, 5, 4)
    return (nibbles[..., 0::2] | nibbles[..., 1::2] << 4).flatten(2)


def _unpacked(packed: Tensor, column: Tensor, lane: Tensor, zero: int) -> Tensor:
    """Rows [S, K] int8 of what `_packed` packed; 4 bits stand for `zero` less."""
    if packed.shape[2] == GROUP * LANES:
        return _cut(packed.view(torch.int8), LANES, 4)[column, :, :, lane].flatten(1)
    pairs = _cut(packed, LANES, 2, 2)[column, :, :, lane]
    nibbles = torch.stack([pairs & 15, pairs >> 4], -1).flatten(-2)
    return nibbles.transpose(-1, -2).flatten(1).to(torch.int8) - zero


def _in_huge_pages(tensor: Tensor) -> Tensor:
    return memory.empty(tensor.shape, tensor.dtype).copy_(tensor)
