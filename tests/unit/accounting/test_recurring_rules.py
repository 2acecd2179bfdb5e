"""Recurring charges under the filters of the measures; invalid arguments; memory."""

from __future__ import annotations

import tracemalloc
from dataclasses import dataclass

import numpy as np
import pytest

from accounting import (
    MEASURES,
    AccountTerms,
    BudgetAccount,
    Gaussian,
    GdpFilter,
    InvalidInput,
    PerUserOrderFilter,
    PoissonGaussian,
    RecurringCharge,
    RenyiFilter,
    advance_units,
    best_order,
    candidate_orders,
)
from accounting.filters.roster_columns import HALTED
from tests.unit.accounting.refusals import refused


@dataclass
class Balances:
    spent: np.ndarray
    base: np.ndarray
    ticks: np.ndarray
    order: np.ndarray


def balances_of(users: int, columns: int | None = None) -> Balances:
    shape = (users,) if columns is None else (users, columns)
    return Balances(
        spent=np.zeros(shape, dtype=np.int64),
        base=np.zeros(shape, dtype=np.int64),
        ticks=np.ones(users, dtype=np.int64),
        order=np.zeros(users, dtype=np.uint8),
    )


def random_levels(users: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 101, users).astype(np.uint8)


def test_sampled_steps_are_charged_as_the_filter_of_the_per_user_order_charges() -> None:
    users = 3000
    rule = PerUserOrderFilter(*candidate_orders(2.0, 1e-5))
    charges = MEASURES["renyi"].cost_table(PoissonGaussian(0.9, 0.03), 1.0, 100, rule.orders)
    levels = random_levels(users)
    order = best_order(charges, rule.budget_units)[levels]
    tick_sizes = np.array([budget // 7 for budget in rule.budget_units])
    account = BudgetAccount(
        AccountTerms(rule.budget_units, tuple(tick_sizes.tolist()), "per-user"), balances_of(users)
    )
    account.balances.order[:] = order
    recurring = RecurringCharge([account], [np.arange(users)], levels, 100)
    spent, base = rule.initial_state(users), rule.initial_state(users)
    ticks, admitted = np.ones(users, dtype=np.int64), np.ones(users, dtype=np.bool_)
    rng = np.random.default_rng(1)
    settled = halts = 0
    for step in range(400):
        listed = rng.choice(users, 20, replace=False)
        levels[listed] = rng.integers(0, 101, 20)
        outcome = recurring.step([charges] if step == 0 else None, listed, levels[listed])
        cost = charges[levels, order]
        after, fits = rule.admit_units(spent, order, cost)
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
    recurring = RecurringCharge([account], [np.arange(users)], levels, 100)
    state, admitted = rule.initial_state(users), np.ones(users, dtype=np.bool_)
    for step in range(120):
        outcome = recurring.step([charges] if step == 0 else None)
        state, fits = rule.admit_units(state, charges[levels])
        assert outcome.halted.tolist() == np.flatnonzero(admitted & ~fits).tolist()
        assert (recurring.columns().flags & HALTED == 0).tolist() == fits.tolist()
        admitted = fits
    recurring.settle()
    assert (account.balances.spent == state).all()
    assert 0 < np.count_nonzero(admitted) < users


def test_under_clip_the_last_steps_are_of_ever_lower_levels_until_none_fits() -> None:
    account = BudgetAccount(AccountTerms((100,), (1000,)), balances_of(1))
    recurring = RecurringCharge([account], [np.arange(1)], [8], 8, clip=True)
    charges = np.arange(9, dtype=np.int64) ** 2
    granted = [int(recurring.columns().granted[0]) for _ in range(7) if recurring.step([charges])]
    assert granted == [8, 6, 0, 0, 0, 0, 0]
    charges = np.array([0, 3, 12, 27, 48, 75, 108, 147, 192])
    account = BudgetAccount(AccountTerms((100,), (1000,)), balances_of(1))
    recurring = RecurringCharge([account], [np.arange(1)], [5], 8, clip=True)
    outcomes = [recurring.step([charges]) for _ in range(6)]
    assert [outcome.levels.tolist() for outcome in outcomes] == [[], [2], [], [], [], []]
    assert [outcome.halted.tolist() for outcome in outcomes] == [[], [], [], [0], [], []]
    assert account.balances.spent.tolist() == [75 + 12 + 12]


def test_a_step_at_which_nothing_happens_looks_at_nobody() -> None:
    users = 50_000
    account = BudgetAccount(AccountTerms((2**61,), (2**61,)), balances_of(users))
    recurring = RecurringCharge([account], [np.arange(users)], random_levels(users), 100)
    charges = np.arange(101, dtype=np.int64)
    assert recurring.step([charges]).settled == slice(0, users)
    for _ in range(50):
        outcome = recurring.step()
        assert not isinstance(outcome.settled, slice)
        assert not outcome.settled.size
    assert np.asarray(recurring.step(None, [3, 7], [1, 2]).settled).tolist() == [3, 7]


def test_a_user_takes_no_more_than_40_bytes() -> None:
    users = 400_000
    levels = random_levels(users)
    tracemalloc.start()
    try:
        account = BudgetAccount(AccountTerms((2**40,), (2**36,)), balances_of(users))
        recurring = RecurringCharge([account], [np.arange(users)], levels, 100)
        charges = np.arange(101, dtype=np.int64) ** 2 * 2**20
        for _ in range(30):
            recurring.step([charges])
        used, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert used < 40 * users


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ((None,), "cost_tables"),
        (([],), "cost_tables"),
        (([[0, 1, 2]],), "cost_table"),
        (([[0, 2, 1, 3]],), "cost_table"),
        (([[1, 2, 3, 4]],), "cost_table"),
        (([[[0], [1], [2], [3]]],), "cost_table"),
        (([[0, 1, 2, 3]], [0, 0], [1, 1]), "positions"),
        (([[0, 1, 2, 3]], [5], [1]), "positions"),
        (([[0, 1, 2, 3]], [-1], [1]), "positions"),
        (([[0, 1, 2, 3]], [0.5], [1]), "positions"),
        (([[0, 1, 2, 3]], [0], [4]), "levels"),
        (([[0, 1, 2, 3]], [0, 1], [1]), "positions"),
        (([[0, 1, 2, 3]], [0], None), "levels"),
        (([[0, 1, 2, 3]], None, [1]), "levels"),
    ],
)
def test_a_step_that_is_refused_leaves_no_trace(arguments: tuple, named: str) -> None:
    account = BudgetAccount(AccountTerms((9,), (4,)), balances_of(5))
    recurring = RecurringCharge([account], [np.arange(5)], [3] * 5, 3)
    with refused(named):
        recurring.step(*arguments)
    assert recurring.steps == 0
    assert recurring.columns().level.tolist() == [3] * 5
    assert not account.balances.spent.any()
    recurring.step([np.array([0, 1, 2, 3])])
    assert account.balances.spent.tolist() == [3] * 5


