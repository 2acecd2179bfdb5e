"""Alerts and the dashboard: a real Prometheus loads them, and finds in a worker what they ask."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from streams.answerer import metrics as answerer_metrics
from streams.local.children import Child
from streams.local.ports import free_ports
from streams.sdk import observing
from tests.readme import TOP
from tests.unit.worker.test_health import Served
from tests.unit.worker.test_partitions import Cluster

RULES = TOP / "deploy" / "prometheus"
DASHBOARD: dict[str, Any] = json.loads((TOP / "deploy/grafana/turnstile.json").read_text())
needs_prometheus = pytest.mark.skipif(
    shutil.which("promtool") is None,
    reason="Prometheus is not installed: its package needs root (apt-get install prometheus)",
)


def expressions() -> Iterator[str]:
    """What the dashboard asks for."""
    for panel in DASHBOARD["panels"]:
        for target in panel["targets"]:
            yield target["expr"].replace("$__rate_interval", "1m")


def metrics_of_a_worker() -> set[str]:
    """The names of its samples, of those that have none yet, too."""
    suffixes = {"counter": ["_total"], "histogram": ["_bucket", "_sum", "_count"], "gauge": [""]}

    async def scenario() -> set[str]:
        async with Served(Cluster()) as served:
            await served.worker.claim()
            text = (await served.get("/metrics"))[1].decode()
            return {
                family.name + suffix
                for family in text_string_to_metric_families(text)
                for suffix in suffixes[family.type]
            }

    return asyncio.run(scenario())


def metrics_of_others() -> set[str]:
    """Those of clients and answerers, as their modules list them."""
    listed = f"{observing.__doc__}{answerer_metrics.__doc__}"
    names = set(re.findall(r"^    (turnstile_\w+)", listed, re.MULTILINE))
    return names | {f"{name}_bucket" for name in names if name.endswith("_seconds")}


def test_dashboard_and_alerts_ask_for_metrics_that_there_are() -> None:
    names = metrics_of_a_worker() | metrics_of_others()
    groups = yaml.safe_load((RULES / "turnstile.rules.yaml").read_text())["groups"]
    asked = [*expressions(), *(rule["expr"] for group in groups for rule in group["rules"])]
    for expression in asked:
        words = {word for word in _words(expression) if word.startswith(("turnstile_", "process_"))}
        assert words <= names, f"nobody has {words - names}"
    assert any("kafka_consumergroup_lag" in expression for expression in asked)


def _words(expression: str) -> set[str]:
    return set("".join(c if c.isalnum() or c == "_" else " " for c in expression).split())


@pytest.mark.process
@needs_prometheus
@pytest.mark.parametrize(
    "check",
    [("check", "config", "prometheus.yaml"), ("test", "rules", "turnstile.test.yaml")],
    ids=" ".join,
)
def test_prometheus_loads_the_rules_and_they_alert_when_they_should(check: tuple[str, ...]) -> None:
    done = subprocess.run(
        ["promtool", *check], cwd=RULES, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.process
@needs_prometheus
def test_prometheus_scrapes_a_worker_and_answers_what_the_dashboard_asks(tmp_path: Path) -> None:
    asyncio.run(_scraped(tmp_path))


async def _scraped(folder: Path) -> None:
    (port,) = free_ports(1)
    async with Served(Cluster()) as served:
        await served.worker.claim()
        await served.worker.decide()
        config = yaml.safe_load((RULES / "prometheus.yaml").read_text())
        config["global"]["scrape_interval"] = "1s"
        config["rule_files"] = [str(RULES / "turnstile.rules.yaml")]
        config["scrape_configs"][0]["static_configs"][0]["targets"] = [served.address]
        (folder / "prometheus.yaml").write_text(yaml.safe_dump(config))
        prometheus = Child(
            "Prometheus",
            [
                "prometheus",
                f"--config.file={folder / 'prometheus.yaml'}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            log=folder / "log",
        )
        try:
            async with asyncio.timeout(60):
                while not await asyncio.to_thread(_asked, port, "turnstile_partitions"):
                    assert prometheus.running, prometheus.explain("ended")
                    await asyncio.sleep(0.2)
            for expression in expressions():
                await asyncio.to_thread(_asked, port, expression)  # raises if it is no expression
            (sample,) = await asyncio.to_thread(_asked, port, "sum(turnstile_next_offset)")
            assert float(sample["value"][1]) == sum(map(served.worker.cluster.end, (0, 1)))
        finally:
            prometheus.stop()


def _asked(port: int, expression: str) -> list[dict[str, Any]]:
    query = f"http://127.0.0.1:{port}/api/v1/query?{urlencode({'query': expression})}"
    try:
        with urlopen(query, timeout=10) as answer:
            found: list[dict[str, Any]] = json.load(answer)["data"]["result"]
            return found
    except HTTPError as error:
        if error.code == HTTPStatus.SERVICE_UNAVAILABLE:
            return []  # it is about to start
        raise
    except URLError:
        return []
