"""The planned steps that are not over: none, one, or one and the next, planned while it runs."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping

from pagetide.draft import Draft
from pagetide.request import Sequence, Status
from pagetide.step import StepPlan


class Flights:
    """Owned by the scheduler. Steps end in the order of their plans; `ended` is the last that did."""

    def __init__(self, nothing: Draft) -> None:
        self.ended = nothing
        self._drafts: deque[Draft] = deque()

    def __bool__(self) -> bool:
        return bool(self._drafts)

    @property
    def sources(self) -> Iterable[int]:
        """Blocks that are held for copying only."""
        return (copy.source for draft in self._drafts for copy in draft.plan.copies)

    @property
    def entries(self) -> Mapping[int, int] | None:
        """Which entry of the step in flight samples a sequence's next token; None if no step is in flight."""
        return self._drafts[-1].entries() if self._drafts else None

    def start(self, draft: Draft) -> StepPlan | None:
        """The plan is made. None if it has nothing to compute."""
        if not draft.plan.num_tokens:
            return None
        draft.close()
        self._drafts.append(draft)
        return draft.plan

    def land(self) -> Draft:
        """The oldest step is over."""
        draft = self.ended = self._drafts.popleft()
        draft.release_sources()
        return draft

    def complete(self) -> None:
        """The tokens of the step that landed are known, for which the one behind it waits."""
        for draft in self._drafts:
            draft.complete()

    def crash(self) -> tuple[list[Sequence], list[Sequence]]:
        """The oldest step failed, and the one behind it rests on what it was to compute.

        Returns the sequences that were in it, and those that were in the other one only.
        """
        failed = self.ended = self._drafts[0]
        for draft in self._drafts:
            draft.undo()
        behind = [each for draft in self._drafts for each in _alive(draft) if each.id not in failed.sequences]
        self._drafts.clear()
        return _alive(failed), behind


def _alive(draft: Draft) -> list[Sequence]:
    return [each for each in draft.sequences.values() if each.status is not Status.FINISHED]
