"""A secure stack with several brokers, one of which may be lost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from streams.local.secure import SecureStack
from tests.servers.kafka_cluster import REPLICAS, SecureCluster


class SecureClusterStack(SecureStack):
    """As ``SecureStack``, with a cluster in the place of the broker."""

    def __init__(self, brokers: int, **options: Any) -> None:
        super().__init__(**options)
        self._brokers = brokers
        self.replication = min(brokers, REPLICAS)

    @property
    def cluster(self) -> Any:
        """The brokers, as a ``SecureCluster``."""
        return self.broker

    def _new_broker(self, directory: Path, secrets: Path) -> Any:
        return SecureCluster(
            directory, self._brokers, secrets=secrets, progress=self._say, hold=self._hold
        )
