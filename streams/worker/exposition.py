"""Renders a Prometheus registry as text; each sample has the name of its log as a label."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector


class _OfLog(Collector):
    """Adds the label ``log`` to the samples of another collector, and drops creation times."""

    def __init__(self, collector: Collector, log: str) -> None:
        self._collector, self._log = collector, log

    def collect(self) -> Iterator[Metric]:
        for family in self._collector.collect():
            family.samples = [
                sample._replace(labels={**sample.labels, "log": self._log})
                for sample in family.samples
                if not sample.name.endswith("_created")
            ]
            yield family


def exposition_of(registry: Collector, log: str) -> bytes:
    """Return the metrics of a registry in the Prometheus text format, with the label ``log``."""
    return generate_latest(_OfLog(registry, log))
