"""Whose turn it was: order within a tenant, limits, and fair shares, from what was planned alone."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from pagetide.request import Sequence, Status
from pagetide.scheduler import Scheduler
from pagetide.step import StepPlan

_BURST_S = 1.0


@dataclass(slots=True)
class Turns:
    """Keeps its own books of the tokens computed for each tenant. Raises AssertionError on a wrong turn."""

    tokens: Counter[str] = field(default_factory=Counter)
    weights: dict[str, float] = field(default_factory=dict)
    first_s: dict[str, float] = field(default_factory=dict)
    started: set[int] = field(default_factory=set)
    high_water: dict[int, int] = field(default_factory=dict)
    gaps: dict[tuple[str, str], float] = field(default_factory=dict)

    def before(self, scheduler: Scheduler) -> dict[int, Sequence]:
        """The running sequences; those that run afterwards and are not among them were started."""
        return {sequence.id: sequence for sequence in scheduler.running}

    def check_started(
        self,
        scheduler: Scheduler,
        before: dict[int, Sequence],
        planned: dict[int, Sequence],
        planned_s: float,
    ) -> None:
        """Within a tenant none was passed over, and every tenant stayed within its limits."""
        started = [sequence for sequence in planned.values() if sequence.id not in before]
        for sequence in started:
            self._check_order(scheduler, sequence, planned)
            self._check_rate(scheduler, sequence, planned_s)
        running = Counter(sequence.request.tenant for sequence in planned.values())
        for tenant, count in running.items():
            most = scheduler.tenants.policies[tenant].max_running
            assert most is None or count <= most, f"tenant {tenant!r} runs {count}, may run {most}"

    def count(self, plan: StepPlan, planned: dict[int, Sequence]) -> None:
        """Book each token once: what is computed again after a preemption is nobody's."""
        for sequence_id, start, num_new in zip(
            plan.sequence_ids, plan.num_computed, plan.num_new, strict=True
        ):
            done = self.high_water.setdefault(sequence_id, start)
            self.high_water[sequence_id] = max(done, start + num_new)
            self.tokens[planned[sequence_id].request.tenant] += max(0, start + num_new - done)

    def check_shares(self, scheduler: Scheduler) -> None:
        """Between tenants that both keep waiting, weighted service drifts by a bounded amount only.

        The bound is the theorem's (Sheng et al., OSDI'24, 4.3): what can be running at once, twice.
        """
        waiting = sorted(self._free_to_start(scheduler))
        pairs = {(a, b) for a in waiting for b in waiting if a < b}
        self.gaps = {pair: self.gaps.get(pair, self._gap(scheduler, pair)) for pair in pairs}
        for pair, at_first in self.gaps.items():
            drift = abs(self._gap(scheduler, pair) - at_first)
            most = 2 * self._most_running(scheduler) / min(map(self._weight(scheduler), pair))
            assert drift <= most, (
                f"tenants {pair} drifted apart by {drift:.0f} weighted tokens, bound {most:.0f}"
            )

    def _check_order(self, scheduler: Scheduler, started: Sequence, planned: dict[int, Sequence]) -> None:
        ageing_s = scheduler.limits.ageing_s
        for other in scheduler.sequences:
            if other.status is Status.WAITING and other.request.tenant == started.request.tenant:
                if other.num_preemptions or started.id in self.started or other.id in planned:
                    continue
                keys = [s.request.arrival_s + s.request.priority * ageing_s for s in (started, other)]
                assert keys[0] <= keys[1], f"sequence {started.id} passed over {other.id}: {keys}"
        self.started.add(started.id)

    def _check_rate(self, scheduler: Scheduler, started: Sequence, planned_s: float) -> None:
        tenant = started.request.tenant
        rate = scheduler.tenants.policies[tenant].tokens_per_s
        first_s = self.first_s.setdefault(tenant, planned_s)
        if rate is not None:
            most = rate * (planned_s - first_s + 2 * _BURST_S)
            assert self.tokens[tenant] <= most, (
                f"tenant {tenant!r} got {self.tokens[tenant]} tokens, {most} allowed"
            )

    def _free_to_start(self, scheduler: Scheduler) -> set[str]:
        policies = scheduler.tenants.policies
        waiting = {s.request.tenant for s in scheduler.sequences if s.status is Status.WAITING}
        return {t for t in waiting if policies[t].max_running is None and policies[t].tokens_per_s is None}

    def _gap(self, scheduler: Scheduler, pair: tuple[str, str]) -> float:
        weight = self._weight(scheduler)
        return self.tokens[pair[0]] / weight(pair[0]) - self.tokens[pair[1]] / weight(pair[1])

    def _weight(self, scheduler: Scheduler):  # type: ignore[no-untyped-def]
        return lambda tenant: scheduler.tenants.policies[tenant].weight

    def _most_running(self, scheduler: Scheduler) -> int:
        limits = scheduler.limits
        return (
            min(limits.max_running * limits.max_model_len, 4 * limits.max_model_len) + limits.max_step_tokens
        )
