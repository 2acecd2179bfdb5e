"""Watches a service continuously, and returns its last known state at any time.

Kafka and Redis are asked one after the other, in one thread. Each other source has its own thread,
so a source that does not answer does not delay the others. The last facts are kept and marked as
old, and the source is asked again.

    source    read             contents
    Kafka     every second     the topics, and where the log ends
    Redis     every second     three small keys of each partition, with the numbers of its runs
    workers   every 2 seconds  /healthz and /metrics, if their addresses are known
    rejects   as written       reason and record

The last one, and the numbers of users and runs, are data about people, and are returned separately.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from streams.config import Config
from streams.kafka.topics import Topics
from streams.ledger.outputs import Channel
from streams.operations.endpoints import ask_workers
from streams.operations.status import look_at, read_glances
from streams.sdk.followers import Reading
from streams.sdk.kafka_connection import read_topic
from streams.web.live_facts import REJECTS, ServiceFacts
from streams.web.sources import SourceThreads


class Watch(SourceThreads):
    """Observes a service.

    Attributes:
        facts: what is known now; any thread may read them.
    """

    def __init__(self, config: Config, workers: Sequence[str], delta: float) -> None:
        """Prepare the watch.

        Args:
            workers: host:port of the known workers' HTTP servers.
        """
        super().__init__(config)
        self.facts = ServiceFacts(delta)
        self._addresses = workers

    def start(self) -> None:
        """Start the threads."""
        follow = partial(self.repeat, self.facts.sources[REJECTS], self._follow_rejects)
        self.run(self._look_at_service, self._look_at_workers, follow)

    def _look_at_service(self) -> None:
        with Topics(self.config) as topics:
            while not self.closed.is_set():
                self._look(topics)
                self.closed.wait(1.0)

    def _look(self, topics: Topics) -> None:
        kafka, redis = self.facts.sources["Kafka"], self.facts.sources["Redis"]
        seen = kafka.ask(partial(look_at, topics, self.config))
        known = seen or self.facts.topics
        partitions = 1 if known is None else known.partitions
        glances = redis.ask(partial(read_glances, self.config, partitions))
        if seen is None or glances is None:
            return
        # After the glances: the end of the log is never behind what was decided then.
        log = kafka.ask(partial(topics.extents, partitions))
        if log is not None:
            self.facts.see(self.config.prefix, seen, glances, log)

    def _look_at_workers(self) -> None:
        while self._addresses and not self.closed.is_set():
            self.facts.workers = ask_workers(self._addresses)
            self.closed.wait(2.0)

    def _follow_rejects(self) -> None:
        records = read_topic(self.config, Channel.REJECTS, Reading("earliest"), self.closed)
        self.facts.sources[REJECTS].answered()
        self.facts.follow_rejects(records)
