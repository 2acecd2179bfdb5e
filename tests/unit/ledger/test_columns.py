"""Rows of users grow, change, are packed and put back; and a new number of every user."""

from typing import Annotated

import msgspec
import numpy as np
import pytest

from streams.ledger import accounts
from streams.ledger.accounts import AccountDelta, Balances
from streams.ledger.columns import PAGE_ROWS, PER_ORDER, Column, Columns, Numbers, RowDelta
from streams.ledger.ledger import Ledger
from streams.ledger.partition_errors import UnknownState
from tests.unit.ledger.ledgers import Log


class Toy(Columns):
    spent: Annotated[Numbers, PER_ORDER]
    ticks: Annotated[Numbers, Column(initial=1)]


def written(columns: Columns, slots: np.ndarray, name: str, numbers: np.ndarray) -> RowDelta:
    getattr(columns, name)[slots] = numbers
    return columns.note(slots, name)


def rows_of(columns: Toy, count: int) -> list:
    return [columns.spent[:count].tolist(), columns.ticks[:count].tolist()]


@pytest.mark.parametrize("orders", [None, 1, 3])
def test_rows_are_initial_until_they_are_written(orders):
    toy = Toy(orders)
    for count in (1, 2, 3, 1000, 10 * PAGE_ROWS):
        toy.reserve(count)
        assert len(toy.spent) == len(toy.ticks) >= count
        assert toy.spent.shape[1:] == (() if orders is None else (orders,))
        assert not toy.spent.any()
        assert (toy.ticks == 1).all()
    assert toy.changed_pages() == []


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


@pytest.mark.parametrize("orders", [None, 3])
@pytest.mark.parametrize("seed", range(5))
def test_deltas_over_older_or_newer_pages_give_the_same_rows(orders, seed):
    rng = np.random.default_rng(seed)
    count = 2 * PAGE_ROWS + 17
    toy, again = Toy(orders), Toy(orders)
    toy.grow(count)
    again.grow(count)
    shape = () if orders is None else (orders,)
    changes, pages = [], {}
    for _ in range(12):
        slots = rng.choice(count, rng.integers(0, 50), replace=False)
        spent = rng.integers(-(2**63), 2**63 - 1, (len(slots), *shape))
        changes.append(written(toy, slots, "spent", spent))
        changes.append(written(toy, slots[:5], "ticks", rng.integers(0, 9, len(slots[:5]))))
        assert set(toy.changed_pages()) >= set((slots // PAGE_ROWS).tolist())
        for number in toy.changed_pages()[: rng.integers(0, 2)]:
            pages[number] = toy.take_page(number)
            assert number not in toy.changed_pages()
    for number, page in pages.items():
        again.load_page(number, page)
    assert again.changed_pages() == []
    for one in changes:
        again.apply_delta(msgspec.msgpack.decode(msgspec.msgpack.encode(one), type=type(one)))
    assert rows_of(again, count) == rows_of(toy, count)


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
