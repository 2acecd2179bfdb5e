"""Who has said the password, and how often somebody may try."""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from collections import deque
from collections.abc import Callable

TRIES = 10
"""In a minute, by everybody together: whoever guesses has many addresses."""
_MINUTE = 60.0
_LASTS = 12 * 60 * 60.0  # seconds
_MOST_SESSIONS = 100


class TooManyTries(Exception):
    """The password is not looked at.

    Attributes:
        wait: seconds until it is again.
    """

    def __init__(self, wait: float) -> None:
        super().__init__(f"too many tries: wait {wait:.0f} seconds")
        self.wait = wait


class Sessions:
    """Of one password. Tokens are kept as digests, and end after twelve hours."""

    def __init__(self, password: str, now: Callable[[], float] = time.monotonic) -> None:
        self._digest = _digest(password)
        self._now = now
        self._failed: deque[float] = deque()
        self._open: dict[bytes, float] = {}

    def enter(self, password: str) -> str | None:
        """A token, if that is the password.

        Raises:
            TooManyTries: of wrong ones, within a minute.
        """
        now = self._now()
        while self._failed and self._failed[0] <= now - _MINUTE:
            self._failed.popleft()
        if len(self._failed) >= TRIES:
            raise TooManyTries(self._failed[0] + _MINUTE - now)
        # Digests of one length: how long it takes says nothing of either.
        if not hmac.compare_digest(_digest(password), self._digest):
            self._failed.append(now)
            return None
        token = secrets.token_urlsafe(32)
        self._open[_digest(token)] = now + _LASTS
        while len(self._open) > _MOST_SESSIONS:
            del self._open[next(iter(self._open))]
        return token

    def knows(self, token: str | None) -> bool:
        """Whether a token was given out, and has not ended."""
        if not token:
            return False
        ends = self._open.get(_digest(token))
        return ends is not None and self._now() < ends

    def leave(self, token: str | None) -> None:
        """End a session."""
        if token:
            self._open.pop(_digest(token), None)


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
