"""What changed since the last batch, and since the last compaction; and a new kind of state."""

import copy
from typing import Any

import msgspec
import pytest

from streams.ledger.ledger import Ledger
from streams.ledger.tracked import Tracked
from streams.records import encode
from tests.unit.ledger.ledgers import Log

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


# --- a new kind of state --------------------------------------------------------------------------


class Note(msgspec.Struct, frozen=True, array_like=True):
    text: str


class WithNotes(Ledger):
    """A ledger that holds one more kind of state, which takes one line."""

    def __init__(self, *place: Any) -> None:
        super().__init__(*place)
        self.notes = self.state.keep(Tracked("note", Note))


@pytest.fixture
def ledger():
    ledger = WithNotes(0, 1)
    log = Log()
    log.create()
    log.open()
    log.charge(0, [1, 2], [0.5, 0.5])
    for offset, record in enumerate(log.records):
        ledger.apply(offset, record)
    ledger.notes["d", "first"] = Note("kept")
    ledger.notes["d", "second"] = Note("gone")
    return ledger


def test_a_new_kind_of_entry_is_written_and_restored(ledger):
    taken = [encode(ledger.state.take_delta())]
    del ledger.notes["d", "second"]
    taken.append(encode(ledger.state.take_delta()))
    again = WithNotes(0, 1)
    again.state.load({}, taken)
    assert dict(again.notes) == {("d", "first"): Note("kept")}
    assert again.summary() == ledger.summary()
    assert again.state.unmerged() == ledger.state.unmerged()


def test_a_new_kind_of_state_mark_all_written_and_loaded(ledger):
    assert "note:d/first" in ledger.state.unmerged()
    pages = {name: ledger.state.take_page(name) for name in ledger.state.unmerged()}
    assert ledger.state.unmerged() == []
    again = WithNotes(0, 1)
    again.state.load(pages)
    assert dict(again.notes) == dict(ledger.notes)
    assert dict(again.state.runs) == dict(ledger.state.runs)
    assert again.state.unmerged() == []
    assert again.state.unwritten_bytes == 0


def test_a_ledger_can_be_copied_and_goes_its_own_way(ledger):
    """As tests do that forge a state, or that try what would become of it."""
    copied = copy.deepcopy(ledger)
    copied.notes["d", "third"] = Note("of the copy")
    del copied.notes["d", "first"]
    assert len(ledger.notes) == 2
    assert copied.summary() == ledger.summary()
    assert copied.state.datasets["d"] is copied.state.policies.accounts["d"]
    assert copied.state.datasets["d"] is not ledger.state.datasets["d"]


def test_a_new_kind_of_state_counts_among_what_is_not_written_yet(ledger):
    ledger.state.take_delta()
    ledger.notes["d", "long"] = Note("x" * 10_000)
    assert 10_000 < ledger.state.unwritten_bytes < 11_000
