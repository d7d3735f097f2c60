"""What `pagetide top` draws adds up and fits the terminal."""

from __future__ import annotations

import io

from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from pagetide_client.cli.top import metrics_address
from pagetide_client.cli.top_decisions import grid
from pagetide_client.cli.top_view import Seen, block_grid, block_legend, render, share
from pagetide_client.statistics import PlannedStep, Statistics, TenantQueue
from pagetide_client.summary import Summary

REPEATABLE = settings(derandomize=True, deadline=None)

counts = st.tuples(st.integers(0, 5000), st.integers(0, 5000), st.integers(0, 5000))


def summary(used: int, cached: int, free: int) -> Summary:
    return Summary(
        model="m",
        version="2",
        window_s=1.0,
        running=3,
        waiting=1,
        output_tokens_per_s=61.25,
        prompt_tokens_per_s=0.0,
        ttft_p50_s=0.0456,
        ttft_p99_s=1.25,
        itl_p50_s=None,
        itl_p99_s=None,
        prefix_hit_rate=0.25,
        preemptions=7,
        blocks_used=used,
        blocks_cached=cached,
        blocks_free=free,
    )


def drawn(shown: Summary, width: int, told: Statistics | None = None) -> str:
    out = io.StringIO()
    Console(file=out, width=width).print(render(Seen(shown, told, "the engine stopped"), width))
    return out.getvalue()


@REPEATABLE
@given(counts, st.integers(3, 400))
def test_cells_add_up_and_no_state_that_exists_is_invisible(
    blocks: tuple[int, int, int], num_cells: int
) -> None:
    cells = share(num_cells, blocks)
    assert sum(cells) == (num_cells if sum(blocks) else 0)
    assert all(cell >= 0 for cell in cells)
    assert all((cell > 0) == (count > 0) for cell, count in zip(cells, blocks, strict=True))


@REPEATABLE
@given(counts, st.integers(3, 400))
def test_cells_are_in_proportion(blocks: tuple[int, int, int], num_cells: int) -> None:
    for cell, count in zip(share(num_cells, blocks), blocks, strict=True):
        if sum(blocks):
            assert abs(cell - num_cells * count / sum(blocks)) <= 2


def test_a_small_pool_is_drawn_block_by_block() -> None:
    assert block_grid(summary(2, 1, 3), 80).plain == "██▒···"
    assert block_legend(summary(2, 1, 3)).plain == "6 blocks  █ 2 used ▒ 1 cached · 3 free"


def test_a_large_pool_fills_four_rows_of_the_width() -> None:
    rows = block_grid(summary(500, 250, 250), 40).plain.split("\n")
    assert [len(row) for row in rows] == [40] * 4
    assert [sum(row.count(mark) for row in rows) for mark in "█▒·"] == [80, 40, 40]


def test_a_pool_smaller_than_its_states_is_drawn_right() -> None:
    assert block_grid(summary(0, 0, 1), 80).plain == "·"
    assert block_grid(summary(0, 1, 1), 80).plain == "▒·"


def test_an_empty_pool_draws_nothing() -> None:
    assert block_grid(summary(0, 0, 0), 80).plain == ""


def test_every_number_is_shown_with_its_unit() -> None:
    text = drawn(summary(5, 2, 3), 100)
    for expected in (
        "m version 2",
        "3 running, 1 waiting",
        "61.2 out, 0.0 prompt",
        "TTFT p50 46 ms, p99 1.2 s",
        "ITL p50 -, p99 -",
        "prefix hits 25%",
        "preemptions 7",
    ):
        assert expected in text


def test_no_line_is_wider_than_the_terminal() -> None:
    for width in (40, 80, 200):
        assert max(map(len, drawn(summary(900, 100, 4000), width).splitlines())) <= width
        told = statistics([("held", 900), ("cached", 100), ("free", 4000)])
        assert max(map(len, drawn(summary(900, 100, 4000), width, told).splitlines())) <= width


def statistics(block_map: list[tuple[str, int]]) -> Statistics:
    return Statistics(
        tenants=[TenantQueue("", 0.25, 0, 3, 0.0), TenantQueue("acme\x1b[2J", 0.75, 29, 11, 2.81)],
        last_steps=[
            PlannedStep(0.21, 0.070, 9, {"": 40}, {}),
            PlannedStep(0.14, 0.066, 14, {"acme": 240, "": 2}, {"share": 1}),
        ],
        block_map=block_map,
        host_blocks=12,
        host_slots=40,
        preemptions={"share": 1, "blocks": 4},
        raw={},
    )


def test_decisions_are_shown_the_longest_queue_and_the_newest_step_first() -> None:
    text = drawn(summary(5, 2, 3), 100, statistics([("held", 5), ("cached", 2), ("free", 3)]))
    rows = [" ".join(line.split()) for line in text.splitlines()]
    assert rows[3:6] == [
        "tenant waiting running oldest share",
        "acme\ufffd[2J 29 11 2.8 s 75%",
        "(none) 0 3 - 25%",
    ]
    assert rows[6:9] == [
        "step took streams prompts",
        "0.14 s ago 66 ms 14 acme 240, (none) 2; preempted for share 1",
        "0.21 s ago 70 ms 9 (none) 40",
    ]
    assert rows[9] == "preempted for share 1, blocks 4"
    assert rows[10] == "10 blocks ▓ 0 shared █ 5 held ▒ 2 cached · 3 free host 12 of 40"
    assert rows[11] == "█████▒▒···"


def test_blocks_are_drawn_where_they_are_by_what_most_of_them_hold() -> None:
    told = statistics([("shared", 4), ("held", 396), ("free", 200), ("cached", 200)])
    assert grid(told, 10).plain.split("\n") == ["█" * 10, "█" * 10, "·" * 10, "▒" * 10]
    assert grid(statistics([("shared", 1), ("free", 2)]), 10).plain == "▓··"


def test_an_engine_that_tells_nothing_leaves_the_numbers_and_the_pools_sums() -> None:
    text = drawn(summary(5, 2, 3), 100)
    assert "no statistics: the engine stopped" in text
    assert "█ 5 used ▒ 2 cached · 3 free" in text


def test_the_metrics_port_is_the_one_after_the_grpc_port() -> None:
    assert metrics_address("127.0.0.1:8001") == "http://127.0.0.1:8002/metrics"
    assert metrics_address("[::1]:9001") == "http://[::1]:9002/metrics"
