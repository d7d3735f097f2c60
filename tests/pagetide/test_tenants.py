"""Tenants: what their settings may say, whose turn it is, and what names from clients may cost."""

from __future__ import annotations

import itertools
from array import array
from typing import Any

import pytest

from pagetide.config import Settings, SettingsError
from pagetide.request import Request, SamplingParams, Sequence
from pagetide.tenant_policy import TenantPolicies, TenantPolicy, parse_policies
from pagetide.tenants import MAX_IDLE_ACCOUNTS, Tenants

_IDS = itertools.count()


def waiting(tenant: str, arrival_s: float = 0.0, priority: int = 0) -> Sequence:
    number = next(_IDS)
    request = Request(
        number,
        array("i", [1]),
        SamplingParams(),
        lambda output: None,
        arrival_s,
        tenant=tenant,
        priority=priority,
    )
    return Sequence(number, request, array("i", [1]), seed=0)


def tenants(**policies: TenantPolicy) -> Tenants:
    return Tenants(TenantPolicies(policies), ageing_s=10.0, max_preemptions=3)


def serve(queue: Tenants, num_tokens: int) -> str:
    """The tenant whose turn it is gets that many tokens; its sequence is done."""
    sequence = queue.first(now_s=0.0)
    assert sequence is not None
    queue.remove(sequence)
    queue.account(sequence).charge(num_tokens)
    return sequence.request.tenant


def test_turns_follow_weighted_tokens_not_the_number_of_requests() -> None:
    queue = tenants(heavy=TenantPolicy(weight=3.0))
    for _ in range(40):
        queue.push(waiting("heavy"), 0.0)
        queue.push(waiting("light"), 0.0)
    turns = [serve(queue, num_tokens=10) for _ in range(40)]
    assert turns.count("heavy") == 30


def test_large_requests_cost_their_tenant_turns() -> None:
    queue = tenants()
    for _ in range(30):
        queue.push(waiting("large"), 0.0)
        queue.push(waiting("small"), 0.0)
    turns = [serve(queue, 100 if queue.first(0.0).request.tenant == "large" else 10) for _ in range(22)]  # type: ignore[union-attr]
    assert turns.count("small") == 20


def test_a_pause_is_no_credit() -> None:
    queue = tenants()
    for _ in range(10):
        queue.push(waiting("steady"), 0.0)
    for _ in range(5):
        serve(queue, 1000)
    for _ in range(10):
        queue.push(waiting("late"), 0.0)
    turns = [serve(queue, 1000) for _ in range(8)]
    assert turns.count("late") == 4


def test_a_step_of_priority_is_worth_its_seconds_of_waiting() -> None:
    queue = tenants()
    unimportant = waiting("a", arrival_s=0.0, priority=1)
    soon, late = waiting("a", arrival_s=9.0), waiting("a", arrival_s=11.0)
    for sequence in (late, soon, unimportant):
        queue.push(sequence, 0.0)
    order = []
    while (sequence := queue.first(0.0)) is not None:
        order.append(sequence)
        queue.remove(sequence)
    assert order == [soon, unimportant, late]


def test_priority_takes_nothing_from_other_tenants() -> None:
    queue = tenants()
    for _ in range(10):
        queue.push(waiting("loud", priority=-100), 0.0)
        queue.push(waiting("quiet"), 0.0)
    turns = [serve(queue, 10) for _ in range(10)]
    assert turns.count("loud") == 5


def test_a_rate_limit_holds_back_until_the_debt_is_paid() -> None:
    queue = tenants(slow=TenantPolicy(tokens_per_s=10.0))
    queue.push(waiting("slow"), 0.0)
    queue.push(waiting("slow"), 0.0)
    serve(queue, 60)
    assert queue.first(now_s=1.0) is None
    assert queue.throttled_s(now_s=1.0) == pytest.approx(4.0)
    assert queue.first(now_s=5.1) is not None


def test_a_concurrency_limit_passes_the_turn_on() -> None:
    queue = tenants(narrow=TenantPolicy(max_running=1))
    first, second, other = waiting("narrow"), waiting("narrow"), waiting("other")
    for sequence in (first, second, other):
        queue.push(sequence, 0.0)
    queue.started(first)
    assert queue.first(0.0) is other


def test_a_sequence_that_does_not_wait_cannot_be_removed() -> None:
    queue = tenants()
    queue.push(waiting("a"), 0.0)
    with pytest.raises(ValueError, match="does not wait"):
        queue.remove(waiting("a"))


def test_names_from_clients_take_bounded_memory() -> None:
    queue = tenants()
    for n in range(3 * MAX_IDLE_ACCOUNTS):
        sequence = waiting(f"tenant {n}")
        queue.push(sequence, 0.0)
        queue.remove(sequence)
    assert len(list(queue.accounts)) <= MAX_IDLE_ACCOUNTS + 1


def test_prefixes_are_private_unless_a_group_is_named() -> None:
    policies = parse_policies({"a": {"prefix_group": "b"}, "c": {"prefix_group": "b"}})
    scopes = [policies.prefix_scope(tenant) for tenant in ("a", "b", "c", "d", "")]
    assert scopes[0] == scopes[2]
    assert len(set(scopes)) == 4


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        ({"weight": 0}, "weight of tenant 'acme' is 0; it must be a finite number above 0"),
        ({"weight": None}, "weight of tenant 'acme' is None"),
        ({"weight": float("inf")}, "weight of tenant 'acme' is inf"),
        ({"max_running": 1.5}, "max_running of tenant 'acme' is 1.5; it must be a whole number above 0"),
        ({"max_running": True}, "max_running of tenant 'acme' is True"),
        ({"tokens_per_s": -1}, "tokens_per_s of tenant 'acme' is -1; it must be a finite number above 0"),
        ({"prefix_group": 3}, "prefix_group of tenant 'acme' is 3; it must be a string"),
        ({"wait": 1}, "unknown key 'wait' of tenant 'acme'; known: weight, max_running"),
        (7, "tenants\\['acme'\\] is 7; it must be an object"),
    ],
)
def test_a_wrong_policy_is_refused_with_its_numbers(policy: Any, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        parse_policies({"acme": policy})


def test_policies_may_stand_as_text_in_the_configuration() -> None:
    settings = Settings.from_mapping({"tenants": '{"acme": {"weight": 2}}', "target_itl_ms": "25.5"})
    assert parse_policies(settings.tenants)["acme"].weight == 2
    assert settings.target_itl_ms == 25.5


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"tenants": "[1]"}, "tenants is .* it must be a JSON object"),
        ({"tenants": "{"}, "tenants is .* it must be a JSON object"),
        ({"target_itl_ms": 0}, "target_itl_ms is 0.*above 0"),
        ({"target_itl_ms": "nan"}, "target_itl_ms is 'nan'; it must be a finite number"),
        ({"target_itl_ms": True}, "target_itl_ms is True; it must be a finite number"),
        ({"priority_ageing_s": -1}, "priority_ageing_s is -1.*above 0"),
        ({"max_preemptions": -1}, "max_preemptions is -1; it must be at least 0"),
    ],
)
def test_wrong_scheduling_settings_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        Settings.from_mapping(values)
