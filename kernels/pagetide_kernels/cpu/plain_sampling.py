"""From logits to tokens in plain torch. Logits are [S, V] float32."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

_MOST_CANDIDATES = 1024
"""Filters look at this many most likely tokens first; only rows that need more are sorted whole."""


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


def sample(
    tokens: Tensor,
    logits: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    min_p: Tensor,
    uniform: Tensor,
) -> None:
    """See `ops.sample`."""
    vocab_size = logits.shape[1]
    limits = torch.where((top_k > 0) & (top_k < vocab_size), top_k, vocab_size).long()
    filters = (limits < vocab_size) | (top_p < 1) | (min_p > 0)
    for rows, most in ((~filters).nonzero()[:, 0], None), (filters.nonzero()[:, 0], _MOST_CANDIDATES):
        if len(rows):
            draw = _Draw(*(column[rows, None] for column in (temperature, limits, top_p, min_p, uniform)))
            tokens[rows] = draw.token(logits if len(rows) == len(logits) else logits[rows], most)


@dataclass(frozen=True, slots=True)
class _Draw:
    """Parameters of n rows as columns [n, 1]; `limits` is V where there is no top-k."""

    temperature: Tensor
    limits: Tensor
    top_p: Tensor
    min_p: Tensor
    uniform: Tensor

    def token(self, logits: Tensor, most: int | None) -> Tensor:
        """[n] for `logits` [n, V]; `most` None: nothing is filtered."""
        scaled = logits / self.temperature
        if most is None:
            return self._pick(scaled.softmax(-1))
        tokens, enough = self._filtered(scaled, min(most, scaled.shape[1]))
        if not bool(enough.all()):
            tokens = torch.where(enough, tokens, self._filtered(scaled, scaled.shape[1])[0])
        return tokens

    def _filtered(self, scaled: Tensor, width: int) -> tuple[Tensor, Tensor]:
        """Draws among the `width` likeliest; the second tensor [n] says where no others were to be kept."""
        values, ids = scaled.topk(width, -1)
        has_top_k = self.limits < scaled.shape[1]
        keep = values >= values.gather(1, self.limits.clamp(max=width) - 1)
        inside = values.masked_fill(~keep, -math.inf).logsumexp(-1, keepdim=True)
        masses = (values - torch.where(has_top_k, inside, scaled.logsumexp(-1, keepdim=True))).exp()
        before = masses.cumsum(-1, dtype=torch.float64) - masses
        num_kept = (keep & (before < self.top_p)).sum(-1, keepdim=True)
        keep &= values >= values.gather(1, num_kept.clamp(min=1) - 1)
        keep &= values >= values[:, :1] + self.min_p.log()
        enough = ~keep[:, -1:] & (~has_top_k | (self.limits <= width)) | (width == scaled.shape[1])
        most_kept = max(1, int(keep.sum(-1).max()))  # they are the first of their row
        ids, order = ids[:, :most_kept].sort(-1)
        picked = self._pick(masses.masked_fill(~keep, 0.0).gather(1, order))
        return ids.gather(1, picked[:, None])[:, 0], enough[:, 0]

    def _pick(self, masses: Tensor) -> Tensor:
        """The column [n] of `masses` [n, W] at which their running sum passes `uniform` of the total."""
        cumulative = masses.cumsum(-1, dtype=torch.float64)
        total = cumulative[:, -1:]
        target = torch.minimum(self.uniform * total, total.nextafter(torch.zeros_like(total)))
        index = torch.searchsorted(cumulative, target, right=True)[:, 0]
        return index.clamp_(max=masses.shape[1] - 1)  # a row of NaN passes nothing
