"""The dashboard, the alert rules and the runbook: what they name is there."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from commitline.metrics import METRICS, VALUES, Metric

ROOT = Path(__file__).parents[2]
RULES: list[dict[str, Any]] = [
    rule
    for group in yaml.safe_load((ROOT / "deploy/prometheus/alerts.yml").read_text())["groups"]
    for rule in group["rules"]
]
DASHBOARD = json.loads((ROOT / "deploy/grafana/commitline.json").read_text())
TESTED = yaml.safe_load((ROOT / "deploy/prometheus/alerts_test.yml").read_text())
SERIES = re.compile(r"(commitline_\w+)(?:\{([^}]*)\})?")
OF_EACH = {"namespace", "task_queue", "le"}


def served_names(metric: Metric) -> list[str]:
    """Return the names by which Prometheus has a metric."""
    if metric.kind == "histogram":
        return [f"{metric.name}_{part}" for part in ("bucket", "sum", "count")]
    return [f"{metric.name}_total" if metric.kind == "counter" else metric.name]


SERVED = {name: metric for metric in METRICS for name in served_names(metric)}


def expressions() -> Iterator[str]:
    yield from (rule["expr"] for rule in RULES)
    yield from (target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"])
    yield from (one["query"] for one in DASHBOARD["templating"]["list"] if one["type"] == "query")
    for case in TESTED["tests"]:
        for one in case["input_series"]:
            if not one["series"].startswith("up{"):
                yield one["series"]


@pytest.mark.parametrize("expression", sorted(set(expressions())))
def test_each_metric_that_is_named_exists_with_its_attributes_and_values(expression: str) -> None:
    found = SERIES.findall(expression)

    assert found
    for name, matchers in found:
        assert name in SERVED
        metric = SERVED[name]
        for attribute, value in re.findall(r'(\w+)(?:=|!=|=~)"([^"]*)"', matchers):
            assert attribute in {*metric.by, *OF_EACH}
            assert attribute not in VALUES or value in VALUES[attribute]
    # Also what is grouped by.
    grouped = re.findall(r"\b(?:by|without) \(([^)]*)\)", expression)
    known = OF_EACH.union(*(SERVED[name].by for name, _ in found))
    assert {one.strip() for group in grouped for one in group.split(",")} <= known


def test_each_alert_has_its_section_with_what_it_means_what_to_look_at_and_what_ends_it() -> None:
    page = (ROOT / "docs/runbook.md").read_text()
    sections = dict(re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL))

    assert list(sections) == [rule["alert"] for rule in RULES]
    for rule in RULES:
        name = rule["alert"]
        words = re.findall(r"^\*\*(.*?)\*\*", sections[name], re.MULTILINE)
        assert words[:1] + [word for word in words if word in ("Look at", "Ends it")] == [
            "Means",
            "Look at",
            "Ends it",
        ]
        assert rule["annotations"]["runbook"] == f"docs/runbook.md#{name.lower()}"
        assert rule["labels"]["severity"] in ("page", "ticket")


def test_what_is_tested_by_promtool_are_alerts_that_there_are() -> None:
    tested = {one["alertname"] for case in TESTED["tests"] for one in case["alert_rule_test"]}

    assert tested <= {rule["alert"] for rule in RULES}
