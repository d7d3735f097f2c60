"""What changes logits before a token is chosen: masks, bans, biases and penalties, for all rows at once.

On the device that holds the logits; the arithmetic is vLLM's.
"""

from __future__ import annotations

import math
from array import array
from functools import cache
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812

from pagetide.logit_edits import WORD_BITS, Allowed, Banned, Biased, LogitEdits, Penalised


def edit(logits: torch.Tensor, edits: LogitEdits) -> None:
    """Change `logits` [S, V] float32 in place."""
    if edits.allowed.rows:
        _allow(logits, edits.allowed)
    if edits.banned.rows:
        _ban(logits, edits.banned)
    if edits.biased.rows:
        _bias(logits, edits.biased)
    if edits.penalised.rows:
        _penalise(logits, edits.penalised)


def apply_bitmask(logits: torch.Tensor, rows: torch.Tensor, bitmask: torch.Tensor) -> None:
    """Take away the tokens whose bit is not set; any number of masks may be applied one after the other.

    Args:
        logits: [S, V] float32, changed in place.
        rows: [M] int64, the rows that `bitmask`'s are for, none twice.
        bitmask: [M, ceil(V / 32)] int32, packed as TokenMask and xgrammar do.
    """
    addends = F.embedding(bitmask.view(torch.uint8).int(), _addends_of_bytes(logits.device))
    logits.index_add_(0, rows, addends.flatten(1)[:, : logits.shape[-1]])


def is_nothing_left(logits: torch.Tensor, likeliest: torch.Tensor) -> torch.Tensor:
    """[S] bool: where even the likeliest token [S] was taken away."""
    return logits.gather(1, likeliest[:, None])[:, 0] == -math.inf


@cache
def _addends_of_bytes(device: torch.device) -> torch.Tensor:
    """[256, 8]: 0 for a byte's set bits, lowest first, else -inf; adding is far faster than filling."""
    bits = torch.arange(256)[:, None] >> torch.arange(8) & 1
    return torch.where(bits == 1, 0.0, -math.inf).to(device)


def _allow(logits: torch.Tensor, allowed: Allowed) -> None:
    words = np.zeros((len(allowed.masks), -(-logits.shape[-1] // WORD_BITS)), "<i4")
    for row, mask in zip(words, allowed.masks, strict=True):
        row[: len(mask.words) // words.itemsize] = np.frombuffer(mask.words, "<i4")
    apply_bitmask(logits, _tensor(allowed.rows, logits), torch.from_numpy(words).to(logits.device))


def _ban(logits: torch.Tensor, banned: Banned) -> None:
    logits[_tensor(banned.rows, logits), _tensor(banned.tokens, logits)] = -math.inf


def _bias(logits: torch.Tensor, biased: Biased) -> None:
    places = _tensor(biased.rows, logits), _tensor(biased.tokens, logits)
    logits.index_put_(places, _tensor(biased.values, logits), accumulate=True)


def _penalise(logits: torch.Tensor, penalised: Penalised) -> None:
    """Keskar et al. 2019, arXiv:1909.05858 (repetition), then OpenAI's frequency and presence penalties."""
    lengths = np.diff(np.frombuffer(penalised.starts, np.int64))

    def each(values: array[Any]) -> torch.Tensor:
        """One value a row to one a token."""
        return torch.from_numpy(np.repeat(np.array(values), lengths)).to(logits.device)

    places = each(penalised.rows), _tensor(penalised.tokens, logits)
    counts = _tensor(penalised.counts, logits)
    repetition = each(penalised.repetition)
    values = logits[places]
    values = torch.where(values > 0, values / repetition, values * repetition)
    values -= each(penalised.frequency) * counts
    values -= each(penalised.presence) * (counts > 0)
    logits[places] = values


def _tensor(values: array[Any], like: torch.Tensor) -> torch.Tensor:
    """A copy, since the plan is not the device's to keep; indices are int64."""
    tensor = torch.from_numpy(np.array(values)).to(like.device)
    return tensor if tensor.is_floating_point() else tensor.long()
