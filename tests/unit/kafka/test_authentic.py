"""A record that no worker has signed is rejected, and reported without flooding the log."""

from __future__ import annotations

import logging

import pytest

from streams.config import Config, ConfigurationError
from streams.kafka.authentic import (
    ANSWERERS,
    WORKERS,
    RecordVerifier,
    Signers,
    header,
    record_signer_of,
    verifier_of,
)
from streams.records.signatures import Content, TrustStore, new_keys

PRIVATE, PUBLIC = new_keys()
OTHER_PRIVATE, OTHER_PUBLIC = new_keys()
LOG = b"log of 16 bytes."


def config(**settings: str) -> Config:
    return Config.load(None, {}, **settings)


def test_a_signed_record_is_admitted_only_where_it_was_published() -> None:
    signer = record_signer_of(config(signing_key=PRIVATE, trusted_keys=PUBLIC), LOG)
    verifier = verifier_of(config(trusted_keys=PUBLIC), LOG)
    assert signer is not None
    assert verifier is not None
    plain, with_origin = Content(b"k", b"v"), Content(b"k", b"v", b"origin")
    first, second = signer.headers("t.halts", 0, [plain, with_origin])
    assert header(second, "norms") == b"origin"
    assert verifier.admits("t.halts", 0, (b"k", b"v"), first)
    assert verifier.admits("t.halts", 0, (b"k", b"v"), second)
    assert verifier.why_silent() == ""
    assert not verifier.admits("t.halts", 1, (b"k", b"v"), first)
    # Of two headers the first one counts, for every reader.
    assert not verifier.admits("t.halts", 0, (b"k", b"v"), [("norms", b"other"), *second])
    assert not verifier.admits("t.halts", 0, (b"k", b"v"), [])
    assert verifier.why_silent().startswith("3 records ")


def test_forged_records_are_logged_at_powers_of_ten(
    caplog: pytest.LogCaptureFixture,
) -> None:
    verifier = RecordVerifier(TrustStore(PUBLIC), LOG)
    with caplog.at_level(logging.WARNING, "turnstile.signatures"):
        for _ in range(1500):
            verifier.admits("t.halts", 0, (None, b"forged"), [])
    assert [record.args[-1] for record in caplog.records] == [1, 10, 100, 1000]


def test_without_keys_nothing_is_signed_or_verified() -> None:
    assert record_signer_of(Config(), LOG) is None
    assert verifier_of(Config(), LOG) is None
    assert record_signer_of(config(signing_key=PRIVATE), LOG) is not None


# --- answerers ------------------------------------------------------------------------------------


def test_the_key_of_an_answerer_signs_no_decisions() -> None:
    settings = config(signing_key=OTHER_PRIVATE, trusted_keys=PUBLIC, answer_keys=OTHER_PUBLIC)
    signer = record_signer_of(settings, LOG, ANSWERERS)
    assert signer is not None
    for topic in ("t.answers", "t.halts"):
        (signed,) = signer.headers(topic, 0, [Content(b"k", b"v")])
        reader = verifier_of(settings, LOG, ANSWERERS)
        trainer = verifier_of(settings, LOG)
        assert reader is not None
        assert trainer is not None
        assert reader.admits(topic, 0, (b"k", b"v"), signed)
        assert not reader.admits("t.odometer", 0, (b"k", b"v"), signed)
        assert not trainer.admits(topic, 0, (b"k", b"v"), signed)


def test_an_answerer_without_a_key_signs_nothing() -> None:
    assert record_signer_of(config(trusted_keys=PUBLIC), LOG, ANSWERERS) is None
    assert verifier_of(config(trusted_keys=PUBLIC), LOG, ANSWERERS) is None


PAIR = {"signing_key": PRIVATE, "trusted_keys": PUBLIC}
REFUSED: dict[str, tuple[Signers, dict[str, str]]] = {
    "a trust store without a signing key": (WORKERS, {"trusted_keys": PUBLIC}),
    "an untrusted key": (WORKERS, {"signing_key": OTHER_PRIVATE, "trusted_keys": PUBLIC}),
    "a public key for signing": (WORKERS, {"signing_key": PUBLIC}),
    "a trusted private key": (WORKERS, {**PAIR, "trusted_keys": PRIVATE}),
    "an answerer without a key": (ANSWERERS, {"answer_keys": PUBLIC}),
    "an answerer with an untrusted key": (
        ANSWERERS,
        {"signing_key": OTHER_PRIVATE, "answer_keys": PUBLIC},
    ),
    "an answerer with a worker's key": (ANSWERERS, PAIR),
    "a worker's key that readers trust": (ANSWERERS, {**PAIR, "answer_keys": PUBLIC}),
    "an answerer's private key": (ANSWERERS, {"signing_key": PRIVATE, "answer_keys": PRIVATE}),
}


@pytest.mark.parametrize(("role", "settings"), REFUSED.values(), ids=REFUSED)
def test_signer_with_an_untrusted_key_does_not_start(
    role: Signers, settings: dict[str, str]
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        record_signer_of(config(**settings), LOG, role)
    assert PRIVATE not in str(caught.value)
    assert OTHER_PRIVATE not in str(caught.value)