def test_rosters_that_are_none_are_refused() -> None:
    account = BudgetAccount(AccountTerms((9,), (4,)), balances_of(5))
    for slots, levels, highest in [
        ([np.array([0, 0])], [1, 1], 3),
        ([np.array([0, 3, 0])], [1, 1, 1], 3),
        ([np.array([-1])], [1], 3),
        ([np.array([2**31])], [1], 3),
        ([np.array([0.5])], [1], 3),
        ([np.array([0])], [4], 3),
        ([np.array([0])], [1, 1], 3),
        ([np.array([0])], [1], 256),
        ([], [1], 3),
    ]:
        with pytest.raises(InvalidInput):
            RecurringCharge([account], slots, levels, highest)
    with pytest.raises(InvalidInput):
        RecurringCharge([], [], [], 3)
    recurring = RecurringCharge([account], [np.arange(2)], [1, 1], 3)
    with refused("slots"):
        recurring.enrol([np.array([1])], [1])
    assert len(recurring) == 2


@pytest.mark.parametrize(
    "wrong",
    [
        {"granted": np.array([3, 2], dtype=np.uint8)},
        {"flags": np.array([4, 0], dtype=np.uint8)},
        {"since": np.array([3, 1])},
        {"since": np.array([1])},
        {"since": np.array([0, 0])},
        {"level": np.array([4, 0], dtype=np.uint8)},
    ],
)
def test_columns_that_no_roster_has_are_refused(wrong: dict[str, np.ndarray]) -> None:
    account = BudgetAccount(AccountTerms((10,), (4,)), balances_of(2))
    recurring = RecurringCharge([account], [np.arange(2)], [2, 1], 3)
    charges = [np.array([0, 1, 3, 5])]
    for _ in range(2):
        recurring.step(charges)
    recurring.settle()
    good = recurring.columns()
    recurring.close()
    columns = good._replace(**wrong)
    with pytest.raises(InvalidInput):
        RecurringCharge.restored(
            [account], [np.arange(2)], columns, 3, steps=2, cost_tables=charges
        )
    assert account.recurring_charges == []
    RecurringCharge.restored(
        [account], [np.arange(2)], good, 3, steps=2, cost_tables=charges
    ).step()
    assert account.balances.spent.tolist() == [9, 3]


