"""Signatures of requests: Ed25519 over the bytes of a request, and over the place it is meant for.

These 75 bytes are signed:

    "dp-turnstile request 1", 0 | id of the log: 16 | partition: 4, big-endian |
    SHA-256 of the request

So a signature is invalid in another log or partition, and for other bytes. It does not say that a
request is new: run, attempt and step show a repeated request, and the number of a set-access.

Two workers have to agree about every signature, whatever their libraries are. RFC 8032 leaves three
things open, on which libraries differ, and which are settled here:

1. A public key is the canonical encoding of a point of the subgroup of prime order: none of small
   order, under which one signature fits many messages, and none with a part of small order, under
   which the equation with the cofactor holds for signatures for which the one without it does not.
   ``check_public_key`` says so before a key is taken into the log's state, in integers alone.
2. The scalar of a signature is below the order of that subgroup.
3. The equation is the one without the cofactor, R = SB - hA, compared by the 32 bytes of R: that of
   OpenSSL, which ``cryptography`` calls.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from typing import TYPE_CHECKING

from streams.records import Sender, Signed, encode
from streams.records.signatures import private_key_of, public_text

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

_PURPOSE = b"dp-turnstile request 1\0"
_PRIME = 2**255 - 19
_ORDER = 2**252 + 27742317777372353535851937790883648493  # of the base point
_D = -121665 * pow(121666, -1, _PRIME) % _PRIME
_ROOT_OF_MINUS_ONE = pow(2, (_PRIME - 1) // 4, _PRIME)

_Point = tuple[int, int, int, int]  # X, Y, Z, T with x = X/Z, y = Y/Z, xy = T/Z
_IDENTITY: _Point = (0, 1, 1, 0)


class NoVerifier(Exception):
    """The package that checks signatures is not installed here."""


class RequestSigner:
    """Signs requests with one private key.

    Args:
        private: the key, as ``turnstile keys new`` writes it.

    Attributes:
        public: the 32 bytes of the public key.

    Raises:
        InvalidKey: it is no key.
    """

    def __init__(self, private: str) -> None:
        self._key = private_key_of(private)
        self.public = self._key.public_key().public_bytes_raw()

    def __repr__(self) -> str:
        """Without the private key."""
        return f"RequestSigner({public_text(self.public)})"

    def sign(self, log: bytes, partition: int, request: bytes) -> bytes:
        """Return a request as a signed record.

        Args:
            log: the 16 bytes of the id of the log that the dataset's signatures are for.
            partition: to which it is sent.
            request: its bytes.
        """
        signature = self._key.sign(_message(log, partition, request))
        return encode(Signed(request=request, signature=signature, key=self.public))


def is_signed(log: bytes, partition: int, sender: Sender) -> bool:
    """Return whether the sender's key has signed a request for this log and partition.

    Args:
        log: the 16 bytes of the id of the log that the dataset's signatures are for.
        partition: in which the request is.
        sender: the request, its signature, and the key, which ``check_public_key`` has accepted.

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
    """Return what is wrong with 32 bytes that should be a public key; None if they are one.

    It takes about a millisecond, and all partitions check the same keys.
    """
    y = int.from_bytes(public, "little") & (2**255 - 1)
    if y >= _PRIME:
        return "it is not the canonical encoding of a point"
    point = _point_of(y, public[31] >> 7)
    if point is None:
        return "it is no point of the curve"
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
    """The point with this y and this parity of x (RFC 8032, 5.1.3); None if there is none."""
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
    """RFC 8032, 5.1.4: complete, for equal points, too."""
    a = (left[1] - left[0]) * (right[1] - right[0]) % _PRIME
    b = (left[1] + left[0]) * (right[1] + right[0]) % _PRIME
    c = 2 * left[3] * right[3] * _D % _PRIME
    d = 2 * left[2] * right[2] % _PRIME
    e, f, g, h = b - a, d - c, d + c, b + a
    return e * f % _PRIME, g * h % _PRIME, f * g % _PRIME, e * h % _PRIME


def _is_identity(point: _Point) -> bool:
    return point[0] % _PRIME == 0 and (point[1] - point[2]) % _PRIME == 0
