"""The sessions of one password, and limits on guesses."""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from collections import deque
from collections.abc import Callable

TRIES = 10
"""Wrong passwords per minute from one address."""
TRIES_OF_ALL = 100
"""Wrong passwords per minute from all addresses together. Behind a proxy all have its address."""
_MINUTE = 60.0
_LASTS = 12 * 60 * 60.0  # seconds
_MOST_SESSIONS = 100


class TooManyTries(Exception):
    """Too many wrong passwords: the next one is not looked at.

    Attributes:
        wait: seconds until the next one is.
    """

    def __init__(self, wait: float) -> None:
        super().__init__(f"too many tries: wait {wait:.0f} seconds")
        self.wait = wait


class Sessions:
    """Sessions end after twelve hours. Only digests of their tokens are kept."""

    def __init__(self, password: str, now: Callable[[], float] = time.monotonic) -> None:
        self._digest = _digest(password)
        self._now = now
        self._failed: deque[tuple[float, str]] = deque()  # at most TRIES_OF_ALL
        self._open: dict[bytes, float] = {}

    def enter(self, password: str, address: str) -> str | None:
        """Return the token of a new session, or None if the password is wrong.

        Args:
            password: a guess.
            address: of the client.

        Raises:
            TooManyTries: from this address, or from all.
        """
        self._check_tries(address)
        # Both digests have the same length, so the time tells nothing about either.
        if not hmac.compare_digest(_digest(password), self._digest):
            self._failed.append((self._now(), address))
            return None
        token = secrets.token_urlsafe(32)
        self._open[_digest(token)] = self._now() + _LASTS
        while len(self._open) > _MOST_SESSIONS:
            del self._open[next(iter(self._open))]
        return token

    def knows(self, token: str | None) -> bool:
        """Return whether a token belongs to a session that has not ended."""
        if not token:
            return False
        ends = self._open.get(_digest(token))
        return ends is not None and self._now() < ends

    def leave(self, token: str | None) -> None:
        """End a session."""
        if token:
            self._open.pop(_digest(token), None)

    def _check_tries(self, address: str) -> None:
        now = self._now()
        while self._failed and self._failed[0][0] <= now - _MINUTE:
            self._failed.popleft()
        own = [tried for tried in self._failed if tried[1] == address]
        for tries, most in ((own, TRIES), (self._failed, TRIES_OF_ALL)):
            if len(tries) >= most:
                raise TooManyTries(tries[0][0] + _MINUTE - now)


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
