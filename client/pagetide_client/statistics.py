"""What an engine tells about its decisions: who waits, the last steps, where the blocks are."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pagetide_client.errors import ServerError


@dataclass(frozen=True, slots=True)
class TenantQueue:
    """One tenant with requests. `share` is of the machine, 0 to 1, by weight among the active ones."""

    name: str
    share: float
    num_waiting: int
    num_running: int
    oldest_wait_s: float


@dataclass(frozen=True, slots=True)
class PlannedStep:
    """One of the last steps: `num_streams` sequences got their next token, prompts `prompt_tokens` by tenant.

    It ended `ago_s` before the snapshot and took `step_s`; `preemptions` are by reason.
    """

    ago_s: float
    step_s: float
    num_streams: int
    prompt_tokens: Mapping[str, int]
    preemptions: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Statistics:
    """A snapshot between two steps, the newest step last; `raw` is all that the server said.

    `block_map` is the blocks in order as (state, how many), the states being free, cached, held and shared
    (held by several sequences). `host_blocks` of `host_slots` hold a block that the device may lack.
    `preemptions` by reason count from the start of the engine.
    """

    tenants: list[TenantQueue]
    last_steps: list[PlannedStep]
    block_map: list[tuple[str, int]]
    host_blocks: int
    host_slots: int
    preemptions: Mapping[str, int]
    raw: Mapping[str, Any]


def parse(text: str) -> Statistics:
    """Raises ServerError when `text` is not what an engine tells."""
    try:
        raw = json.loads(text)
        return Statistics(
            tenants=[_tenant(each) for each in raw["tenants"]],
            last_steps=[_step(each) for each in raw["last_steps"]],
            block_map=[(state, count) for state, count in raw["block_map"]],
            host_blocks=raw["host_blocks"],
            host_slots=raw["host_slots"],
            preemptions=raw["preemptions"],
            raw=raw,
        )
    except (ValueError, KeyError, TypeError) as error:
        raise ServerError(f"the server's statistics can't be read: {type(error).__name__}: {error}") from None


def _tenant(each: Mapping[str, Any]) -> TenantQueue:
    names = ("name", "share", "num_waiting", "num_running", "oldest_wait_s")
    return TenantQueue(**{name: each[name] for name in names})


def _step(each: Mapping[str, Any]) -> PlannedStep:
    """A row of one token behind computed ones is a stream, or the end of a prompt: they cost the same."""
    prompts: Counter[str] = Counter()
    num_streams = 0
    for _, tenant, num_computed, num_new in each["plan"]:
        if num_new == 1 and num_computed > 0:
            num_streams += 1
        else:
            prompts[tenant] += num_new
    return PlannedStep(each["ago_s"], each["step_s"], num_streams, prompts, each["preemptions"])
