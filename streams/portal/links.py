"""Signed links: who somebody is, and what that somebody may see of their own.

A token is the claims and a keyed hash of them (HMAC-SHA256), both in base64url. Whoever has the key
makes links; whoever has a link sees one user, until it ends. It is a secret of that user.

The hash covers the prefix of the service as well, so that a link to one service opens no other that
has the same key. A ring has several keys: the first one signs, all of them count. So a key is
changed by putting a new one before it, and taken away when its links have ended, or at once.

Where a link leads, the token stands behind the #: browsers send that to nobody, so that no server
writes it down and no other site is told.
"""

from __future__ import annotations

import hashlib
import hmac
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Sequence

import msgspec

from streams.config import ConfigurationError, secrets_of
from streams.schemas import Fingerprint, IntegerUser, Name, StringUser

MOST_DATASETS = 64
_PURPOSE = b"dp-turnstile, a link of an owner, 1\0"
_LONGEST_TOKEN = 16 * 1024
_HASH_BYTES = 32


class UnusableLink(Exception):
    """A token that opens nothing; the text is for whoever has it."""


class Claims(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a token says.

    Attributes:
        user: whose page it opens: the id, or the pseudonym, as the log has it.
        ends: seconds since 1970.
        datasets: what is shown; none: all in which there is something of the user.
        pseudonyms: of the key that made the user's name, if it is a pseudonym.
    """

    user: IntegerUser | StringUser
    ends: int
    datasets: tuple[Name, ...] = ()
    pseudonyms: Fingerprint | None = None


class LinkKeys:
    """Signs claims, and reads them again.

    Args:
        keys: the setting ``portal_key``: secrets with white space or commas between them.
        prefix: of the service.

    Raises:
        ConfigurationError: there is none.
    """

    def __init__(self, keys: str, prefix: str) -> None:
        self._keys = [key.encode() for key in secrets_of(keys)]
        if not self._keys:
            raise ConfigurationError(
                "links are signed with portal_key, which is not set: put what `openssl rand -hex "
                "32` makes into a file, and its name into TURNSTILE_PORTAL_KEY_FILE, for `portal` "
                "and for `portal link`"
            )
        self._prefix = prefix.encode()

    def sign(self, claims: Claims) -> str:
        """The token of these claims."""
        content = msgspec.json.encode(claims)
        return f"{_text(content)}.{_text(self._hash(self._keys[0], content))}"

    def read(self, token: str, now: float) -> Claims:
        """The claims of a token that counts at a time, in seconds since 1970.

        Raises:
            UnusableLink: it does not count.
        """
        unknown = UnusableLink("this link is not whole, or not one of this service")
        if len(token) > _LONGEST_TOKEN:
            raise unknown
        try:
            content, given = map(_bytes, token.split("."))
        except ValueError:
            raise unknown from None
        # Each in the same time, whatever is given.
        if not any(hmac.compare_digest(self._hash(key, content), given) for key in self._keys):
            raise unknown
        try:
            claims = msgspec.json.decode(content, type=Claims)
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise unknown from None
        if now >= claims.ends:
            raise UnusableLink("this link has ended: ask whoever gave it to you for another one")
        return claims

    def _hash(self, key: bytes, content: bytes) -> bytes:
        covered = _PURPOSE + len(self._prefix).to_bytes(2, "big") + self._prefix + content
        return hmac.digest(key, covered, hashlib.sha256)


def link_to(page: str, token: str) -> str:
    """Where a user goes with a token."""
    return f"{page.rstrip('/')}/#{token}"


def check_datasets(datasets: Sequence[str]) -> tuple[str, ...]:
    """Refuse more than a token can carry.

    Raises:
        ConfigurationError: with how many there may be.
    """
    if len(datasets) > MOST_DATASETS:
        raise ConfigurationError(
            f"{len(datasets)} datasets are named, and a link has at most {MOST_DATASETS}: name "
            "none, and it shows all in which there is something of the user"
        )
    return tuple(dict.fromkeys(datasets))


def _text(octets: bytes) -> str:
    return urlsafe_b64encode(octets).decode().rstrip("=")


def _bytes(text: str) -> bytes:
    """What ``_text`` made this of, and nothing else."""
    octets = urlsafe_b64decode(text.encode("ascii") + b"=" * (-len(text) % 4))
    if _text(octets) != text:
        raise ValueError("written in another way")
    return octets
