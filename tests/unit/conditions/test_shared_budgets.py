"""Runs that share a budget, and budgets within one another."""

from __future__ import annotations

import numpy as np
import pytest

from accounting import GdpFilter
from streams import Turnstile

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


def release(steps: list[tuple[str, float]], has_ads: bool) -> np.ndarray:
    """What user 7 contributes to each step of noise 1, with or without data in `ads`."""
    with Turnstile.in_memory() as turnstile:
        turnstile.create_dataset("person", measure="gdp", budget=3.0)  # mu squared 9
        turnstile.create_dataset("ads", measure="gdp", budget=1.0, parents="person")
        turnstile.create_dataset("search", measure="gdp", budget=3.0, parents="person")
        contributions = []
        run, dataset = None, ""
        for name, norm in steps:
            if name != dataset:
                if run is not None:
                    run.close()
                run, dataset = turnstile.run(name, f"of-{name}"), name
            assert run is not None
            asked = norm if name == "search" or has_ads else 0.0
            decision = run.charge([7], [asked], noise_stddev=1.0)
            contributions.append(asked if decision.admitted[0] else 0.0)
    return np.array(contributions)


@pytest.mark.parametrize(
    ("search", "real"),
    [([1.0] * 9, 2.0), ([3.0] + [1.0] * 8, 18.0)],
    ids=["nine equal steps", "a large step and eight small ones"],
)
def test_inner_budget_does_not_bound_what_its_data_change(search, real) -> None:
    steps = [("ads", 1.0), *(("search", norm) for norm in search)]
    with_ads, without = release(steps, True), release(steps, False)
    assert with_ads[0] == 1.0  # all that ads was charged, of a budget of 1
    assert float(((with_ads - without) ** 2).sum()) == real > 1.0
    # The outermost budget holds, for all of the user's data: without any of them nothing is there.
    assert (with_ads**2).sum() <= 9.0
    assert (without**2).sum() <= 9.0
