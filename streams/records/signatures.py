"""Ed25519 keys, and the signatures of records and of requests.

**Records.** A worker signs what it publishes with its private key; readers have its public key. So
a reader can check a decision and cannot forge one. The signature is the header
``turnstile-signature`` of a record. It covers the id of the log that was decided, topic, partition,
key, value and the header ``norms``. So it is invalid for another place and for another log.

Many records are signed at once, because a signature takes forty times as long as a hash. They are
the leaves of a hash tree whose root is signed, and each record has the hashes on the path from its
leaf to the root (as in RFC 6962). The bytes of the header are

    id of the key: 8 | signature of the root: 64 | index of the leaf: 1 | hashes of siblings: 32 n

A signature does not prove that a record is new, nor that no record is missing.

**Requests.** A client signs the bytes of a request, and the place it is meant for. These 75 bytes
are signed:

    "dp-turnstile request 1", 0 | id of the log: 16 | partition: 4, big-endian |
    SHA-256 of the request

So a signature is invalid in another log or partition, and for other bytes. It does not prove that a
request is new: run, attempt and step show a repeated request, and the number of a set-access.

All workers must agree about the signature of every request, whatever their libraries are. RFC 8032
leaves three things open, on which libraries differ. They are fixed here:

1. A public key is the canonical encoding of a point of the subgroup of prime order. It is not of
   small order, where one signature fits many messages. It has no part of small order, where the
   equation with the cofactor holds for signatures that the equation without it rejects.
   ``check_public_key`` checks this before a key is stored in the log's state, in integers alone.
2. The scalar of a signature is below the order of that subgroup.
3. The equation is the one without the cofactor, R = SB - hA, compared by the 32 bytes of R: that of
   OpenSSL, which ``cryptography`` calls.
"""

from __future__ import annotations

import hashlib
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from streams.records.codec import encode
from streams.records.requests import Sender, Signed

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import (
        Ed25519PrivateKey,
        Ed25519PublicKey,
    )

SIGNATURE, ORIGIN = "turnstile-signature", "norms"
"""Headers: the signature, and the origin of an odometer record."""

TOGETHER = 32
"""The maximum number of records signed at once. Each of them has up to log2 of this many hashes."""

_PRIVATE, _PUBLIC = "turnstile-private-", "turnstile-public-"
_KEY_BYTES = 32
_ID_BYTES, _SIGNATURE_BYTES, _HASH_BYTES = 8, 64, 32
_HEAD_BYTES = _ID_BYTES + _SIGNATURE_BYTES + 1
_LEAF, _NODE, _ROOT = b"\0", b"\1", b"dp-turnstile, a root of records, 1\0"
_NOTHING = bytes(_HASH_BYTES)
_REMEMBERED_ROOTS = 64


class InvalidKey(ValueError):
    """A text is not a key. The message does not quote it, because it may be a secret."""


class Unsigned(Exception):
    """A record has no signature by a trusted key for its content and place."""


class SignedPlace(NamedTuple):
    """The place of a record."""

    log: bytes  # the id of the topic norms that was decided
    topic: str
    partition: int


class Content(NamedTuple):
    """The signed content of a record."""

    key: bytes | None
    value: bytes | None
    origin: bytes | None = None  # the header ``norms``


class Signer:
    """Signs with one private key; ``public`` verifies its signatures."""

    def __init__(self, private: str) -> None:
        self._key = private_key_of(private)
        raw = self._key.public_key().public_bytes_raw()
        self.public = _text(_PUBLIC, raw)
        self._id = _id_of(raw)

    def sign(self, place: SignedPlace, contents: Sequence[Content]) -> list[bytes]:
        """Return the signature header of each of these records, which go to one place."""
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
        self._roots: dict[bytes, None] = {}  # verified roots with their signatures

    def __contains__(self, public: str) -> bool:
        return _id_of(public_bytes(public)) in self._keys

    def check(self, place: SignedPlace, content: Content, signature: bytes | None) -> None:
        """Check that a trusted key has signed a record for its place, or raise ``Unsigned``."""
        if not signature:
            raise Unsigned("the record has no signature")
        way = signature[_HEAD_BYTES:]
        height = len(way) // _HASH_BYTES
        if len(signature) < _HEAD_BYTES or len(way) % _HASH_BYTES or 2**height > TOGETHER:
            raise Unsigned(f"the signature has an invalid length of {len(signature)} bytes")
        at = signature[_HEAD_BYTES - 1]
        if at >= 2**height:
            raise Unsigned(f"the signature is of leaf {at} of a tree of height {height}")
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
            raise Unsigned(f"the record is signed by key {key_id.hex()}, which is not trusted")
        checked = key_id + signature + root
        if checked in self._roots:
            return
        try:
            key.verify(signature, _ROOT + root)
        except InvalidSignature:
            raise Unsigned(
                f"the signature by key {key_id.hex()} is invalid for this record, topic, partition "
                "and log"
            ) from None
        self._roots[checked] = None
        if len(self._roots) > _REMEMBERED_ROOTS:
            del self._roots[next(iter(self._roots))]


def new_keys() -> tuple[str, str]:
    """Return a new private key and its public key."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    private = _text(_PRIVATE, Ed25519PrivateKey.generate().private_bytes_raw())
    return private, Signer(private).public


def private_key_of(text: str) -> Ed25519PrivateKey:
    """Return the private key in a text of `new_keys`, or raise ``InvalidKey``."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    return Ed25519PrivateKey.from_private_bytes(_key_bytes(text, _PRIVATE, "private"))


