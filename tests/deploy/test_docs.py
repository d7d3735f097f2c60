"""docs/operations.md says of metrics and alerts what the code says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def operations(root: Path) -> str:
    return (root / "docs/operations.md").read_text()


def test_the_metrics_table_lists_every_family_with_its_type(
    operations: str, exported_series: dict[str, str]
) -> None:
    documented = dict(re.findall(r"^\| `((?:vllm|pagetide):\w+)` \| (\w+) \|", operations, re.M))
    histograms = {name.removesuffix("_bucket") for name in exported_series if name.endswith("_bucket")}
    parts = {f"{name}_{part}" for name in histograms for part in ("bucket", "sum", "count")}
    plain = {name: kind for name, kind in exported_series.items() if name not in parts}
    assert documented == plain | dict.fromkeys(histograms, "histogram")


def test_the_alerts_table_lists_every_alert(operations: str, rules: list[dict]) -> None:
    documented = re.findall(r"^\| `(Pagetide\w+)` \|", operations, re.M)
    assert documented == [rule["alert"] for rule in rules if "alert" in rule]


def test_the_image_named_is_the_one_that_is_built(operations: str, root: Path) -> None:
    image = re.search(r"^ARG TRITON_IMAGE=(\S+)", (root / "deploy/Dockerfile").read_text(), re.M)
    assert image
    assert f"`{image[1]}`" in operations
