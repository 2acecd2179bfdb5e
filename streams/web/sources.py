"""The sources of what the pages show, and the threads that read them.

The last facts of a source are kept while it does not answer, and the source is asked again.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, TypeVar

from streams.config import Config, ConfigurationError, Unavailable, failure_of
from streams.sdk.errors import ConflictingDecisions, ServiceUnavailable, Unusable

T = TypeVar("T")

logger = logging.getLogger("turnstile.web")

NOT_YET: Final = "not looked at yet"
STALE_AFTER: Final = 5.0
"""The seconds for which an answer is awaited before a source counts as away."""
_AGAIN_AFTER = 3.0  # seconds
_EXPECTED = (Unavailable, ServiceUnavailable, ConfigurationError, ConflictingDecisions)


@dataclass
class Source:
    """Kafka, Redis, or a topic.

    Attributes:
        name: for people.
        problem: why it did not answer the last question, for people; None if it did.
        seen: when it last answered, on a monotonic clock; 0: never.
        asked: since when an answer is awaited; None: none is.
        is_logged: whether the first of several problems is logged, as no page shows it.
    """

    name: str
    problem: str | None = NOT_YET
    seen: float = 0.0
    asked: float | None = None
    is_logged: bool = False

    def is_away(self, now: float) -> bool:
        """Return whether its facts may be outdated."""
        is_silent = self.asked is not None and now - self.asked > STALE_AFTER
        return self.problem is not None or is_silent

    def answered(self) -> None:
        """Note that the source answers."""
        self.problem, self.seen, self.asked = None, time.monotonic(), None

    def ask(self, question: Callable[[], T]) -> T | None:
        """Return the answer of the source. If there is none, ``problem`` becomes the reason."""
        self.asked = time.monotonic()
        try:
            answer = question()
        except _EXPECTED as error:
            if self.is_logged and self.problem in (None, NOT_YET):
                logger.warning("%s: %s", self.name, error)
            self.problem = str(error)
        except Unusable:
            pass  # by ``close``
        except Exception as error:  # its text could contain data about users
            logger.error("%s: %s", self.name, failure_of(error))
            self.problem = f"reading failed: {type(error).__name__}"
        else:
            self.answered()
            return answer
        finally:
            self.asked = None
        return None


class SourceThreads:
    """Daemon threads that read sources from ``start`` to ``close``.

    Attributes:
        config: the settings with the service's addresses. An outage is shown soon, so the timeout
            is short.
        closed: set by ``close``.
    """

    def __init__(self, config: Config) -> None:
        self.config = replace(config, timeout=min(config.timeout, STALE_AFTER))
        self.closed = threading.Event()
        self._threads: list[threading.Thread] = []

    def run(self, *work: Callable[[], None]) -> None:
        """Start a thread for each function, which has to return soon after ``close``."""
        for one in work:
            thread = threading.Thread(target=one, name="turnstile-web", daemon=True)
            thread.start()
            self._threads.append(thread)

    def repeat(self, source: Source, read: Callable[[], None]) -> None:
        """Read a source that is followed until ``close``; read it again after an error."""
        while not self.closed.is_set():
            source.ask(read)
            self.closed.wait(_AGAIN_AFTER)

    def close(self) -> None:
        """Stop the threads."""
        self.closed.set()
        for thread in self._threads:
            thread.join(2 * STALE_AFTER)
