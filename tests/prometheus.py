"""A real Prometheus with the alerts and the example of `deploy`: it scrapes what a test serves."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest
import yaml

from streams.local.children import Child
from streams.local.server_process import free_ports
from tests.readme import TOP

RULES = TOP / "deploy" / "prometheus"
DASHBOARD: dict[str, Any] = json.loads((TOP / "deploy/grafana/turnstile.json").read_text())
needs_prometheus = pytest.mark.skipif(
    shutil.which("promtool") is None or shutil.which("prometheus") is None,
    reason="Prometheus is not installed: its package needs root (apt-get install prometheus)",
)


def expressions() -> Iterator[str]:
    """What the dashboard asks for."""
    for panel in DASHBOARD["panels"]:
        for target in panel["targets"]:
            yield target["expr"].replace("$__rate_interval", "1m").replace("$log", ".*")


class Prometheus:
    """Scrapes every second, and looks at its alerts as often.

    Args:
        folder: for its files.
        targets: job of the example -> host:port; the other jobs have nobody.
    """

    def __init__(self, folder: Path, targets: Mapping[str, str]) -> None:
        config = yaml.safe_load((RULES / "prometheus.yaml").read_text())
        config["global"] |= {"scrape_interval": "1s", "evaluation_interval": "1s"}
        config["rule_files"] = [str(RULES / "turnstile.rules.yaml")]
        jobs = {job["job_name"]: job for job in config["scrape_configs"]}
        assert targets.keys() <= jobs.keys()
        for name, job in jobs.items():
            job["static_configs"][0]["targets"] = [targets[name]] if name in targets else []
        (folder / "prometheus.yaml").write_text(yaml.safe_dump(config))
        (port,) = free_ports(1)
        self._url = f"http://127.0.0.1:{port}/api/v1"
        self._child = Child(
            "Prometheus",
            [
                "prometheus",
                f"--config.file={folder / 'prometheus.yaml'}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            log=folder / "prometheus.log",
        )

    def __enter__(self) -> Prometheus:
        return self

    def __exit__(self, *error: object) -> None:
        self._child.stop()

    def asked(self, expression: str) -> list[dict[str, Any]]:
        """The samples of an expression; none before it is there."""
        found: list[dict[str, Any]] = self._get(f"query?{urlencode({'query': expression})}").get(
            "result", []
        )
        return found

    def value(self, expression: str) -> float | None:
        """Of the one sample, if there is one."""
        found = self.asked(expression)
        return float(found[0]["value"][1]) if len(found) == 1 else None

    def alerts(self) -> set[str]:
        """Those that fire, or will if it stays so."""
        return {alert["labels"]["alertname"] for alert in self._get("alerts").get("alerts", [])}

    def _get(self, path: str) -> dict[str, Any]:
        assert self._child.running, self._child.explain("ended")
        try:
            with urlopen(f"{self._url}/{path}", timeout=10) as answer:
                found: dict[str, Any] = json.load(answer)["data"]
                return found
        except HTTPError as error:
            if error.code == HTTPStatus.SERVICE_UNAVAILABLE:
                return {}  # it is about to start
            raise
        except URLError:
            return {}
