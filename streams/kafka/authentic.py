"""Signs the records of workers and answerers, and verifies these signatures, which are Kafka
headers.

A reader ignores a record without a trusted signature: it admits no user, rejects nothing and ends
nothing. A client that waits for a decision keeps waiting for a signed one.

Workers and answerers have separate trust stores, because all records that are read with a trust
store trust all of its keys: a stolen key of an answerer must not sign decisions.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import NamedTuple

from streams.config import Config, ConfigurationError, lacking
from streams.records.signatures import (
    ORIGIN,
    SIGNATURE,
    Content,
    InvalidKey,
    SignedPlace,
    Signer,
    TrustStore,
    Unsigned,
)

logger = logging.getLogger("turnstile.signatures")

Headers = Sequence[tuple[str, bytes | None]]


class Signers(NamedTuple):
    """The kind of process whose signatures are expected, and the setting with its public keys."""

    who: str
    trust_store: str


WORKERS = Signers("worker", "trusted_keys")
ANSWERERS = Signers("answerer", "answer_keys")


class RecordSigner:
    """Signs the records that a worker or an answerer publishes about a log."""

    def __init__(self, signer: Signer, log: bytes) -> None:
        self.public = signer.public
        self._signer = signer
        self._log = log

    def headers(
        self, topic: str, partition: int, contents: Sequence[Content]
    ) -> list[list[tuple[str, bytes]]]:
        """Return the headers of each of these records, including its origin."""
        signatures = self._signer.sign(SignedPlace(self._log, topic, partition), contents)
        return [
            [*origin_header(content), (SIGNATURE, signature)]
            for content, signature in zip(contents, signatures, strict=True)
        ]


class RecordVerifier:
    """Verifies the signatures of records about a log, and counts the records that it rejects."""

    def __init__(self, trust_store: TrustStore, log: bytes, signers: Signers = WORKERS) -> None:
        self._trust_store = trust_store
        self._log = log
        self._signers = signers
        self._refused = 0
        self._told = 1
        self._last = ""

    def admits(
        self, topic: str, partition: int, content: tuple[bytes | None, bytes | None], given: Headers
    ) -> bool:
        """Return whether a trusted key has signed this record, key and value, for its partition."""
        problem = self.problem(topic, partition, content, given)
        if problem is not None:
            self._refuse(f"{topic} {partition}", problem)
        return problem is None

    def problem(
        self, topic: str, partition: int, content: tuple[bytes | None, bytes | None], given: Headers
    ) -> Unsigned | None:
        """Return why no trusted key has signed this record; None if one has."""
        record = Content(*content, header(given, ORIGIN))
        try:
            self._trust_store.check(
                SignedPlace(self._log, topic, partition), record, header(given, SIGNATURE)
            )
        except Unsigned as problem:
            return problem
        return None

    def why_silent(self) -> str:
        """Return why a client may wait in vain; empty if every record was signed."""
        if not self._refused:
            return ""
        return (
            f"{self._refused} records were ignored, because no key in {self._signers.trust_store} "
            f"has signed them (the last one: {self._last}). Either another program than the "
            f"{self._signers.who}s writes to these topics, or the {self._signers.who}s sign with "
            "another key or do not sign"
        )

    def _refuse(self, where: str, problem: Unsigned) -> None:
        """Count a rejected record; log a warning at 1, 10, 100, ... of them."""
        self._refused += 1
        self._last = str(problem)
        if self._refused == self._told:
            self._told *= 10
            logger.warning(
                "ignored a record of %s that no trusted %s has signed: %s (%d so far)",
                where,
                self._signers.who,
                problem,
                self._refused,
            )


def header(headers: Headers, name: str) -> bytes | None:
    """Return the first header of a name, so that all readers take the same of two."""
    return next((value for found, value in headers if found == name), None)


def origin_header(content: Content) -> list[tuple[str, bytes]]:
    """Return the header with the origin of an odometer record, if it has one."""
    return [] if content.origin is None else [(ORIGIN, content.origin)]


def record_signer_of(config: Config, log: bytes, signers: Signers = WORKERS) -> RecordSigner | None:
    """Return the signer of a worker or an answerer; None if it does not sign.

    Raises:
        ConfigurationError: the key cannot be used; it is missing, or not in the trust store of its
            readers; or it belongs to an answerer and could sign decisions.
    """
    who, name = signers
    if not config.signing_key:
        if getattr(config, name):
            raise ConfigurationError(
                f"{name} is set and signing_key is not: readers with this trust store would ignore "
                f"every record of this {who}. Set signing_key to the private key of the {who}"
            )
        return None
    try:
        signer = Signer(config.signing_key)
    except InvalidKey as error:
        raise ConfigurationError(f"signing_key: {error}") from None
    except ImportError as error:
        raise lacking("a key for signatures", "secure", error) from error
    trust_store = _trust_store_of(config, signers)
    if trust_store is not None and signer.public not in trust_store:
        raise ConfigurationError(
            f"signing_key belongs to {signer.public}, which is not in {name}: readers with this "
            f"trust store would ignore every record of this {who}. Add the key everywhere first"
        )
    if signers is not WORKERS:
        workers = _trust_store_of(config, WORKERS)
        if workers is not None and signer.public in workers:
            raise ConfigurationError(
                f"signing_key belongs to {signer.public}, which is in {WORKERS.trust_store}: this "
                f"{who} could sign decisions. Give the {who} its own key, which is in {name} and "
                f"not in {WORKERS.trust_store}: `turnstile keys new --for answers`"
            )
    return RecordSigner(signer, log)


def verifier_of(config: Config, log: bytes, signers: Signers = WORKERS) -> RecordVerifier | None:
    """Return the verifier of signatures; None without a trust store: all records are trusted."""
    trust_store = _trust_store_of(config, signers)
    return None if trust_store is None else RecordVerifier(trust_store, log, signers)


def _trust_store_of(config: Config, signers: Signers) -> TrustStore | None:
    keys = getattr(config, signers.trust_store)
    if not keys:
        return None
    try:
        return TrustStore(keys)
    except InvalidKey as error:
        raise ConfigurationError(f"{signers.trust_store}: {error}") from None
    except ImportError as error:
        raise lacking("a key for signatures", "secure", error) from error
