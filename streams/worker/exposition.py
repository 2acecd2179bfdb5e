"""The text that Prometheus reads: the samples of a registry, each with the name of its log."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector


class _OfLog(Collector):
    """The samples of another collector with the label ``log``, without times of creation."""

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
    """Return the metrics of a registry as Prometheus reads them, with the label ``log``."""
    return generate_latest(_OfLog(registry, log))
