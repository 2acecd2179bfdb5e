"""Lower bounds on epsilon from an attacker's scores, each with a stated probability of error.

Scores are of canaries that were in or out of the data by independent fair coins; a higher score
means "in". The bounds:

- `ratio_bound`: the definition of (epsilon, delta)-DP, with Clopper-Pearson limits of the two error
  rates over independent canaries. It assumes nothing else.
- `audit.curve_of`: the least mu of Gaussian DP, or number of sampled steps, whose whole trade-off
  curve allows the two rates (Nasr et al. 2023, arXiv 2302.07956). It is tighter, because a curve
  excludes more than one of its points, and it assumes that the mechanism has such a curve.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import special, stats

Scores = NDArray[np.float64]


class Rates(NamedTuple):
    """Limits of an attack's two rates: the true-positive rate is at least the first, and the
    false-positive rate at most the second.
    """

    true_positive: float
    false_positive: float


def lower_limit(successes: int, trials: int, error: float) -> float:
    """Return the Clopper-Pearson lower limit of a probability, wrong with at most this one."""
    return float(stats.beta.ppf(error, successes, trials - successes + 1)) if successes else 0.0


def upper_limit(successes: int, trials: int, error: float) -> float:
    """Return the Clopper-Pearson upper limit of a probability, wrong with at most this one."""
    return 1.0 - lower_limit(trials - successes, trials, error)


class Attack(NamedTuple):
    """A test that was chosen before the scores on which it is judged.

    Attributes:
        threshold: a canary with a score above it counts as positive.
        guesses_in: whether positive means in; otherwise scores below mean out.
    """

    threshold: float
    guesses_in: bool

    def rates(self, inside: Scores, outside: Scores, error: float) -> Rates:
        """Return limits that hold together, except with probability `error`."""
        above, below = inside > self.threshold, outside <= self.threshold
        if self.guesses_in:
            true, false = above, ~below
        else:
            true, false = below, ~above
        return Rates(
            lower_limit(int(true.sum()), len(true), error / 2),
            upper_limit(int(false.sum()), len(false), error / 2),
        )


def best_attack(
    inside: Scores, outside: Scores, error: float, value: Callable[[Rates], float]
) -> Attack:
    """Return the threshold and direction with the largest value on scores for calibration."""
    together = np.sort(np.concatenate([inside, outside]))
    places = np.unique(np.linspace(1, len(together) - 2, 60).astype(int))
    attacks = [
        Attack(threshold, guesses_in)
        for threshold in together[places].tolist()
        for guesses_in in (True, False)
    ]
    return max(attacks, key=lambda attack: value(attack.rates(inside, outside, error)))


def ratio_of(rates: Rates, delta: float) -> float:
    """Return the least epsilon with true <= e^epsilon false + delta."""
    true = rates.true_positive - delta
    if true <= 0.0:
        return 0.0
    return max(math.log(true / rates.false_positive), 0.0)


def gaussian_of(rates: Rates) -> float:
    """Return the least mu of Gaussian DP that allows the rates; 0 if any does."""
    mu = special.ndtri(rates.true_positive) - special.ndtri(rates.false_positive)
    return max(float(mu), 0.0)
