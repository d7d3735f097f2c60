"""The bitmasks of a step, filled while the model computes it, by the one thread that owns every matcher."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch

from pagetide.constraint import ConstrainedRow

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StepMasks:
    """`bitmask` [M, ceil(V / 32)] int32, on the CPU: bit t % 32 of word t // 32 allows token t.

    `rows` [M] int64 are the entries of the step's sampled rows that it belongs to. A row that could not be
    filled allows no token, which ends its request.
    """

    rows: torch.Tensor
    bitmask: torch.Tensor


class MaskThread:
    """Filling lets go of the interpreter's lock, as the model's step does."""

    def __init__(self, vocab_size: int) -> None:
        self._num_words = -(-vocab_size // 32)
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="pagetide-masks")

    def fill(self, rows: Sequence[ConstrainedRow]) -> Callable[[], StepMasks | None]:
        """Starts to fill the rows' masks; what it returns waits for them, None if there are no rows.

        The rows' tokens must stay as they are until then. If nobody waits, because the step failed, they may
        grow again only in a step whose own masks wait behind these.
        """
        return self._pool.submit(self._fill, rows).result if rows else lambda: None

    def _fill(self, rows: Sequence[ConstrainedRow]) -> StepMasks:
        bitmask = torch.zeros((len(rows), self._num_words), dtype=torch.int32)
        for at, row in enumerate(rows):
            try:
                row.constraint.fill(row, bitmask, at)
            except Exception:
                log.exception("request %d: its grammar can't go on", row.request_id)
                bitmask[at] = 0
        return StepMasks(torch.tensor([row.index for row in rows]), bitmask)
