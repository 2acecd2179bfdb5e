"""Several real brokers on the loopback address, of which one may be lost.

Each record is on as many as three of them, and a producer that waits for all (``acks=all``) is
answered when two have it. So a broker that is killed takes nothing with it, and while one is gone
the others go on; with two of three gone nothing is taken, which is what is wanted then.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar

from streams.local.broker import JVM_OPTIONS, KafkaBroker, new_cluster_id
from streams.local.errors import LocalStackError
from streams.local.jars import Progress
from streams.local.ports import LOOPBACK, free_ports

REPLICAS = 3
"""Of each record, if there are so many brokers."""


class KafkaCluster:
    """Brokers that keep their data under ``directory``/kafka-1, kafka-2 and so on.

    ```
    with LocalStack(brokers=3) as stack:
        stack.broker.brokers[0].kill()
    ```
    """

    name = "Kafka"
    port_count: ClassVar[int] = KafkaBroker.port_count  # of each
    brokers: Sequence[KafkaBroker]

    def __init__(
        self,
        directory: Path | str,
        count: int,
        *,
        heap: str = "512m",
        jvm_options: Sequence[str] = JVM_OPTIONS,
        progress: Progress | None = None,
        hold: Sequence[int] = (),
    ) -> None:
        """Describe the brokers; ``start()`` starts them.

        Args:
            directory: keeps data and logs; used again, with as many brokers, they have their
                topics again.
            count: how many, 2 or more; with 3 or more, one may be lost.
            heap: largest heap of each, as in ``-Xmx``.
            jvm_options: further options of their virtual machines.
            progress: called with a line of text while the jars are downloaded.
            hold: descriptors that stay open until they have ended.
        """
        if count < 2:
            raise LocalStackError(f"A cluster of {count} brokers is none: give 2 or more.")
        root = Path(directory).absolute()
        found = free_ports(count * self.port_count)
        ports = {n: found[n - 1 :: count] for n in range(1, count + 1)}
        voters = ",".join(
            f"{n}@{LOOPBACK}:{controller}" for n, (_, controller, *_) in ports.items()
        )
        known = next(root.glob("kafka-*/kafka/cluster.id"), None)
        cluster = known.read_text() if known else new_cluster_id()
        self.brokers = [
            self._new_broker(
                number,
                root / f"kafka-{number}",
                port=own[0],
                more_ports=own[1:],
                heap=heap,
                jvm_options=jvm_options,
                settings=_settings(number, voters, count),
                cluster=cluster,
                progress=progress,
                hold=hold,
            )
            for number, own in ports.items()
        ]

    @property
    def address(self) -> str:
        """Bootstrap servers, comma separated."""
        return ",".join(broker.address for broker in self.brokers)

    def start(self) -> None:
        """Start those that do not run, all at once: none is ready before most of them are.

        Raises:
            LocalStackError: one of them did not answer; quotes its log. All are stopped.
        """
        try:
            self._all(KafkaBroker.start)
        except BaseException:
            self.kill()
            raise

    def stop(self) -> None:
        """End them in order."""
        self._all(KafkaBroker.stop)

    def kill(self) -> None:
        """End all of them with SIGKILL."""
        for broker in self.brokers:
            broker.kill()

    def hasten(self) -> None:
        """End all of them with SIGKILL, without waiting."""
        for broker in self.brokers:
            broker.hasten()

    def check(self) -> None:
        """Raise ``LocalStackError`` with the log's last lines if one ended by itself."""
        for broker in self.brokers:
            broker.check()

    def _new_broker(self, number: int, directory: Path, **options: Any) -> KafkaBroker:
        return KafkaBroker(directory, **options)

    def _all(self, work: Callable[[KafkaBroker], None]) -> None:
        with ThreadPoolExecutor(len(self.brokers)) as pool:
            list(pool.map(work, self.brokers))


def count_of_brokers(directory: Path) -> int:
    """How many brokers have kept their data here; 0 for none."""
    if (directory / "kafka").exists():
        return 1
    return len(list(directory.glob("kafka-*/kafka")))


def _settings(number: int, voters: str, count: int) -> Mapping[str, str]:
    replicas, least = min(REPLICAS, count), min(2, count)
    return {
        "node.id": str(number),
        "controller.quorum.voters": voters,
        "default.replication.factor": str(replicas),
        "min.insync.replicas": str(least),
        "offsets.topic.replication.factor": str(replicas),
        "transaction.state.log.replication.factor": str(replicas),
        "transaction.state.log.min.isr": str(least),
        "share.coordinator.state.topic.replication.factor": str(replicas),
        "share.coordinator.state.topic.min.isr": str(least),
        "unclean.leader.election.enable": "false",
    }
