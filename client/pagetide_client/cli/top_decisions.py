"""The part of `pagetide top` that shows what the scheduler decided: queues, plans, preemptions, blocks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from pagetide_client.cli.terminal import printable
from pagetide_client.statistics import PlannedStep, Statistics

STATES = {"shared": ("▓", "green"), "held": ("█", "green"), "cached": ("▒", "cyan"), "free": ("·", "dim")}
"""A mark and its style for each state of a block, in the legend's order."""

MAX_ROWS = 4
_MAX_TENANTS = 8
_MAX_STEPS = 4
_MAX_NAME = 20


def decisions(statistics: Statistics) -> RenderableType:
    """Who waits, what the last steps were, and why sequences were preempted."""
    parts: list[RenderableType] = []
    if statistics.tenants:
        parts.append(_tenants(statistics))
    if statistics.last_steps:
        parts.append(_steps(statistics))
    if statistics.preemptions:
        parts.append(Text(f"preempted for {_counts(statistics.preemptions)}"))
    return Group(*parts)


def legend(statistics: Statistics) -> Text:
    counts: Counter[str] = Counter()
    for state, count in statistics.block_map:
        counts[state] += count
    shown = Text(f"{counts.total()} blocks ")
    for state, (mark, style) in STATES.items():
        shown.append(f" {mark} ", style)
        shown.append(f"{counts[state]} {state}")
    if statistics.host_slots:
        shown.append(f"   host {statistics.host_blocks} of {statistics.host_slots}")
    return shown


def grid(statistics: Statistics, width: int) -> Text:
    """The blocks where they are: at most MAX_ROWS rows, each mark the state of most of its blocks."""
    states = [state for state, count in statistics.block_map for _ in range(count)]
    num_cells = min(len(states), width * MAX_ROWS)
    shown = Text()
    for cell in range(num_cells):
        blocks = states[cell * len(states) // num_cells : (cell + 1) * len(states) // num_cells]
        shown.append(*STATES[Counter(blocks).most_common(1)[0][0]])
        if (cell + 1) % width == 0 and cell + 1 < num_cells:
            shown.append("\n")
    return shown


def _tenants(statistics: Statistics) -> Table:
    """Those with most waiting first; the others are counted only."""
    table = _table("tenant", "waiting", "running", "oldest", "share")
    queues = sorted(statistics.tenants, key=lambda tenant: (-tenant.num_waiting, tenant.name))
    for tenant in queues[:_MAX_TENANTS]:
        oldest = f"{tenant.oldest_wait_s:.1f} s" if tenant.num_waiting else "-"
        counts = str(tenant.num_waiting), str(tenant.num_running)
        table.add_row(_name(tenant.name), *counts, oldest, f"{tenant.share:.0%}")
    if len(queues) > _MAX_TENANTS:
        table.add_row(f"{len(queues) - _MAX_TENANTS} more")
    return table


def _steps(statistics: Statistics) -> Table:
    table = _table("step", "took", "streams", "prompts")
    for step in statistics.last_steps[: -_MAX_STEPS - 1 : -1]:
        table.add_row(
            f"{step.ago_s:.2f} s ago", f"{step.step_s * 1e3:.0f} ms", f"{step.num_streams}", _prompts(step)
        )
    return table


def _prompts(step: PlannedStep) -> str:
    told = ", ".join(f"{_name(tenant)} {count}" for tenant, count in step.prompt_tokens.items()) or "-"
    return f"{told}; preempted for {_counts(step.preemptions)}" if step.preemptions else told


def _counts(preemptions: Mapping[str, int]) -> str:
    return ", ".join(f"{reason} {count}" for reason, count in preemptions.items())


def _name(tenant: str) -> str:
    """Names come from clients: cut, and unable to move the cursor. Most requests name no tenant."""
    shown = printable(tenant).replace("\n", " ").replace("\t", " ") or "(none)"
    return shown if len(shown) <= _MAX_NAME else f"{shown[: _MAX_NAME - 1]}…"


def _table(*headings: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0))
    for heading in headings:
        table.add_column(heading, no_wrap=True, header_style="dim")
    return table
