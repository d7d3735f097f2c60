"""How a request wants to be scheduled: for whom, how soon, how long, and whose prefixes it may share."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from pagetide.parse_values import Convert, InvalidArgumentError, integer, is_unicode, real, refuse

MOST_NAME_LENGTH = 256
MOST_PRIORITY = 10
MOST_TIMEOUT_S = 86_400.0


@dataclass(frozen=True, slots=True)
class Terms:
    """See `pagetide.request.Request`, which takes these by the same names."""

    tenant: str = ""
    priority: int = 0
    timeout_s: float | None = None
    cache_salt: bytes = b""


def name(field: str, value: Any) -> str:
    """A string that is not too long to be kept for each request."""
    if not isinstance(value, str) or len(value) > MOST_NAME_LENGTH or not is_unicode(value):
        raise refuse(field, value, f"a string of at most {MOST_NAME_LENGTH} characters")
    return value


def salt(field: str, value: Any) -> bytes:
    return name(field, value).encode()


FIELDS: dict[str, Convert] = {
    "tenant": name,
    "priority": integer(-MOST_PRIORITY, MOST_PRIORITY),
    "timeout_s": real(
        f"a number of seconds above 0, at most {MOST_TIMEOUT_S:.0f}", lambda x: 0 < x <= MOST_TIMEOUT_S
    ),
    "cache_salt": salt,
}
"""Names that stand among the sampling parameters."""


def take_terms(values: dict[str, Any]) -> Terms:
    """Takes the terms out of `values`; null stands for the default. Raises InvalidArgumentError."""
    given = {field: values.pop(field) for field in FIELDS if field in values}
    return Terms(
        **{field: FIELDS[field](field, value) for field, value in given.items() if value is not None}
    )


def header_tenant(parameters: str, header: str) -> str:
    """The tenant in a header that Triton forwards as a request parameter; "" without it.

    `parameters` is their JSON, in which a parameter that the client gave the header's name stands beside the
    header: before or after it, as the protocol has it. Names of headers have no case. Raises
    InvalidArgumentError if the tenant is no name, or given twice and not the same.
    """
    pairs: list[tuple[str, Any]] = json.loads(parameters, object_pairs_hook=list) if parameters else []
    tenants = [name(field, value) for field, value in pairs if field.lower() == header.lower()]
    if len(set(tenants)) > 1:
        raise InvalidArgumentError(f"{header} is given {len(tenants)} times, for different tenants")
    return tenants[0] if tenants else ""
