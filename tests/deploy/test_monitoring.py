"""Prometheus and Grafana files: promtool takes them, and they name only metrics the server exports."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

# Triton's own families: docs.nvidia.com, Triton Inference Server, "Metrics".
TRITON_FAMILIES = {"nv_gpu_utilization", "nv_gpu_memory_used_bytes"}
PROMQL_WORDS = {
    "and",
    "or",
    "unless",
    "on",
    "ignoring",
    "by",
    "without",
    "bool",
    "offset",
    "group_left",
    "group_right",
}


def test_the_scrape_config_and_its_rules_are_valid(root: Path, promtool: Callable[..., str]) -> None:
    promtool("check", "config", root / "deploy/prometheus/prometheus.yml")


def test_the_rules_do_what_their_unit_tests_say(root: Path, promtool: Callable[..., str]) -> None:
    promtool("test", "rules", root / "deploy/prometheus/rules/pagetide_test.yml")


def test_every_alert_has_a_unit_test_that_sees_it_fire(root: Path, rules: list[dict]) -> None:
    tests = yaml.safe_load((root / "deploy/prometheus/rules/pagetide_test.yml").read_text())["tests"]
    fired = {case["alertname"] for test in tests for case in test["alert_rule_test"] if case["exp_alerts"]}
    assert {rule["alert"] for rule in rules if "alert" in rule} == fired


def test_every_panels_expression_is_valid_promql(
    dashboard_expressions: dict[str, str], promtool: Callable[..., str], tmp_path: Path
) -> None:
    assert len(dashboard_expressions) >= 20
    records = [
        {"record": f"panel:{i}", "expr": expression}
        for i, expression in enumerate(dashboard_expressions.values())
    ]
    rule_file = tmp_path / "panels.yml"
    rule_file.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": records}]}))
    assert f"{len(records)} rules found" in promtool("check", "rules", rule_file)


def test_panels_and_rules_name_only_what_is_exported(
    dashboard_expressions: dict[str, str], rules: list[dict], exported_series: dict[str, str]
) -> None:
    known = (
        exported_series.keys()
        | TRITON_FAMILIES
        | {"up"}
        | {rule["record"] for rule in rules if "record" in rule}
    )
    used = dashboard_expressions | {rule.get("record") or rule["alert"]: rule["expr"] for rule in rules}
    unknown = {where: names for where, e in used.items() if (names := metric_names(e) - known)}
    assert not unknown


def test_label_queries_of_the_dashboard_name_exported_metrics(
    dashboards: dict[str, dict], exported_series: dict[str, str]
) -> None:
    variables = [
        v for board in dashboards.values() for v in board["templating"]["list"] if v["type"] == "query"
    ]
    named = {re.match(r"label_values\(([\w:]+)", variable["definition"])[1] for variable in variables}
    assert named
    assert named <= set(exported_series)


def metric_names(expression: str) -> set[str]:
    """The series a PromQL expression reads."""
    bare = re.sub(r'"[^"]*"|\{[^}]*\}|\[[^\]]*\]|\b(?:by|without|on|ignoring)\s*\([^)]*\)', " ", expression)
    functions = set(re.findall(r"([a-z_]+)\s*\(", bare))
    return set(re.findall(r"(?<![\w.])[a-zA-Z_:][\w:]*", bare)) - functions - PROMQL_WORDS


@pytest.mark.parametrize(
    ("expression", "names"),
    [
        ('sum by (a, b) (rate(vllm:x_total{m="y z"}[5m])) / on (i) (nv_b > 0)', {"vllm:x_total", "nv_b"}),
        ("up == 1 unless on (instance) a:b", {"up", "a:b"}),
        ("histogram_quantile(0.99, sum by (le) (c_bucket)) * 1e3", {"c_bucket"}),
    ],
)
def test_metric_names_are_read_out_of_an_expression(expression: str, names: set[str]) -> None:
    assert metric_names(expression) == names


def test_the_dashboard_reads_the_provisioned_data_source(root: Path, dashboards: dict[str, dict]) -> None:
    provisioned = yaml.safe_load(
        (root / "deploy/grafana/provisioning/datasources/prometheus.yml").read_text()
    )
    uids = {source["uid"] for source in provisioned["datasources"]}
    for board in dashboards.values():
        (choice,) = [v for v in board["templating"]["list"] if v["type"] == "datasource"]
        assert choice["current"]["value"] in uids
        assert {p["datasource"]["uid"] for p in board["panels"] if "datasource" in p} == {"${datasource}"}


def test_panels_have_unique_ids_and_do_not_overlap(dashboards: dict[str, dict]) -> None:
    for board in dashboards.values():
        ids = [panel["id"] for panel in board["panels"]]
        assert len(set(ids)) == len(ids)
        cells = [cell for panel in board["panels"] for cell in _cells(panel["gridPos"])]
        assert len(set(cells)) == len(cells)
        assert all(x < 24 for x, _ in cells)


def _cells(pos: dict) -> list[tuple[int, int]]:
    return [
        (x, y) for x in range(pos["x"], pos["x"] + pos["w"]) for y in range(pos["y"], pos["y"] + pos["h"])
    ]
