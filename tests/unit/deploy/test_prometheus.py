"""Alerts and the dashboard: a real Prometheus loads them, and finds in a worker what they ask."""

from __future__ import annotations

import asyncio
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from docs.generated import RUNBOOKS
from streams.store.store_port import SuspensionReason
from tests.prometheus import RULES, Prometheus, expressions, needs_prometheus
from tests.readme import TOP
from tests.unit.worker.test_health import Served
from tests.unit.worker.test_ownership import Cluster
from tests.waiting import HANGS_AFTER

METRICS = (TOP / "docs" / "reference" / "metrics.md").read_text(encoding="utf-8")


def metrics_of_a_worker() -> set[str]:
    """The names of its samples, of those that have none yet, too."""
    suffixes = {"counter": ["_total"], "histogram": ["_bucket", "_sum", "_count"], "gauge": [""]}

    async def scenario() -> set[str]:
        async with Served(Cluster()) as served:
            await served.worker.acquire()
            text = (await served.get("/metrics"))[1].decode()
            return {
                family.name + suffix
                for family in text_string_to_metric_families(text)
                for suffix in suffixes[family.type]
            }

    return asyncio.run(scenario())


def metrics_of_others() -> set[str]:
    """Return the metrics of clients and answerers."""
    names = set(re.findall(r"`(turnstile_\w+)`", METRICS))
    return names | {f"{name}_bucket" for name in names if name.endswith("_seconds")}


def test_dashboard_and_alerts_ask_for_metrics_that_there_are() -> None:
    names = metrics_of_a_worker() | metrics_of_others()
    groups = yaml.safe_load((RULES / "turnstile.rules.yaml").read_text())["groups"]
    asked = [*expressions(), *(rule["expr"] for group in groups for rule in group["rules"])]
    for expression in asked:
        words = {word for word in _words(expression) if word.startswith(("turnstile_", "process_"))}
        assert words <= names, f"nobody has {words - names}"
    assert any("kafka_consumergroup_lag" in expression for expression in asked)


def test_dashboard_and_alerts_never_mix_two_logs() -> None:
    groups = yaml.safe_load((RULES / "turnstile.rules.yaml").read_text())["groups"]
    rules = [rule["expr"] for group in groups for rule in group["rules"]]
    for expression in (*expressions(), *rules):
        aggregations = re.findall(r"\b(?:sum|max|min|count|avg)\b\s*(\(|by \(\w+)", expression)
        assert set(aggregations) <= {"by (log"}, expression
        matched = re.findall(r"\b(?:on|ignoring) \((\w+)", expression)
        assert set(matched) <= {"log"}, expression


def test_every_alert_and_every_suspension_has_a_runbook() -> None:
    path = "docs/operate/runbooks.md"
    headings = re.findall(r"^### ([\w-]+)$", (TOP / path).read_text(), re.MULTILINE)
    groups = yaml.safe_load((RULES / "turnstile.rules.yaml").read_text())["groups"]
    alerts = {
        rule["alert"]: rule["annotations"]["runbook_url"]
        for group in groups
        for rule in group["rules"]
    }
    assert alerts == {alert: f"{RUNBOOKS}#{alert.lower()}" for alert in alerts}
    lasting = set(SuspensionReason) - {SuspensionReason.RESTORING}
    assert sorted(headings) == sorted([*alerts, *lasting])


def _words(expression: str) -> set[str]:
    return set("".join(c if c.isalnum() or c == "_" else " " for c in expression).split())


@pytest.mark.process
@needs_prometheus
@pytest.mark.parametrize(
    "check",
    [("check", "config", "prometheus.yaml"), ("test", "rules", "turnstile.test.yaml")],
    ids=" ".join,
)
def test_prometheus_rules_load_and_alert(check: tuple[str, ...]) -> None:
    done = subprocess.run(
        ["promtool", *check], cwd=RULES, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.process
@needs_prometheus
def test_prometheus_answers_what_the_dashboard_asks(tmp_path: Path) -> None:
    asyncio.run(_scraped(tmp_path))


async def _scraped(folder: Path) -> None:
    async with Served(Cluster()) as served:
        await served.worker.acquire()
        await served.worker.decide()
        with Prometheus(folder, {"turnstile": served.address}) as prometheus:

            async def asked(expression: str) -> list[dict[str, Any]]:
                return await asyncio.to_thread(prometheus.asked, expression)

            async with asyncio.timeout(HANGS_AFTER):
                while not await asked("turnstile_partitions"):
                    await asyncio.sleep(0.2)
            for expression in expressions():
                await asked(expression)  # raises if it is no expression
            (sample,) = await asked("sum(turnstile_next_offset)")
            assert float(sample["value"][1]) == sum(map(served.worker.cluster.end, (0, 1)))
