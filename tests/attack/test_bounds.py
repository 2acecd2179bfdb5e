"""The attacker's lower bounds, against published code and against mechanisms that are known.

Figures are of `jax_privacy.auditing` at commit 8967688c (github.com/google-deepmind/jax_privacy):
`_epsilon_one_run`, `_one_run_p_value`, `_epsilon_one_run_fdp` and `_clopper_pearson_upper`.
"""

from __future__ import annotations

import numpy as np
import pytest
from scipy import special

from accounting import gdp_to_epsilon
from tests.attack.bounds import (
    Rates,
    best_attack,
    gaussian_of,
    guesses_of,
    lower_limit,
    one_run_bound,
    one_run_curve_bound,
    one_run_epsilon,
    one_run_mu,
    one_run_p_value,
    ratio_of,
    upper_limit,
)


@pytest.mark.parametrize(
    ("counts", "delta", "epsilon", "p"),
    [
        ((1000, 100, 95), 0.0, 2.172434019998109, 1.4604700747998311e-08),
        ((1000, 100, 95), 1e-5, 2.165175787875041, 0.0006639144683529011),
        ((1000, 1000, 600), 1e-5, 0.2972269575896597, 1.0),
        ((5000, 200, 180), 1e-5, 1.7856711888851413, 0.002181111067483716),
    ],
)
def test_bounds_of_one_run_are_those_of_jax_privacy(
    counts: tuple[int, int, int], delta: float, epsilon: float, p: float
) -> None:
    assert one_run_epsilon(*counts, delta, 0.05) == pytest.approx(epsilon, abs=2e-6)
    assert one_run_p_value(*counts, 1.0, delta) == pytest.approx(p, rel=1e-9)


@pytest.mark.parametrize(
    ("counts", "delta", "epsilon"),
    [
        ((1000, 100, 95), 1e-5, 3.3233004900323655),
        ((1000, 1000, 600), 1e-5, 0.5835403679239116),
        ((5000, 200, 180), 1e-3, 1.650018017681653),
    ],
)
def test_curve_bounds_of_one_run_are_those_of_jax_privacy(
    counts: tuple[int, int, int], delta: float, epsilon: float
) -> None:
    assert gdp_to_epsilon(one_run_mu(*counts, 0.05), delta) == pytest.approx(epsilon, abs=1e-4)


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
def test_bounds_are_below_epsilon_and_above_half_of_mu(mu: float) -> None:
    delta, error = 1e-5, 1e-5
    scores, inside = gaussian_scores(mu, 40_000, 1)
    tried, judged = slice(0, 10_000), slice(10_000, None)
    attack = best_attack(
        scores[tried][inside[tried]], scores[tried][~inside[tried]], error, gaussian_of
    )
    judged_in, judged_out = scores[judged][inside[judged]], scores[judged][~inside[judged]]
    found = gaussian_of(attack.rates(judged_in, judged_out, error))
    assert mu * 0.75 < found < mu
    real = gdp_to_epsilon(mu, delta)
    assert 0.0 < one_run_bound(scores[:4_000], inside[:4_000], delta, 0.01) < real
    assert gdp_to_epsilon(mu / 2, delta) < one_run_curve_bound(scores, inside, delta, 0.01) < real


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
        failed += one_run_mu(400, 40, guesses_of(scores, inside, 40), 0.05) > mu
    assert failed < 200 * 0.05
