"""The budget cases of two on-device attribution systems, run against the service.

On a device, what is protected is an epoch (a week) of a browser: here it is a user, so a query over
several epochs charges several users. Each site that asks, each site that showed an advertisement,
and all of them together have a budget, and a report needs all that concern it: here they are the
parents of the report's dataset. Facts, not code, are from

    w3c/attribution at 9fab4e8: impl/e2e-tests/{single-epoch-budgeting,multi-epoch-budgeting,
    forget-one-site-conversions}.json and CONFIG.json; impl/src/backend.ts for quotas
    columbia/pdslib at 19102c4: src/budget/{pure_dp_filter,hashmap_filter_storage}.rs,
    src/pds/{tests,batch_pds,cross_report}.rs and tests/ppa_workflow.rs

Three things differ. In one epoch, W3C charges the site by the L1 norm, and the other budgets by
twice the value: here a step has one norm. A site's budget cannot be emptied alone
(clear-site-state.json): an erased user is halted everywhere. Budgets are not released over time,
and reports do not wait for that (release_filter.rs, and the later phases of batch_pds.rs): it would
be a budget that refills.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest

from accounting import Laplace, PureDP
from accounting.exact.units import from_units_down
from streams.sdk.client import Turnstile
from streams.sdk.memory_connection import MemoryConnection
from tests.spending import spent_units

SLACK = 2.0**-40
"""Decimal fractions are rounded up to units when they are charged: for a few of them."""


class Report(NamedTuple):
    """A report asked for, and the epochs whose budgets can pay for it."""

    budgets: str  # all that concern it, separated by spaces
    epochs: list[int]
    cost: float
    admitted: list[int]


class Device:
    """The budgets of a device, by the first part of their names.

    Args:
        capacities: the budget of each kind, such as ``site`` of ``site-advertiser-1``.
        mechanism: of the noise; with ``PureDP`` a cost is an epsilon.
    """

    def __init__(self, mechanism: Any, **capacities: float) -> None:
        self._service = MemoryConnection(2, 5.0)
        self.turnstile = Turnstile(connection=self._service)
        self._mechanism, self._capacities = mechanism, capacities
        self._runs: dict[str, Any] = {}

    def ask(self, report: Report) -> list[int]:
        """Charge a report, and return the admitted epochs."""
        names = sorted(report.budgets.split())
        for name in names:
            self._create(name, self._capacities[name.split("-")[0]])
        own = ".".join(["report", *names])
        if own not in self._runs:
            self._create(own, 1e3, parents=names)
            self._runs[own] = self.turnstile.run(own, "r")
        norms = np.full(len(report.epochs), report.cost)
        decided = self._runs[own].charge(report.epochs, norms, mechanism=self._mechanism)
        return [
            epoch for epoch, is_in in zip(report.epochs, decided.admitted, strict=True) if is_in
        ]

    def left(self, name: str) -> dict[int, float]:
        """Return what is left of a budget, for each epoch that was charged or asked for."""
        left = {}
        for ledger in self._service.ledgers:
            accounts = ledger.state.datasets[name]
            users, spent = spent_units(accounts)
            (budget,) = accounts.policy.budget
            left |= {
                int(u): float(from_units_down(budget - int(s)))
                for u, s in zip(users, spent, strict=True)
            }
        return left

    def _create(self, name: str, budget: float, **parents: Any) -> None:
        self.turnstile.create_dataset(
            name,
            measure="pure-dp",
            budget=budget,
            assume_independent_timing=not parents,
            **parents,
        )


W3C = {"site": 1.0, "global": 8.0, "quota": 4.0}
"""Budgets of CONFIG.json, per epoch. The noise scale is 2 x maxValue / epsilon = 16."""
ONE, TWO = (f"global quota-publisher site-advertiser-{number}" for number in (1, 2))
W3C_CASES = {
    "single-epoch-budgeting": [
        Report(ONE, [0], 4, [0]),  # a quarter of the budget
        Report(ONE, [0], 8, [0]),  # half of it
        Report(ONE, [0], 8, []),  # half of it, where a quarter is left
        Report(ONE, [0], 4, [0]),  # a refused report has cost nothing
        Report(TWO, [0], 4, [0]),  # every site has a budget of its own
        Report(ONE, [1], 4, [1]),  # and every epoch
    ],
    "multi-epoch-budgeting": [
        Report(ONE, [-2, 0], 8, [-2, 0]),
        Report(ONE, [-2, 0], 8, [-2, 0]),
        Report(ONE, [-2, -1, 0], 8, [-1]),  # the others have nothing left
        Report(TWO, [-2, -1, 0], 8, [-2, -1, 0]),
    ],
    "the quota of an impression site (backend.ts)": [
        *(Report(f"global quota-news site-shop-{n}", [0], 16, [0]) for n in range(4)),
        Report("global quota-news site-shop-4", [0], 16, []),
        Report("global quota-blog quota-news site-shop-4", [0], 16, []),  # every quota is needed
        Report("global quota-blog site-shop-4", [0], 16, [0]),  # nothing was deducted before
    ],
    "the budget of all sites (backend.ts)": [
        *(Report(f"global quota-{n // 4} site-shop-{n}", [0], 16, [0]) for n in range(8)),
        Report("global quota-9 site-shop-9", [0], 1, []),
        Report("global quota-9 site-shop-9", [1], 1, [1]),
    ],
}


@pytest.mark.parametrize("case", W3C_CASES)
def test_w3c_reports_are_paid_by_all_budgets_or_none(case: str) -> None:
    device = Device(Laplace(16.0), **W3C)
    assert [device.ask(report) for report in W3C_CASES[case]] == [
        report.admitted for report in W3C_CASES[case]
    ]


def test_w3c_budgets_are_deducted_once_for_each_report() -> None:
    device = Device(Laplace(16.0), **W3C)
    for report in W3C_CASES["multi-epoch-budgeting"]:
        device.ask(report)
    assert device.left("site-advertiser-1") == {-2: 0.0, -1: 0.5, 0: 0.0}
    assert device.left("quota-publisher") == {-2: 2.5, -1: 3.0, 0: 2.5}
    assert device.left("global") == {-2: 6.5, -1: 7.0, 0: 6.5}


def test_forgotten_epoch_is_off_limits_for_every_site() -> None:
    device = Device(Laplace(20.0), **W3C)
    assert device.ask(Report(ONE, [0], 2, [0])) == [0]
    device.turnstile.erase(0, "site-advertiser-1")
    for site in (ONE, TWO):
        assert device.ask(Report(site, [0, 1], 2, [1])) == [1]


PDSLIB = {"querier": 1.0 + SLACK, "global": 20.0, "trigger": 1.5, "source": 5.0}
ALL = "global querier-1 trigger-shoes"
PDSLIB_CASES = {
    "pure_dp_filter.rs": [Report("querier-1", [1], 0.5, [1]), Report("querier-1", [1], 0.6, [])],
    "hashmap_filter_storage.rs": [
        Report("global", [1], 10.0, [1]),
        Report("global", [1], 11.0, []),
    ],
    "tests.rs: passive loss": [
        Report(ALL, [1, 2, 3], 0.2, [1, 2, 3]),
        Report(ALL, [1, 2, 3], 0.3, [1, 2, 3]),
        Report(ALL, [2, 3], 2.0, []),
        Report(ALL, [3], 0.5, [3]),
    ],
    "tests.rs: rollback": [
        Report("querier-1", [1], 0.5, [1]),
        Report("global querier-1 querier-2 source-blog trigger-shoes", [1], 0.7, []),
    ],
    "batch_pds.rs: utilization, online phase": [
        *(
            Report(f"global querier-{n} source-news trigger-{n}", [1], 0.9 + 0.01 * n, [1])
            for n in range(1, 6)
        ),
        *(
            Report(f"global querier-{n} source-news trigger-{n}", [1], 0.9 + 0.01 * n, [])
            for n in range(6, 10)
        ),
        Report("global querier-hats source-blog trigger-hats", [1], 0.96, [1]),
    ],
    "cross_report.rs: last touch": [
        Report("querier-1", [2], 1.0, [2]),  # nothing is left of it
        Report(f"{ALL} source-blog", [1, 2], 0.5, [1]),
    ],
    "cross_report.rs: one report for several queriers": [
        Report("global querier-1 querier-2 querier-3 source-blog trigger-shoes", [1], 0.5, [1]),
    ],
    "ppa_workflow.rs": [Report(f"{ALL} source-blog", [1], 0.7, [1])],
}
PDSLIB_LEFT: dict[str, dict[str, dict[int, float]]] = {
    "tests.rs: passive loss": {
        "querier-1": {1: 0.5, 2: 0.5, 3: 0.0},
        "global": {1: 19.5, 2: 19.5, 3: 19.0},
        "trigger-shoes": {1: 1.0, 2: 1.0, 3: 0.5},
    },
    "tests.rs: rollback": {
        "querier-1": {1: 0.5},
        "querier-2": {1: 1.0},
        "global": {1: 20.0},
        "source-blog": {1: 5.0},
        "trigger-shoes": {1: 1.5},
    },
    "cross_report.rs: last touch": {"querier-1": {1: 0.5, 2: 0.0}, "global": {1: 19.5, 2: 20.0}},
    "cross_report.rs: one report for several queriers": {
        **{f"querier-{number}": {1: 0.5} for number in (1, 2, 3)},
        "global": {1: 19.5},
    },
}


@pytest.mark.parametrize("case", PDSLIB_CASES)
def test_reports_of_pdslib_are_paid_for_by_all_budgets_or_none(case: str) -> None:
    device = Device(PureDP(), **PDSLIB)
    assert [device.ask(report) for report in PDSLIB_CASES[case]] == [
        report.admitted for report in PDSLIB_CASES[case]
    ]
    for name, left in PDSLIB_LEFT.get(case, {}).items():
        assert device.left(name) == pytest.approx(left, abs=1e-9)


def test_rejected_report_names_the_first_budget_too_small() -> None:
    device = Device(PureDP(), **PDSLIB)
    for report in PDSLIB_CASES["tests.rs: rollback"]:
        device.ask(report)
    dataset = "report.global.querier-1.querier-2.source-blog.trigger-shoes"
    (halt,) = device.turnstile.halts(dataset, follow=False)
    assert (halt.refused_by, halt.user) == ("querier-1", 1)
