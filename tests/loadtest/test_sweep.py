"""A sweep's table and picture: every rate in both, and charts that a browser can read."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from loadtest import charts
from loadtest.charts import Chart
from loadtest.sweep import Measured, pictures, table, write

SVG = "{http://www.w3.org/2000/svg}"


FACTS = {"command": "sweep", "machine": "two cores", "date": "today", "load_average": [(1, 1, 1), (2, 2, 2)]}


def measured(rate: float) -> Measured:
    latency = {"p50": 10 * rate, "p90": 50 * rate, "p99": 100 * rate}
    totals = {"good_share": 0.5, "output_tokens_per_s": 40 * rate, "failed": 0}
    return Measured(
        rate,
        totals
        | {"slo": {"ttft_s": 2.0, "tpot_s": 0.1}}
        | dict.fromkeys(("ttft_ms", "itl_ms", "tpot_ms"), latency),
        [(-0.5, 0.9), (0.5, 0.1 * rate), (1.5, 0.2 * rate)],
    )


def test_the_table_has_a_row_for_every_rate() -> None:
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in table([measured(1), measured(4)])
    ]
    assert [row[:4] for row in rows[2:]] == [["1", "0.50", "50%", "40"], ["4", "2.00", "50%", "160"]]
    assert rows[3][4] == "40 / 200 / 400"
    assert len({len(row) for row in rows}) == 1


def test_a_sweep_leaves_raw_numbers_a_picture_and_a_page_that_names_both(tmp_path: Path) -> None:
    write(tmp_path / "out" / "load", [measured(1), measured(4)], FACTS)
    page = (tmp_path / "out" / "load.md").read_text()
    numbers = json.loads((tmp_path / "out" / "load.json").read_text())
    assert [each["rate"] for each in numbers["runs"]] == [1, 4]
    assert (tmp_path / "out" / "load.svg").is_file()
    assert "(load.svg)" in page
    assert "(load.json)" in page


def test_the_picture_shows_every_rate_and_starts_with_the_first_request(tmp_path: Path) -> None:
    runs = [measured(1), measured(2), measured(4)]
    charts.write(tmp_path / "sweep.svg", pictures(runs))
    lines = ElementTree.parse(tmp_path / "sweep.svg").findall(f".//{SVG}polyline")
    lengths = [len(line.attrib["points"].split()) for line in lines]
    assert lengths == [3] * 2 + [2] * 3 + [3] * 6


def test_points_lie_where_their_values_say() -> None:
    svg = charts.draw(Chart("t", "x", "y", {"a < b": [(0, 0), (5, 50), (10, 100)]}))
    marks = ElementTree.fromstring(f"<g>{svg}</g>").findall("circle")
    (x0, y0), (x1, y1), (x2, y2) = ((float(m.attrib["cx"]), float(m.attrib["cy"])) for m in marks)
    assert x1 - x0 == pytest.approx(x2 - x1, abs=0.11)
    assert y0 - y1 == pytest.approx(y1 - y2, abs=0.11)
    assert x0 < x2
    assert y2 < y0


@pytest.mark.parametrize("largest", [0.003, 0.9, 1, 7, 40, 99.9, 12345])
def test_ticks_are_round_and_neither_few_nor_many(largest: float) -> None:
    tick = charts.step(largest)
    assert 4 <= largest / tick <= 10.01
    assert f"{tick:e}"[0] in "125"


def test_a_chart_without_points_is_still_a_chart() -> None:
    ElementTree.fromstring(f"<g>{charts.draw(Chart('t', 'x', 'y', {'none': [], 'zero': [(0, 0)]}))}</g>")
