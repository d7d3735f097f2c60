"""Steps that fail in a row: one is its requests' bad luck, three are the model's."""

from __future__ import annotations

import logging

log = logging.getLogger(__name__)

MOST = 3
"""This many in a row, and it is not the requests that are wrong."""


class FailedSteps:
    """Counted by the engine thread. Any thread may read why the model is not ready: `reason`, or None."""

    def __init__(self) -> None:
        self.in_a_row = 0
        self.reason: str | None = None

    def add(self, error: Exception) -> str:
        """Returns what the step's requests are told."""
        told = f"{type(error).__name__}: {error}"
        self.in_a_row += 1
        if self.in_a_row >= MOST:
            self.reason = f"the last {self.in_a_row} steps failed: {told}"
            log.error("not ready: %s", self.reason)
        return told

    def clear(self) -> None:
        """A step succeeded."""
        if self.reason is not None:
            log.warning("ready again: a step succeeded after %d that failed", self.in_a_row)
        self.in_a_row, self.reason = 0, None
