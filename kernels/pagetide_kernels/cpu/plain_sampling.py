"""From logits to tokens in plain torch. Logits are [S, V] float32."""

from __future__ import annotations

import math
from functools import cache

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor


def penalise(
    logits: Tensor,
    rows: Tensor,
    starts: Tensor,
    tokens: Tensor,
    counts: Tensor,
    repetition: Tensor,
    presence: Tensor,
    frequency: Tensor,
) -> None:
    """See `ops.penalise`."""
    entry = torch.arange(len(rows)).repeat_interleave(starts.diff())
    listed = slice(int(starts[0]), int(starts[-1]))
    places, times = (rows[entry], tokens[listed].long()), counts[listed]
    values, factor = logits[places], repetition[entry]
    values = torch.where(values > 0, values / factor, values * factor)
    values -= frequency[entry] * times
    values -= presence[entry] * (times > 0)
    logits[places] = values


def apply_bitmask(logits: Tensor, rows: Tensor, bitmask: Tensor) -> None:
    """See `ops.apply_bitmask`."""
    addends = F.embedding(bitmask.contiguous().view(torch.uint8).int(), _addends_of_bytes())
    logits.index_add_(0, rows, addends.flatten(1)[:, : logits.shape[1]])


@cache
def _addends_of_bytes() -> Tensor:
    """[256, 8]: 0 for a byte's set bits, lowest first, else -inf; adding is far faster than filling."""
    bits = torch.arange(256)[:, None] >> torch.arange(8) & 1
    return torch.where(bits == 1, 0.0, -math.inf)


def greedy(tokens: Tensor, logprobs: Tensor | None, logits: Tensor) -> None:
    """See `ops.greedy`; `tokens` and `logprobs` [S, n] are filled."""
    likeliest = logits.argmax(-1, keepdim=True) if tokens.shape[1] == 1 else _largest(logits, tokens.shape[1])
    tokens.copy_(likeliest)
    if logprobs is not None:
        torch.sub(logits.gather(1, likeliest), logits.logsumexp(-1, keepdim=True), out=logprobs)


def _largest(logits: Tensor, count: int) -> Tensor:
    """By an integer that orders by value, then by token: `topk` leaves open which of equals it takes."""
    bits = (logits + 0.0).view(torch.int32).long()  # + 0.0: no negative zero
    order = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    return ((order << 32) - torch.arange(logits.shape[1])).topk(count, -1).indices
