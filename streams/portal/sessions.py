"""Who has come with a link, and may look until the link ends, at most for half a day."""

from __future__ import annotations

import hashlib
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from threading import Lock
from typing import NamedTuple

from streams.portal.links import Claims
from streams.schemas import User

_LASTS = 12 * 60 * 60  # seconds
_MOST, _MOST_OF_A_USER = 100_000, 8


class _Session(NamedTuple):
    claims: Claims
    ends: float


class Sessions:
    """Of all owners. What is given out is kept as a digest; whoever opens many loses the first."""

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        self._now = now
        self._open: OrderedDict[bytes, _Session] = OrderedDict()
        self._of_users: dict[User, list[bytes]] = {}
        self._lock = Lock()

    def enter(self, claims: Claims) -> tuple[str, int]:
        """A secret for a cookie, and for how many seconds it counts."""
        secret = secrets.token_urlsafe(32)
        lasts = max(0, min(_LASTS, int(claims.ends - self._now())))
        digest = _digest(secret)
        with self._lock:
            self._open[digest] = _Session(claims, self._now() + lasts)
            own = self._of_users.setdefault(claims.user, [])
            own.append(digest)
            if len(own) > _MOST_OF_A_USER:
                self._end(own[0])
            elif len(self._open) > _MOST:
                self._end(next(iter(self._open)))
        return secret, lasts

    def claims_of(self, secret: str | None) -> Claims | None:
        """Whose session it is; None if it is none, or has ended."""
        session = self._open.get(_digest(secret)) if secret else None
        if session is None:
            return None
        if self._now() >= min(session.ends, session.claims.ends):
            self.leave(secret)
            return None
        return session.claims

    def leave(self, secret: str | None) -> None:
        """End a session."""
        if secret:
            with self._lock:
                self._end(_digest(secret))

    def _end(self, digest: bytes) -> None:
        session = self._open.pop(digest, None)
        if session is None:
            return
        own = self._of_users[session.claims.user]
        own.remove(digest)
        if not own:
            del self._of_users[session.claims.user]


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
