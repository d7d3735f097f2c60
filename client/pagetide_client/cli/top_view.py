"""The picture `pagetide top` draws of one model version."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from pagetide_client.cli.top_decisions import MAX_ROWS, decisions, grid, legend
from pagetide_client.statistics import Statistics
from pagetide_client.summary import Summary

_STATES = (("used", "█", "green"), ("cached", "▒", "cyan"), ("free", "·", "dim"))


@dataclass(frozen=True, slots=True)
class Seen:
    """One model version: its numbers, and what its engine tells, or why it told nothing."""

    summary: Summary
    statistics: Statistics | None = None
    problem: str = ""


def render(seen: Seen, width: int) -> RenderableType:
    """A heading, the numbers, the scheduler's decisions, and the block pool, in at most `width` columns."""
    summary, statistics = seen.summary, seen.statistics
    heading = Text.assemble((f"{summary.model} version {summary.version}", "bold"))
    if statistics is None:
        problem = Text(f"no statistics: {seen.problem}", style="dim", overflow="ellipsis", no_wrap=True)
        told = Group(problem, block_legend(summary), block_grid(summary, width))
    else:
        told = Group(decisions(statistics), legend(statistics), grid(statistics, width))
    return Group(heading, _numbers(summary), told, Text())


def block_legend(summary: Summary) -> Text:
    counts = block_counts(summary)
    legend = Text(f"{summary.blocks_total} blocks ")
    for (state, mark, style), count in zip(_STATES, counts, strict=True):
        legend.append(f" {mark} ", style)
        legend.append(f"{count} {state}")
    return legend


def block_grid(summary: Summary, width: int) -> Text:
    """The pool as a map: at most 4 rows of marks, each standing for the same number of blocks."""
    num_cells = min(summary.blocks_total, width * MAX_ROWS)
    cells = share(num_cells, block_counts(summary))
    marks = [
        (mark, style) for (_, mark, style), count in zip(_STATES, cells, strict=True) for _ in range(count)
    ]
    grid = Text()
    for start in range(0, num_cells, width):
        row = marks[start : start + width]
        grid.append_text(Text.assemble(*row, "\n" if start + width < num_cells else ""))
    return grid


def block_counts(summary: Summary) -> tuple[int, int, int]:
    return summary.blocks_used, summary.blocks_cached, summary.blocks_free


def share(num_cells: int, counts: Sequence[int]) -> list[int]:
    """`num_cells` in proportion to `counts`, by largest remainder; what is not 0 keeps at least one cell.

    There must be a cell for every count that is not 0.
    """
    total = sum(counts)
    if not total:
        return [0] * len(counts)
    cells = [max(num_cells * count // total, 1 if count else 0) for count in counts]
    while (missing := num_cells - sum(cells)) != 0:
        step = 1 if missing > 0 else -1
        lags = [
            step * (num_cells * count / total - cell) if count and cell + step > 0 else -inf
            for count, cell in zip(counts, cells, strict=True)
        ]
        cells[lags.index(max(lags))] += step
    return cells


def _numbers(summary: Summary) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 3, 0, 0))
    for _ in range(3):
        table.add_column(no_wrap=True)
    table.add_row(
        f"requests {summary.running} running, {summary.waiting} waiting",
        f"tokens/s {summary.output_tokens_per_s:.1f} out, {summary.prompt_tokens_per_s:.1f} prompt",
        f"prefix hits {_percent(summary.prefix_hit_rate)}",
    )
    table.add_row(
        f"TTFT p50 {_time(summary.ttft_p50_s)}, p99 {_time(summary.ttft_p99_s)}",
        f"ITL p50 {_time(summary.itl_p50_s)}, p99 {_time(summary.itl_p99_s)}",
        f"preemptions {summary.preemptions}",
    )
    return table


def _time(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"


def _percent(rate: float | None) -> str:
    return "-" if rate is None else f"{rate:.0%}"
