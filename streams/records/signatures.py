"""Signatures: who wrote a record of a topic, and for which place.

A worker signs with its private key, and whoever reads has public keys: so who can check a decision
cannot forge one. A signature is the header ``turnstile-signature`` of a record. It covers the id of
the log that was decided, topic, partition, key, value and the header ``norms``, so that nothing
can be put elsewhere, or beside another log.

Many records are signed at once, since a signature takes forty times as long as a hash: they are
the leaves of a tree of hashes, whose root is signed, and each record has the way from its leaf to
the root (as in RFC 6962). The bytes of the header are

    id of the key: 8 | signature of the root: 64 | which leaf it is: 1 | hashes beside the way: 32 n

What a signature does not say: that a record is new, or that none is missing.
"""

from __future__ import annotations

import hashlib
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import (
        Ed25519PrivateKey,
        Ed25519PublicKey,
    )

SIGNATURE, ORIGIN = "turnstile-signature", "norms"
"""Headers: the signature, and where a checkpoint comes from."""

TOGETHER = 32
"""Records that are signed at once, at most: each has log2 of it hashes."""

_PRIVATE, _PUBLIC = "turnstile-private-", "turnstile-public-"
_KEY_BYTES = 32
_ID_BYTES, _SIGNATURE_BYTES, _HASH_BYTES = 8, 64, 32
_HEAD_BYTES = _ID_BYTES + _SIGNATURE_BYTES + 1
_LEAF, _NODE, _ROOT = b"\0", b"\1", b"dp-turnstile, a root of records, 1\0"
_NOTHING = bytes(_HASH_BYTES)
_REMEMBERED_ROOTS = 64


class InvalidKey(ValueError):
    """What is given is no key. The message does not quote it."""


class Unsigned(Exception):
    """A record is not signed, or not by a key that is known, or not for where it is."""


class SignedPlace(NamedTuple):
    """Where a record is."""

    log: bytes  # the id of the topic norms that was decided
    topic: str
    partition: int


class Content(NamedTuple):
    """What a record says."""

    key: bytes | None
    value: bytes | None
    origin: bytes | None = None  # the header ``norms``


class Signer:
    """Signs with one private key.

    Attributes:
        public: the key by which others know what it signs.
    """

    def __init__(self, private: str) -> None:
        self._key = private_key_of(private)
        raw = self._key.public_key().public_bytes_raw()
        self.public = _text(_PUBLIC, raw)
        self._id = _id_of(raw)

    def sign(self, place: SignedPlace, contents: Sequence[Content]) -> list[bytes]:
        """The header of each of these records, which go to one place."""
        signed: list[bytes] = []
        for first in range(0, len(contents), TOGETHER):
            leaves = [_leaf(place, content) for content in contents[first : first + TOGETHER]]
            signed += self._signed(leaves)
        return signed

    def _signed(self, leaves: Sequence[bytes]) -> list[bytes]:
        rows = [list(leaves)]
        while len(rows[-1]) > 1:
            row = rows[-1]
            if len(row) % 2:
                row.append(_NOTHING)
            rows.append([_above(*row[at : at + 2]) for at in range(0, len(row), 2)])
        head = self._id + self._key.sign(_ROOT + rows[-1][0])
        return [
            head
            + bytes([at])
            + b"".join(row[(at >> height) ^ 1] for height, row in enumerate(rows[:-1]))
            for at in range(len(leaves))
        ]


