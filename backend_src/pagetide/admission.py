"""How much memory the running sequences will need at their peak, so that as many run as will fit.

Sequences end at different times and give their blocks back, so the peak is less than the sum of the
longest lengths. It is estimated from the lengths that recent requests reached (the idea is LightLLM's: Gong
et al., ASPLOS'25). An estimate may be wrong: then a sequence is preempted, and the estimate becomes more
cautious for a while, so that admission does not thrash.
"""

from __future__ import annotations

import bisect
from array import array
from collections import deque
from collections.abc import Iterable

from pagetide.config import BLOCK_SIZE
from pagetide.request import Sequence

_WINDOW = 256
_MIN_SAMPLES = 16
_MIN_CAUTION = 0.1
_CAUTION_AFTER_PREEMPTION = 0.4
_CAUTION_DECAY = 0.995


class PeakEstimate:
    """Learns output lengths from requests that ended by themselves. Lives in the scheduler.

    `caution` is 0 where every request is thought to end at the usual length, 1 at its `max_tokens`.
    """

    def __init__(self) -> None:
        self.caution = _MIN_CAUTION
        self._recent: deque[int] = deque(maxlen=_WINDOW)
        self._sorted = array("i")

    def learn(self, num_output_tokens: int) -> None:
        """Take in the length of an output that ended by itself."""
        if len(self._recent) == _WINDOW:
            del self._sorted[bisect.bisect_left(self._sorted, self._recent[0])]
        self._recent.append(num_output_tokens)
        bisect.insort(self._sorted, num_output_tokens)

    def stepped(self, preempted: bool) -> None:
        """A step was planned: without a preemption caution falls, with one it rises."""
        decayed = max(_MIN_CAUTION, self.caution * _CAUTION_DECAY)
        self.caution = min(1.0, self.caution + _CAUTION_AFTER_PREEMPTION) if preempted else decayed

    def tokens_left(self, sequence: Sequence) -> int:
        """How many tokens the sequence will still generate, most likely."""
        most = sequence.most_left
        if sequence.request.params.ignore_eos:
            return most
        least = sequence.request.params.min_tokens - sequence.num_output_tokens
        usual = min(most, max(least, self._usual_left(sequence.num_output_tokens, most)))
        return round(usual + self.caution * (most - usual))

    def _usual_left(self, num_generated: int, most: int) -> int:
        """The median of what recent outputs of at least this length still had to come; half if unknown."""
        first = bisect.bisect_right(self._sorted, num_generated)
        longer = len(self._sorted) - first
        if longer < _MIN_SAMPLES:
            return most // 2
        return self._sorted[first + longer // 2] - num_generated


def peak_blocks_of(rows: Iterable[tuple[int, int]]) -> int:
    """Most blocks at any time until all have ended, each row being (tokens left, tokens so far).

    Just before a sequence ends, it and all that end later have grown by its tokens left. Every sequence's
    last block is taken as empty but for one token.
    """
    peak = num_tokens = 0
    for count, (left, so_far) in enumerate(sorted(rows, reverse=True), start=1):
        num_tokens += so_far
        peak = max(peak, (num_tokens + count * (left + BLOCK_SIZE - 1)) // BLOCK_SIZE)
    return peak
