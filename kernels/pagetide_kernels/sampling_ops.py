"""From logits to tokens. Part of `pagetide_kernels.ops`."""

from __future__ import annotations

import torch
from torch import Tensor

from pagetide_kernels.backend import kernels_for
from pagetide_kernels.binding import ArgumentError

_WORD_BITS = 32


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
    """Penalties on what n rows have seen, in place, as vLLM and OpenAI define them (repetition: Keskar et al.
    2019, arXiv:1909.05858).

    Args:
        logits: [S, V] float32, rows at any distance.
        rows: [n] int64, none twice.
        starts: [n + 1] int64, rising: row rows[i] has seen tokens[starts[i]:starts[i + 1]].
        tokens: [E] int32, of a row each once.
        counts: [E] int32, how often each stands in the output; 0: only in the prompt.
        repetition: [n] float32; positive logits of seen tokens are divided by it, others multiplied.
        presence: [n] float32, subtracted from the logits of tokens in the output.
        frequency: [n] float32, subtracted once for each time.

    Raises:
        ArgumentError: an argument of the wrong kind, a row or a token outside.
    """
    kernels = kernels_for("penalise", "logits", logits)
    kernels.penalise((logits, rows, starts, tokens, counts, repetition, presence, frequency))


def apply_bitmask(logits: Tensor, rows: Tensor, bitmask: Tensor) -> None:
    """Takes away from n rows, in place, the tokens whose bit is not set: their logits become -inf.

    Args:
        logits: [S, V] float32, rows at any distance.
        rows: [n] int64, none twice.
        bitmask: [n, V / 32 or more] int32; bit t % 32 of word t // 32, the lowest first, is token t, as
            xgrammar packs them.

    Raises:
        ArgumentError: an argument of the wrong kind, or a row outside.
    """
    kernels = kernels_for("apply_bitmask", "logits", logits)
    words = bitmask.shape[-1] if isinstance(bitmask, Tensor) and bitmask.dim() == 2 else None
    if words is not None and words * _WORD_BITS < logits.shape[-1]:
        needed = -(-logits.shape[-1] // _WORD_BITS)
        raise ArgumentError(f"apply_bitmask: bitmask has {words} words a row; expected {needed} or more")
    kernels.apply_bitmask((logits, rows, bitmask))


def greedy(logits: Tensor, count: int = 1) -> tuple[Tensor, Tensor]:
    """The `count` likeliest tokens of each row, likeliest first, of equals the smaller token first.

    Args:
        logits: [S, V] float32, rows at any distance.
        count: 1 to V; meant for few, each costs a look at a part of the row.

    Returns:
        Tokens [S, count] int64, and their log-probabilities [S, count] float32 among all V.

    Raises:
        ArgumentError: an argument of the wrong kind.
    """
    kernels = kernels_for("greedy", "logits", logits)
    vocab_size = logits.shape[-1] if logits.dim() else 0
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= max(1, vocab_size):
        raise ArgumentError(f"greedy: count is {count!r}; expected 1 to {vocab_size}")
    shape = (*logits.shape[:1], count)
    tokens = torch.empty(shape, dtype=torch.int64, device=logits.device)
    logprobs = torch.empty(shape, dtype=torch.float32, device=logits.device)
    kernels.greedy((tokens, logprobs, logits))
    return tokens, logprobs


def likeliest(logits: Tensor) -> Tensor:
    """The likeliest token of each row, [S] int64: `greedy` without log-probabilities, which cost a pass."""
    kernels = kernels_for("greedy", "logits", logits)
    tokens = torch.empty((*logits.shape[:1], 1), dtype=torch.int64, device=logits.device)
    kernels.greedy((tokens, None, logits))
    return tokens[:, 0]


def sample(
    logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor, uniform: Tensor
) -> Tensor:
    """One token a row, drawn by inverse transform: where the running mass, in the order of the vocabulary,
    passes `uniform` of the total.

    Drawn from the `top_k` likeliest tokens (of those that tie for the last place, all); of these from the
    fewest whose mass reaches `top_p` of theirs; of these from those at least `min_p` times as likely as the
    likeliest.

    Args:
        logits: [S, V] float32, rows at any distance.
        temperature: [S] float32, above 0.
        top_k: [S] int32; 0: all.
        top_p, min_p: [S] float32; 1 and 0 leave all.
        uniform: [S] float64 in [0, 1).

    Returns:
        [S] int64.

    Raises:
        ArgumentError: an argument of the wrong kind.
    """
    kernels = kernels_for("sample", "logits", logits)
    tokens = torch.empty(logits.shape[:1], dtype=torch.int64, device=logits.device)
    kernels.sample((tokens, logits, temperature, top_k, top_p, min_p, uniform))
    return tokens
