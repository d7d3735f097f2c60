"""Fair shares between tenants: whose turn it is, who is over the limit, who waits.

Each tenant has a virtual clock: the tokens computed for it, divided by its weight. The waiting tenant whose
clock is furthest behind goes first (Virtual Token Counter: Sheng et al., OSDI'24), so what a tenant gets
does not depend on how many requests it sends. A tenant that comes back after a pause starts level with the
others: an idle machine is not credit.
"""

from __future__ import annotations

import bisect
from collections import Counter
from collections.abc import Container, Iterable
from dataclasses import dataclass, field

from pagetide.request import Sequence
from pagetide.tenant_policy import TenantPolicies, TenantPolicy

MAX_IDLE_ACCOUNTS = 256
_BURST_S = 1.0
"""A tenant with a limit on tokens per second may save up this much of it."""

AROUND_S = 10.0
"""A tenant whose last request ended no longer ago than this is expected back."""

_Entry = tuple[int, float, int, Sequence]


@dataclass(slots=True, eq=False)
class Account:
    """One tenant. `clock` is in weighted tokens; `allowance` in tokens, negative when overdrawn.

    It was active when it was last looked at, at `seen_s`.
    """

    name: str
    policy: TenantPolicy
    clock: float
    allowance: float
    refilled_s: float
    seen_s: float
    num_running: int = 0
    waiting: list[_Entry] = field(default_factory=list)

    @property
    def is_active(self) -> bool:
        return bool(self.num_running or self.waiting)

    @property
    def num_wanted(self) -> int:
        """How many of its requests would run if nothing stopped them."""
        return self.num_running + len(self.waiting)

    def charge(self, num_tokens: int) -> None:
        self.clock += num_tokens / self.policy.weight
        if self.policy.tokens_per_s is not None:
            self.allowance -= num_tokens

    def throttled_s(self, now_s: float) -> float:
        """Seconds until the tenant's rate limit lets another request start; 0 if it does now."""
        rate = self.policy.tokens_per_s
        if rate is None:
            return 0.0
        self.allowance = min(rate * _BURST_S, self.allowance + (now_s - self.refilled_s) * rate)
        self.refilled_s = now_s
        return max(0.0, -self.allowance / rate)

    def may_start(self, now_s: float) -> bool:
        limit = self.policy.max_running
        return (limit is None or self.num_running < limit) and self.throttled_s(now_s) == 0.0


