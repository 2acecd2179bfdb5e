"""Recurring charges equal charging every user at every step, bit for bit."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accounting import (
    MEASURES,
    PoissonGaussian,
    RenyiFilter,
    advance_units,
    best_order,
    candidate_orders,
)
from accounting.filters import due_steps
from accounting.filters.account_terms import AccountCostTable, AccountTerms, Orders
from accounting.filters.admission import pay
from accounting.filters.recurring import BudgetAccount, RecurringCharge, StepOutcome
from accounting.filters.roster_columns import EXHAUSTED, HALTED
from tests.unit.accounting.step_by_step import (
    REPORTED,
    Balances,
    Book,
    Columns,
    Purse,
    Roll,
    slot_maps,
)


class World:
    """The same users twice: in the accounts under test, and in the books of the slow way."""

    def __init__(self, draw: Callable, highest: int, users: int) -> None:
        self.draw, self.highest, self.users = draw, highest, users
        self.scale = draw(st.sampled_from([1, 1, 1, 2**20 + 1, 2**55]))
        self.accounts: list[BudgetAccount] = []
        self.books: list[Book] = []

    def units(self, least: int, most: int) -> int:
        number = self.draw(st.integers(least, most)) * self.scale
        return number if self.scale == 1 else max(least, number + self.draw(st.integers(-2, 2)))

    def add_account(self) -> None:
        orders: Orders = self.draw(st.sampled_from(["none", "per-user", "all"]))
        count = 1 if orders == "none" else self.draw(st.integers(1, 3))
        budgets = tuple(self.units(0, 60) for _ in range(count))
        tick_sizes = tuple(self.units(1, 25) for _ in range(count))
        terms = AccountTerms(budgets, tick_sizes, orders)
        own = self.draw(
            st.lists(st.integers(0, count - 1), min_size=self.users, max_size=self.users)
        )
        shape = (self.users, count) if orders == "all" else (self.users,)
        balances = Balances(
            spent=np.zeros(shape, dtype=np.int64),
            base=np.zeros(shape, dtype=np.int64),
            ticks=np.ones(self.users, dtype=np.int64),
            order=np.array(own, dtype=np.uint8),
        )
        width = count if orders == "all" else 1
        self.accounts.append(BudgetAccount(terms, balances))
        self.books.append(Book(terms, [Purse([0] * width, [0] * width, 1, o) for o in own]))

    def cost_table(self, index: int) -> np.ndarray:
        terms = self.accounts[index].terms
        count = 1 if terms.orders == "none" else len(terms.budgets)
        steps = self.draw(
            st.lists(
                st.lists(
                    st.sampled_from([0, 0, 1, 1, 2, 3, 7, 20, 90]), min_size=count, max_size=count
                ),
                min_size=self.highest,
                max_size=self.highest,
            )
        )
        total = np.cumsum(np.array([[0] * count, *steps], dtype=object), axis=0) * self.scale
        units = np.minimum(total, 2**62).astype(np.int64)
        return units[:, 0] if terms.orders == "none" else units

    def check_balances(self) -> None:
        for account, book in zip(self.accounts, self.books, strict=True):
            everybody = np.arange(self.users)
            account.settle_for_write(everybody)
            balances = account.balances
            assert balances.spent.reshape(self.users, -1).tolist() == [p.spent for p in book.purses]
            assert balances.base.reshape(self.users, -1).tolist() == [p.base for p in book.purses]
            assert balances.ticks.tolist() == [p.ticks for p in book.purses]


RARE = ["cost table", "roster", "explicit", "restart", "balances", "enrol", "dense", "quiet"]
ACTS = ["step"] * 6 + ["levels"] * 2 + RARE


@dataclass
class Pair:
    recurring: RecurringCharge
    columns: Columns
    roll: Roll


def says(outcome: StepOutcome) -> dict[str, list]:
    found = {name: getattr(outcome, name).tolist() for name in REPORTED}
    found["raised"] = [
        list(zip(raised.positions.tolist(), raised.ticks_before.tolist(), strict=True))
        for raised in outcome.raised
    ]
    return found


def add_roster(world: World, chosen: list[int], clip: bool) -> Pair:
    draw, members = world.draw, draw_members(world)
    levels = draw(
        st.lists(st.integers(0, world.highest), min_size=len(members), max_size=len(members))
    )
    columns, slots = Columns(levels), slot_maps([np.array(members)] * len(chosen))
    recurring = RecurringCharge([world.accounts[i] for i in chosen], slots, columns, clip=clip)
    roll = Roll([world.books[i] for i in chosen], [list(members) for _ in chosen], levels, clip)
    return Pair(recurring, columns, roll)


def draw_members(world: World) -> list[int]:
    if world.draw(st.booleans()):
        first = world.draw(st.integers(0, world.users - 1))
        return list(range(first, world.draw(st.integers(first + 1, world.users))))
    return world.draw(
        st.lists(st.integers(0, world.users - 1), min_size=1, max_size=world.users, unique=True)
    )


def charge_explicitly(world: World) -> None:
    """Another run charges a few users of one account, with costs of its own."""
    index = world.draw(st.integers(0, len(world.accounts) - 1))
    account, book = world.accounts[index], world.books[index]
    slots = np.array(
        world.draw(st.lists(st.integers(0, world.users - 1), max_size=4, unique=True)),
        dtype=np.int64,
    )
    account.settle_for_write(slots)
    for slot in slots.tolist():
        width = len(book.purses[slot].spent)
        cost = [world.units(0, 12) for _ in range(width)]
        if book.fits(slot, cost):
            book.pay(slot, cost)
        purse, balances = book.purses[slot], account.balances
        balances.spent[slot] = purse.spent if balances.spent.ndim == 2 else purse.spent[0]
        balances.base[slot] = purse.base if balances.base.ndim == 2 else purse.base[0]
        balances.ticks[slot] = purse.ticks


def restart(world: World, pairs: list[Pair]) -> None:
    """Everything is stored, and read again into new objects."""
    old = list(world.accounts)
    world.accounts = [BudgetAccount(account.terms, account.balances) for account in old]
    for pair in pairs:
        pair.recurring = RecurringCharge(
            [world.accounts[old.index(account)] for account in pair.recurring.accounts],
            slot_maps([np.array(slots) for slots in pair.roll.slots]),
            pair.columns,
            steps=pair.recurring.steps,
            tables=pair.recurring.tables,
            clip=pair.recurring.clip,
        )


@settings(deadline=None)
@given(st.data())
def test_recurring_charges_equal_the_filter_at_every_step(data: st.DataObject) -> None:
    with pytest.MonkeyPatch.context() as patch:
        # Buckets are few before all others have happened.
        patch.setattr(due_steps, "_FARTHEST", data.draw(st.sampled_from([1, 3, 2**10])))
        patch.setattr(due_steps, "_SPARE", data.draw(st.sampled_from([0, 2**16])))
        check_against_every_step(data)


def check_against_every_step(data: st.DataObject) -> None:
    world = World(data.draw, data.draw(st.integers(1, 4)), data.draw(st.integers(1, 7)))
    for _ in range(data.draw(st.integers(1, 2))):
        world.add_account()
    pairs: list[Pair] = []
    current: dict[int, list[np.ndarray]] = {}
    for _ in range(data.draw(st.integers(5, 40))):
        act = data.draw(st.sampled_from(ACTS))
        if act == "roster" or not pairs:
            if len(pairs) == 3:
                continue
            chosen = data.draw(
                st.sampled_from([[0], [len(world.accounts) - 1], list(range(len(world.accounts)))])
            )
            pairs.append(add_roster(world, chosen, data.draw(st.booleans())))
            continue
        number = data.draw(st.integers(0, len(pairs) - 1))
        pair = pairs[number]
        indices = [world.accounts.index(account) for account in pair.recurring.accounts]
        count = len(pair.recurring)
        if act == "explicit":
            charge_explicitly(world)
        elif act == "balances":
            world.check_balances()
        elif act == "restart":
            restart(world, pairs)
        elif act == "enrol":
            taken = {slot for slots in pair.roll.slots for slot in slots}
            free = [slot for slot in range(world.users) if slot not in taken]
            level = data.draw(st.integers(0, world.highest))
            pair.columns.grow(len(free))
            pair.recurring.enrol([np.array(free, dtype=np.int64)] * len(indices), level)
            pair.roll.enrol([free] * len(indices), [level] * len(free))
        else:
            given = None
            if act == "cost table" or number not in current:
                current[number] = [world.cost_table(index) for index in indices]
                given = [
                    AccountCostTable(account.terms, units)
                    for account, units in zip(pair.recurring.accounts, current[number], strict=True)
                ]
            listed: dict[int, int] = {}
            if act == "dense":
                listed = {i: data.draw(st.integers(0, world.highest)) for i in range(count)}
                levels = np.array(list(listed.values()), dtype=np.uint8)
                outcome = pair.recurring.step(given, slice(0, count), levels)
            elif act == "levels":
                listed = data.draw(
                    st.dictionaries(
                        st.integers(0, count - 1), st.integers(0, world.highest), max_size=3
                    )
                )
                positions = sorted(listed)
                outcome = pair.recurring.step(
                    given,
                    np.array(positions, dtype=np.int64),
                    np.array([listed[at] for at in positions], dtype=np.uint8),
                )
            else:
                outcome = pair.recurring.step(given)
            assert says(outcome) == pair.roll.step(current[number], listed)
            for _ in range(data.draw(st.integers(0, 12)) if act == "quiet" else 0):
                assert says(pair.recurring.step()) == pair.roll.step(current[number])
        for checked in pairs:
            columns = checked.columns
            assert (columns.flags & HALTED != 0).tolist() == checked.roll.halted
            assert (columns.flags & EXHAUSTED != 0).tolist() == checked.roll.exhausted
            assert columns.granted.tolist() == checked.roll.granted
    world.check_balances()


# ------------------------------------------------- sampled steps, time and memory


def balances_of(users: int) -> Balances:
    spent, base = np.zeros((2, users), dtype=np.int64)
    return Balances(spent, base, np.ones(users, dtype=np.int64), np.zeros(users, dtype=np.uint8))


def begun(
    account: BudgetAccount, slots: np.ndarray, levels: Sequence[int]
) -> tuple[RecurringCharge, Columns]:
    columns = Columns(levels)
    return RecurringCharge([account], slot_maps([slots]), columns), columns


def table(account: BudgetAccount, units: object) -> list[AccountCostTable]:
    return [AccountCostTable(account.terms, np.asarray(units))]


def random_levels(users: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 101, users).astype(np.uint8)


def test_sampled_steps_are_charged_at_the_per_user_order() -> None:
    users = 3000
    rule = RenyiFilter(*candidate_orders(2.0, 1e-5))
    charges = MEASURES["renyi"].cost_table(PoissonGaussian(0.9, 0.03), 1.0, 100, rule.orders)
    levels = random_levels(users)
    order = best_order(charges, rule.budget_units)[levels]
    tick_sizes = np.array([budget // 7 for budget in rule.budget_units])
    account = BudgetAccount(
        AccountTerms(rule.budget_units, tuple(tick_sizes.tolist()), "per-user"), balances_of(users)
    )
    account.balances.order[:] = order
    recurring, _ = begun(account, np.arange(users), levels)
    budgets = np.array(rule.budget_units)[order]
    spent, base = np.zeros(users, dtype=np.int64), np.zeros(users, dtype=np.int64)
    ticks, admitted = np.ones(users, dtype=np.int64), np.ones(users, dtype=np.bool_)
    rng = np.random.default_rng(1)
    settled = halts = 0
    for step in range(400):
        listed = np.sort(rng.choice(users, 20, replace=False))
        levels[listed] = rng.integers(0, 101, 20)
        tables = None if step else table(account, charges)
        outcome = recurring.step(tables, listed, levels[listed])
        cost = charges[levels, order]
        after, fits = pay(spent, cost, budgets)
        used, risen = advance_units(spent - base, ticks, after - spent, tick_sizes[order][:, None])
        assert outcome.halted.tolist() == np.flatnonzero(admitted & ~fits).tolist()
        assert outcome.readmitted.tolist() == np.flatnonzero(~admitted & fits).tolist()
        assert outcome.raised[0].positions.tolist() == np.flatnonzero(risen != ticks).tolist()
        spent, base, ticks, admitted = after, after - used, risen, fits
        settled += users if isinstance(outcome.settled, slice) else outcome.settled.size
        halts += outcome.halted.size
    recurring.settle()
    assert (account.balances.spent == spent).all()
    assert (account.balances.base == base).all()
    assert (account.balances.ticks == ticks).all()
    assert halts > users / 2
    assert settled < users * 40


def test_a_step_at_which_nothing_happens_looks_at_nobody() -> None:
    users = 50_000
    account = BudgetAccount(AccountTerms((2**61,), (2**61,)), balances_of(users))
    recurring, _ = begun(account, np.arange(users), random_levels(users))
    assert recurring.step(table(account, np.arange(101))).settled == slice(0, users)
    for _ in range(50):
        outcome = recurring.step()
        assert not isinstance(outcome.settled, slice)
        assert not outcome.settled.size
    few = recurring.step(None, np.array([3, 7]), np.array([1, 2], dtype=np.uint8))
    assert np.asarray(few.settled).tolist() == [3, 7]


def test_a_user_takes_no_more_than_40_bytes() -> None:
    users = 400_000
    levels = random_levels(users)
    tracemalloc.start()
    try:
        account = BudgetAccount(AccountTerms((2**40,), (2**36,)), balances_of(users))
        recurring, _ = begun(account, np.arange(users), levels)
        charges = table(account, np.arange(101, dtype=np.int64) ** 2 * 2**20)
        for step in range(30):
            recurring.step(None if step else charges)
        used, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert used < 40 * users
