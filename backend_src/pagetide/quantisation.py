"""What the setting `quantization` makes of a checkpoint's matrices.

"int8" and "int4" quantise every matrix as it is loaded. "gguf" takes the blocks of a GGUF file as they are
where the kernels know them, and makes 8 bits of the others. Norms, biases and an embedding that no head
shares stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from pagetide_kernels.ops import QuantisedWeight

BITS = {"int8": 8, "int4": 4, "gguf": 8}
"""What a matrix becomes that is not taken as it is stored."""

HEAD_BITS = BITS | {"int4": 8}
"""The same of the head, whose errors go straight to the logits."""


def _q8_0(blocks: torch.Tensor) -> QuantisedWeight | None:
    """None where a code is -128, which ggml does not make and the kernels do not take."""
    codes = _signed(blocks[..., 2:])
    return None if (codes == -128).any() else QuantisedWeight(codes, _halves(blocks, 0), None, 8)


def _q4_0(blocks: torch.Tensor) -> QuantisedWeight:
    return QuantisedWeight(_nibbles(blocks[..., 2:]) - 8, _halves(blocks, 0), None, 4)


def _q4_1(blocks: torch.Tensor) -> QuantisedWeight:
    return QuantisedWeight(_nibbles(blocks[..., 4:]), _halves(blocks, 0), _halves(blocks, 2), 4)


GGUF_BLOCKS: dict[str, Callable[[torch.Tensor], QuantisedWeight | None]] = {
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q8_0": _q8_0,
}
"""From blocks [rows, blocks of a row, bytes] uint8, as ggml-common.h lays them out, by the type's name."""


def _halves(blocks: torch.Tensor, at: int) -> torch.Tensor:
    return blocks[..., at : at + 2].contiguous().view(torch.float16).squeeze(-1)


def _signed(codes: torch.Tensor) -> torch.Tensor:
    return codes.contiguous().view(torch.int8).flatten(1)


def _nibbles(pairs: torch.Tensor) -> torch.Tensor:
    """The low halves of a block's bytes are its first sixteen codes."""
    return torch.cat([pairs & 15, pairs >> 4], -1).view(torch.int8).flatten(1)


def joined(parts: Sequence[QuantisedWeight | None]) -> QuantisedWeight | None:
    """Weights one below the other; None where one is missing or they are of different kinds."""
    given = [part for part in parts if part is not None]
    kinds = {(part.bits, part.minimums is None) for part in given}
    if len(given) < len(parts) or len(kinds) != 1:
        return None
    minimums = [part.minimums for part in given if part.minimums is not None]
    return QuantisedWeight(
        torch.cat([part.codes for part in given]),
        torch.cat([part.scales for part in given]),
        torch.cat(minimums) if minimums else None,
        given[0].bits,
    )
