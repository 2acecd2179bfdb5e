"""Publish the mean and quantiles of the users' epsilons, for a small charge of their own.

    python private_statistics.py      # with this package alone

A user's epsilon depends on that user's data, so only that user may see it. These aggregates are
private releases like any other: every user pays for them, whatever the user's epsilon is.
"""

from __future__ import annotations

import numpy as np

from accounting import NormGrid, PoissonGaussian, ReportAccountant, ZcdpFilter, zcdp_budget
from accounting.release import release_mean, release_quantiles

USERS, STEPS, DELTA = 10_000, 300, 1e-5
UPPER = 2.0  # the epsilon of a user at the clip norm in every step is below it: public
QUANTILES = [0.1, 0.5, 0.9]


def epsilons(random: np.random.Generator) -> np.ndarray:
    """Return what each user has lost in a training with norms of very different size."""
    grid = NormGrid(clip_norm=1.0, levels=20)
    typical = random.lognormal(-1.5, 0.6, (USERS, 1))
    norms = np.minimum(typical * random.lognormal(0.0, 0.3, (USERS, STEPS)), 1.0)
    report = ReportAccountant(PoissonGaussian(1.0, sampling_rate=0.01), grid)
    return np.asarray(report.epsilon(grid.counts(norms), DELTA, method="renyi"))


def main() -> None:
    """Charge each user for both releases before either is published."""
    lost = epsilons(np.random.default_rng(0))
    rho = zcdp_budget(epsilon=0.3, delta=DELTA)  # of the statistics
    budget = ZcdpFilter(rho)
    mean = release_mean(lost, UPPER, rho=rho / 4)
    quantiles = release_quantiles(lost, QUANTILES, UPPER, rho=rho * 3 / 4)
    state = budget.initial_state(USERS)
    for cost in (mean.cost, quantiles.cost):  # they do not depend on the data
        charge = np.full(USERS, cost.rho)
        state, admitted = budget.admit(state, charge)
        assert admitted.all()
    print(f"mean {mean.estimate:.3f} +- {mean.standard_error:.3f}, of {mean.count:.0f} users")
    for fraction, estimate in zip(QUANTILES, quantiles.estimates, strict=True):
        print(f"{fraction:.0%} of the users have lost at most {estimate:.3f}")


if __name__ == "__main__":
    main()
