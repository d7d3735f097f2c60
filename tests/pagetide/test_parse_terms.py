from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from parse_world import LIMITS, parse, text

from pagetide.parse_terms import Terms, take_terms
from pagetide.parse_values import InvalidArgumentError


def test_terms_are_taken_out_and_the_rest_stays() -> None:
    values = {"tenant": "acme", "priority": "-3", "timeout_s": 1.5, "cache_salt": "é", "top_k": 4}
    assert take_terms(values) == Terms("acme", -3, 1.5, "é".encode())
    assert values == {"top_k": 4}


def test_without_terms_and_with_null_the_defaults_hold() -> None:
    assert take_terms({"tenant": None, "timeout_s": None}) == Terms()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"tenant": 3}, "tenant is 3; it must be a string of at most 256 characters"),
        ({"tenant": "x" * 257}, r"\(259 characters\); it must be a string of at most 256"),
        ({"cache_salt": "\ud800"}, "cache_salt is .*; it must be a string"),
        ({"priority": 11}, "priority is 11; it must be a whole number, -10 to 10"),
        ({"timeout_s": 0}, "timeout_s is 0; it must be a number of seconds above 0, at most 86400"),
        ({"timeout_s": "nan"}, "timeout_s is 'nan'; it must be"),
    ],
)
def test_wrong_terms_are_refused_with_their_limits(values: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        take_terms(values)


HEADER = replace(LIMITS, tenant_header="X-Tenant")


def test_a_header_says_whose_a_request_is_whatever_else_it_has() -> None:
    asked = text('{"top_k": 3}')
    assert parse({"x-tenant": "acme"}, HEADER).terms.tenant == "acme"
    assert parse({"X-Tenant": "acme"}, HEADER, sampling_parameters=asked).terms.tenant == "acme"
    assert parse({"priority": 3}, HEADER).terms.tenant == ""
    assert parse({"tenant": "acme"}).terms.tenant == "acme"


def test_a_request_can_not_say_otherwise_than_its_header() -> None:
    duplicates = '{"x-tenant": "acme", "x-tenant": "blue"}'
    for parameters, message in (
        (duplicates, "X-Tenant is given 2 times, for different tenants"),
        (
            {"x-tenant": "acme", "tenant": "blue"},
            "tenant is 'blue'; leave it out, as the header X-Tenant says it",
        ),
        ({"tenant": "blue"}, "tenant is 'blue'; leave it out"),
        ({"x-tenant": "acme", "X-TENANT": "blue"}, "X-Tenant is given 2 times, for different tenants"),
        ({"x-tenant": 3}, "x-tenant is 3; it must be a string of at most 256 characters"),
    ):
        with pytest.raises(InvalidArgumentError, match=message):
            parse(parameters, HEADER)
