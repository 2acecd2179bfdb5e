"""Nested datasets, as the README and two on-device budgeting systems have them.

On a device, what is protected is one week (an epoch) of a browser: here it is a user. A site that
asks is a dataset; what holds for all sites is its parent. Facts, not code, are
from

    w3c/attribution at 9fab4e8, impl/e2e-tests/single-epoch-budgeting.json and
    multi-epoch-budgeting.json: noise scale 2 x maxValue / epsilon, budgets 1 a site and 8 for all
    columbia/pdslib at 19102c4, src/budget/pure_dp_filter.rs and src/pds/tests.rs

Not carried over: quotas of the sites that showed an advertisement, of which a report has several at
once, so that they are no chain; and in one week the charge of the overall budget by twice the value
where the site's is by the L1 norm: both are charged by the same norm here.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from accounting import Laplace, PureDP
from accounting.exact.units import from_units_down
from streams.sdk.client import Turnstile
from streams.sdk.memory import MemoryConnection
from tests.readme import blocks_of_several_datasets

SLACK = 2.0**-40
"""Decimal fractions are rounded up to units when they are charged: for a few of them."""


class Budgets:
    """Datasets, the first one within nothing and each other one within the one before it."""

    def __init__(self, **budgets: float) -> None:
        self._service = MemoryConnection(2, 5.0)
        self.turnstile = Turnstile(connection=self._service)
        self._runs: dict[str, Any] = {}
        outer = None
        for name, budget in budgets.items():
            self.add(name, budget, outer)
            outer = name

    def add(self, name: str, budget: float, parent: str | None) -> None:
        self.turnstile.create_dataset(
            name,
            measure="pure-dp",
            budget=budget,
            parents=parent,
            assume_independent_timing=parent is None,
        )
        self._runs[name] = self.turnstile.run(name, "r")

    def charge(self, name: str, epochs: list[int], norm: float, mechanism: Any) -> list[int]:
        """The epochs that are admitted."""
        decided = self._runs[name].charge(epochs, np.full(len(epochs), norm), mechanism=mechanism)
        return [epoch for epoch, is_in in zip(epochs, decided.admitted, strict=True) if is_in]

    def left(self, name: str) -> dict[int, float]:
        """Of each epoch that was ever charged."""
        left = {}
        for ledger in self._service.ledgers:
            accounts = ledger.state.datasets[name]
            users, spent = accounts.spent_units()
            (budget,) = accounts.policy.budget
            left |= {
                int(u): float(from_units_down(budget - int(s)))
                for u, s in zip(users, spent, strict=True)
            }
        return left


SINGLE_EPOCH = [
    # site, epoch, L1 norm, admitted
    ("advertiser-1", 0, 4, True),  # a quarter of the budget
    ("advertiser-1", 0, 8, True),  # half of it
    ("advertiser-1", 0, 8, False),  # half of it, where a quarter is left
    ("advertiser-1", 0, 4, True),  # what was refused has cost nothing
    ("advertiser-2", 0, 4, True),  # every site has a budget of its own
    ("advertiser-1", 1, 4, True),  # and every epoch
]
MULTI_EPOCH = [
    # site, epochs with matching impressions, those that can still pay half of the budget
    ("advertiser-1", [-2, 0], [-2, 0]),
    ("advertiser-1", [-2, 0], [-2, 0]),
    ("advertiser-1", [-2, -1, 0], [-1]),
    ("advertiser-2", [-2, -1, 0], [-2, -1, 0]),
]


@pytest.fixture
def browser() -> Budgets:
    budgets = Budgets(everybody=8.0)
    for site in ("advertiser-1", "advertiser-2"):
        budgets.add(site, 1.0, "everybody")
    return budgets


def test_reports_of_one_epoch_are_paid_for_by_their_norm(browser: Budgets) -> None:
    for site, epoch, norm, is_admitted in SINGLE_EPOCH:
        admitted = browser.charge(site, [epoch], norm, Laplace(16.0))
        assert admitted == ([epoch] if is_admitted else [])


def test_reports_over_epochs_leave_out_those_that_cannot_pay(browser: Budgets) -> None:
    for site, epochs, able in MULTI_EPOCH:
        assert browser.charge(site, epochs, 8.0, Laplace(16.0)) == able
    assert browser.left("advertiser-1") == {-2: 0.0, -1: 0.5, 0: 0.0}
    assert browser.left("everybody") == {-2: 6.5, -1: 7.0, 0: 6.5}


def test_a_pure_dp_filter_refuses_what_does_not_fit() -> None:
    budgets = Budgets(filter=1.0)
    assert budgets.charge("filter", [1], 0.5, PureDP()) == [1]
    assert budgets.charge("filter", [1], 0.6, PureDP()) == []


def test_a_loss_is_charged_to_the_budgets_of_querier_trigger_and_everybody() -> None:
    budgets = Budgets(everybody=20.0, trigger=1.5, querier=1.0 + SLACK)
    for loss in (0.2, 0.3):
        assert budgets.charge("querier", [1, 2, 3], loss, PureDP()) == [1, 2, 3]
    remaining = {"querier": 0.5, "everybody": 19.5, "trigger": 1.0}
    for name, left in remaining.items():
        assert budgets.left(name) == pytest.approx(dict.fromkeys((1, 2, 3), left), abs=1e-9)
    assert budgets.charge("querier", [2, 3], 2.0, PureDP()) == []
    assert budgets.charge("querier", [3], 0.5, PureDP()) == [3]
    for name, left in remaining.items():
        assert budgets.left(name) == pytest.approx({1: left, 2: left, 3: left - 0.5}, abs=1e-9)


def test_no_budget_is_charged_where_one_is_too_small() -> None:
    budgets = Budgets(everybody=20.0, trigger=2.0, querier=1.0)
    assert budgets.charge("querier", [1], 0.5, PureDP()) == [1]
    before = {name: budgets.left(name) for name in ("everybody", "trigger", "querier")}
    assert budgets.charge("querier", [1], 0.7, PureDP()) == []
    assert {name: budgets.left(name) for name in before} == before
    (halt,) = budgets.turnstile.halts("querier", follow=False)
    assert halt.refused_by == "querier"


def test_the_example_of_the_readme_holds_one_budget_over_its_datasets() -> None:
    example, _ = blocks_of_several_datasets()
    with Turnstile.in_memory() as turnstile:
        exec(example, {"t": turnstile})
        decided = []
        for dataset in ("ads", "search", "person"):
            run = turnstile.run(dataset, "r")
            decided.append(run.charge([7], [1.0], noise_stddev=8.0).admitted.tolist())
            run.close()
        assert decided == [[True]] * 3
        refused = turnstile.run("ads", "again").charge([7], [1.0], noise_stddev=2.0)
        assert not refused.admitted.any()
        (halt,) = turnstile.halts("ads", follow=False)
        assert halt.refused_by in ("ads", "person")


def test_the_example_of_shares_is_charged_side_by_side() -> None:
    _, example = blocks_of_several_datasets()
    with Turnstile.in_memory() as turnstile:
        exec(example, {"t": turnstile})
        parts = ["everybody-ads", "everybody-search"]
        runs = [turnstile.run(part, "r") for part in parts]
        steps = [run.charge([7], [1.0], noise_stddev=8.0) for run in runs]
        assert [step.admitted.tolist() for step in steps] == [[True], [True]]
