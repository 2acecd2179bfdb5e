"""Entries that changed since the last batch, and since their page was taken."""

import pytest

from streams.ledger.tracked import Tracked
from streams.records import encode

PLACES = [("d",), ("e",), ("d", "r"), ("d", "s"), ()]


def numbers() -> Tracked[int]:
    return Tracked("number", int)


def test_entry_is_stored_under_its_kind_and_address():
    tracked = numbers()
    for number, address in enumerate(PLACES):
        tracked[address] = number
    names = ["number:d", "number:e", "number:d/r", "number:d/s", "number"]
    assert tracked.take_delta() == {n: encode(i) for i, n in enumerate(names)}
    assert sorted(tracked.unmerged()) == sorted(names)


def test_missing_entry_can_be_restored_as_deleted():
    tracked = numbers()
    with pytest.raises(KeyError):
        del tracked["d",]
    assert tracked.take_delta() == {}
    tracked.restore_entry("number:d", encode(None))
    assert dict(tracked) == {}
    assert tracked.unmerged() == ["number:d"]  # there may be a page of it


def test_an_entry_that_changes_again_counts_once_among_what_is_not_written() -> None:
    twice, once = Tracked("text", str), Tracked("text", str)
    twice["d",] = "x" * 10_000
    twice["d",] = once["d",] = "y" * 20
    assert twice.changed_bytes == once.changed_bytes > 20
    twice["e",] = "z" * 30
    assert twice.changed_bytes > once.changed_bytes + 30
    assert len(twice.take_delta()) == 2
    assert twice.changed_bytes == 0
