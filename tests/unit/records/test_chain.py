"""The hash chain of a log depends on its topic, partition and every record."""

import pytest

from streams.records.digests import NO_TOPIC, genesis

TOPIC = bytes(range(16))
RECORDS = [(0, b"one"), (1, None), (2, b""), (5, b"after two control records")]


def chain_over(records, topic=TOPIC, partition=1, partitions=4):
    chain = genesis(topic, partition, partitions)
    for offset, value in records:
        chain = chain.after(offset, value)
    return chain


def test_head_of_a_fixed_log_is_fixed():
    """State and receipts contain the head, so its formula must not change."""
    assert chain_over([]).head.hex() == (
        "6f0fead162b4159d618e0a2bbfc604758ca637c12754c4796cc402920c957689"
    )
    assert chain_over(RECORDS).head.hex() == (
        "d5d6d51900e58a6959cce684e4a6de06087875bf922ff42b07ac6cff2adc565a"
    )


OTHERS = {
    "another topic": {"topic": NO_TOPIC},
    "another partition": {"partition": 2},
    "another P": {"partitions": 5},
    "one record less": {"records": RECORDS[:-1]},
    "one more": {"records": [*RECORDS, (6, b"x")]},
    "in another order": {"records": [RECORDS[1], RECORDS[0], *RECORDS[2:]]},
    "at another offset": {"records": [*RECORDS[:-1], (4, RECORDS[-1][1])]},
    "another byte": {"records": [*RECORDS[:-1], (5, b"After two control records")]},
    "empty, not a tombstone": {"records": [RECORDS[0], (1, b""), *RECORDS[2:]]},
    "a tombstone, not empty": {"records": [*RECORDS[:2], (2, None), RECORDS[3]]},
    "divided in another way": {"records": [(0, b"on"), (1, b"e"), *RECORDS[2:]]},
}


@pytest.mark.parametrize("change", OTHERS.values(), ids=OTHERS)
def test_another_log_has_another_head(change):
    assert chain_over(**{"records": RECORDS, **change}).head != chain_over(RECORDS).head


def test_chain_recognises_its_last_record():
    for count, (_, value) in enumerate(RECORDS, start=1):
        chain = chain_over(RECORDS[:count])
        assert chain.ends_with(value)
        assert not chain.ends_with(b"another")
        assert not chain.ends_with(None if value is not None else b"")


@pytest.mark.parametrize("value", [None, b"", b"one"])
def test_empty_chain_ends_with_no_record(value):
    assert not genesis(TOPIC, 0, 1).ends_with(value)
