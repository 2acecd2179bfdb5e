"""Keys of those who sign in tests, the same in every run, and what they sign."""

from __future__ import annotations

import hashlib
from base64 import urlsafe_b64encode
from typing import Any

from msgspec import UNSET, UnsetType

from streams.schemas import BindOperator, RegisterPrincipal, encode
from streams.wire.chain import NO_TOPIC
from streams.wire.requests import RequestSigner

OPERATOR = "operator"
"""By which key the operator signs, if no other is named."""


def private_key(name: str) -> str:
    """Everybody's, by name."""
    seed = hashlib.sha256(f"a key of the tests: {name}".encode()).digest()
    return f"turnstile-private-{urlsafe_b64encode(seed).decode().rstrip('=')}"


def public_key(name: str) -> bytes:
    """The 32 bytes of the public key that belongs to it."""
    return RequestSigner(private_key(name), name).public


def signed(
    record: Any,
    by: str | None,
    *,
    key: str | None = None,
    partition: int = 0,
    log: bytes = NO_TOPIC,
) -> bytes:
    """A record as somebody has signed it.

    Args:
        record: of the wire, or its bytes.
        by: the principal; None: the operator.
        key: by whose key; that of ``by`` if it is not given.
        partition: for which it is signed.
        log: the same.
    """
    value = record if isinstance(record, bytes) else encode(record)
    return RequestSigner(private_key(key or by or OPERATOR), by).sign(log, partition, value)


def binding(number: int = 1, operator: str = OPERATOR, **fields: Any) -> BindOperator:
    """Binds a key of the operator."""
    log = fields.pop("log", NO_TOPIC)
    key = public_key(operator)
    return BindOperator(request="b", number=number, log=log, operator=key, **fields)


def registration(
    principal: str, number: int, *, key: str | UnsetType | None = None, creates: bool = False
) -> RegisterPrincipal:
    """Registers a principal by its own key, by that of another name, or by none (UNSET)."""
    public = UNSET if key is UNSET else public_key(str(key or principal))
    return RegisterPrincipal(
        request="p", number=number, principal=principal, key=public, creates=creates
    )
