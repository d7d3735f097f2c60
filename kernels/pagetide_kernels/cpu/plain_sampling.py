"""From logits to tokens in plain torch. Logits are [S, V] float32."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

_CANDIDATES = (128, 1024)
"""Filters look at so many most likely tokens first; only rows that need more are sorted whole."""

_GROUP = 64
"""Tokens that are looked at as one first, by the sum of their masses."""


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
    draw = _Draw(*(column[:, None] for column in (temperature, limits, top_p, min_p, uniform)))
    for rows, token in ((~filters).nonzero()[:, 0], _Draw.token), (filters.nonzero()[:, 0], _Draw.filtered):
        if len(rows) == len(logits):
            tokens.copy_(token(draw, logits))
        elif len(rows):
            tokens[rows] = token(draw.of(rows), logits[rows])


@dataclass(frozen=True, slots=True)
class _Draw:
    """Parameters of n rows as columns [n, 1]; `limits` is V where there is no top-k."""

    temperature: Tensor
    limits: Tensor
    top_p: Tensor
    min_p: Tensor
    uniform: Tensor

    def of(self, rows: Tensor) -> _Draw:
        columns = (self.temperature, self.limits, self.top_p, self.min_p, self.uniform)
        return _Draw(*(column[rows] for column in columns))

    def token(self, logits: Tensor) -> Tensor:
        """[n] for `logits` [n, V], of which none are filtered. Overwritten: room for a copy costs more to get
        than the draw, as the system hands it out page by page each time."""
        scaled = logits.div_(self.temperature)
        return self._pick(torch.softmax(scaled, -1, out=scaled))

    def filtered(self, logits: Tensor) -> Tensor:
        """[n] for `logits` [n, V], which is overwritten."""
        scaled = logits.div_(self.temperature)
        few, *more = (min(width, scaled.shape[1]) for width in (*_CANDIDATES, scaled.shape[1]))
        tokens, enough = self._filtered(scaled, few)
        for width in more:
            lacking = (~enough).nonzero()[:, 0]
            if not len(lacking):
                break
            tokens[lacking], enough[lacking] = self.of(lacking)._filtered(scaled[lacking], width)
        return tokens

    def _filtered(self, scaled: Tensor, width: int) -> tuple[Tensor, Tensor]:
        """Draws among the `width` likeliest; the second tensor [n] says where no others were to be kept."""
        values, ids = _likeliest(scaled, width)
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
        if masses.shape[1] % _GROUP:
            cumulative = masses.cumsum(-1, dtype=torch.float64)
            return _passing(cumulative, self.uniform * cumulative[:, -1:])
        groups = masses.view(len(masses), -1, _GROUP)
        sums = groups.sum(-1, dtype=torch.float64)
        cumulative = sums.cumsum(-1)
        target = self.uniform * cumulative[:, -1:]
        group = _passing(cumulative, target)[:, None]
        inside = groups[torch.arange(len(groups)), group[:, 0]].cumsum(-1, dtype=torch.float64)
        left = target - cumulative.gather(1, group) + sums.gather(1, group)
        return group[:, 0] * _GROUP + _passing(inside, left)


def _passing(cumulative: Tensor, target: Tensor) -> Tensor:
    """The first column [n] of `cumulative` [n, W] above `target` [n, 1], which is kept below the last."""
    total = cumulative[:, -1:]
    below = torch.minimum(target, total.nextafter(torch.zeros_like(total)))
    index = torch.searchsorted(cumulative, below, right=True)[:, 0]
    return index.clamp_(max=cumulative.shape[1] - 1)  # a row of NaN passes nothing


def _likeliest(scaled: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """`topk`, several times as fast for few of many: they are in the groups with the largest maxima."""
    size = 1 << int(math.log2(scaled.shape[1] / width)) // 2
    if size == 1 or scaled.shape[1] % size:
        return scaled.topk(width, -1)
    groups = scaled.view(len(scaled), -1, size)
    best = groups.amax(-1).topk(width, -1).indices
    inside = groups.gather(1, best[:, :, None].expand(-1, -1, size)).flatten(1)
    values, at = inside.topk(width, -1)
    return values, best.gather(1, at // size) * size + at % size
