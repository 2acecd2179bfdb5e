"""Counting in the background what the service publishes about a dataset."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from time import monotonic, sleep
from types import TracebackType

from streams.sdk.client import Turnstile

_IDLE_SECONDS = 1.0
_POLL_SECONDS = 0.05


class Watcher:
    """Follows the HALT events and the odometer checkpoints of a dataset while a demo runs.

    Attributes:
        halts: HALT events so far.
        checkpoints: odometer checkpoints so far.
    """

    def __init__(self, turnstile: Turnstile, dataset: str) -> None:
        self.halts = 0
        self.checkpoints = 0
        self._done = threading.Event()
        self._failure: BaseException | None = None

        def halts() -> Iterator[object]:
            return turnstile.halts(dataset, since="earliest", idle_timeout=_IDLE_SECONDS)

        def checkpoints() -> Iterator[object]:
            return turnstile.odometer(dataset, since="earliest", idle_timeout=_IDLE_SECONDS)

        self._threads = [
            threading.Thread(target=self._count, args=("halts", halts), daemon=True),
            threading.Thread(target=self._count, args=("checkpoints", checkpoints), daemon=True),
        ]

    def __enter__(self) -> Watcher:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._done.set()
        for thread in self._threads:
            thread.join()

    def wait_for_halts(self, expected: int, timeout: float) -> None:
        """Wait until that many HALT events came back, or ``timeout`` seconds.

        Raises:
            BaseException: whatever ended the following.
        """
        deadline = monotonic() + timeout
        while self.halts < expected and self._failure is None and monotonic() < deadline:
            sleep(_POLL_SECONDS)
        if self._failure is not None:
            raise self._failure

    def _count(self, counter: str, follow: Callable[[], Iterator[object]]) -> None:
        try:
            # A follower ends when nothing comes for a while. Unless the demo is over, that was
            # a pause, and the topic is counted again.
            while True:
                done = self._done.is_set()
                for count, _ in enumerate(follow(), start=1):
                    setattr(self, counter, max(count, getattr(self, counter)))
                if done:
                    return
        except BaseException as error:
            self._failure = error
