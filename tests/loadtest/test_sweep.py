"""A sweep's table and picture: every rate in both, and charts that a browser can read."""

from __future__ import annotations

import csv
from pathlib import Path
from xml.etree import ElementTree

import pytest

from loadtest import charts
from loadtest.charts import Chart
from loadtest.sweep import Measured, pictures, write_table

SVG = "{http://www.w3.org/2000/svg}"


def measured(rate: float) -> Measured:
    latency = {"p50": 10 * rate, "p99": 100 * rate}
    totals = {"goodput_per_s": rate / 2, "good_share": 0.5, "output_tokens_per_s": 40 * rate, "failed": 0}
    return Measured(
        rate,
        totals | dict.fromkeys(("ttft_ms", "itl_ms", "tpot_ms"), latency),
        [(-0.5, 0.9), (0.5, 0.1 * rate), (1.5, 0.2 * rate)],
    )


def test_the_table_has_a_row_for_every_rate(tmp_path: Path) -> None:
    write_table(tmp_path / "sweep.csv", [measured(1), measured(4)])
    with (tmp_path / "sweep.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["rate"], row["goodput_per_s"], row["ttft_ms_p99"]) for row in rows] == [
        ("1", "0.5", "100"),
        ("4", "2.0", "400"),
    ]


def test_the_picture_shows_every_rate_and_starts_with_the_first_request(tmp_path: Path) -> None:
    runs = [measured(1), measured(2), measured(4)]
    charts.write(tmp_path / "sweep.svg", pictures(runs))
    lines = ElementTree.parse(tmp_path / "sweep.svg").findall(f".//{SVG}polyline")
    lengths = [len(line.attrib["points"].split()) for line in lines]
    assert lengths == [3] * 6 + [2] * 3


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
