"""Who may do what, as the documents say it: signatures, the operator, principals, policies."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from tests.audit.auditor_requests import NOT_GIVEN, Rejection

_CHARGES = ("open-run", "close-run", "charge", "enrol", "charge-roster")
_P = 2**255 - 19
_L = 2**252 + 27742317777372353535851937790883648493


@dataclass
class Members:
    """Whom one partition knows.

    Attributes:
        place: the id of the log, and the partition.
        operator: the key of the operator, once there is one.
        number: of what it said last, and that itself.
        also: other logs for which signatures count.
        keys: name -> the key of a principal, and whether it may create datasets.
    """

    place: tuple[bytes, int]
    operator: bytes | None = None
    number: int = -1
    said: bytes = b""
    also: list[bytes] = field(default_factory=list)
    keys: dict[str, tuple[bytes, bool]] = field(default_factory=dict)

    def check_request(self, policies: Sequence[Mapping[str, Any]], request: Any) -> None:
        """Whether who asks may have this of a dataset with these policies, the nearest first."""
        right = "charge" if request["type"] in _CHARGES else "manage"
        self._check(policies, right, request["sender"])

    def check_creation(self, outer: Sequence[Mapping[str, Any]], sender: Any) -> None:
        """Whether a dataset may be created within these."""
        if any(policy["allow"] is not NOT_GIVEN for policy in outer):
            self._check(outer, "manage", sender)
        elif self.operator is not None:
            name = self._signed_by(sender)
            if name is None or not self.keys[name][1]:
                raise Rejection("not-allowed")

    def hear_operator(self, request: Mapping[str, Any]) -> None:
        """What the operator says, if it is the operator."""
        binds = request["type"] == "bind-operator"
        key = request["operator"] if binds else request["key"]
        if key is not NOT_GIVEN and not is_key(key):
            raise Rejection("invalid-key")
        if self.operator is None and not binds:
            raise Rejection("not-allowed")
        sender = request["sender"]
        if sender is None or sender["principal"] is not NOT_GIVEN:
            raise Rejection("not-allowed")
        if sender["request"] == self.said:
            return
        if not self._has_signed(self.operator or request["operator"], sender):
            raise Rejection("not-allowed")
        if request["number"] <= self.number:
            raise Rejection("superseded")
        self.number, self.said = request["number"], sender["request"]
        if binds:
            self.operator = key
            self.also += [log for log in request["also"] if log not in self.also]
        elif key is NOT_GIVEN:
            self.keys.pop(request["principal"], None)
        else:
            self.keys[request["principal"]] = key, request["creates"]

    def _check(self, policies: Sequence[Mapping[str, Any]], right: str, sender: Any) -> None:
        named = [policy["allow"] for policy in policies if policy["allow"] is not NOT_GIVEN]
        if named and self._signed_by(sender) not in named[0][right]:
            raise Rejection("not-allowed")

    def _signed_by(self, sender: Any) -> str | None:
        """The principal that has signed; None if none has."""
        name = None if sender is None else sender["principal"]
        if name is None or name is NOT_GIVEN or name not in self.keys:
            return None
        return name if self._has_signed(self.keys[name][0], sender) else None

    def _has_signed(self, key: bytes, sender: Any) -> bool:
        log, partition = self.place
        name = sender["principal"]
        who = b"\0" if name is NOT_GIVEN else b"\1" + hashlib.sha256(name.encode()).digest()
        content = who + hashlib.sha256(sender["request"]).digest()
        return any(
            _is_valid(
                key,
                sender["signature"],
                b"dp-turnstile request 1\0" + each + partition.to_bytes(4, "big") + content,
            )
            for each in [log, *self.also]
        )


@cache
def _is_valid(key: bytes, signature: bytes, message: bytes) -> bool:
    try:
        Ed25519PublicKey.from_public_bytes(key).verify(signature, message)
    except InvalidSignature:
        return False
    return True


@cache
def is_key(key: bytes) -> bool:
    """Whether these bytes are a point, canonically written, that the order of the base point, and
    nothing smaller, takes to the neutral one.
    """
    number = int.from_bytes(key, "little")
    sign, y = number >> 255, number & (2**255 - 1)
    if y >= _P:
        return False
    d = -121665 * pow(121666, _P - 2, _P)
    x_squared = (y * y - 1) * pow(d * y * y + 1, _P - 2, _P) % _P
    roots = [x for x in _roots(x_squared) if x % 2 == sign]
    if not roots or (roots[0], y) == (0, 1):
        return False
    return _multiple(_L, (roots[0], y), d) == (0, 1)


def _roots(square: int) -> set[int]:
    candidate = pow(square, (_P + 3) // 8, _P)
    both = {candidate, candidate * pow(2, (_P - 1) // 4, _P) % _P}
    return {sign * x % _P for x in both for sign in (1, -1) if x * x % _P == square}


def _multiple(times: int, point: tuple[int, int], d: int) -> tuple[int, int]:
    """By the law of addition in affine coordinates, from the highest bit down."""
    result = (0, 1)
    for bit in bin(times)[2:]:
        result = _plus(result, result, d)
        if bit == "1":
            result = _plus(result, point, d)
    return result


def _plus(left: tuple[int, int], right: tuple[int, int], d: int) -> tuple[int, int]:
    (a, b), (x, y) = left, right
    t = d * a * x * b * y % _P
    first = (a * y + b * x) * pow(1 + t, -1, _P) % _P
    second = (b * y + a * x) * pow(1 - t, -1, _P) % _P
    return first, second
