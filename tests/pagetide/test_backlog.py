"""Beyond what may wait, a request is refused with the limit and with how long to wait."""

from __future__ import annotations

from array import array

import pytest

from pagetide.backlog import WINDOW_S, Backlog, StartRate, UnavailableError
from pagetide.limits import AdmissionError
from pagetide.request import Request, SamplingParams
from pagetide.tenant_policy import TenantPolicies, TenantPolicy
from pagetide.tenants import Tenants


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def requests(count: int, num_tokens: int, tenant: str = "") -> list[Request]:
    return [
        Request(i, array("i", [1] * num_tokens), SamplingParams(), lambda _: None, 0.0, tenant=tenant)
        for i in range(count)
    ]


def backlog(
    clock: Clock, max_requests: int = 100, max_tokens: int | None = None, **policies: TenantPolicy
) -> Backlog:
    tenants = Tenants(TenantPolicies(policies), ageing_s=10.0, max_preemptions=3)
    return Backlog(tenants, max_requests, max_tokens, clock)


def refusal(of: Backlog, new: list[Request]) -> str:
    with pytest.raises(UnavailableError) as caught:
        of.check_room(new)
    assert not isinstance(caught.value, AdmissionError)
    return str(caught.value)


def test_the_wait_follows_from_how_fast_others_got_their_turn() -> None:
    clock = Clock()
    full = backlog(clock, max_requests=4)
    full.submitted(requests(4, 50))
    assert refusal(full, requests(1, 10)) == "4 requests wait already; max_waiting is 4"
    full.started(60)
    clock.now_s += 2
    full.started(40)
    clock.now_s += 2
    # 100 tokens in 4 s; the one request too many stands for 50 tokens.
    assert refusal(full, requests(1, 10)) == "4 requests wait already; max_waiting is 4; retry in about 2 s"
    assert refusal(full, requests(4, 10)).endswith("retry in about 8 s")


def test_tokens_that_wait_are_limited_too() -> None:
    clock = Clock()
    full = backlog(clock, max_tokens=200)
    full.submitted(requests(3, 50))
    full.check_room(requests(1, 50))
    assert refusal(full, requests(1, 51)) == (
        "150 prompt tokens wait already and this request has 51; max_waiting_tokens is 200"
    )
    assert refusal(full, requests(3, 20)).startswith("150 prompt tokens wait already and this request has 60")


def test_what_the_scheduler_has_taken_is_counted_by_the_scheduler() -> None:
    clock = Clock()
    full = backlog(clock, max_requests=1)
    (waiting,) = requests(1, 50)
    full.submitted([waiting])
    refusal(full, requests(1, 1))
    full.received(waiting)
    full.check_room(requests(1, 1))


def test_a_request_that_finds_nobody_waiting_is_always_taken() -> None:
    backlog(Clock(), max_requests=1, max_tokens=10).check_room(requests(3, 50))


def test_what_happened_long_ago_is_forgotten() -> None:
    clock = Clock()
    rate = StartRate(clock)
    assert rate.time_s(10) is None
    rate.add(1_000_000)
    clock.now_s += WINDOW_S + 1
    rate.add(10)
    clock.now_s += 5
    assert rate.time_s(20) == 10.0
