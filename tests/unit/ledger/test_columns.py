"""Rows of users grow, change, are packed and put back; and a new number of every user."""

from typing import Annotated

import numpy as np
import pytest

from streams.ledger import accounts
from streams.ledger.accounts import AccountDelta, Balances
from streams.ledger.columns import PER_ORDER, Column, Columns, Numbers, RowDelta
from streams.ledger.ledger import Ledger
from streams.ledger.partition_errors import UnknownState
from tests.unit.ledger.ledgers import Log


class Toy(Columns):
    spent: Annotated[Numbers, PER_ORDER]
    ticks: Annotated[Numbers, Column(initial=1)]


def written(columns: Columns, slots: np.ndarray, name: str, numbers: np.ndarray) -> RowDelta:
    getattr(columns, name)[slots] = numbers
    return columns.note(slots, name)


def test_a_column_of_a_later_release_is_named_and_not_left_out():
    class Later(Toy):
        noise: Annotated[Numbers, Column()]

    later, toy = Later(), Toy()
    for columns in (later, toy):
        columns.grow(3)
    with pytest.raises(UnknownState):
        toy.apply_delta(written(later, np.arange(2), "noise", np.arange(2)))
    with pytest.raises(UnknownState):
        toy.load_page(0, later.take_page(0))


# --- a new number of every user -------------------------------------------------------------------


class WithVisits(Balances):
    """What every user has, and one more number, which takes one line."""

    visits: Annotated[Numbers, Column(initial=3)]


@pytest.fixture
def log(monkeypatch) -> Log:
    """A log, and from here on accounts that know of visits."""
    log = Log()
    for name, budget in {
        "d": {},
        "e": {"measure": "renyi", "orders": [2.0], "budget": [1.0]},
    }.items():
        log.create(name, **budget)
        log.open(name)
        log.charge(0, list(range(60)), np.ones(60), dataset=name)
    monkeypatch.setattr(accounts, "Balances", WithVisits)
    return log


def pages_of(ledger: Ledger) -> dict[str, bytes]:
    return {name: ledger.state.take_page(name) for name in ledger.state.unmerged()}


def test_new_column_has_its_initial_value_in_older_states(log):
    loaded, rebuilt = Ledger(0, 1), Ledger(0, 1)
    rebuilt.state.load({}, log.changes)
    loaded.state.load(pages_of(log.ledger))
    for ledger in (loaded, rebuilt):
        assert ledger.summary() == log.ledger.summary()
        for dataset in ledger.state.datasets.values():
            assert (dataset.numbers(slice(0, len(dataset)))["visits"] == 3).all()


def test_a_new_column_is_written_merged_and_restored(log):
    ledger = Ledger(0, 1)
    outputs = [ledger.apply(offset, record) for offset, record in enumerate(log.records)]
    assert outputs == log.outputs
    ledger.state.take_delta()
    rows = WithVisits()
    rows.grow(4)
    row = written(rows, np.array([2, 0]), "visits", np.array([5, 7]))
    changes = AccountDelta("d", b"", len(ledger.state.datasets["d"]), [row])
    ledger.state.datasets["d"].apply_delta(changes)
    loaded = Ledger(0, 1)
    loaded.state.load(pages_of(ledger))
    again = Ledger(0, 1)
    again.state.load(pages_of(log.ledger))
    again.state.datasets["d"].apply_delta(changes)
    for one in (loaded, again):
        visits = one.state.datasets["d"].numbers(slice(0, 4))["visits"]
        assert visits.tolist() == [7, 3, 5, 3]
