"""When requests run out of time."""

from __future__ import annotations

import heapq

from pagetide.request import Sequence, Status


class Deadlines:
    """Sequences by the time at which they end at the latest. Owned by the scheduler."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Sequence]] = []

    def add(self, sequence: Sequence) -> None:
        request = sequence.request
        if request.timeout_s is not None:
            heapq.heappush(self._heap, (request.arrival_s + request.timeout_s, sequence.id, sequence))

    def take_due(self, now_s: float) -> list[Sequence]:
        """Those whose time is over and that have not ended."""
        due = []
        while self._heap and (self._heap[0][0] <= now_s or self._heap[0][2].status is Status.FINISHED):
            due.append(heapq.heappop(self._heap)[2])
        return [sequence for sequence in due if sequence.status is not Status.FINISHED]

    def next_s(self) -> float | None:
        """The earliest deadline, on the requests' clock."""
        return self._heap[0][0] if self._heap else None
