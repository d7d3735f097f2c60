"""What changes logits before a token is chosen: masks, bans, biases and penalties, for all rows at once.

On the device that holds the logits; the arithmetic is vLLM's.
"""

from __future__ import annotations

import math
from array import array
from typing import Any

import numpy as np
import torch

from pagetide.logit_edits import WORD_BITS, Allowed, Banned, Biased, LogitEdits, Penalised
from pagetide.transfer import upload
from pagetide_kernels import ops


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


def is_nothing_left(logits: torch.Tensor, likeliest: torch.Tensor) -> torch.Tensor:
    """[S] bool: where even the likeliest token [S] was taken away."""
    return logits.gather(1, likeliest[:, None])[:, 0] == -math.inf


def _allow(logits: torch.Tensor, allowed: Allowed) -> None:
    words = np.zeros((len(allowed.masks), -(-logits.shape[-1] // WORD_BITS)), "<i4")
    for row, mask in zip(words, allowed.masks, strict=True):
        row[: len(mask.words) // words.itemsize] = np.frombuffer(mask.words, "<i4")
    ops.apply_bitmask(logits, _tensor(allowed.rows, logits), upload(words, logits.device))


def _ban(logits: torch.Tensor, banned: Banned) -> None:
    logits[_tensor(banned.rows, logits), _tensor(banned.tokens, logits).long()] = -math.inf


def _bias(logits: torch.Tensor, biased: Biased) -> None:
    places = _tensor(biased.rows, logits), _tensor(biased.tokens, logits).long()
    logits.index_put_(places, _tensor(biased.values, logits), accumulate=True)


def _penalise(logits: torch.Tensor, penalised: Penalised) -> None:
    """Keskar et al. 2019, arXiv:1909.05858 (repetition), then OpenAI's frequency and presence penalties."""
    ops.penalise(
        logits,
        _tensor(penalised.rows, logits),
        _tensor(penalised.starts, logits),
        _tensor(penalised.tokens, logits),
        _tensor(penalised.counts, logits),
        _tensor(penalised.repetition, logits),
        _tensor(penalised.presence, logits),
        _tensor(penalised.frequency, logits),
    )


def _tensor(values: array[Any], like: torch.Tensor) -> torch.Tensor:
    """A copy, since the plan is not the device's to keep."""
    return upload(np.array(values), like.device)
