"""What a tenant may have: settings, read once at load."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from pagetide.config import SettingsError

EVERYONE_ELSE = "*"


@dataclass(frozen=True, slots=True)
class TenantPolicy:
    """A tenant's share and limits.

    `weight` is its share of the machine next to the other active tenants' weights. At most `max_running`
    of its requests run at once and `max_waiting` wait, so that it can't fill the queue for others; over
    time at most `tokens_per_s` tokens are computed for it. None is no limit. Tenants that name the same
    `prefix_group` share prefix hits; without one they share none.
    """

    weight: float = 1.0
    max_running: int | None = None
    max_waiting: int | None = None
    tokens_per_s: float | None = None
    prefix_group: str | None = None


class TenantPolicies:
    """Policies by tenant name; `*` stands for every tenant that is not named."""

    def __init__(self, named: Mapping[str, TenantPolicy] | None = None) -> None:
        self._named = dict(named or {})
        self._others = self._named.pop(EVERYONE_ELSE, TenantPolicy())

    def __getitem__(self, tenant: str) -> TenantPolicy:
        return self._named.get(tenant, self._others)

    def prefix_scope(self, tenant: str) -> bytes:
        """Tenants with the same scope share prefix hits. A group is never mistaken for a tenant."""
        group = self[tenant].prefix_group
        return b"tenant:" + tenant.encode() if group is None else b"group:" + group.encode()


def parse_policies(values: Mapping[str, Any]) -> TenantPolicies:
    """The setting `tenants`: `{"acme": {"weight": 2, "tokens_per_s": 500}, "*": {"max_running": 4}}`.

    Raises SettingsError that names the tenant, the key, the value and the limit.
    """
    return TenantPolicies({tenant: _policy(tenant, each) for tenant, each in values.items()})


def _policy(tenant: str, values: Any) -> TenantPolicy:
    if not isinstance(values, Mapping):
        raise SettingsError(f"tenants[{tenant!r}] is {values!r}; it must be an object")
    known = [f.name for f in fields(TenantPolicy)]
    for key in values:
        if key not in known:
            raise SettingsError(f"unknown key {key!r} of tenant {tenant!r}; known: {', '.join(known)}")
    policy = TenantPolicy(**values)
    for key in ("weight", "tokens_per_s", "max_running", "max_waiting"):
        _positive(tenant, key, getattr(policy, key), whole=key.startswith("max_"))
    if not isinstance(policy.prefix_group, (str, type(None))):
        raise SettingsError(
            f"prefix_group of tenant {tenant!r} is {policy.prefix_group!r}; it must be a string"
        )
    return policy


def _positive(tenant: str, key: str, value: Any, whole: bool) -> None:
    if value is None and key != "weight":
        return
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or (whole and int(value) != value) or not 0 < value < float("inf"):
        kind = "whole number" if whole else "finite number"
        raise SettingsError(f"{key} of tenant {tenant!r} is {value!r}; it must be a {kind} above 0")
