"""What no worker has signed is passed over and told of, in a log that it does not drown."""

from __future__ import annotations

import logging

import pytest

from streams.config import Config, ConfigurationError
from streams.topics.authentic import ANSWERERS, Inspector, header, inspector_of, seal_of
from streams.wire.signatures import Content, KeyRing, new_keys

PRIVATE, PUBLIC = new_keys()
OTHER_PRIVATE, OTHER_PUBLIC = new_keys()
LOG = b"log of 16 bytes."


def config(**settings: str) -> Config:
    return Config.load(None, {}, **settings)


def test_who_has_the_ring_believes_what_the_worker_sealed() -> None:
    seal = seal_of(config(signing_key=PRIVATE, trusted_keys=PUBLIC), LOG)
    inspector = inspector_of(config(trusted_keys=PUBLIC), LOG)
    assert seal is not None
    assert inspector is not None
    plain, with_origin = Content(b"k", b"v"), Content(b"k", b"v", b"origin")
    first, second = seal.headers("t.halts", 0, [plain, with_origin])
    assert header(second, "norms") == b"origin"
    assert inspector.admits("t.halts", 0, (b"k", b"v"), first)
    assert inspector.admits("t.halts", 0, (b"k", b"v"), second)
    assert inspector.why_silent() == ""
    assert not inspector.admits("t.halts", 1, (b"k", b"v"), first)
    # A header that is put in front of the true one is the one that counts, for everybody.
    assert not inspector.admits("t.halts", 0, (b"k", b"v"), [("norms", b"other"), *second])
    assert not inspector.admits("t.halts", 0, (b"k", b"v"), [])
    assert "3 records were passed over" in inspector.why_silent()
    assert "it has no signature" in inspector.why_silent()


def test_a_flood_of_forged_records_is_no_flood_of_warnings(
    caplog: pytest.LogCaptureFixture,
) -> None:
    inspector = Inspector(KeyRing(PUBLIC), LOG)
    with caplog.at_level(logging.WARNING, "turnstile.signatures"):
        for _ in range(1500):
            inspector.admits("t.halts", 0, (None, b"forged"), [])
    assert [record.args[-1] for record in caplog.records] == [1, 10, 100, 1000]


def test_nothing_is_signed_or_looked_at_where_no_key_is_set() -> None:
    assert seal_of(Config(), LOG) is None
    assert inspector_of(Config(), LOG) is None
    assert seal_of(config(signing_key=PRIVATE), LOG) is not None


UNUSABLE = {
    "a ring without a key to sign": ({"trusted_keys": PUBLIC}, "signing_key is not"),
    "a key that the ring has not": (
        {"signing_key": OTHER_PRIVATE, "trusted_keys": PUBLIC},
        OTHER_PUBLIC,
    ),
    "no private key": ({"signing_key": PUBLIC}, "no private key"),
    "no public key": ({"signing_key": PRIVATE, "trusted_keys": PRIVATE}, "no public key"),
}


@pytest.mark.parametrize(("settings", "message"), UNUSABLE.values(), ids=UNUSABLE)
def test_a_worker_that_nobody_would_believe_does_not_start(
    settings: dict[str, str], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message) as caught:
        seal_of(config(**settings), LOG)
    assert PRIVATE not in str(caught.value)
    assert OTHER_PRIVATE not in str(caught.value)


# --- answerers ------------------------------------------------------------------------------------


def test_who_signs_answers_signs_no_decisions() -> None:
    settings = config(signing_key=OTHER_PRIVATE, trusted_keys=PUBLIC, answer_keys=OTHER_PUBLIC)
    seal = seal_of(settings, LOG, ANSWERERS)
    assert seal is not None
    for topic in ("t.answers", "t.halts"):
        (signed,) = seal.headers(topic, 0, [Content(b"k", b"v")])
        reader = inspector_of(settings, LOG, ANSWERERS)
        trainer = inspector_of(settings, LOG)
        assert reader is not None
        assert trainer is not None
        assert reader.admits(topic, 0, (b"k", b"v"), signed)
        assert not reader.admits("t.odometer", 0, (b"k", b"v"), signed)
        assert not trainer.admits(topic, 0, (b"k", b"v"), signed)
        assert "the workers sign with another key" in trainer.why_silent()
        assert "answer_keys vouches for none" in reader.why_silent()


def test_an_answerer_signs_nothing_without_a_key_whomever_it_believes() -> None:
    assert seal_of(config(trusted_keys=PUBLIC), LOG, ANSWERERS) is None
    assert inspector_of(config(trusted_keys=PUBLIC), LOG, ANSWERERS) is None


UNUSABLE_TO_ANSWER = {
    "a ring without a key to sign": ({"answer_keys": PUBLIC}, "this answerer says"),
    "a key that the ring has not": (
        {"signing_key": OTHER_PRIVATE, "answer_keys": PUBLIC},
        "which answer_keys does not have",
    ),
    "the key of a worker": (
        {"signing_key": PRIVATE, "trusted_keys": PUBLIC},
        "can sign decisions. Give the answerer a key of its own",
    ),
    "the key of a worker that readers know": (
        {"signing_key": PRIVATE, "trusted_keys": PUBLIC, "answer_keys": PUBLIC},
        "can sign decisions. Give the answerer a key of its own",
    ),
    "no public key": ({"signing_key": PRIVATE, "answer_keys": PRIVATE}, "answer_keys: this is no"),
}


@pytest.mark.parametrize(
    ("settings", "message"), UNUSABLE_TO_ANSWER.values(), ids=UNUSABLE_TO_ANSWER
)
def test_an_answerer_does_not_start_with_a_key_that_is_not_its_own(
    settings: dict[str, str], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message) as caught:
        seal_of(config(**settings), LOG, ANSWERERS)
    assert PRIVATE not in str(caught.value)
