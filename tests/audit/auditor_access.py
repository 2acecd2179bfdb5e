"""Access lists, as the documents describe them: keys, rights, signatures, changes of a list."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from tests.audit.auditor_requests import NOT_GIVEN, Rejection

_CHARGES = ("open-run", "close-run", "charge", "norm", "norms", "enrol", "charge-roster")
_P = 2**255 - 19
_L = 2**252 + 27742317777372353535851937790883648493


@dataclass
class Listed:
    """A dataset's own list: key -> rights, and the log that signatures are for."""

    log: bytes
    rights: dict[bytes, list[str]]


class AccessLists:
    """The access lists of one partition.

    Attributes:
        lists: dataset -> its own list, if it has one.
        numbers: dataset -> the number of the last change, also after the dataset was withdrawn.
    """

    def __init__(self, partition: int) -> None:
        self.lists: dict[str, Listed] = {}
        self.numbers: dict[str, int] = {}
        self._partition = partition

    def check_request(self, lists: Sequence[Listed], request: Mapping[str, Any]) -> None:
        """Check that the signer may ask this of a dataset.

        Args:
            lists: those in force for the dataset.
            request: with its sender.
        """
        right = "charge" if request["type"] in _CHARGES else "manage"
        self.check(lists, right, request["sender"])

    def check(self, lists: Sequence[Listed], right: str, sender: Any) -> None:
        """Check that a signer has a right by all of these lists."""
        for listed in lists:
            self._check(listed, right, sender)

    def _check(self, listed: Listed, right: str, sender: Any) -> None:
        if sender is None or right not in listed.rights.get(sender["key"], []):
            raise Rejection("not-allowed")
        message = b"dp-turnstile request 1\0" + listed.log + self._partition.to_bytes(4, "big")
        message += hashlib.sha256(sender["request"]).digest()
        if not _is_valid(sender["key"], sender["signature"], message):
            raise Rejection("not-allowed")

    def check_new(self, request: Mapping[str, Any], around: Sequence[bool]) -> None:
        """Check the list with which a dataset is to begin, inside of datasets with lists or not."""
        allow = request["policy"]["allow"]
        if (allow is NOT_GIVEN) != (request["log"] is NOT_GIVEN):
            raise Rejection("invalid-access")
        if allow is not NOT_GIVEN:
            check_list(allow)
        if len({*around, *([] if allow is NOT_GIVEN else [True])}) > 1:
            raise Rejection("invalid-access")

    def check_known(self, request: Mapping[str, Any]) -> None:
        """Check that a dataset that exists has its signatures made for the client's log."""
        listed = self.lists.get(request["policy"]["dataset"])
        if listed is not None and request["log"] not in (NOT_GIVEN, listed.log):
            raise Rejection("not-allowed")

    def create(self, request: Mapping[str, Any]) -> None:
        """Keep the list of a new dataset."""
        if (allow := request["policy"]["allow"]) is not NOT_GIVEN:
            self._set(request["policy"]["dataset"], request["log"], allow)

    def withdraw(self, name: str) -> None:
        """Drop the list of a dataset."""
        self.lists.pop(name, None)

    def change(self, lists: Sequence[Listed], request: Mapping[str, Any]) -> None:
        """Replace the list of a dataset."""
        name, allow, number = request["dataset"], request["allow"], request["number"]
        before = self.numbers.get(name, 0)
        asked = Listed(request["log"], {entry["key"]: entry["rights"] for entry in allow})
        if name in self.lists and (number, asked) == (before, self.lists[name]):
            return
        if not lists:
            raise Rejection("not-allowed")
        self.check(lists, "manage", request["sender"])
        if number <= before:
            raise Rejection("superseded")
        self.numbers[name] = number
        self._set(name, request["log"], allow)

    def _set(self, name: str, log: bytes, allow: Sequence[Mapping[str, Any]]) -> None:
        self.lists[name] = Listed(log, {entry["key"]: entry["rights"] for entry in allow})


def check_list(allow: Sequence[Mapping[str, Any]]) -> None:
    """Check that keys are in order and points of the curve, and that one may manage."""
    keys = [entry["key"] for entry in allow]
    known = (["charge"], ["manage"], ["charge", "manage"])
    if (
        any(low >= high for low, high in pairwise(keys))
        or any(entry["rights"] not in known for entry in allow)
        or all(entry["rights"] == ["charge"] for entry in allow)
        or not all(map(is_key, keys))
    ):
        raise Rejection("invalid-access")


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