def public_key_of(text: str) -> Ed25519PublicKey:
    """Return the public key in a text of `new_keys`, or raise ``InvalidKey``."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    return Ed25519PublicKey.from_public_bytes(public_bytes(text))


def id_of(public: str) -> str:
    """Return the id of a public key in logs and errors, or raise ``InvalidKey``."""
    return _id_of(public_bytes(public)).hex()


def keys_in(trust_store: str) -> list[str]:
    """Return the keys in the text of a trust store."""
    lines = (line.partition("#")[0] for line in trust_store.splitlines())
    return " ".join(lines).replace(",", " ").split()


def public_bytes(text: str) -> bytes:
    """Return the 32 bytes of the public key in a text of `new_keys`, or raise ``InvalidKey``."""
    return _key_bytes(text, _PUBLIC, "public")


def public_text(raw: bytes) -> str:
    """Return the text of a public key from its 32 bytes."""
    return _text(_PUBLIC, raw)


def _leaf(place: SignedPlace, content: Content) -> bytes:
    """Hash all fields at fixed widths, so that none can be read as a part of another."""
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
    problem = InvalidKey(f"not a {name} key: it must begin with {kind!r}; see `turnstile keys`")
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


# --- requests ---


_PURPOSE = b"dp-turnstile request 1\0"
_PRIME = 2**255 - 19
_ORDER = 2**252 + 27742317777372353535851937790883648493  # of the base point
_D = -121665 * pow(121666, -1, _PRIME) % _PRIME
_ROOT_OF_MINUS_ONE = pow(2, (_PRIME - 1) // 4, _PRIME)

_Point = tuple[int, int, int, int]  # X, Y, Z, T with x = X/Z, y = Y/Z, xy = T/Z
_IDENTITY: _Point = (0, 1, 1, 0)


class NoVerifier(Exception):
    """The package that verifies signatures is not installed."""


class RequestSigner:
    """Signs requests with one private key; ``public`` has the 32 bytes of its public key.

    Raises:
        InvalidKey: the text is not a private key.
    """

    def __init__(self, private: str) -> None:
        self._key = private_key_of(private)
        self.public = self._key.public_key().public_bytes_raw()

    def __repr__(self) -> str:
        return f"RequestSigner({public_text(self.public)})"

    def sign(self, log: bytes, partition: int, request: bytes) -> bytes:
        """Return an encoded request as a signed record, encoded, for its partition of a log."""
        signature = self._key.sign(_message(log, partition, request))
        return encode(Signed(request=request, signature=signature, key=self.public))


def is_signed(log: bytes, partition: int, sender: Sender) -> bool:
    """Return whether the sender's key has signed a request for this log and partition.

    ``log`` is the id of the log that the dataset's signatures are for, and ``check_public_key`` has
    accepted the key.

    Raises:
        NoVerifier: the package that verifies signatures is not installed.
    """
    if int.from_bytes(sender.signature[32:], "little") >= _ORDER:
        return False
    try:
        from cryptography.exceptions import InvalidSignature
    except ImportError as error:
        raise NoVerifier(str(error)) from error
    try:
        message = _message(log, partition, sender.request)
        _key_of(sender.key).verify(sender.signature, message)
    except InvalidSignature:
        return False
    return True


@lru_cache(maxsize=256)
def check_public_key(public: bytes) -> str | None:
    """Return the problem with 32 bytes that should be a public key; None if they are one.

    It takes about a millisecond, and all partitions check the same keys.
    """
    y = int.from_bytes(public, "little") & (2**255 - 1)
    if y >= _PRIME:
        return "it is not the canonical encoding of a point"
    point = _point_of(y, public[31] >> 7)
    if point is None:
        return "it is not a point of the curve"
    if _is_identity(_times(8, point)):
        return "it is a point of small order, under which one signature fits many requests"
    if not _is_identity(_times(_ORDER, point)):
        return "it is not in the subgroup of prime order, so that libraries could disagree about it"
    return None


def _message(log: bytes, partition: int, request: bytes) -> bytes:
    return _PURPOSE + log + partition.to_bytes(4, "big") + hashlib.sha256(request).digest()


@lru_cache(maxsize=256)
def _key_of(public: bytes) -> Ed25519PublicKey:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    return Ed25519PublicKey.from_public_bytes(public)


def _point_of(y: int, sign: int) -> _Point | None:
    """Return the point with this y and this parity of x (RFC 8032, 5.1.3), if it exists."""
    numerator, denominator = (y * y - 1) % _PRIME, (_D * y * y + 1) % _PRIME
    square = numerator * pow(denominator, -1, _PRIME) % _PRIME
    x = pow(square, (_PRIME + 3) // 8, _PRIME)
    if (x * x - square) % _PRIME:
        x = x * _ROOT_OF_MINUS_ONE % _PRIME
    if (x * x - square) % _PRIME or (x == 0 and sign):
        return None
    if x % 2 != sign:
        x = _PRIME - x
    return x, y, 1, x * y % _PRIME


def _times(factor: int, point: _Point) -> _Point:
    product = _IDENTITY
    while factor:
        if factor & 1:
            product = _sum(product, point)
        point = _sum(point, point)
        factor >>= 1
    return product


def _sum(left: _Point, right: _Point) -> _Point:
    """Add points by RFC 8032, 5.1.4, which is complete: it holds for equal points as well."""
    a = (left[1] - left[0]) * (right[1] - right[0]) % _PRIME
    b = (left[1] + left[0]) * (right[1] + right[0]) % _PRIME
    c = 2 * left[3] * right[3] * _D % _PRIME
    d = 2 * left[2] * right[2] % _PRIME
    e, f, g, h = b - a, d - c, d + c, b + a
    return e * f % _PRIME, g * h % _PRIME, f * g % _PRIME, e * h % _PRIME


def _is_identity(point: _Point) -> bool:
    return point[0] % _PRIME == 0 and (point[1] - point[2]) % _PRIME == 0
