"""A link opens one user's page, until it ends, and nothing that was altered opens anything."""

from __future__ import annotations

import msgspec
import pytest

from streams.config import Config, ConfigurationError
from streams.web.links import LONGEST_TOKEN, Claims, LinkKeys, TokenKind, UnusableLink

KEY, OTHER = "k" * 32, "o" * 32
KEYS = LinkKeys(KEY, "turnstile.")
ADA = Claims.new(user="ada", ends=1000)


def test_a_link_says_what_was_signed() -> None:
    for claims in (
        ADA,
        Claims.new(user=42, ends=1000, datasets=("shop", "photos")),
        Claims.new(user=-(2**63), ends=1000, pseudonyms="0123456789abcdef"),
        Claims.new(user="ÿ 雪 #&", ends=1000),
        Claims.new(user="42", ends=1000),  # another user than 42
    ):
        assert KEYS.read(KEYS.sign(claims), 999.9) == claims


def test_no_altered_byte_is_taken() -> None:
    for token in ("a" * 20_000, "...", "a.b.c", "\ud800.a", "e30.AAAA", "%2e.%2e"):
        with pytest.raises(UnusableLink):
            KEYS.read(token, 0.0)
    token = KEYS.sign(ADA)
    for at, letter in enumerate(token):
        for other in "A", "b", "_", ".", "=", "é":
            if other != letter:
                with pytest.raises(UnusableLink):
                    KEYS.read(token[:at] + other + token[at + 1 :], 0.0)
        with pytest.raises(UnusableLink):
            KEYS.read(token[:at], 0.0)


def test_a_link_is_of_one_key_and_one_service() -> None:
    for key, service in ((OTHER, "turnstile."), (KEY, "turnstile"), (KEY, "turnstilt.")):
        with pytest.raises(UnusableLink):
            LinkKeys(key, service).read(KEYS.sign(ADA), 0.0)


def test_a_link_of_an_older_key_counts_until_the_key_is_removed() -> None:
    before, both, after = (LinkKeys(k, "p.") for k in (KEY, f"{OTHER}\n{KEY}", OTHER))
    old, new = before.sign(ADA), both.sign(ADA)
    assert both.read(old, 0.0) == both.read(new, 0.0) == after.read(new, 0.0) == ADA
    for keys, token in ((before, new), (after, old)):
        with pytest.raises(UnusableLink):
            keys.read(token, 0.0)


def test_signed_words_that_are_no_claims_are_refused() -> None:
    for field, value in (("user", True), ("id", "short"), ("id", "g" * 32), ("ends", "soon")):
        signed = KEYS.sign(msgspec.structs.replace(ADA, **{field: value}))
        with pytest.raises(UnusableLink):
            KEYS.read(signed, 0.0)


def test_keys_are_needed_and_long_enough_and_not_shown() -> None:
    with pytest.raises(ConfigurationError) as missing:
        LinkKeys("", "turnstile.")
    assert "TURNSTILE_PORTAL_KEY_FILE" in str(missing.value)
    with pytest.raises(ConfigurationError) as refused:
        Config(portal_key=f"{KEY},abc")
    assert "portal_key" in str(refused.value)
    assert "abc" not in str(refused.value)
    assert KEY not in repr(Config(portal_key=KEY))


def test_a_link_fits_into_a_cookie_or_is_not_made() -> None:
    longest_id, name = "\U0001f600" * 256, "d" * 128
    for datasets in ((), (name,) * 10):
        for kind in TokenKind:
            token = KEYS.sign(Claims.new(user=longest_id, ends=1000, datasets=datasets), kind)
            assert len(f"__Host-turnstile-portal={token}") <= 4096
            assert KEYS.read(token, 0.0, kind).user == longest_id
    with pytest.raises(ConfigurationError):
        KEYS.sign(Claims.new(user="ada", ends=1000, datasets=(name,) * 60))
    with pytest.raises(UnusableLink):
        KEYS.read("A" * (LONGEST_TOKEN + 1), 0.0)
