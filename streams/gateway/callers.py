"""The callers of the gateway, and their keys.

A caller sends its private key with each request (``Authorization: Bearer turnstile-private-...``),
and the gateway signs the caller's records with it. The gateway has no key of its own and stores
none. So it can charge a dataset with an access list only while it handles a request of a caller
that may. It needs no list of rights: workers compare the signature with the access list.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from streams.gateway.problems import ProblemReason, RequestFailed
from streams.records.signatures import InvalidKey, RequestSigner, keys_in, public_bytes

_SCHEME = "bearer "
_signer: ContextVar[RequestSigner | None] = ContextVar("signer", default=None)


class CallerSigner:
    """Signs with the key of the caller for whom this thread works; signs nothing without a key."""

    def sign(self, log: bytes, partition: int, request: bytes) -> bytes:
        """Return a request as a signed record, or as it is if the caller has no key."""
        signer = _signer.get()
        return request if signer is None else signer.sign(log, partition, request)


@contextmanager
def acting_for(signer: RequestSigner | None) -> Iterator[None]:
    """Sign the requests of this thread with the key of a caller."""
    before = _signer.set(signer)
    try:
        yield
    finally:
        _signer.reset(before)


class Callers:
    """Reads the keys of callers.

    Args:
        keys: the public keys of the callers that are served, as in a trust store. Empty: all
            callers are served, and those without a key as well.
        curators: the public keys of callers that may read users' balances, and are served.

    Raises:
        InvalidKey: one of them is no public key.
    """

    def __init__(self, keys: str = "", curators: str = "") -> None:
        self._curators = frozenset(map(public_bytes, keys_in(curators)))
        known = frozenset(map(public_bytes, keys_in(keys)))
        self._known = known and known | self._curators

    def check_curator(self, signer: RequestSigner | None) -> None:
        """Check that a caller may read users' balances.

        Raises:
            RequestFailed: it may not.
        """
        if signer is None or signer.public not in self._curators:
            detail = (
                "only the curator reads users' balances: send a private key whose public key is in "
                "the gateway's curator_keys"
            )
            raise RequestFailed(ProblemReason.NOT_CURATOR, detail)

    def signer_of(self, authorization: str | None) -> RequestSigner | None:
        """Return the signer for a header; None for a caller without a key.

        Raises:
            RequestFailed: the header has no key, or one that is not served.
        """
        if authorization is None and not self._known:
            return None
        given = authorization or ""
        key = given[len(_SCHEME) :] if given.lower().startswith(_SCHEME) else ""
        try:
            signer = RequestSigner(key.strip())
        except InvalidKey:
            detail = "give a private key of `turnstile keys new`: Authorization: Bearer ..."
            raise RequestFailed(ProblemReason.UNAUTHENTICATED, detail) from None
        if self._known and signer.public not in self._known:
            detail = "the gateway does not serve this key: add its public key to gateway_keys"
            raise RequestFailed(ProblemReason.UNKNOWN_CALLER, detail)
        return signer
