"""Lower bounds on epsilon from an attacker's scores, each with a stated probability of error.

Scores are of canaries that were in or out of the data by independent fair coins; a higher score
means "in". The bounds:

- `ratio_bound`: the definition of (epsilon, delta)-DP, with Clopper-Pearson limits of the two error
  rates over independent canaries. It assumes nothing else.
- `audit.curve_of`: the least mu of Gaussian DP, or number of sampled steps, whose whole trade-off
  curve allows the two rates (Nasr et al. 2023, arXiv 2302.07956). It is tighter, because a curve
  excludes more than one of its points, and it assumes that the mechanism has such a curve.
- `one_run_bound`: Steinke, Nasr and Jagielski 2023 (arXiv 2305.08846), from one training. Canaries
  need not be independent of each other in the outputs. The bound is 0 unless the probability of
  error is well above delta times the number of canaries.

`one_run_curve_bound` is the same with the curve of Gaussian DP: Mahloujifar, Melis and Chaudhuri
2024 (arXiv 2410.22235).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import special, stats

from accounting import gdp_to_epsilon

Scores = NDArray[np.float64]

GUESSED: Final = (0.02, 0.1, 0.3, 1.0)
"""The shares of canaries about which the attacker of one run makes a guess; all are tried, and the
probability of error is divided among them."""


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


def one_run_p_value(
    canaries: int, guesses: int, correct: int, epsilon: float, delta: float
) -> float:
    """Return the largest probability of so many correct guesses under (epsilon, delta)-DP."""
    right = float(special.expit(epsilon))
    p = float(stats.binom.sf(correct - 1, guesses, right))
    if delta > 0.0:
        fewer = np.arange(1, correct + 1)
        gained = stats.binom.sf(correct - fewer - 1, guesses, right) - p
        p += 2.0 * canaries * delta * float(np.max(gained / fewer, initial=0.0))
    return min(p, 1.0)


def one_run_epsilon(canaries: int, guesses: int, correct: int, delta: float, error: float) -> float:
    """Return the largest epsilon that so many correct guesses reject, or 0."""
    return _largest(
        lambda epsilon: one_run_p_value(canaries, guesses, correct, epsilon, delta) < error, 64.0
    )


def one_run_mu(canaries: int, guesses: int, correct: int, error: float) -> float:
    """Return the largest mu of Gaussian DP that so many correct guesses reject, or 0."""

    def is_rejected(mu: float) -> bool:
        r, h = error * correct / canaries, error * (guesses - correct) / canaries
        for left in range(correct - 1, -1, -1):
            higher = max(h, float(special.ndtr(special.ndtri(r) - mu)))
            if higher == h:
                break
            h, r = higher, min(r + left / (guesses - left) * (higher - h), 1.0)
        return r + h > guesses / canaries

    return _largest(is_rejected, 16.0)


def guesses_of(scores: Scores, inside: NDArray[np.bool_], guesses: int) -> int:
    """Return how many guesses are right: half are for the highest scores, half for the lowest."""
    order = np.argsort(scores, kind="stable")
    half = guesses // 2
    return int((~inside[order[:half]]).sum() + inside[order[len(order) - half :]].sum())


def one_run_bound(scores: Scores, inside: NDArray[np.bool_], delta: float, error: float) -> float:
    """Return the lower bound on epsilon from one run, over the shares in `GUESSED`."""
    found = 0.0
    for guesses, correct in _guesses(scores, inside):
        each = one_run_epsilon(len(scores), guesses, correct, delta, error / len(GUESSED))
        found = max(found, each)
    return found


def one_run_curve_bound(
    scores: Scores, inside: NDArray[np.bool_], delta: float, error: float
) -> float:
    """Return the lower bound on the epsilon of a mechanism that is claimed to be Gaussian DP."""
    found = 0.0
    for guesses, correct in _guesses(scores, inside):
        mu = one_run_mu(len(scores), guesses, correct, error / len(GUESSED))
        found = max(found, gdp_to_epsilon(mu, delta))
    return found


def _guesses(scores: Scores, inside: NDArray[np.bool_]) -> list[tuple[int, int]]:
    counts = [2 * max(1, round(share * len(scores) / 2)) for share in GUESSED]
    counts = [min(count, len(scores) // 2 * 2) for count in counts]
    return [(count, guesses_of(scores, inside, count)) for count in counts]


def _largest(is_rejected: Callable[[float], bool], most: float) -> float:
    """Return the point up to which values are rejected, from below; 0 if 0 is not."""
    low, high = 0.0, most
    if not is_rejected(low):
        return 0.0
    for _ in range(40):
        middle = (low + high) / 2.0
        low, high = (middle, high) if is_rejected(middle) else (low, middle)
    return low