def test_terms_that_are_none_are_refused() -> None:
    for arguments in [
        ((1,), (1,), "some"),
        ((1, 2), (1, 2), "none"),
        ((), (), "all"),
        ((1,), (0,), "none"),
        ((-1,), (1,), "none"),
        ((1, 2), (1,), "per-user"),
        ((1,) * 257, (1,) * 257, "per-user"),
        ((2**61 + 1,), (1,), "none"),
    ]:
        with pytest.raises(InvalidInput):
            AccountTerms(*arguments)


def test_a_roster_of_nobody_takes_steps() -> None:
    account = BudgetAccount(AccountTerms((9,), (4,)), balances_of(0))
    recurring = RecurringCharge([account], [np.arange(0)], [], 3)
    assert recurring.step([np.array([0, 1, 2, 3])]).halted.size == 0
    assert not isinstance(recurring.step().settled, slice)
    assert recurring.steps == 2


def test_balances_are_up_to_date_when_they_are_asked_for_and_not_before() -> None:
    account = BudgetAccount(AccountTerms((90,), (100,)), balances_of(6))
    recurring = RecurringCharge([account], [np.array([4, 2])], [1, 3], 3)
    for _ in range(5):
        recurring.step([np.array([0, 1, 2, 3])])
    assert account.balances.spent.tolist() == [0, 0, 3, 0, 1, 0]
    account.settle(slice(0, 3))
    assert account.balances.spent.tolist() == [0, 0, 15, 0, 1, 0]
    account.settle(np.array([4, 4, 0]))
    assert account.balances.spent.tolist() == [0, 0, 15, 0, 5, 0]
    recurring.step()
    recurring.close()
    assert account.balances.spent.tolist() == [0, 0, 18, 0, 6, 0]
    assert account.recurring_charges == []


def test_a_cost_table_that_its_caller_changes_later_is_charged_as_it_was() -> None:
    account = BudgetAccount(AccountTerms((90,), (100,)), balances_of(1))
    recurring = RecurringCharge([account], [np.arange(1)], [2], 2)
    costs = np.array([0, 1, 2])
    recurring.step([costs])
    costs[:] = [0, 30, 60]
    recurring.step()
    assert recurring.step([costs]).settled == slice(0, 1)
    recurring.settle()
    assert account.balances.spent.tolist() == [2 + 2 + 60]


def all_anew(spent: list[int], levels: list[int]) -> tuple[BudgetAccount, RecurringCharge]:
    """A roster after a step that brought all levels; a level costs 1, the budget is 10."""
    account = BudgetAccount(AccountTerms((10,), (4,)), balances_of(4))
    account.balances.spent[:] = account.balances.base[:] = spent
    members = np.arange(len(levels))
    recurring = RecurringCharge([account], [members], np.zeros(len(levels), dtype=np.uint8), 3)
    recurring.step([np.arange(4)], levels=np.array(levels, dtype=np.uint8))
    return account, recurring


def test_recurring_steps_continue_after_a_step_with_all_levels() -> None:
    account, recurring = all_anew([0, 0, 0, 0], [0, 1, 2, 3])
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
    account, recurring = all_anew([0, 0, 0, 0], [0, 1, 2, 3])
    account.settle_for_write(np.array([0]))
    account.balances.spent[0] = 10
    assert recurring.step().exhausted.tolist() == [0]


def test_after_all_levels_were_new_who_is_added_is_looked_at() -> None:
    _, recurring = all_anew([0, 0, 0, 10], [1, 1, 1])
    recurring.enrol([np.array([3])], np.zeros(1, dtype=np.uint8))
    assert recurring.step().exhausted.tolist() == [3]
