"""A signature vouches for one record in one place, by one of the keys that are trusted."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from streams.records.signatures import (
    TOGETHER,
    Content,
    InvalidKey,
    SignedPlace,
    Signer,
    TrustStore,
    Unsigned,
    new_keys,
)

PRIVATE, PUBLIC = new_keys()
OTHER_PRIVATE, OTHER_PUBLIC = new_keys()
PLACE = SignedPlace(b"log of 16 bytes.", "t.halts", 3)
CONTENT = Content(b"key", b"value", b"origin")
SIGNER, TRUST_STORE = Signer(PRIVATE), TrustStore(PUBLIC)


def contents(count: int) -> list[Content]:
    return [Content(b"k", b"%d" % number) for number in range(count)]


@pytest.mark.parametrize("count", [0, 1, 2, 3, 5, TOGETHER - 1, TOGETHER, TOGETHER + 1, 100])
def test_each_of_many_records_has_its_own_signature(count: int) -> None:
    records = contents(count)
    signatures = SIGNER.sign(PLACE, records)
    for record, signature in zip(records, signatures, strict=True):
        TRUST_STORE.check(PLACE, record, signature)
    for record, signature in zip(records, signatures[1:], strict=False):
        with pytest.raises(Unsigned):
            TRUST_STORE.check(PLACE, record, signature)


@dataclass(frozen=True)
class Case:
    """A record as it arrives."""

    place: SignedPlace = PLACE
    content: Content = CONTENT
    signature: bytes | None = SIGNER.sign(PLACE, [CONTENT])[0]


TRUE = Case()
assert TRUE.signature is not None
FORGERIES = {
    "no signature": replace(TRUE, signature=None),
    "an empty one": replace(TRUE, signature=b""),
    "another value": replace(TRUE, content=CONTENT._replace(value=b"forged")),
    "no value": replace(TRUE, content=CONTENT._replace(value=None)),
    "another key": replace(TRUE, content=CONTENT._replace(key=b"another")),
    "no key": replace(TRUE, content=CONTENT._replace(key=None)),
    "another origin": replace(TRUE, content=CONTENT._replace(origin=b"elsewhere")),
    "no origin": replace(TRUE, content=CONTENT._replace(origin=None)),
    "another topic": replace(TRUE, place=PLACE._replace(topic="t.rejects")),
    "another partition": replace(TRUE, place=PLACE._replace(partition=2)),
    "another log": replace(TRUE, place=PLACE._replace(log=b"LOG of 16 bytes.")),
    "by somebody else": replace(TRUE, signature=Signer(OTHER_PRIVATE).sign(PLACE, [CONTENT])[0]),
    "in the name of a key": replace(
        TRUE,
        signature=TRUE.signature[:8] + Signer(OTHER_PRIVATE).sign(PLACE, [CONTENT])[0][8:],
    ),
    "cut off": replace(TRUE, signature=TRUE.signature[:-1]),
    "too short": replace(TRUE, signature=TRUE.signature[:20]),
    "one byte more": replace(TRUE, signature=TRUE.signature + b"\0"),
    "a hash more": replace(TRUE, signature=TRUE.signature + bytes(32)),
    "a leaf that is not there": replace(TRUE, signature=TRUE.signature[:-1] + b"\1"),
    "a tree of any height": replace(TRUE, signature=TRUE.signature + bytes(32 * 6)),
}


def test_what_is_signed_is_believed() -> None:
    TRUST_STORE.check(TRUE.place, TRUE.content, TRUE.signature)
    TRUST_STORE.check(TRUE.place, TRUE.content, TRUE.signature)  # and again, without computing it


@pytest.mark.parametrize("case", FORGERIES.values(), ids=FORGERIES)
def test_signature_for_another_place_or_content_is_invalid(case: Case) -> None:
    TRUST_STORE.check(TRUE.place, TRUE.content, TRUE.signature)
    with pytest.raises(Unsigned):
        TRUST_STORE.check(case.place, case.content, case.signature)


@pytest.mark.parametrize("at", range(0, 73 + 2 * 32, 7))
def test_every_byte_of_a_signature_counts(at: int) -> None:
    records = contents(3)
    signature = bytearray(SIGNER.sign(PLACE, records)[1])
    signature[at] ^= 1
    with pytest.raises(Unsigned):
        TRUST_STORE.check(PLACE, records[1], bytes(signature))


def test_keys_are_exchanged_without_a_gap() -> None:
    old, new = (Signer(key).sign(PLACE, [CONTENT])[0] for key in (PRIVATE, OTHER_PRIVATE))
    both = TrustStore(f"{PUBLIC}  # until the seventh of May\n{OTHER_PUBLIC}")
    for signature in (old, new):
        both.check(PLACE, CONTENT, signature)
    only_new = TrustStore(OTHER_PUBLIC)
    only_new.check(PLACE, CONTENT, new)
    with pytest.raises(Unsigned):
        only_new.check(PLACE, CONTENT, old)


def test_trust_store_contains_its_keys() -> None:
    trust_store = TrustStore(f"{PUBLIC},\n # nobody: {OTHER_PUBLIC}\n")
    assert PUBLIC in trust_store
    assert OTHER_PUBLIC not in trust_store
    assert Signer(PRIVATE).public == PUBLIC


NO_KEYS = {
    "nothing": "",
    "a remark": "# turnstile-public-x",
    "a private one": PRIVATE,
    "cut off": PUBLIC[:-1],
    "too long": PUBLIC + "A",
    "no base64": PUBLIC[:-3] + "é!!",
    "another form of the last letter": PUBLIC[:-1] + chr(ord(PUBLIC[-1]) + 1),
}


@pytest.mark.parametrize("text", NO_KEYS.values(), ids=NO_KEYS)
def test_what_is_no_key_is_refused_and_never_shown(text: str) -> None:
    with pytest.raises(InvalidKey) as caught:
        TrustStore(text)
    assert PRIVATE not in str(caught.value)
    with pytest.raises(InvalidKey) as caught:
        Signer(PRIVATE[:-2])
    assert PRIVATE[:-2] not in str(caught.value)
