"""Watches a service continuously, and returns its last known state at any time.

Kafka and Redis are asked one after the other, in one thread. Each other source has its own thread,
so a source that does not answer does not delay the others. The last facts are kept and marked as
old, and the source is asked again.

    source    read             contents
    Kafka     every second     the topics, and where the log ends
    Redis     every second     three small keys of each partition, with the numbers of its runs
    workers   every 2 seconds  /healthz and /metrics, if their addresses are known
    rejects   as written       reason and record
    odometer  as written       the spent shares of the budgets

The last two, and the numbers of users and runs, are data about people, and are returned separately.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

from streams.config import Config, Unavailable, failure_of
from streams.kafka.topics import Topics
from streams.ledger.outputs import Channel
from streams.operations.endpoints import ask_workers
from streams.operations.status import look_at, read_glances
from streams.sdk.errors import ServiceUnavailable, Unusable
from streams.sdk.followers import Followed, Reading
from streams.sdk.kafka_connection import read_topic
from streams.web.live_facts import NOT_YET, ServiceFacts

T = TypeVar("T")

logger = logging.getLogger("turnstile.watching")

_ANSWERS_WITHIN = 5.0
_AGAIN_AFTER = 3.0


class Watch:
    """Observes a service.

    Attributes:
        facts: what is known now; any thread may read them.
    """

    def __init__(self, config: Config, workers: Sequence[str], delta: float) -> None:
        """Prepare the watch.

        Args:
            config: the settings with the service's addresses.
            workers: host:port of the known workers' HTTP servers.
            delta: the delta of the epsilons.
        """
        # An outage is shown soon.
        self._config = replace(config, timeout=min(config.timeout, _ANSWERS_WITHIN))
        self.facts = ServiceFacts(delta, [Channel.REJECTS.value, Channel.ODOMETER.value])
        self._addresses = workers
        self._closed = threading.Event()
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Start the threads."""
        work: list[Callable[[], None]] = [self._look_at_service]
        if self._addresses:
            work.append(self._look_at_workers)
        work.append(partial(self._follow, Channel.REJECTS, self.facts.follow_rejects))
        work.append(partial(self._follow, Channel.ODOMETER, self.facts.follow_odometer))
        for one in work:
            thread = threading.Thread(target=one, name="turnstile-watch", daemon=True)
            thread.start()
            self._threads.append(thread)

    def close(self) -> None:
        """Stop the threads."""
        self._closed.set()
        for thread in self._threads:
            thread.join(2 * _ANSWERS_WITHIN)

    def _look_at_service(self) -> None:
        with Topics(self._config) as topics:
            while not self._closed.is_set():
                self._look(topics)
                self._closed.wait(1.0)

    def _look(self, topics: Topics) -> None:
        seen = self._ask("Kafka", lambda: look_at(topics, self._config))
        known = seen or self.facts.topics
        partitions = 1 if known is None else known.partitions
        glances = self._ask("Redis", lambda: read_glances(self._config, partitions))
        if seen is None or glances is None:
            return
        # After the glances: the end of the log is never behind what was decided then.
        log = self._ask("Kafka", lambda: topics.extents(partitions))
        if log is not None:
            self.facts.see(self._config.prefix, seen, glances, log)

    def _look_at_workers(self) -> None:
        while not self._closed.is_set():
            self.facts.workers = ask_workers(self._addresses)
            self._closed.wait(2.0)

    def _ask(self, name: str, question: Callable[[], T]) -> T | None:
        """Return the answer of a source, or None if it does not answer."""
        side = self.facts.sides[name]
        side.asked = time.monotonic()
        try:
            answer = question()
        except Unavailable as error:
            side.problem = str(error)
        except Exception as error:  # the other sources continue
            logger.error("%s: %s", name, failure_of(error))
            side.problem = f"it failed: {type(error).__name__}"
        else:
            side.problem, side.seen = None, time.monotonic()
            return answer
        finally:
            side.asked = None
        return None

    def _follow(self, channel: Channel, follow: Callable[[Iterator[Followed]], None]) -> None:
        """Read a topic until the watch is closed; record errors, and try again."""
        side = self.facts.sides[channel.value]
        while not self._closed.is_set():
            if self.facts.topics is None:  # the policies come first
                if self.facts.sides["Kafka"].problem not in (None, NOT_YET):
                    side.problem = "not read, since Kafka does not answer"
                self._closed.wait(0.05)
                continue
            try:
                records = read_topic(self._config, channel, Reading("earliest"), self._closed)
                side.problem, side.seen = None, time.monotonic()
                follow(records)
            except Unusable:
                return  # closed
            except ServiceUnavailable as error:
                side.problem = str(error)
            except Exception as error:  # the other sources continue
                logger.error("reading %s: %s", channel.value, failure_of(error))
                side.problem = f"it failed: {type(error).__name__}"
            self._closed.wait(_AGAIN_AFTER)
