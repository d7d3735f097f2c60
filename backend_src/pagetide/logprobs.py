"""Log-probabilities to what is told of them: the token's own, its rank, and the likeliest."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from pagetide.request import TokenLogprobs
from pagetide.transfer import download


def describe(
    logprobs: torch.Tensor, tokens: torch.Tensor, num_top: Sequence[int]
) -> Callable[[], list[TokenLogprobs]]:
    """One row a token. What it returns waits for the device, and reads.

    Args:
        logprobs: [n, V] float32, each row a normalised distribution.
        tokens: [n] int64.
        num_top: how many of the likeliest tokens to tell in each row; -1, or more than there are: all.
    """
    own = logprobs.gather(1, tokens[:, None])
    ranks = (logprobs >= own).sum(-1)
    vocab_size = logprobs.shape[-1]
    counts = [vocab_size if count < 0 else min(count, vocab_size) for count in num_top]
    found = download(own[:, 0], ranks, *logprobs.topk(max(counts), dim=-1))
    return lambda: _told(counts, *(each.tolist() for each in found()))


def _told(
    counts: list[int], own: list[float], ranks: list[int], values: list[list[float]], ids: list[list[int]]
) -> list[TokenLogprobs]:
    return [
        TokenLogprobs(own[i], ranks[i], tuple(zip(ids[i][:count], values[i][:count], strict=True)))
        for i, count in enumerate(counts)
    ]
