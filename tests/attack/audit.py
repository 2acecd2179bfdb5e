"""The attack on one scenario: many runs, and the lower bounds from them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from accounting import Measure, curve_risk
from streams.records import Policy
from tests.attack.bounds import (
    Rates,
    best_attack,
    gaussian_of,
    ratio_of,
)
from tests.attack.scenarios import Group, Scenario

ERROR: Final = 1e-5
"""The probability with which each bound from many runs is too large."""

_LARGEST: Final = 10.0  # power of two, of the members of a family
_BISECTIONS: Final = 12
_SHARES: Final = (0.03, 0.1, 0.3, 1.0, 3.0)
"""Deltas at which a curve is evaluated, as multiples of the false-positive rate."""


class Effort(NamedTuple):
    """How much is run.

    Attributes:
        runs: with `canaries` each; the first quarter chooses the attack, the others judge it.
        canaries: of each run.
    """

    runs: int
    canaries: int


class Found(NamedTuple):
    """Lower bounds on the epsilon of a scenario from the canaries of one group.

    Attributes:
        scenario, group: their names.
        lasted: the step after which no canary was in.
        claimed: epsilon at the claimed delta.
        ratio: from the definition of (epsilon, delta)-DP.
        curve: from the curve of so many steps as the canary's own, or of Gaussian DP.
        is_allowed: whether the curve of the claimed budget allows the attack's rates.
    """

    scenario: str
    group: str
    lasted: int
    claimed: float
    ratio: float
    curve: float
    is_allowed: bool

    @property
    def exceeds(self) -> bool:
        """Return whether the attacker does better than the claim allows."""
        return max(self.ratio, self.curve) > self.claimed or not self.is_allowed


class _Scored(NamedTuple):
    scores: NDArray[np.float64]
    inside: NDArray[np.bool_]


def attack(scenario: Scenario, seed: int, effort: Effort) -> list[Found]:
    """Return the lower bounds for each group of canaries."""
    rng = np.random.default_rng(seed)
    runs = [scenario.run(rng, effort.canaries) for _ in range(effort.runs)]
    policy, last = runs[-1]
    calibration = max(1, effort.runs // 4)
    return [
        _bounds(
            scenario,
            policy,
            name,
            [groups[name] for _, groups in runs[:calibration]],
            [groups[name] for _, groups in runs[calibration:]],
        )
        for name in last
    ]


def _bounds(
    scenario: Scenario,
    policy: Policy,
    name: str,
    tried: list[Group],
    judged: list[Group],
) -> Found:
    # Steps after a canary's last one are noise. When that is, the attacker learns beforehand.
    lasted = max(group.lasted for group in tried)
    before, after = _scored(tried, lasted), _scored(judged, lasted)
    delta = scenario.delta
    row, orders = policy.row, policy.orders or None

    def rates(value: Callable[[Rates], float]) -> Rates:
        chosen = best_attack(
            before.scores[before.inside], before.scores[~before.inside], ERROR, value
        )
        return chosen.rates(after.scores[after.inside], after.scores[~after.inside], ERROR)

    by_curve = rates(gaussian_of)
    return Found(
        scenario.name,
        name,
        lasted,
        policy.epsilon(delta),
        ratio_of(rates(lambda found: ratio_of(found, delta)), delta),
        curve_of(scenario.family(name), by_curve, delta),
        allows(
            row,
            row.stated(policy.budget),
            by_curve,
            orders,
            any_order=policy.per_user_order is True,
        ),
    )


def _scored(groups: list[Group], steps: int) -> _Scored:
    return _Scored(
        np.concatenate([group.ratios[:steps].sum(axis=0) for group in groups]),
        np.concatenate([group.inside for group in groups]),
    )


def curve_of(family: Measure, rates: Rates, delta: float) -> float:
    """Return the epsilon of the largest member of a family whose curve excludes the rates.

    The members are the budgets of a measure. This is a lower bound on the epsilon of a mechanism
    that is a member, as the contributions of a canary are.
    """
    if rates.true_positive <= rates.false_positive:
        return 0.0

    def is_excluded(power: float) -> bool:
        return not allows(family, [2.0**power], rates)

    low, high = (0.0, _LARGEST) if family.shape else (-_LARGEST, _LARGEST)
    if not is_excluded(low):
        return 0.0
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2.0
        low, high = (middle, high) if is_excluded(middle) else (low, middle)
    return float(family.epsilon([2.0**low], delta))


def allows(
    row: Measure,
    budget: ArrayLike,
    rates: Rates,
    orders: ArrayLike | None = None,
    *,
    any_order: bool = False,
) -> bool:
    """Return whether a budget allows an attack with these rates, as far as a few points tell."""
    if rates.true_positive <= rates.false_positive:
        return True
    if row.exact_risk is not None:
        return row.risk(budget, rates.false_positive).true_positive_rate >= rates.true_positive
    deltas = [min(share * rates.false_positive, 0.99) for share in _SHARES]
    epsilons = [float(row.epsilon(budget, delta, orders, any_order=any_order)) for delta in deltas]
    risk = curve_risk(epsilons, deltas, rates.false_positive)
    return risk.true_positive_rate >= rates.true_positive
