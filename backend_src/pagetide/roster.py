"""All sequences that have not ended: who waits, who runs, and how they change from one to the other."""

from __future__ import annotations

import itertools
import secrets
from array import array
from collections.abc import Callable, Iterable

from pagetide.block_tables import BlockTables
from pagetide.deadlines import Deadlines
from pagetide.request import FinishReason, Output, Request, Sequence, Status
from pagetide.tenants import Tenants

_SEED_BITS = 64

Delivery = tuple[Request, Output]


class Roster:
    """Owned by the scheduler. Each sequence is in the tenants' queue or in `running`, never in both."""

    def __init__(self, tables: BlockTables, tenants: Tenants, clock: Callable[[], float]) -> None:
        self.running: dict[int, Sequence] = {}
        self._tables = tables
        self._tenants = tenants
        self._clock = clock
        self._ids = itertools.count()
        self._by_request: dict[int, Sequence] = {}
        self._deadlines = Deadlines()

    def __len__(self) -> int:
        return len(self._by_request)

    @property
    def sequences(self) -> Iterable[Sequence]:
        """Oldest first."""
        return self._by_request.values()

    @property
    def next_deadline_s(self) -> float | None:
        return self._deadlines.next_s()

    def find(self, request_id: int) -> Sequence | None:
        return self._by_request.get(request_id)

    def add(self, request: Request) -> None:
        """A new sequence waits."""
        seed = request.params.seed
        sequence = Sequence(
            id=next(self._ids),
            request=request,
            tokens=array("i", request.prompt_ids),
            seed=secrets.randbits(_SEED_BITS) if seed is None else seed % 2**_SEED_BITS,
        )
        self._by_request[request.id] = sequence
        self._tenants.push(sequence, self._clock())
        self._deadlines.add(sequence)

    def run(self, sequence: Sequence) -> None:
        """A waiting sequence, which has its prefix hits, runs from now on."""
        if sequence.scheduled_s is None:
            sequence.scheduled_s = self._clock()
            sequence.num_prefix_hit_tokens = sequence.num_computed
        self._tenants.started(sequence)
        self.running[sequence.id] = sequence
        sequence.status = Status.RUNNING

    def preempt(self, victim: Sequence) -> None:
        """Take a running sequence's blocks; it keeps its tokens, waits, and will compute them again."""
        self._leave(victim)
        victim.num_preemptions += 1
        self._tenants.push(victim, self._clock())

    def restart(self, sequence: Sequence) -> None:
        """What the running sequence's blocks hold can't be trusted: it computes all of it again."""
        self._leave(sequence)
        self._tenants.push(sequence, self._clock())

    def finish(self, sequence: Sequence, output: Output) -> Delivery:
        """The sequence's last delivery: `output` with its statistics. Its blocks are free from here on."""
        self._tables.release(sequence)
        if sequence.status is Status.RUNNING:
            self._stop(sequence)
        else:
            self._tenants.remove(sequence)
        del self._by_request[sequence.request.id]
        sequence.status = Status.FINISHED
        return sequence.request, output._replace(stats=sequence.stats(self._clock()))

    def expire(self) -> list[Delivery]:
        """End the sequences whose time is over, with the tokens that they have."""
        timeout = Output(finish_reason=FinishReason.TIMEOUT)
        return [self.finish(sequence, timeout) for sequence in self._deadlines.take_due(self._clock())]

    def _leave(self, sequence: Sequence) -> None:
        """It runs no longer, and gives its blocks back."""
        sequence.num_charged = max(sequence.num_charged, sequence.num_computed)
        self._tables.release(sequence)
        self._stop(sequence)
        sequence.status = Status.WAITING

    def _stop(self, sequence: Sequence) -> None:
        del self.running[sequence.id]
        self._tenants.stopped(sequence)
