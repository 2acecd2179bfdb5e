"""Detection that Kafka is unreachable while a reader receives nothing.

A Kafka client that reads reports nothing when the broker goes away; it keeps trying. So this
module asks the broker now and then. It logs once when the broker goes away, and once when it is
back.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from time import monotonic

from kafka.errors import KafkaError

logger = logging.getLogger("turnstile.sdk")

ASK_AFTER = 3.0
"""Seconds without a record between two questions to the broker."""
ANSWERS_WITHIN = 2.0
"""Seconds within which the broker must answer."""


class Absence:
    """Logs when Kafka becomes unreachable and when it is back.

    Args:
        where: the address of Kafka, for people.
        ask: asks the broker; raises KafkaError if no answer comes in time.
        clock: a monotonic clock, in seconds.
    """

    def __init__(
        self, where: str, ask: Callable[[], object], clock: Callable[[], float] = monotonic
    ) -> None:
        self._where, self._ask, self._clock = where, ask, clock
        self._known = clock()  # when it last answered, or was last asked
        self._is_away = False

    def heard(self) -> None:
        """Note that a record arrived."""
        self._known = self._clock()
        if self._is_away:
            self._is_away = False
            logger.warning("Kafka at %s answers again; reading continues", self._where)

    def silent(self) -> None:
        """Note that no record arrived; ask the broker now and then, and log if it does not
        answer.
        """
        if self._clock() - self._known < ASK_AFTER:
            return
        try:
            self._ask()
        except KafkaError:
            self._known = self._clock()
            if not self._is_away:
                self._is_away = True
                logger.warning(
                    "Kafka at %s does not answer; no new records are read until it does",
                    self._where,
                )
        else:
            self.heard()
