"""One sequence's place in its compiled grammar."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
import xgrammar

from pagetide.constraint import ConstrainedRow
from pagetide.grammar_job import Vocabulary
from pagetide.grammar_utf8 import Utf8, Words


def token_info(vocabulary: Vocabulary) -> xgrammar.TokenizerInfo:
    return xgrammar.TokenizerInfo(vocabulary.tokens, xgrammar.VocabType.RAW, stop_token_ids=vocabulary.ends)


class GrammarError(RuntimeError):
    """A sequence and its grammar don't go together; the message says where."""


class Matcher:
    """A Constraint. Built by whoever submits the request; from then on the mask thread's alone.

    It remembers how many output tokens it has followed, and catches up with those of the row: so it is right
    after any chunking, prefix hit or preemption, which keep a sequence's tokens.
    """

    def __init__(self, compiled: xgrammar.CompiledGrammar, utf8: Utf8) -> None:
        self._matcher = xgrammar.GrammarMatcher(compiled)
        self._utf8 = utf8
        self._num_followed = 0

    def fill(self, row: ConstrainedRow, bitmask: Any, at: int) -> None:
        """Raises GrammarError when no token of the vocabulary may come next."""
        for token in row.tokens[row.start + self._num_followed :]:
            if not self._matcher.accept_token(token):
                raise GrammarError(f"output token {self._num_followed} ({token}) is not in the grammar")
            self._num_followed += 1
        self._matcher.fill_next_token_bitmask(bitmask, at)
        allowed = bitmask[at]
        text = self._utf8.after(row.tokens[-1]) if self._num_followed else None
        if text is not None:
            words(allowed)[:] &= text
        if not allowed.any():
            raise GrammarError(f"after {self._num_followed} tokens no token fits the grammar")
        _hold_back(allowed, row.held_back)


def _hold_back(allowed: torch.Tensor, tokens: Iterable[int]) -> None:
    """Bars `tokens` in a row of a bitmask, unless nothing else is allowed there."""
    left = words(allowed).copy()
    for token in tokens:
        left[token // 32] &= ~np.uint32(1 << token % 32)
    if left.any():
        words(allowed)[:] = left


def words(allowed: torch.Tensor) -> Words:
    """A row of a bitmask, as numbers without a sign."""
    return allowed.numpy().view(np.uint32)