class TrustStore:
    """The trusted public keys.

    Args:
        keys: one or more, as ``new_keys`` returns them, separated by commas or white space; a
            comment begins with # and ends with its line.
    """

    def __init__(self, keys: str) -> None:
        self._keys: dict[bytes, Ed25519PublicKey] = {}
        for key in keys_in(keys):
            self._keys[_id_of(public_bytes(key))] = public_key_of(key)
        if not self._keys:
            raise InvalidKey("the trust store has no key, so no record would be trusted")
        self._roots: dict[bytes, None] = {}  # with their signatures, which were checked

    def __contains__(self, public: str) -> bool:
        return _id_of(public_bytes(public)) in self._keys

    def check(self, place: SignedPlace, content: Content, signature: bytes | None) -> None:
        """Make sure that a record was signed for where it is.

        Raises:
            Unsigned: with the reason.
        """
        if not signature:
            raise Unsigned("it has no signature")
        way = signature[_HEAD_BYTES:]
        height = len(way) // _HASH_BYTES
        if len(signature) < _HEAD_BYTES or len(way) % _HASH_BYTES or 2**height > TOGETHER:
            raise Unsigned(f"a signature of {len(signature)} bytes is none of a worker")
        at = signature[_HEAD_BYTES - 1]
        if at >= 2**height:
            raise Unsigned(f"there is no leaf {at} in a tree of height {height}")
        root = _leaf(place, content)
        for start in range(0, len(way), _HASH_BYTES):
            beside = way[start : start + _HASH_BYTES]
            root = _above(beside, root) if at & 1 else _above(root, beside)
            at >>= 1
        self._check_root(signature[:_ID_BYTES], signature[_ID_BYTES : _HEAD_BYTES - 1], root)

    def _check_root(self, key_id: bytes, signature: bytes, root: bytes) -> None:
        from cryptography.exceptions import InvalidSignature

        key = self._keys.get(key_id)
        if key is None:
            raise Unsigned(f"it is signed by key {key_id.hex()}, which is not trusted")
        checked = key_id + signature + root
        if checked in self._roots:
            return
        try:
            key.verify(signature, _ROOT + root)
        except InvalidSignature:
            raise Unsigned(
                f"key {key_id.hex()} has not signed this, or not for this topic, partition and log"
            ) from None
        self._roots[checked] = None
        if len(self._roots) > _REMEMBERED_ROOTS:
            del self._roots[next(iter(self._roots))]


def new_keys() -> tuple[str, str]:
    """A private key, to sign with, and its public key, to trust."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    private = _text(_PRIVATE, Ed25519PrivateKey.generate().private_bytes_raw())
    return private, Signer(private).public


def private_key_of(text: str) -> Ed25519PrivateKey:
    """A private key, as ``new_keys`` writes it.

    Raises:
        InvalidKey: it is none.
    """
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    return Ed25519PrivateKey.from_private_bytes(_key_bytes(text, _PRIVATE, "private"))


def public_key_of(text: str) -> Ed25519PublicKey:
    """A public key, as ``new_keys`` writes it.

    Raises:
        InvalidKey: it is none.
    """
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    return Ed25519PublicKey.from_public_bytes(public_bytes(text))


def id_of(public: str) -> str:
    """By what logs and errors name a public key.

    Raises:
        InvalidKey: it is none.
    """
    return _id_of(public_bytes(public)).hex()


def keys_in(trust_store: str) -> list[str]:
    """Return the keys in the text of a trust store."""
    lines = (line.partition("#")[0] for line in trust_store.splitlines())
    return " ".join(lines).replace(",", " ").split()


def public_bytes(text: str) -> bytes:
    """The 32 bytes of a public key, as ``new_keys`` writes it.

    Raises:
        InvalidKey: it is none.
    """
    return _key_bytes(text, _PUBLIC, "public")


def public_text(raw: bytes) -> str:
    """A public key as ``new_keys`` writes it, of its 32 bytes."""
    return _text(_PUBLIC, raw)


def _leaf(place: SignedPlace, content: Content) -> bytes:
    """All fields at fixed widths, so that none can be read as a part of another."""
    topic = place.topic.encode()
    fields = (
        place.log,
        len(topic).to_bytes(2, "big"),
        topic,
        place.partition.to_bytes(4, "big"),
        *(_digest(field) for field in content),
    )
    return hashlib.sha256(_LEAF + b"".join(fields)).digest()


def _digest(field: bytes | None) -> bytes:
    return _NOTHING if field is None else hashlib.sha256(field).digest()


def _above(left: bytes, right: bytes) -> bytes:
    return hashlib.sha256(_NODE + left + right).digest()


def _id_of(public: bytes) -> bytes:
    return hashlib.sha256(public).digest()[:_ID_BYTES]


def _text(kind: str, raw: bytes) -> str:
    return kind + urlsafe_b64encode(raw).decode().rstrip("=")


def _key_bytes(text: str, kind: str, name: str) -> bytes:
    problem = InvalidKey(f"this is no {name} key: one begins with {kind!r}; see `turnstile keys`")
    encoded = text.strip().removeprefix(kind)
    if not text.strip().startswith(kind) or not encoded.isascii():
        raise problem
    try:
        raw = urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4))
    except ValueError:
        raise problem from None
    if len(raw) != _KEY_BYTES or _text(kind, raw) != text.strip():
        raise problem
    return raw
