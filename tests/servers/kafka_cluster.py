"""Several brokers on the loopback address, one of which may be lost.

Each record has up to three replicas. The service creates its topics so that a producer with
``acks=all`` is answered when two replicas have it: killing one broker loses no record and the
others go on; with two of three brokers gone, none accepts records.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from secrets import token_urlsafe
from typing import Any

from streams.local import KafkaBroker
from streams.local.secure import ADMIN, SecureBroker, superusers
from streams.local.server_process import LOOPBACK, free_ports

REPLICAS = 3
"""Replicas of each record, if the cluster has as many brokers."""
_HEAP = "256m"


class KafkaCluster:
    """Brokers that keep their data under ``directory``/kafka-1, kafka-2 and so on."""

    name = "Kafka"
    kind = KafkaBroker

    def __init__(self, directory: Path, count: int, **options: Any) -> None:
        """Describe the brokers; ``start()`` starts them.

        Args:
            directory: for data and logs.
            count: the number of brokers, 2 or more; with 3 or more, one may be lost.
            options: of every broker.
        """
        self._count = count
        found = free_ports(count * self.kind.port_count)
        ports = {number: found[number - 1 :: count] for number in range(1, count + 1)}
        voters = ",".join(
            f"{number}@{LOOPBACK}:{controller}" for number, (_, controller, *_) in ports.items()
        )
        cluster = token_urlsafe(16)
        self.brokers: list[Any] = [
            self.kind(
                directory / f"kafka-{number}",
                ports=own,
                heap=_HEAP,
                cluster=cluster,
                **self._options_of(number, voters),
                **options,
            )
            for number, own in ports.items()
        ]

    @property
    def address(self) -> str:
        """Bootstrap servers, comma separated."""
        return ",".join(broker.address for broker in self.brokers)

    def start(self) -> None:
        """Start all brokers at once, since none is ready before most of them are."""
        try:
            self._all(KafkaBroker.start)
        except BaseException:
            self.kill()
            raise

    def stop(self) -> None:
        """Stop all brokers."""
        self._all(KafkaBroker.stop)

    def kill(self) -> None:
        """End all brokers with SIGKILL."""
        self._all(KafkaBroker.kill)

    def check(self) -> None:
        """Raise ``LocalStackError`` with the log's last lines if a broker ended by itself."""
        for broker in self.brokers:
            broker.check()

    def _options_of(self, number: int, voters: str) -> dict[str, Any]:
        replicas, in_sync = min(REPLICAS, self._count), min(2, self._count)
        settings: Mapping[str, str] = {
            "node.id": str(number),
            "controller.quorum.voters": voters,
            "default.replication.factor": str(replicas),
            "offsets.topic.replication.factor": str(replicas),
            "transaction.state.log.replication.factor": str(replicas),
            "transaction.state.log.min.isr": str(in_sync),
            "share.coordinator.state.topic.replication.factor": str(replicas),
            "share.coordinator.state.topic.min.isr": str(in_sync),
            "unclean.leader.election.enable": "false",
        }
        return {"settings": settings}

    def _all(self, work: Callable[[KafkaBroker], None]) -> None:
        with ThreadPoolExecutor(len(self.brokers)) as pool:
            list(pool.map(work, self.brokers))


class SecureCluster(KafkaCluster):
    """Brokers with TLS and logins; each has its own certificate and may do what any other may."""

    kind = SecureBroker

    @property
    def internal_address(self) -> str:
        """``host:port`` of each broker for the admin, comma separated."""
        return ",".join(broker.internal_address for broker in self.brokers)

    def _options_of(self, number: int, voters: str) -> dict[str, Any]:
        options = super()._options_of(number, voters)
        names = [*(f"broker-{one}" for one in range(1, self._count + 1)), ADMIN]
        return {
            "certified_as": f"broker-{number}",
            "settings": {**options["settings"], "super.users": superusers(names)},
        }
