"""Broken requests are refused one by one, and nobody else notices (fuzz.py says how)."""

from __future__ import annotations

import fuzz
import pytest
from triton_world import Triton

pytestmark = [pytest.mark.server, pytest.mark.slow]

NUM_CASES = 1000
MOST_GROWTH_MIB = 64


def test_1000_broken_requests_are_refused_and_good_streams_go_on_unchanged(idle: Triton) -> None:
    report = fuzz.run(idle, NUM_CASES, seed=0)
    print(report)
    assert report.wrong == []
    assert report.num_changed_streams == 0
    assert report.num_streams > 0
    assert sum(report.errors.values()) == NUM_CASES
    growth = report.growth
    assert growth.rss_mib < MOST_GROWTH_MIB
    assert growth.shared_memory_mib < MOST_GROWTH_MIB
    assert growth.files <= fuzz.NUM_SENDERS