class Tenants:
    """All accounts, and the queue of waiting sequences in them. Owned by the scheduler.

    Within a tenant, each step of priority is worth `ageing_s` seconds of waiting: so an unimportant request
    is overtaken only by those that come soon after it. Preempted sequences come before new ones, and those
    that must not be preempted again, because it happened `max_preemptions` times, before all.
    """

    def __init__(self, policies: TenantPolicies, ageing_s: float, max_preemptions: int) -> None:
        self.policies = policies
        self._ageing_s = ageing_s
        self._max_preemptions = max_preemptions
        self._accounts: dict[str, Account] = {}
        self.num_waiting = self.num_waiting_tokens = self.num_protected = 0
        self.active: list[Account] = []
        self.around: list[Account] = []

    @property
    def accounts(self) -> Iterable[Account]:
        return self._accounts.values()

    def look(self, now_s: float) -> None:
        """See who is active, or was lately: both, and the shares, stay as they are until the next look."""
        self.active = [account for account in self._accounts.values() if account.is_active]
        for account in self.active:
            account.seen_s = now_s
        self.around = [each for each in self._accounts.values() if now_s - each.seen_s <= AROUND_S]

    def account(self, sequence: Sequence) -> Account:
        return self._accounts[sequence.request.tenant]

    def clock(self, sequence: Sequence) -> float:
        return self.account(sequence).clock

    def is_protected(self, sequence: Sequence) -> bool:
        return sequence.num_preemptions >= self._max_preemptions

    def charge(self, sequence: Sequence, num_new: int) -> None:
        """For the sequence's next `num_new` tokens, except those it had computed before it was preempted."""
        again = max(0, sequence.num_charged - sequence.num_computed)
        self.account(sequence).charge(max(0, num_new - again))

    def charge_streams(self, streams: Iterable[Sequence]) -> None:
        """For one token of each: the newest of a stream was never computed before."""
        for name, count in Counter([sequence.request.tenant for sequence in streams]).items():
            self._accounts[name].charge(count)

    def push(self, sequence: Sequence, now_s: float) -> None:
        """The sequence waits."""
        account = self._open(sequence.request.tenant, now_s)
        bisect.insort(account.waiting, self._entry(sequence))
        self.num_waiting += 1
        self.num_waiting_tokens += sequence.num_tokens

    def remove(self, sequence: Sequence) -> None:
        """It waits no longer. Raises ValueError if it did not."""
        waiting = self.account(sequence).waiting
        at = bisect.bisect_left(waiting, self._entry(sequence))
        if at == len(waiting) or waiting[at][-1] is not sequence:
            raise ValueError(f"sequence {sequence.id} does not wait")
        del waiting[at]
        self.num_waiting -= 1
        self.num_waiting_tokens -= sequence.num_tokens

    def queue(self, tenant: str) -> tuple[int, int | None]:
        """How many requests of the tenant wait, and how many may. Any thread."""
        account = self._accounts.get(tenant)
        return (len(account.waiting) if account else 0), self.policies[tenant].max_waiting

    def started(self, sequence: Sequence) -> None:
        """It waits no longer, it runs."""
        self.remove(sequence)
        self.account(sequence).num_running += 1
        self.num_protected += self.is_protected(sequence)

    def stopped(self, sequence: Sequence) -> None:
        """It runs no longer."""
        self.account(sequence).num_running -= 1
        self.num_protected -= self.is_protected(sequence)

    def first(self, now_s: float, passed_over: Container[str] = ()) -> Sequence | None:
        """Whose turn it is, among the other tenants that are within their limits."""
        heads = [
            (account.waiting[0][0] > 0, account.clock, account.waiting[0][2], account.waiting[0][3])
            for account in self._accounts.values()
            if account.waiting and account.name not in passed_over and account.may_start(now_s)
        ]
        return min(heads)[3] if heads else None

    def throttled_s(self, now_s: float) -> float | None:
        """Seconds until a rate limit lets a waiting tenant go on; None if none is held back by one."""
        pauses = [account.throttled_s(now_s) for account in self._accounts.values() if account.waiting]
        return min((pause for pause in pauses if pause > 0), default=None)

    def share(self, account: Account) -> float:
        """Of the machine, 0 to 1, by weight among the active ones and this one."""
        others = sum(each.policy.weight for each in self.active if each is not account)
        return account.policy.weight / (account.policy.weight + others)

    def _entry(self, sequence: Sequence) -> _Entry:
        """Stays the same while the sequence waits; ends in something unique before the sequence."""
        rank = 0 if self.is_protected(sequence) else 1 if sequence.num_preemptions else 2
        request = sequence.request
        return rank, request.arrival_s + request.priority * self._ageing_s, sequence.id, sequence

    def _open(self, name: str, now_s: float) -> Account:
        account = self._accounts.get(name)
        level = min((each.clock for each in self._accounts.values() if each.is_active), default=0.0)
        if account is None:
            self._forget_idle(now_s)
            policy = self.policies[name]
            account = Account(name, policy, level, (policy.tokens_per_s or 0.0) * _BURST_S, now_s, now_s)
            self._accounts[name] = account
        elif not account.is_active:
            account.clock = max(account.clock, level)
        return account

    def _forget_idle(self, now_s: float) -> None:
        """Names come from clients, so the memory for them is bounded. Those who still owe are kept."""
        idle = [
            name
            for name, each in self._accounts.items()
            if not each.is_active and not each.throttled_s(now_s)
        ]
        for name in idle[: max(0, len(self._accounts) - MAX_IDLE_ACCOUNTS)]:
            del self._accounts[name]
