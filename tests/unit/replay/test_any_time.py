"""Every any-time epsilon holds at every stopping time."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from accounting import candidate_orders
from streams import Turnstile
from streams.replay.explain import AccountEvent, explain
from streams.replay.report import report
from tests.unit.accounting.stopping import reached_delta
from tests.unit.replay.cli import command_on
from tests.unit.replay.service import Archived, new_service

DELTA = 1e-5
ORDERS = [3.0, 5.0, 9.0, 17.0]
LADDER = candidate_orders(4.0, DELTA)
BEST = int(np.argmax(LADDER.budgets / LADDER.orders))  # the order that Gaussian steps are bound to

# Name: terms of the dataset, mu squared of all steps, and their number.
CASES: dict[str, tuple[dict[str, Any], float, int]] = {
    "gdp, 8 ticks": ({"measure": "gdp", "budget": 1.0}, 1.0, 8),
    "zcdp, 64 ticks": ({"measure": "zcdp", "budget": 0.5, "odometer_step": 1 / 128}, 1.0, 64),
    "several orders": (
        {
            "measure": "renyi",
            "orders": ORDERS,
            "budget": [order / 2 for order in ORDERS],
            "sampled_levels": False,
        },
        1.0,
        16,
    ),
    "per-user order": (
        {"measure": "renyi", "epsilon": 4.0, "delta": DELTA, "sampled_levels": False},
        2.0 * float(LADDER.budgets[BEST] / LADDER.orders[BEST]),
        64,
    ),
}
each_case = pytest.mark.parametrize(("terms", "mu_squared", "steps"), CASES.values(), ids=CASES)


def noise_for(mu_squared: float, steps: int) -> float:
    """A little more than what fills the budget, because charges are rounded up."""
    return math.sqrt(steps / mu_squared) * (1 + 1e-7)


@each_case
def test_no_stopping_rule_exceeds_delta_by_odometer_records(terms, mu_squared, steps) -> None:
    shown = []
    with Turnstile.in_memory() as turnstile:
        policy = turnstile.create_dataset("d", **terms)
        run = turnstile.run("d", "r")
        for _ in range(steps):
            decision = run.charge([7], [1.0], noise_stddev=noise_for(mu_squared, steps))
            assert decision.admitted.all()
            records = list(turnstile.odometer("d", follow=False))
            last = records[-1].epsilon(policy, DELTA) if records else policy.first_epsilon(DELTA)
            shown.append(last)
    assert reached_delta(shown, mu_squared) <= DELTA


@each_case
def test_report_has_both_epsilons(terms, mu_squared, steps) -> None:
    archived, turnstile = new_service(1)
    policy = turnstile.create_dataset("d", **terms)
    run = turnstile.run("d", "r")
    for norms in ([1.0, 0.5, 0.0], [1.0, 0.1, 0.0]):
        run.charge([7, 8, 9], norms, noise_stddev=noise_for(mu_squared, steps))
    (losses,) = report(archived, delta=DELTA).losses
    for user, found in zip(losses.users, losses.any_time_epsilon, strict=True):
        (*_, last) = explain(archived, user, delta=DELTA).events
        (share,) = last.budgets
        budget = {"when": "any time", "budget": policy.budget[0]}
        assert found == share.epsilon
        assert found == policy.row.epsilon(share.spent, DELTA, share.orders or None, **budget)
        assert last.budgets[0].budget_epsilon >= policy.epsilon(DELTA) * 0.5
    assert (losses.any_time_epsilon[:2] > losses.epsilon[:2]).all()
    assert losses.any_time_epsilon[2] == losses.epsilon[2] == 0.0


# --- levels that may follow sampling coins ---


def sampled(turnstile: Turnstile, **stated: Any) -> None:
    for name, terms in (
        ("person", {"measure": "renyi", "epsilon": 9.0, "delta": DELTA}),
        ("f", {"measure": "renyi", "epsilon": 8.0, "delta": DELTA, "parents": ["person"]}),
        ("g", {"budget": 1.0, "parents": ["person"]}),
        ("other", {"budget": 1.0}),
    ):
        turnstile.create_dataset(name, **terms, **stated)
    turnstile.run("other", "r").charge([1], [0.5], noise_stddev=4.0)
    turnstile.run("g", "r").charge([1], [0.5], noise_stddev=4.0)
    roster = turnstile.run("f", "s", take_over=True).enrol([1, 2], clip_norm=1.0, levels=4)
    for _ in range(2):  # no level moves, and after other coins one might have
        roster.charge(noise_stddev=2.0, sampling_rate=0.1)
    turnstile.run("g", "s", take_over=True).charge([1], [0.5], noise_stddev=4.0)


def epsilons(archived: Archived, user: int) -> list[tuple[str, bool]]:
    events: list[AccountEvent] = list(explain(archived, user, delta=DELTA).events)
    return [
        (f"{event.dataset} {event.what}", any(one.epsilon is not None for one in event.budgets))
        for event in events
    ]


def test_only_the_budget_is_shown_after_a_sampled_step() -> None:
    archived, turnstile = new_service(1)
    sampled(turnstile)
    assert epsilons(archived, 1) == [
        ("other charged", True),
        ("g charged", True),
        ("f enrolled", True),
        ("f charged", False),
        ("f charged", False),
        ("g charged", False),
    ]
    (*_, last) = explain(archived, 1, delta=DELTA).events
    assert [one.budget_epsilon > 0.0 for one in last.budgets] == [True, True]
    said = [line["budgets"][0] for line in command_on(archived, *EXPLAIN).lines]
    assert [one["epsilon"] is None for one in said] == [False] * 3 + [True] * 3
    denied, turnstile = new_service(1)
    sampled(turnstile, sampled_levels=False)
    assert all(shown for _, shown in epsilons(denied, 1))


def test_only_the_budget_is_shown_with_sampled_levels() -> None:
    archived, turnstile = new_service(1)
    turnstile.create_dataset("d", measure="zcdp", budget=1.0, sampled_levels=True)
    turnstile.run("d", "r").charge([1], [0.5], noise_stddev=4.0)  # the coins were another service's
    assert epsilons(archived, 1) == [("d charged", False)]
    (losses,) = report(archived, delta=DELTA).losses
    assert np.isnan(losses.any_time_epsilon).all()


EXPLAIN = ("explain", "--user", "1", "--delta", "1e-5", "--json")


def test_only_the_budget_is_shown_if_trimmed_steps_may_be_sampled() -> None:
    archived, turnstile = new_service(1)
    sampled(turnstile)
    archived.draw(0)
    archived.trim("norms", 0, archived.extent("norms", 0).end)
    turnstile.run("other", "s", take_over=True).charge([1], [0.5], noise_stddev=4.0)
    shown = dict(epsilons(archived, 1))
    assert shown == {
        "person earlier": False,
        "f earlier": False,
        "g earlier": False,
        "other earlier": True,
        "other charged": True,
    }


@pytest.mark.parametrize("is_denied", [False, True])
def test_report_hides_any_time_epsilon_with_sampled_levels(
    is_denied: bool,
) -> None:
    archived, turnstile = new_service(1)
    sampled(turnstile, **({"sampled_levels": False} if is_denied else {}))
    for name, is_sampled in (("f", True), ("other", False)):
        losses = report(archived, delta=DELTA, dataset=name).losses
        known = np.isfinite(losses[0].any_time_epsilon)
        assert (known == (is_denied or not is_sampled)).all()
    lines = command_on(archived, "report", "f", "--json").lines
    assert [line["any_time_epsilon"] is None for line in lines] == [not is_denied] * 2
