"""Signed links to the page of one user, and signed sessions of browsers.

A token consists of claims and a keyed hash of them (HMAC-SHA256), both in base64url. Anyone with
the key can make links. A link is a secret of its user.

The hash also covers the prefix of the service and the kind of the token. So a link to one service
opens no other service with the same key, and a link is no session. The key list
has several keys: the first one signs, and all of them verify. To replace a key, put a new one
before it. Remove the old key when its links have ended, or at once if it was stolen.

In a link the token follows the #, which browsers send to no server. Browsers store it in their
history, so a link works for its first visit only (`Visits`). The browser then has a
session with the same claims.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import sqlite3
from base64 import urlsafe_b64decode, urlsafe_b64encode
from enum import Enum
from pathlib import Path
from threading import Lock
from typing import Annotated, Any

import msgspec

from streams.config import ConfigurationError, secrets_of
from streams.records import Fingerprint, IntegerUser, Name, StringUser

LONGEST_TOKEN = 4000
"""Characters. Browsers take cookies of up to 4,096 bytes, name included."""
LinkId = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{32}$")]


class TokenKind(Enum):
    """A kind of token: the text that its hash covers."""

    LINK = b"dp-turnstile, a link of an owner, 2\0"
    SESSION = b"dp-turnstile, a session of an owner, 1\0"


class UnusableLink(Exception):
    """A token that opens nothing. The text is for its holder."""


class Claims(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The content of a token.

    Attributes:
        user: the owner of the page: the id, or the pseudonym, as the log has it.
        ends: seconds since 1970.
        datasets: the datasets on the page; none for all that have records of the user.
        pseudonyms: the fingerprint of the key, if the user is a pseudonym.
        id: of the link, for revoking it. It is no secret.
    """

    user: IntegerUser | StringUser
    ends: int
    id: LinkId
    datasets: tuple[Name, ...] = ()
    pseudonyms: Fingerprint | None = None

    @classmethod
    def new(cls, **claims: Any) -> Claims:
        """Return claims with a new id."""
        return cls(id=secrets.token_hex(16), **claims)


class LinkKeys:
    """Signs and verifies tokens.

    Args:
        keys: the setting ``portal_key``: secrets separated by white space or commas.
        prefix: of the service.

    Raises:
        ConfigurationError: there is no key.
    """

    def __init__(self, keys: str, prefix: str) -> None:
        self._keys = [key.encode() for key in secrets_of(keys)]
        if not self._keys:
            raise ConfigurationError(
                "portal_key is not set, and links are signed with it: put the output of `openssl "
                "rand -hex 32` into a file, and its name into TURNSTILE_PORTAL_KEY_FILE, for "
                "`portal` and for `portal link`"
            )
        self._prefix = prefix.encode()

    def sign(self, claims: Claims, kind: TokenKind = TokenKind.LINK) -> str:
        """Return a token with these claims.

        Raises:
            ConfigurationError: the token would be too long for a cookie.
        """
        content = msgspec.json.encode(claims)
        token = f"{_text(content)}.{_text(self._hash(self._keys[0], content, kind))}"
        if len(token) > LONGEST_TOKEN:
            raise ConfigurationError(
                f"the link names {len(claims.datasets)} datasets and would have {len(token)} "
                f"characters, of at most {LONGEST_TOKEN}: name fewer datasets, or none to show all"
            )
        return token

    def read(self, token: str, now: float, kind: TokenKind = TokenKind.LINK) -> Claims:
        """Return the claims of a token that is valid now.

        Args:
            now: seconds since 1970.

        Raises:
            UnusableLink: the token is not valid.
        """
        unknown = UnusableLink("this link is incomplete, or was made by another service")
        if len(token) > LONGEST_TOKEN:
            raise unknown
        try:
            content, given = map(_bytes, token.split("."))
        except ValueError:
            raise unknown from None
        # The time of each comparison does not depend on what is given.
        if not any(
            hmac.compare_digest(self._hash(key, content, kind), given) for key in self._keys
        ):
            raise unknown
        try:
            claims = msgspec.json.decode(content, type=Claims)
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise unknown from None
        if now >= claims.ends:
            raise UnusableLink("this link has ended: ask for another one where you got it")
        return claims

    def _hash(self, key: bytes, content: bytes, kind: TokenKind) -> bytes:
        covered = kind.value + len(self._prefix).to_bytes(2, "big") + self._prefix + content
        return hmac.digest(key, covered, hashlib.sha256)


def _text(octets: bytes) -> str:
    return urlsafe_b64encode(octets).decode().rstrip("=")


def _bytes(text: str) -> bytes:
    """Invert ``_text``; refuse every other spelling."""
    octets = urlsafe_b64decode(text.encode("ascii") + b"=" * (-len(text) % 4))
    if _text(octets) != text:
        raise ValueError("written in another way")
    return octets


_WAITS = 5.0  # seconds for another process that writes
_TABLE = """
CREATE TABLE IF NOT EXISTS links (
    id TEXT PRIMARY KEY,
    ends INTEGER NOT NULL,
    is_open INTEGER NOT NULL
) WITHOUT ROWID
"""


class Visits:
    """One file. Every method can be called in any thread.

    Args:
        path: of the file, which is created if it is missing.

    Raises:
        ConfigurationError: no file is named, or it cannot be used.
    """

    def __init__(self, path: str | Path) -> None:
        self._lock = Lock()
        if not path:
            raise ConfigurationError(
                "portal_state is not set: set TURNSTILE_PORTAL_STATE to a file that stores opened "
                "and revoked links"
            )
        try:
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
            self._file = sqlite3.connect(
                path, timeout=_WAITS, isolation_level=None, check_same_thread=False
            )
            self._file.execute(_TABLE)
        except (OSError, sqlite3.Error) as error:
            raise ConfigurationError(
                f"portal_state is {str(path)!r}, and the portal cannot keep opened and revoked "
                f"links there: {error}"
            ) from error

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._file.close()

    def begin(self, claims: Claims, now: float) -> bool:
        """Record the first visit of a link; return False if it was opened or revoked before.

        Args:
            now: seconds since 1970. Links that have ended are dropped from the file.
        """
        with self._lock:
            self._file.execute("DELETE FROM links WHERE ends <= ?", (int(now),))
            new = self._file.execute(
                "INSERT INTO links VALUES (?, ?, 1) ON CONFLICT (id) DO NOTHING",
                (claims.id, claims.ends),
            )
            return new.rowcount == 1

    def is_open(self, link: str) -> bool:
        """Return whether a link was opened, and neither left nor revoked."""
        with self._lock:
            found = self._file.execute("SELECT is_open FROM links WHERE id = ?", (link,)).fetchone()
        return found is not None and bool(found[0])

    def end(self, link: str, ends: int) -> bool:
        """End a link and its session permanently; return whether the link was opened before.

        Args:
            ends: seconds since 1970, not before the link ends by itself.
        """
        with self._lock:
            known = self._file.execute("SELECT 1 FROM links WHERE id = ?", (link,)).fetchone()
            self._file.execute(
                "INSERT INTO links VALUES (?, ?, 0) ON CONFLICT (id) DO UPDATE SET is_open = 0",
                (link, ends),
            )
        return known is not None
