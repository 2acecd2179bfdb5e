"""Sessions: their cookie, the login with a password, and limits on wrong passwords."""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from aiohttp import web

TRIES = 10
"""Wrong passwords per minute from one address."""
TRIES_OF_ALL = 100
"""Wrong passwords per minute from all addresses. Behind a proxy all clients share its address."""
_MINUTE = 60.0
_LASTS = 12 * 60 * 60.0  # seconds
_MOST_SESSIONS = 100


class SessionCookie:
    """The cookie with the secret of a session, which scripts and other sites cannot read."""

    def __init__(self, name: str, is_encrypted: bool) -> None:
        # Browsers accept this prefix only over TLS and only from this host. A plain cookie is sent
        # to all ports of the host, and any of them can set it.
        self.name = f"__Host-{name}" if is_encrypted else name
        self._terms: dict[str, Any] = {
            "httponly": True,
            "samesite": "Strict",
            "secure": is_encrypted,
            "path": "/",
        }

    def of(self, request: web.Request) -> str:
        """Return the secret in a request, or an empty string."""
        return request.cookies.get(self.name, "")

    def begin(self, answer: web.Response, secret: str, lasts: int | None = None) -> web.Response:
        """Set the cookie.

        Args:
            lasts: seconds; None until the browser is closed.
        """
        answer.set_cookie(self.name, secret, max_age=lasts, **self._terms)
        return answer

    def end(self, answer: web.Response) -> web.Response:
        """Delete the cookie."""
        answer.del_cookie(self.name, **self._terms)
        return answer


class TooManyTries(Exception):
    """Too many wrong passwords: the next password is not checked.

    Attributes:
        wait: seconds until the next password is checked.
    """

    def __init__(self, wait: float) -> None:
        super().__init__(f"too many wrong passwords: wait {wait:.0f} seconds")
        self.wait = wait


class Sessions:
    """The sessions of one password. They end after twelve hours; only token digests are stored."""

    def __init__(self, password: str, now: Callable[[], float] = time.monotonic) -> None:
        self._digest = _digest(password)
        self._now = now
        self._failed: deque[tuple[float, str]] = deque()  # at most TRIES_OF_ALL
        self._open: dict[bytes, float] = {}

    def enter(self, password: str, address: str) -> str | None:
        """Return the token of a new session, or None if the password is wrong.

        Raises:
            TooManyTries: from this address, or from all addresses.
        """
        self._check_tries(address)
        # Both digests have the same length, so the time of the comparison reveals nothing.
        if not hmac.compare_digest(_digest(password), self._digest):
            self._failed.append((self._now(), address))
            return None
        token = secrets.token_urlsafe(32)
        self._open[_digest(token)] = self._now() + _LASTS
        while len(self._open) > _MOST_SESSIONS:
            del self._open[next(iter(self._open))]
        return token

    def knows(self, token: str) -> bool:
        """Return whether a token belongs to a session that has not ended."""
        ends = self._open.get(_digest(token))
        return ends is not None and self._now() < ends

    def leave(self, token: str) -> None:
        """End a session."""
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
