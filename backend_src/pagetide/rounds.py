"""Whose turn it is: which stream gets its next response, and which client is asked whether it left."""

from __future__ import annotations

from collections import OrderedDict
from typing import Generic, TypeVar

Item = TypeVar("Item")

RESPONSES_A_QUESTION = 3.2
"""A question costs what a response costs; so much rarer are they where responses are counted out."""

LEAST_ASK_GAP_S = 0.005
"""A sender asks no more often than this, however many responses it may send."""


class Rotation(Generic[Item]):
    """Whom to ask next if it was cancelled: in turn, running ones and waiting ones alternately.

    `most_per_s` is how many responses the sender may send.
    """

    def __init__(self, most_per_s: float) -> None:
        self._gap_s = max(LEAST_ASK_GAP_S, RESPONSES_A_QUESTION / most_per_s)
        self._groups: tuple[OrderedDict[Item, None], ...] = (OrderedDict(), OrderedDict())
        self._next_s = 0.0

    def add(self, item: Item, running: bool) -> None:
        self.discard(item)
        self._groups[running][item] = None

    def discard(self, item: Item) -> None:
        for group in self._groups:
            group.pop(item, None)

    def wait_s(self, now_s: float) -> float | None:
        """Until the next question is due; None if there is nobody to ask."""
        return max(self._next_s - now_s, 0.0) if any(self._groups) else None

    def take_due(self, now_s: float) -> list[Item]:
        if now_s < self._next_s:
            return []
        due = []
        for group in filter(None, self._groups):
            item = next(iter(group))
            group.move_to_end(item)
            due.append(item)
        self._next_s = now_s + self._gap_s * len(due)
        return due


class Rounds(Generic[Item]):
    """Streams with something to send: those that must not wait, and the others, round by round.

    The more responses a round takes, the later the next begins, so that there are no more than `most_per_s`.
    """

    def __init__(self, most_per_s: float) -> None:
        self._gap_s = 1 / most_per_s
        self._next_s = 0.0
        self._urgent: dict[Item, None] = {}
        self._now: dict[Item, None] = {}
        self._later: dict[Item, None] = {}

    def __bool__(self) -> bool:
        return bool(self._urgent or self._now or self._later)

    def add(self, item: Item, urgent: bool) -> None:
        if urgent:
            self._urgent[item] = None
        elif item not in self._now:
            self._later[item] = None

    def count_response(self) -> None:
        self._next_s += self._gap_s

    def wait_no_more(self) -> None:
        """From now on a round begins as soon as the one before is over."""
        self._gap_s = self._next_s = 0.0

    def wait_s(self, now_s: float) -> float | None:
        """Until one may be served; None if there is none."""
        if self._urgent or self._now:
            return 0.0
        return max(self._next_s - now_s, 0.0) if self._later else None

    def take(self, now_s: float) -> Item | None:
        if not self._urgent and not self._now and self.wait_s(now_s) == 0.0:
            self._now, self._later = self._later, {}
            self._next_s = now_s if self._gap_s else 0.0
        for streams in (self._urgent, self._now):
            if streams:
                item = next(iter(streams))
                del streams[item]
                return item
        return None
