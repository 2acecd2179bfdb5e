"""Recurring charges equal charging every user at every step, also at one order per user."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accounting import (
    PoissonGaussian,
    best_order,
    candidate_orders,
    renyi_budgets,
    renyi_cost,
    renyi_to_delta,
)
from accounting.filters import due_steps
from accounting.filters.account_terms import AccountCostTable, AccountTerms, Orders
from accounting.filters.due_steps import NEVER, DueSteps
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


# ----------------------------------------------------------------------------- time and memory


def account_of(users: int, budget: int, tick_size: int) -> BudgetAccount:
    spent, base = np.zeros((2, users), dtype=np.int64)
    order = np.zeros(users, dtype=np.uint8)
    balances = Balances(spent, base, np.ones(users, dtype=np.int64), order)
    return BudgetAccount(AccountTerms((budget,), (tick_size,)), balances)


def begun(users: int, budget: int, tick_size: int) -> tuple[BudgetAccount, RecurringCharge]:
    """Return an account and a roster of all its users, with random levels."""
    account = account_of(users, budget, tick_size)
    levels = np.random.default_rng(0).integers(0, 101, users).astype(np.uint8)
    return account, RecurringCharge([account], slot_maps([np.arange(users)]), Columns(levels))


def test_balances_are_settled_for_writes_and_at_the_close() -> None:
    account = account_of(6, 90, 100)
    recurring = RecurringCharge([account], slot_maps([np.array([4, 2])]), Columns([1, 3]))
    for step in range(5):
        recurring.step(None if step else [AccountCostTable(account.terms, np.arange(4))])
    account.settle_for_write(slice(0, 3))
    assert account.balances.spent.tolist() == [0, 0, 15, 0, 1, 0]
    assert recurring.take_settled().tolist() == [1]
    assert not recurring.take_settled().size
    recurring.step()
    recurring.close()
    assert account.balances.spent.tolist() == [0, 0, 18, 0, 6, 0]
    assert account.recurring_charges == []


def test_a_step_at_which_nothing_happens_looks_at_nobody() -> None:
    account, recurring = begun(50_000, 2**61, 2**61)
    table = [AccountCostTable(account.terms, np.arange(101))]
    assert recurring.step(table).settled == slice(0, 50_000)
    for _ in range(50):
        outcome = recurring.step()
        assert not isinstance(outcome.settled, slice)
        assert not outcome.settled.size
    few = recurring.step(None, np.array([3, 7]), np.array([1, 2], dtype=np.uint8))
    assert np.asarray(few.settled).tolist() == [3, 7]


def test_a_user_takes_no_more_than_40_bytes() -> None:
    tracemalloc.start()
    try:
        account, recurring = begun(400_000, 2**40, 2**36)
        table = [AccountCostTable(account.terms, np.arange(101, dtype=np.int64) ** 2 * 2**20)]
        for step in range(30):
            recurring.step(None if step else table)
        used, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert used < 40 * 400_000


@given(st.data())
def test_the_calendar_finds_who_is_due_and_nobody_else(data: st.DataObject) -> None:
    rows = data.draw(st.integers(1, 200))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    queue, due = DueSteps(), np.full(rows, 1, dtype=np.int64)
    queue.extend(rows, 1)
    for step in range(1, data.draw(st.integers(2, 60))):
        found = queue.take(step)
        assert found.tolist() == np.flatnonzero(due == step).tolist()
        moved = np.union1d(found, rng.choice(rows, data.draw(st.integers(0, 3))))
        reach = data.draw(st.sampled_from([1, 5, 2000]))
        later = step + rng.integers(1, reach + 1, moved.size)
        later[rng.random(moved.size) < 0.2] = NEVER
        due[moved] = later
        queue.put(moved, later.astype(np.uint32))


units = st.integers(0, 2**61)


@given(st.lists(st.lists(st.integers(0, 2**62), min_size=3, max_size=3)), st.tuples(*[units] * 3))
def test_the_per_user_order_admits_most_steps_of_the_charge(
    rows: list[list[int]], budgets: tuple[int, ...]
) -> None:
    costs = np.array(rows, dtype=np.int64).reshape(-1, 3)
    chosen = best_order(costs, budgets)
    assert chosen.dtype == np.uint8
    for row, index in zip(rows, chosen.tolist(), strict=True):
        steps = [budget // max(cost, 1) for budget, cost in zip(budgets, row, strict=True)]
        assert steps[index] == max(steps)
        quotients = [float(b) / float(max(c, 1)) for b, c in zip(budgets, row, strict=True)]
        level = [q if s == max(steps) else -1.0 for q, s in zip(quotients, steps, strict=True)]
        assert index == level.index(max(level))


@pytest.mark.parametrize("epsilon", [0.01, 1.0, 8.0, 100.0])
@pytest.mark.parametrize("delta", [1e-9, 1e-5, 0.1])
def test_every_rung_of_the_ladder_alone_implies_the_target(epsilon: float, delta: float) -> None:
    ladder = candidate_orders(epsilon, delta)
    assert 8 <= ladder.orders.size <= 32
    assert (np.diff(ladder.orders) > 0.0).all()
    assert (ladder.budgets == renyi_budgets(epsilon, delta, ladder.orders)).all()
    for order, budget in zip(*ladder, strict=True):
        assert budget > 0.0
        assert renyi_to_delta([order], [budget], epsilon) <= delta


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 8.0])
def test_the_ladder_admits_nearly_as_many_steps_as_any_order(epsilon: float) -> None:
    ladder = candidate_orders(epsilon, 1e-5)
    orders = 1.0 + np.exp2(np.arange(-6 * 16, 10 * 16) / 16.0)
    budgets = renyi_budgets(epsilon, 1e-5, orders)
    for noise, rate in [(0.5, 1e-3), (0.8, 1e-3), (1.1, 1e-2), (5.0, 1.0)]:
        mechanism, norms = PoissonGaussian(noise, rate), [0.02, 0.1, 0.3, 1.0]
        best = (budgets / renyi_cost(mechanism, norms, orders)).max(axis=1)
        ours = (ladder.budgets / renyi_cost(mechanism, norms, ladder.orders)).max(axis=1)
        assert ((ours >= 0.98 * best) | (best < 50)).all()
