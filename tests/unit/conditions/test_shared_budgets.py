"""Budgets that runs, epochs and times share, and which counts of users only rise."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from itertools import product
from math import prod

import numpy as np
import pytest

from accounting import (
    MEASURES,
    Gaussian,
    GdpFilter,
    NormGrid,
    PoissonGaussian,
    ReportAccountant,
    gdp_to_delta,
)
from streams import Turnstile
from tests.unit.accounting.stopping import reached_delta

# --- A2: two unordered runs on one budget ---

USERS = 1000


def admitted(order: str, shares: dict[str, float]) -> dict[str, int]:
    """How many users each of two runs admits; a share of "both" is one that they draw on both."""
    rules = {name: GdpFilter(mu) for name, mu in shares.items()}
    states = {name: rule.initial_state(USERS) for name, rule in rules.items()}
    found = {}
    for run in order:
        name = run if run in rules else "both"
        states[name], can_pay = rules[name].admit(states[name], np.ones(USERS))
        found[run] = int(can_pay.sum())
    return found


def test_order_of_two_runs_on_one_budget_moves_every_user() -> None:
    """Which charge comes first may follow from how long a run computes, and so from data."""
    assert admitted("AB", {"both": 1.0}) == {"A": USERS, "B": 0}
    assert admitted("BA", {"both": 1.0}) == {"A": 0, "B": USERS}


def test_fixed_shares_of_the_budget_do_not_depend_on_the_order() -> None:
    shares = {"A": 1.0, "B": 1.0}  # of a budget of mu squared 2
    assert admitted("AB", shares) == admitted("BA", shares) == {"A": USERS, "B": USERS}


# --- A3: nested budgets protect through the outermost one ---


def release(ads: float, search: list[float]) -> np.ndarray:
    """Return the contributions of user 7 to each step of noise 1: one of `ads`, then `search`."""
    contributions = []
    with Turnstile.in_memory() as turnstile:
        turnstile.create_dataset("person", measure="gdp", budget=3.0)  # mu squared 9
        for name, budget, norms in (("ads", 1.0, [ads]), ("search", 3.0, search)):
            turnstile.create_dataset(name, measure="gdp", budget=budget, parents="person")
            run = turnstile.run(name, "r")
            for norm in norms:
                decision = run.charge([7], [norm], noise_stddev=1.0)
                contributions.append(norm * float(decision.admitted[0]))
            run.close()
    return np.array(contributions)


@pytest.mark.parametrize(
    ("search", "real"),
    [([1.0] * 9, 2.0), ([3.0] + [1.0] * 8, 18.0)],
    ids=["nine equal steps", "a large step and eight small ones"],
)
def test_inner_budget_does_not_bound_what_its_data_change(search, real) -> None:
    with_ads, without = release(1.0, search), release(0.0, search)
    assert with_ads[0] == 1.0  # all that ads was charged, of a budget of 1
    assert float(((with_ads - without) ** 2).sum()) == real > 1.0
    # The outermost budget holds, for all of the user's data: without any of them nothing is there.
    assert (with_ads**2).sum() <= 9.0
    assert (without**2).sum() <= 9.0


# --- A4: renewal ---


def contributions(steps: int, first: int) -> np.ndarray:
    """One event a step from `first` on, each of cost 1, with a budget of 1 for any two steps."""
    taken = np.zeros(steps)
    for step in range(first, steps):
        rule = GdpFilter(1.0)
        spent = np.array([int(2.0**44 * taken[max(step - 1, 0) : step].sum())])
        taken[step] = rule.admit(spent, np.ones(1))[1][0]
    return taken


@pytest.mark.parametrize("steps", [11, 101, 1001])
def test_a_budget_for_any_consecutive_steps_loses_without_end(steps: int) -> None:
    """Without the first event the others are admitted in the other half of the steps."""
    difference = contributions(steps, 0) - contributions(steps, 1)
    assert (difference**2).sum() == steps  # where one event was promised a mu squared of 1


def epochs_admitted(turnstile: Turnstile, days: dict[int, float], **policy: str) -> np.ndarray:
    """The contributions of one user to a release each day, two days to an epoch.

    Args:
        turnstile: a service.
        days: the norm of the user's events, by day; 0 where there are none.
        policy: the terms of each epoch besides a budget of mu squared 1.
    """
    taken = []
    for day, norm in days.items():
        epoch, query = f"ads.2026-{1 + day // 2:02}", f"day-{day}"
        turnstile.create_dataset(epoch, measure="gdp", budget=1.0, **policy)
        decision = turnstile.run(epoch, query).charge([7], [norm], noise_stddev=1.0)
        taken.append(norm * float(decision.admitted[0]))
        turnstile.close_run(epoch, query)
    return np.array(taken)


@pytest.mark.parametrize("removed", [0, 1, 2])
def test_what_one_epoch_changes_is_within_its_budget(removed: int) -> None:
    """A user has events of cost 0.6 every day, and one of two fits. Those of an epoch go."""
    days = dict.fromkeys(range(6), 0.6**0.5)
    others = {day: 0.0 if day // 2 == removed else norm for day, norm in days.items()}
    worlds = [epochs_admitted(Turnstile.in_memory(), each) for each in (days, others)]
    difference = worlds[0] - worlds[1]
    assert np.flatnonzero(difference).tolist() == [2 * removed]
    assert (difference**2).sum() == pytest.approx(0.6)


def test_epochs_that_share_a_budget_lose_more_than_one() -> None:
    """The rest of a parent's budget depends on all epochs: its whole budget is the guarantee."""
    worlds = []
    for first in (1.0, 0.0):
        turnstile = Turnstile.in_memory()
        turnstile.create_dataset("person", measure="gdp", budget=2.0**0.5)
        days = dict.fromkeys(range(0, 8, 2), 1.0) | {0: first}
        worlds.append(epochs_admitted(turnstile, days, parents="person"))
    assert [world.tolist() for world in worlds] == [[1, 1, 0, 0], [0, 1, 1, 0]]
    assert ((worlds[0] - worlds[1]) ** 2).sum() == 2.0  # the budget of one epoch is 1


