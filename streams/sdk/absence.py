"""Whether Kafka is still there while nothing comes: a client that reads says nothing when it goes.

Who follows is told once that it is away, and once that it is back; meanwhile reading goes on trying
by itself, from where it was.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from time import monotonic

from kafka.errors import KafkaError

logger = logging.getLogger("turnstile.sdk")

ASK_AFTER = 3.0
"""Seconds without a record after which Kafka is asked whether it is there, and again."""
ANSWERS_WITHIN = 2.0
"""Seconds in which it has to answer."""


class Absence:
    """Notices that Kafka goes and comes.

    Args:
        where: its address, for people.
        ask: asks it something; raises KafkaError if no answer comes in time.
        clock: seconds that pass.
    """

    def __init__(
        self, where: str, ask: Callable[[], object], clock: Callable[[], float] = monotonic
    ) -> None:
        self._where, self._ask, self._clock = where, ask, clock
        self._known = clock()  # when it was last seen to be there, or was asked
        self._is_away = False

    def heard(self) -> None:
        """A record came."""
        self._known = self._clock()
        if self._is_away:
            self._is_away = False
            logger.warning("Kafka at %s answers again: reading goes on where it was", self._where)

    def silent(self) -> None:
        """No record came: ask now and then, and say so if nobody is there."""
        if self._clock() - self._known < ASK_AFTER:
            return
        try:
            self._ask()
        except KafkaError:
            self._known = self._clock()
            if not self._is_away:
                self._is_away = True
                logger.warning(
                    "Kafka at %s does not answer: nothing that is published is seen until it does",
                    self._where,
                )
        else:
            self.heard()
