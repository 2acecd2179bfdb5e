"""What workers and answerers sign, and who looks at it: signatures as headers of Kafka's records.

A record that no trusted key has signed is passed over, as if it were not there: it admits nobody,
refuses nothing and ends nothing. Who waits for an answer goes on waiting for the true one.

Who signs decisions and who signs private answers are in two rings, since a ring says whose word
counts for all that is read with it: an answerer's key that was stolen must not sign decisions.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import NamedTuple

from streams.config import Config, ConfigurationError, lacking
from streams.wire.signatures import (
    ORIGIN,
    SIGNATURE,
    Content,
    InvalidKey,
    KeyRing,
    Place,
    Signer,
    Unsigned,
    keys_in,
    public_bytes,
)

logger = logging.getLogger("turnstile.signatures")

Headers = Sequence[tuple[str, bytes | None]]


class Signers(NamedTuple):
    """Whose signatures are looked for, and which setting has their public keys."""

    who: str
    ring: str


WORKERS = Signers("worker", "trusted_keys")
ANSWERERS = Signers("answerer", "answer_keys")


class Seal:
    """Signs what a worker or an answerer publishes about a log.

    Attributes:
        public: the key by which others know it.
    """

    def __init__(self, signer: Signer, log: bytes) -> None:
        self.public = signer.public
        self._signer = signer
        self._log = log

    def headers(
        self, topic: str, partition: int, contents: Sequence[Content]
    ) -> list[list[tuple[str, bytes]]]:
        """The headers of each of these records, its origin among them."""
        signatures = self._signer.sign(Place(self._log, topic, partition), contents)
        return [
            [*origin_header(content), (SIGNATURE, signature)]
            for content, signature in zip(contents, signatures, strict=True)
        ]


class Inspector:
    """Looks at who signed the records of a service, and counts those that nobody has.

    Args:
        ring: whom to trust.
        log: the id of the topic norms.
        signers: whose keys the ring has.
    """

    def __init__(self, ring: KeyRing, log: bytes, signers: Signers = WORKERS) -> None:
        self._ring = ring
        self._log = log
        self._signers = signers
        self._refused = 0
        self._told = 1
        self._last = ""

    def admits(
        self, topic: str, partition: int, content: tuple[bytes | None, bytes | None], given: Headers
    ) -> bool:
        """Whether a trusted key has signed this record, key and value, for where it is."""
        problem = self.problem(topic, partition, content, given)
        if problem is not None:
            self._refuse(f"{topic} {partition}", problem)
        return problem is None

    def problem(
        self, topic: str, partition: int, content: tuple[bytes | None, bytes | None], given: Headers
    ) -> Unsigned | None:
        """Why no trusted key vouches for this record; None if one does."""
        record = Content(*content, header(given, ORIGIN))
        try:
            self._ring.check(Place(self._log, topic, partition), record, header(given, SIGNATURE))
        except Unsigned as problem:
            return problem
        return None

    def why_silent(self) -> str:
        """What to tell somebody who waits in vain; empty if everything was signed."""
        if not self._refused:
            return ""
        return (
            f"{self._refused} records were passed over, because {self._signers.ring} vouches for "
            f"none of them (the last one: {self._last}). Either somebody else than the "
            f"{self._signers.who}s writes to these topics, or the {self._signers.who}s sign with "
            "another key or with none"
        )

    def _refuse(self, where: str, problem: Unsigned) -> None:
        """Count it; a flood of them is not to be a flood of warnings."""
        self._refused += 1
        self._last = str(problem)
        if self._refused == self._told:
            self._told *= 10
            logger.warning(
                "passed over a record of %s that no %s has signed: %s (%d so far)",
                where,
                self._signers.who,
                problem,
                self._refused,
            )


def header(headers: Headers, name: str) -> bytes | None:
    """The first header of a name: of two, everybody takes the same."""
    return next((value for found, value in headers if found == name), None)


def origin_header(content: Content) -> list[tuple[str, bytes]]:
    """The header that says where a checkpoint comes from, if it says so."""
    return [] if content.origin is None else [(ORIGIN, content.origin)]


def seal_of(config: Config, log: bytes, signers: Signers = WORKERS) -> Seal | None:
    """With what a worker or an answerer signs; None if it signs nothing.

    Raises:
        ConfigurationError: no usable key, one by which those would not know who signs who have
            its key ring, or one of an answerer that could sign decisions as well.
    """
    who, name = signers
    if not config.signing_key:
        if getattr(config, name):
            raise ConfigurationError(
                f"{name} is set and signing_key is not: whoever has this key ring would pass "
                f"over all that this {who} says. Give the {who} its private key"
            )
        return None
    try:
        signer = Signer(config.signing_key)
    except InvalidKey as error:
        raise ConfigurationError(f"signing_key: {error}") from None
    except ImportError as error:
        raise lacking("a key for signatures", "secure", error) from error
    ring = _ring_of(config, signers)
    if ring is not None and signer.public not in ring:
        raise ConfigurationError(
            f"signing_key belongs to {signer.public}, which {name} does not have: whoever "
            f"has this key ring would pass over all that this {who} says. Add it everywhere first"
        )
    if signers is not WORKERS:
        workers = _ring_of(config, WORKERS)
        if workers is not None and signer.public in workers:
            raise ConfigurationError(
                f"signing_key belongs to {signer.public}, which {WORKERS.ring} has: who has it "
                f"can sign decisions. Give the {who} a key of its own, which {name} has and "
                f"{WORKERS.ring} has not: `turnstile keys new --for answers`"
            )
    return Seal(signer, log)


def inspector_of(config: Config, log: bytes, signers: Signers = WORKERS) -> Inspector | None:
    """Who looks at signatures; None if there is no key ring, and everything is believed.

    Raises:
        ConfigurationError: a key ring that is none.
    """
    ring = _ring_of(config, signers)
    return None if ring is None else Inspector(ring, log, signers)


def operator_keys_of(config: Config) -> str:
    """The operators whose word is followed, as ``operator_keys`` names them.

    Raises:
        ConfigurationError: what it names is no key.
    """
    try:
        for key in keys_in(config.operator_keys):
            public_bytes(key)
    except InvalidKey as error:
        raise ConfigurationError(f"operator_keys: {error}") from None
    return config.operator_keys


def _ring_of(config: Config, signers: Signers) -> KeyRing | None:
    keys = getattr(config, signers.ring)
    if not keys:
        return None
    try:
        return KeyRing(keys)
    except InvalidKey as error:
        raise ConfigurationError(f"{signers.ring}: {error}") from None
    except ImportError as error:
        raise lacking("a key for signatures", "secure", error) from error
