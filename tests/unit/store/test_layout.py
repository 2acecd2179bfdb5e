"""What is kept, byte for byte: another process, or another release, has to find it."""

import pytest

from streams.records.digests import genesis
from streams.store.layout import (
    COVERED_FIELDS,
    Damaged,
    Identity,
    Meta,
    digest_of,
    fields_of_nothing,
    hexadecimal,
    key_of,
    outbox_entry_name,
    outbox_entry_place,
    pack_change,
    pack_page,
    page_hash,
    page_value,
    with_digest,
)

TOPIC = b"topic of 16 byte"


def test_the_head_of_nothing_is_read_as_nothing():
    meta = Meta.of(fields_of_nothing(TOPIC, 3, 4))
    assert meta.chain == genesis(TOPIC, 3, 4)
    assert (meta.topic, meta.partitions, meta.owner, int(meta.digest, 16)) == (
        TOPIC.hex(),
        4,
        "",
        0,
    )
    assert (meta.version, meta.next, meta.since) == (0, 0, 0)
    assert (meta.changes, meta.pages, meta.outbox) == (0, 0, 0)


@pytest.mark.parametrize("field", sorted({*fields_of_nothing(TOPIC, 3, 4)}))
def test_a_meta_without_one_of_its_fields_is_damaged(field):
    fields = fields_of_nothing(TOPIC, 3, 4)
    del fields[field]
    with pytest.raises(Damaged):
        Meta.of(fields)


@pytest.mark.parametrize("field", COVERED_FIELDS)
def test_a_meta_with_another_value_in_one_field_is_damaged(field):
    fields = fields_of_nothing(TOPIC, 3, 4)
    digit = "1" if not fields[field] else format(int(fields[field][-1], 16) ^ 1, "x")
    fields[field] = fields[field][:-1] + digit
    for read in (Meta.of, Identity.of):
        with pytest.raises(Damaged):
            read(fields)


def test_entries_and_keys_are_those_of_the_layout():
    assert pack_change(3, 5, b"xy") == [with_digest(b"\x95\x03\x05\x00\x01\xc4\x02xy")]
    assert with_digest(b"xy").hex() == "0c9589fd63715ce46749a40759adce557879"
    assert pack_page(258, b"xy") == b"\x00\x00\x00\x00\x00\x00\x01\x02xy"
    assert page_value(pack_page(258, b"xy")) == b"xy"
    assert outbox_entry_name(258, 1) == "258/1"
    assert key_of("turnstile.", 3, "meta") == "turnstile.{norms-3}:meta"
    pages = {"page:d/0": pack_page(1, b"p"), "run:d/r": pack_page(2, b"r")}
    digest = digest_of(page_hash(name, page) for name, page in pages.items())
    assert hexadecimal(digest) == "68adea17a29641ce34ec6492fec39a16"


def test_a_digest_is_exchanged_page_by_page_and_wraps_around():
    one, other = page_hash("page:d/0", b"one"), page_hash("page:d/0", b"other")
    rest = (1 << 128) - 1
    assert digest_of((digest_of((rest, one)), other, -one)) == digest_of((rest, other))
    assert digest_of(()) == 0


def test_outbox_entries_are_in_the_order_of_the_log():
    names = ["2/0", "10/0", "9/11", "9/2"]
    assert sorted(names, key=outbox_entry_place) == ["2/0", "9/2", "9/11", "10/0"]


@pytest.mark.parametrize("name", ["", "x", "1", "1/x", "1/2/3"])
def test_an_outbox_entry_with_a_malformed_name_is_damaged(name):
    with pytest.raises(Damaged):
        outbox_entry_place(name)
