"""The attacker's lower bounds, against published limits and against mechanisms that are known."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import special

from tests.attack.bounds import (
    Rates,
    best_attack,
    gaussian_of,
    lower_limit,
    ratio_of,
    upper_limit,
)


def test_limits_are_those_of_clopper_and_pearson() -> None:
    published = [0.02951305, 0.07571079, 0.58637829]
    for count, most in zip((0, 3, 50), published, strict=True):
        assert upper_limit(count, 100, 0.05) == pytest.approx(most, abs=1e-7)
        assert lower_limit(100 - count, 100, 0.05) == pytest.approx(1.0 - most, abs=1e-7)


def test_rates_on_the_curve_give_back_its_parameter() -> None:
    for mu in (0.1, 1.0, 3.0):
        rates = Rates(float(special.ndtr(special.ndtri(0.1) + mu)), 0.1)
        assert gaussian_of(rates) == pytest.approx(mu)
    assert ratio_of(Rates(0.5, 0.1), 0.0) == pytest.approx(np.log(5.0))
    assert ratio_of(Rates(1e-6, 0.1), 1e-5) == ratio_of(Rates(0.1, 0.5), 0.0) == 0.0


def gaussian_scores(mu: float, canaries: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    inside = rng.random(canaries) < 0.5
    return rng.normal(size=canaries) + mu * inside, inside


@pytest.mark.slow
@pytest.mark.parametrize("mu", [0.5, 1.5])
def test_bound_is_below_mu_and_above_three_quarters_of_it(mu: float) -> None:
    error = 1e-5
    scores, inside = gaussian_scores(mu, 40_000, 1)
    tried, judged = slice(0, 10_000), slice(10_000, None)
    attack = best_attack(
        scores[tried][inside[tried]], scores[tried][~inside[tried]], error, gaussian_of
    )
    judged_in, judged_out = scores[judged][inside[judged]], scores[judged][~inside[judged]]
    found = gaussian_of(attack.rates(judged_in, judged_out, error))
    assert mu * 0.75 < found < mu


@pytest.mark.slow
def test_bounds_fail_no_more_often_than_stated() -> None:
    """At an error of 5 %, on mechanisms that attain their claim."""
    mu, failed = 1.0, 0
    for seed in range(100):
        scores, inside = gaussian_scores(mu, 400, seed)
        attack = best_attack(
            scores[:100][inside[:100]], scores[:100][~inside[:100]], 0.05, gaussian_of
        )
        judged_in, judged_out = scores[100:][inside[100:]], scores[100:][~inside[100:]]
        failed += gaussian_of(attack.rates(judged_in, judged_out, 0.05)) > mu
    assert failed < 100 * 0.05
