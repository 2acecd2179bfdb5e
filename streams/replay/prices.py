"""Cost tables, computed again: what the log says a step of a roster costs at every level.

A roster's cost table comes with the log, because what computes it needs exp and log, whose last
digits differ between machines. A ledger checks that it is one, and not that it is the right one: a
trainer that sends units of another noise is believed. Here the price is computed from the
mechanism, the scale and the rate that the same record names, and from the clip norm, the levels and
the policies that it is charged under.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from accounting import InvalidInput, Mechanism, PoissonGaussian
from streams.ledger.ledger import Ledger
from streams.ledger.policies import MECHANISMS
from streams.records import ChargeRoster, Policy
from streams.replay.findings import Check, Findings
from streams.sdk.arguments import price
from streams.sdk.errors import InvalidRequest

_KEPT_COST_TABLES = 256


def mechanism_of(charge: ChargeRoster) -> Mechanism:
    """The mechanism that a step of a roster names."""
    if charge.mechanism == "poisson-gaussian":
        return PoissonGaussian(charge.scale, charge.sampling_rate)
    return MECHANISMS[charge.mechanism](charge.scale)


class Prices:
    """Of all partitions, whose steps are mostly the same."""

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[Any, ...], bytes | str] = OrderedDict()

    def check(self, offset: int, charge: ChargeRoster, ledger: Ledger, findings: Findings) -> None:
        """Compare what a step charges, which the ledger has just applied."""
        terms = ledger.state.rosters[charge.address]
        policies = ledger.state.policies.budgets(charge.dataset).policies
        key = (
            (charge.mechanism, charge.scale, charge.sampling_rate),
            (terms.clip_norm, terms.levels),
            *((policy.dataset, policy.measure, *policy.orders) for policy in policies),
        )
        units = self._known.get(key)
        if units is None:
            units = self._known[key] = self._price(charge, terms.clip_norm, terms.levels, policies)
        self._known.move_to_end(key)
        if len(self._known) > _KEPT_COST_TABLES:
            self._known.popitem(last=False)
        if units != terms.units:
            _say(findings, offset, charge, policies, (units, terms.units))

    def _price(
        self, charge: ChargeRoster, clip_norm: float, levels: int, policies: list[Policy]
    ) -> bytes | str:
        """The units of the cost table, or why there is none."""
        try:
            return price(mechanism_of(charge), policies, clip_norm, levels).units
        except (InvalidInput, InvalidRequest) as error:
            return str(error)


def _say(
    findings: Findings,
    offset: int,
    charge: ChargeRoster,
    policies: list[Policy],
    units: tuple[bytes | str, bytes],
) -> None:
    """Say what a step should have charged, of ``units`` as computed and as charged."""
    computed, charged = units
    about = {
        "dataset": charge.dataset,
        "run": charge.run,
        "step": charge.step,
        "mechanism": charge.mechanism,
        "scale": charge.scale,
        "sampling rate": charge.sampling_rate,
    }
    if isinstance(computed, str):
        problem = f"no price can be computed for this step: {computed}"
        findings.add(Check.COST_TABLES, problem, offset=offset, about=about)
        return
    expected, found = (np.frombuffer(units, dtype="<i8") for units in (computed, charged))
    below = bool((found < expected).any())
    problem = (
        "the step was charged less than its mechanism costs"
        if below
        else "the step was charged more than this version computes"
    )
    at = int(np.flatnonzero(found < expected if below else found > expected)[0])
    findings.add(
        Check.COST_TABLES,
        problem,
        offset=offset,
        about={**about, **_entry(at, policies, expected)},
        expected=int(expected[at]),
        found=int(found[at]),
    )


def _entry(at: int, policies: list[Policy], units: NDArray[np.int64]) -> Mapping[str, Any]:
    """Of which level, order and budget an entry of a cost table is."""
    levels = len(units) // sum(len(policy.budget) for policy in policies)
    for policy in policies:
        orders = len(policy.budget)
        if at < levels * orders:
            order = {"order": policy.orders[at % orders]} if policy.orders else {}
            return {"level": at // orders, **order, "budget of": policy.dataset}
        at -= levels * orders
    raise AssertionError("the entry is of one of the budgets")
