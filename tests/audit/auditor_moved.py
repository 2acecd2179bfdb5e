"""Datasets that come from another log, as the documents say it: what has to come, and what did."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import msgspec

from tests.audit.auditor_accounts import MOST_RUNGS, Account, Dataset
from tests.audit.auditor_forgotten import public_key
from tests.audit.auditor_requests import Rejection, User, numbers_of

_CONTENT = (
    ("dataset", "part", "forgotten", "users"),
    ("spent", "base", "rungs", "order", "bound"),
)
_SAID = ("policy", "origin", "parts", "digest", "brings", "closed", "erasure")


@dataclass
class Arrival:
    """How much of a dataset is there, in one partition."""

    said: dict[str, Any]  # by the record that created it, but for its token
    reached: bytes
    received: int = 0

    @property
    def is_complete(self) -> bool:
        return self.received == self.said["parts"]

    def check_digest(self) -> None:
        if self.is_complete and self.reached != self.said["digest"]:
            raise Rejection("invalid-balances")


def arrival_of(request: dict[str, Any], partition: int) -> Arrival:
    origin = request["origin"]
    about = (
        request["policy"]["dataset"],
        partition,
        *(origin[name] for name in ("topic", "partitions", "heads")),
    )
    content = b"dp-turnstile balances 1" + msgspec.msgpack.encode(about)
    arrival = Arrival(_said(request), hashlib.sha256(content).digest())
    arrival.check_digest()
    return arrival


def is_the_same(arrival: Arrival, request: dict[str, Any]) -> bool:
    return arrival.said == _said(request)


def with_part(arrival: Arrival, request: dict[str, Any]) -> Arrival:
    """The next part is in."""
    if arrival.is_complete or request["part"] != arrival.received:
        raise Rejection("step-out-of-order")
    content = [tuple(request[name] for name in names) for names in _CONTENT]
    digest = hashlib.sha256(arrival.reached + msgspec.msgpack.encode(content)).digest()
    return Arrival(arrival.said, digest, arrival.received + 1)


def keys_of(request: dict[str, Any]) -> list[bytes]:
    """The secrets of names: of those keys that everybody knows."""
    return [public_key(bytes.fromhex(key["topic"])) for key in request["erasure"] if "topic" in key]


def accounts_of(request: dict[str, Any], dataset: Dataset) -> dict[User, Account]:
    """Users with what they are said to have spent."""
    users = numbers_of(request["users"], "q")
    width = 1 if dataset.binds else len(dataset.budget)
    sizes = {"spent": 8 * width, "base": 8 * width, "rungs": 8}
    sizes |= {"order": int(dataset.binds), "bound": int(dataset.binds)}
    if any(len(request[name]) != len(users) * size for name, size in sizes.items()):
        raise Rejection("length-mismatch")
    spent, base, rungs = (numbers_of(request[name], "q") for name in ("spent", "base", "rungs"))
    rows = []
    for i, _ in enumerate(users):
        paid, before = (tuple(n[i * width : (i + 1) * width]) for n in (spent, base))
        order = None
        if dataset.binds:
            if request["order"][i] >= len(dataset.budget) or request["bound"][i] > 1:
                raise Rejection("invalid-balances")
            order = request["order"][i] if request["bound"][i] else None
            if order is None and (request["order"][i] or any(paid)):
                raise Rejection("invalid-balances")
        used = tuple(p - b for p, b in zip(paid, before, strict=True))
        account = Account(paid, used, rungs[i], order)
        if any(not 0 <= b <= p for p, b in zip(paid, before, strict=True)):
            raise Rejection("invalid-balances")
        steps = dataset.at_orders(account, dataset.steps)
        if any(u > step for u, step in zip(used, steps, strict=True)):
            raise Rejection("invalid-balances")
        if any(left < 0 for left in dataset.left(account)) or not 1 <= rungs[i] <= MOST_RUNGS:
            raise Rejection("invalid-balances")
        climbed = [rungs[i] * step for step in steps]
        if not request["forgotten"] and any(p > c for p, c in zip(paid, climbed, strict=True)):
            raise Rejection("invalid-balances")
        rows.append(account)
    return dict(zip(users, rows, strict=True))


def _said(request: dict[str, Any]) -> dict[str, Any]:
    return {name: request[name] for name in _SAID}
