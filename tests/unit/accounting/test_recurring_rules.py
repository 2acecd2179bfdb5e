"""Recurring charges under the filters of the measures; memory."""

from __future__ import annotations

import tracemalloc
from collections.abc import Sequence

import numpy as np
import pytest

from accounting import (
    MEASURES,
    Gaussian,
    GdpFilter,
    PoissonGaussian,
    RenyiFilter,
    advance_units,
    best_order,
    candidate_orders,
)
from accounting.filters.account_terms import AccountCostTable, AccountTerms
from accounting.filters.admission import pay
from accounting.filters.recurring import BudgetAccount, RecurringCharge
from accounting.filters.roster_columns import HALTED
from tests.unit.accounting.step_by_step import Balances, Columns, slot_maps


def balances_of(users: int, columns: int | None = None) -> Balances:
    shape = (users,) if columns is None else (users, columns)
    return Balances(
        spent=np.zeros(shape, dtype=np.int64),
        base=np.zeros(shape, dtype=np.int64),
        ticks=np.ones(users, dtype=np.int64),
        order=np.zeros(users, dtype=np.uint8),
    )


def begun(
    account: BudgetAccount, slots: np.ndarray, levels: Sequence[int], *, clip: bool = False
) -> tuple[RecurringCharge, Columns]:
    columns = Columns(levels)
    return RecurringCharge([account], slot_maps([slots]), columns, clip=clip), columns


def table(account: BudgetAccount, units: object) -> list[AccountCostTable]:
    return [AccountCostTable(account.terms, np.asarray(units))]


def random_levels(users: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 101, users).astype(np.uint8)


def test_sampled_steps_are_charged_as_the_filter_of_the_per_user_order_charges() -> None:
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


@pytest.mark.parametrize("measure", ["gdp", "renyi"])
def test_the_filters_of_other_measures_say_the_same(measure: str) -> None:
    users, orders = 500, [2.0, 8.0, 32.0]
    if measure == "gdp":
        rule: GdpFilter | RenyiFilter = GdpFilter(1.0)
        charges = MEASURES["gdp"].cost_table(Gaussian(6.0), 1.0, 100)
        account = BudgetAccount(AccountTerms(rule.budget_units, (2**40,)), balances_of(users))
    else:
        rule = RenyiFilter(orders, [0.5, 1.7, 9.0])
        charges = MEASURES["renyi"].cost_table(PoissonGaussian(1.0, 0.2), 1.0, 100, orders)
        terms = AccountTerms(rule.budget_units, (2**40, 2**41, 2**42), "all")
        account = BudgetAccount(terms, balances_of(users, 3))
    levels = random_levels(users)
    recurring, columns = begun(account, np.arange(users), levels)
    state, admitted = rule.initial_state(users), np.ones(users, dtype=np.bool_)
    for step in range(120):
        outcome = recurring.step(None if step else table(account, charges))
        state, fits = rule.admit_units(state, charges[levels])
        assert outcome.halted.tolist() == np.flatnonzero(admitted & ~fits).tolist()
        assert (columns.flags & HALTED == 0).tolist() == fits.tolist()
        admitted = fits
    recurring.settle()
    assert (account.balances.spent == state).all()
    assert 0 < np.count_nonzero(admitted) < users


def test_under_clip_the_last_steps_are_of_ever_lower_levels_until_none_fits() -> None:
    account = BudgetAccount(AccountTerms((100,), (1000,)), balances_of(1))
    recurring, columns = begun(account, np.arange(1), [8], clip=True)
    charges = table(account, np.arange(9, dtype=np.int64) ** 2)
    granted = [int(columns.granted[0]) for _ in range(7) if recurring.step(charges)]
    assert granted == [8, 6, 0, 0, 0, 0, 0]
    account = BudgetAccount(AccountTerms((100,), (1000,)), balances_of(1))
    charges = table(account, [0, 3, 12, 27, 48, 75, 108, 147, 192])
    recurring, _ = begun(account, np.arange(1), [5], clip=True)
    outcomes = [recurring.step(charges) for _ in range(6)]
    assert [outcome.levels.tolist() for outcome in outcomes] == [[], [2], [], [], [], []]
    assert [outcome.halted.tolist() for outcome in outcomes] == [[], [], [], [0], [], []]
    assert account.balances.spent.tolist() == [75 + 12 + 12]


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


def test_balances_are_up_to_date_when_they_are_asked_for_and_not_before() -> None:
    account = BudgetAccount(AccountTerms((90,), (100,)), balances_of(6))
    recurring, _ = begun(account, np.array([4, 2]), [1, 3])
    for step in range(5):
        recurring.step(None if step else table(account, [0, 1, 2, 3]))
    assert account.balances.spent.tolist() == [0, 0, 3, 0, 1, 0]
    account.settle_for_write(slice(0, 3))
    assert account.balances.spent.tolist() == [0, 0, 15, 0, 1, 0]
    assert recurring.take_settled().tolist() == [1]
    account.settle_for_write(np.array([4, 4, 0]))
    assert account.balances.spent.tolist() == [0, 0, 15, 0, 5, 0]
    recurring.step()
    recurring.close()
    assert account.balances.spent.tolist() == [0, 0, 18, 0, 6, 0]
    assert account.recurring_charges == []


def all_anew(spent: list[int], levels: list[int]) -> tuple[BudgetAccount, RecurringCharge, Columns]:
    """A roster after a step that brought all levels; a level costs 1, the budget is 10."""
    account = BudgetAccount(AccountTerms((10,), (4,)), balances_of(4))
    account.balances.spent[:] = account.balances.base[:] = spent
    recurring, columns = begun(account, np.arange(len(levels)), [0] * len(levels))
    recurring.step(
        table(account, np.arange(4)), slice(0, len(levels)), np.array(levels, dtype=np.uint8)
    )
    return account, recurring, columns


def test_recurring_steps_continue_after_a_step_with_all_levels() -> None:
    account, recurring, _ = all_anew([0, 0, 0, 0], [0, 1, 2, 3])
    halted, settled = [], []
    for _ in range(12):
        outcome = recurring.step()
        halted.append(outcome.halted.tolist())
        settled.append(outcome.settled)
    # At cost 1, 2 and 3 the steps after the first that are paid for are 9, 4 and 2.
    assert halted == [[], [], [3], [], [2], [], [], [], [], [1], [], []]
    assert not any(isinstance(rows, slice) for rows in settled)
    assert any(not len(rows) for rows in settled)
    assert account.balances.spent.tolist() == [0, 10, 10, 9]


def test_after_all_levels_were_new_what_others_charge_is_looked_at() -> None:
    account, recurring, _ = all_anew([0, 0, 0, 0], [0, 1, 2, 3])
    account.settle_for_write(np.array([0]))
    account.balances.spent[0] = 10
    assert recurring.step().exhausted.tolist() == [0]


def test_after_all_levels_were_new_who_is_added_is_looked_at() -> None:
    _, recurring, columns = all_anew([0, 0, 0, 10], [1, 1, 1])
    columns.grow(1)
    recurring.enrol([np.array([3])], 0)
    assert recurring.step().exhausted.tolist() == [3]