RATE, EPSILON = 0.01, 1.0
GRID = np.linspace(-12.0, 60.0, 72_001)


def density(*parts: tuple[float, float]) -> np.ndarray:
    """A mixture of normal densities: (weight, mean)."""
    terms = [weight * np.exp(-0.5 * (GRID - mean) ** 2) for weight, mean in parts]
    return np.sum(terms, axis=0) / np.sqrt(2.0 * np.pi)


def delta(mixture: Callable[[float], np.ndarray]) -> float:
    """The larger delta between the outputs with the contribution of one epoch and without it."""
    with_epoch, without = mixture(1.0), mixture(0.0)
    step = GRID[1] - GRID[0]
    above = [
        np.maximum(p - np.exp(EPSILON) * q, 0.0).sum() * step
        for p, q in ((with_epoch, without), (without, with_epoch))
    ]
    return float(max(above))


OTHERS = 40.0  # what the user's other epochs contribute, in standard deviations of the noise


def test_epochs_of_one_user_that_share_a_coin_break_the_guarantee() -> None:
    """The other epochs show that the user was drawn: this one loses as without any sampling."""
    charged = float(ReportAccountant(PoissonGaussian(1.0, RATE), NormGrid(1.0, 1)).delta([1], 1.0))
    assert charged == pytest.approx(2.7e-9, rel=0.02)
    shared = delta(lambda norm: density((1 - RATE, 0.0), (RATE, OTHERS + norm)))
    assert shared == pytest.approx(RATE * gdp_to_delta(1.0, EPSILON), rel=1e-3)
    assert shared > 4e5 * charged
    own = delta(
        lambda norm: density(
            ((1 - RATE) ** 2, 0.0),
            ((1 - RATE) * RATE, norm),
            (RATE * (1 - RATE), OTHERS),
            (RATE**2, OTHERS + norm),
        )
    )
    assert own <= charged * (1 + 1e-3)


# --- A6: data that change while queries run ---


MECHANISMS, FAILURE = 8, Fraction(1, 64)


def seen(is_charged_first: bool) -> Fraction:
    """The probability that one user's datum is seen.

    Each mechanism fails with probability `FAILURE`, shows whether it has, and if so shows the next
    datum that it is given. The datum goes to the first mechanism that has failed.
    """
    total = Fraction(0)
    for failed in product((False, True), repeat=MECHANISMS):
        chance = prod((FAILURE if one else 1 - FAILURE for one in failed), start=Fraction(1))
        spent, admitted = Fraction(0), []
        for number in range(MECHANISMS):
            is_given = number == (failed.index(True) if True in failed else 0)
            can_pay = False
            if is_charged_first or is_given:
                can_pay = spent + FAILURE <= FAILURE  # the budget is one failure
                spent += FAILURE if can_pay else 0
            admitted.append(can_pay and is_given and failed[number])
        total += chance * any(admitted)
    return total


def test_charge_after_the_first_answer_is_too_small() -> None:
    """Parallel composition fails: each user pays for one mechanism, and is seen more often."""
    assert seen(is_charged_first=False) == 1 - (1 - FAILURE) ** MECHANISMS > 7 * FAILURE
    assert seen(is_charged_first=True) <= FAILURE


# --- A8: reports ---


def test_a_report_is_no_guarantee_where_outputs_decide_the_stop() -> None:
    steps, delta = 64, 1e-5
    accountant = ReportAccountant(Gaussian(8.0), NormGrid(1.0, 1))
    reported = accountant.epsilon(np.arange(1, steps + 1)[:, np.newaxis], delta)
    fixed_stop = [np.inf] * (steps - 1) + [float(reported[-1])]
    assert reached_delta(fixed_stop, 1.0) <= delta * 1.001
    assert reached_delta(reported.tolist(), 1.0) > 9 * delta
    # The any-time epsilon of what was charged, beside it.
    spent = np.sqrt(np.arange(1, steps + 1) / 64.0)[:, np.newaxis]
    shown = MEASURES["gdp"].epsilon(spent, delta, when="any time", budget=2**44)
    assert reached_delta(shown.tolist(), 1.0) <= delta


def test_only_the_number_of_exhausted_users_never_falls() -> None:
    """A halted user may be admitted to a later, cheaper step; an exhausted one may not."""
    halted, exhausted = [], []
    with Turnstile.in_memory() as turnstile:
        turnstile.create_dataset("d", measure="zcdp", budget=0.5)
        run = turnstile.run("d", "r")
        for norms in ([0.0, 0.5], [3.0, 4.0], [1.0, 0.1], [0.1, 3.0], [0.1, 0.1]):
            decision = run.charge([1, 2], norms, noise_stddev=1.0)
            halted.append(int((~decision.admitted).sum()))
            exhausted.append(int(decision.exhausted.sum()))
    assert halted == [0, 2, 0, 2, 1]
    assert exhausted == [0, 0, 1, 1, 1]
