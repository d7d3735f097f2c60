"""What parameters do to logits, token by token and row by row, by their definitions: slow and plain."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from pagetide.logit_edits import TokenMask
from pagetide.request import SamplingParams

Logits = npt.NDArray[np.float32]


def tokens_of(mask: TokenMask) -> set[int]:
    return {i for i in range(8 * len(mask.words)) if mask.words[i // 8] >> i % 8 & 1}


def edited(
    logits: Logits,
    params: SamplingParams,
    prompt: Sequence[int],
    output: Sequence[int],
    eos: Sequence[int] = (),
) -> Logits:
    """The logits [V] from which the token after `prompt + output` is chosen."""
    told = list(prompt) + list(output)
    found = logits.copy()
    for token in range(len(found)):
        if _is_forbidden(token, params, output, eos):
            found[token] = -math.inf
        found[token] += np.float32(dict(params.logit_bias).get(token, 0.0))
        if token in told:
            repetition = np.float32(params.repetition_penalty)
            found[token] = found[token] / repetition if found[token] > 0 else found[token] * repetition
        count = list(output).count(token)
        found[token] -= np.float32(params.frequency_penalty) * np.float32(count)
        found[token] -= np.float32(params.presence_penalty) * np.float32(count > 0)
    return found


def _is_forbidden(token: int, params: SamplingParams, output: Sequence[int], eos: Sequence[int]) -> bool:
    if params.allowed_token_ids is not None and token not in tokens_of(params.allowed_token_ids):
        return True
    if len(output) < params.min_tokens and token in {*eos, *params.stop_token_ids}:
        return True
    endings = [tuple(output[len(output) - size :]) for size in range(len(output) + 1)]
    return any((*ending, token) in params.bad_word_ids for ending in endings)
