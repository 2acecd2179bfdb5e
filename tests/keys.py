"""Keys that sign in tests, the same in every run, access lists of them, and signed records."""

from __future__ import annotations

import hashlib
from base64 import urlsafe_b64encode
from functools import cache
from typing import Any

from streams.records import AccessList, Allowed, Right, SetAccess, encode
from streams.records.digests import NO_TOPIC
from streams.records.signatures import RequestSigner, public_text


def private_key(name: str) -> str:
    """Return the private key of that name."""
    seed = hashlib.sha256(f"a key of the tests: {name}".encode()).digest()
    return f"turnstile-private-{urlsafe_b64encode(seed).decode().rstrip('=')}"


@cache
def public_key(name: str) -> bytes:
    """Return the 32 bytes of the public key of that name."""
    return RequestSigner(private_key(name)).public


def public(name: str) -> str:
    """Return the same as text."""
    return public_text(public_key(name))


def signed(record: Any, key: str, *, partition: int = 0, log: bytes = NO_TOPIC) -> bytes:
    """Return a record, or its bytes, signed by the key of that name for a place."""
    value = record if isinstance(record, bytes) else encode(record)
    return RequestSigner(private_key(key)).sign(log, partition, value)


def allowing(**rights: str) -> AccessList:
    """Return an access list: ``allowing(alice="charge", mary="charge manage")``."""
    entries: dict[bytes, list[Right]] = {
        public_key(name): words.split()  # type: ignore[misc]
        for name, words in rights.items()
    }
    return [Allowed(key=key, rights=entries[key]) for key in sorted(entries)]


def setting(
    dataset: str, number: int, allow: AccessList, log: bytes = NO_TOPIC, request: str = "a"
) -> SetAccess:
    """Return a request to set an access list."""
    return SetAccess(dataset=dataset, request=request, number=number, allow=allow, log=log)
