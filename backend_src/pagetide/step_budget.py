"""How many tokens the next step may compute, so that running streams keep their inter-token latency.

A step's time is taken as a fixed part plus a rate per prompt token; both are measured all the time, since
the rate depends on the model, the machine, and how long the contexts are. (Chunked prefills bound stalls:
Sarathi-Serve, OSDI'24; here the chunk follows from a target in milliseconds instead of being tuned.)
"""

from __future__ import annotations

from pagetide.config import BLOCK_SIZE

_NEW_SHARE = 0.25
"""Weight of the newest measurement in the moving averages."""

MIN_CHUNK = BLOCK_SIZE
"""Prompts get on by this much even when the target is missed, or by what doubles the step if that is less."""


class StepBudget:
    """Without a target every step may compute `max_step_tokens`."""

    def __init__(self, max_step_tokens: int, target_s: float | None) -> None:
        self._max = max_step_tokens
        self._target_s = target_s
        self._decode_s = 0.0
        self._token_s: float | None = None

    @property
    def token_s(self) -> float | None:
        """What one more prompt token takes in a step, once it was measured."""
        return self._token_s

    def tokens(self, num_decoding: int) -> int:
        """The budget of a step in which `num_decoding` streams wait for their next token."""
        if self._target_s is None or num_decoding == 0 or self._token_s is None:
            return self._max
        least = min(MIN_CHUNK, int(self._decode_s / self._token_s))
        chunk = int((self._target_s - self._decode_s) / self._token_s)
        return min(self._max, num_decoding + max(1, least, chunk))

    def observe(self, num_tokens: int, num_decoding: int, step_s: float) -> None:
        """What the last step took; `num_tokens` in all, `num_decoding` of them for running streams."""
        chunk = num_tokens - num_decoding
        if chunk == 0:
            self._decode_s = _average(self._decode_s or step_s, step_s)
        else:
            token_s = max(step_s - self._decode_s, 1e-9) / chunk
            self._token_s = _average(self._token_s or token_s, token_s)


def _average(old: float, new: float) -> float:
    return old + _NEW_SHARE * (new - old)
