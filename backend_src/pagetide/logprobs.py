"""Log-probabilities to what is told of them: the token's own, its rank, and the likeliest."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from pagetide.request import TokenLogprobs


def describe(logprobs: torch.Tensor, tokens: torch.Tensor, num_top: Sequence[int]) -> list[TokenLogprobs]:
    """One row a token.

    Args:
        logprobs: [n, V] float32, each row a normalised distribution.
        tokens: [n] int64.
        num_top: how many of the likeliest tokens to tell in each row; -1, or more than there are: all.
    """
    own = logprobs.gather(1, tokens[:, None])
    ranks = (logprobs >= own).sum(-1).tolist()
    vocab_size = logprobs.shape[-1]
    counts = [vocab_size if count < 0 else min(count, vocab_size) for count in num_top]
    values, ids = (t.tolist() for t in logprobs.topk(max(counts), dim=-1))
    return [
        TokenLogprobs(each, ranks[i], tuple(zip(ids[i][:count], values[i][:count], strict=True)))
        for i, (each, count) in enumerate(zip(own[:, 0].tolist(), counts, strict=True))
    ]
