"""Private mean and quantiles. Random tests have fixed seeds and say how rarely they would fail."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from accounting import MEASURES, Gaussian, ZcdpFilter, zcdp_budget, zcdp_cost
from accounting.exact.argument_checks import FloatArray
from accounting.release import (
    ContinualCounter,
    release_mean,
    release_quantiles,
)
from accounting.release.exact_noise import ExactNoise
from tests.unit.accounting.refusals import refused

DECILES = [0.1, 0.3, 0.5, 0.7, 0.9]
# Yu et al., Table 2: individual epsilons of two training runs; mean, then quantiles.
MNIST = (0.686, [0.236, 0.318, 0.431, 0.697, 1.682])
CIFAR = (5.942, [2.713, 4.892, 6.730, 7.692, 7.815])

epsilons = st.lists(st.floats(0.0, 10.0), min_size=1, max_size=60)


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[int, Fraction], int]], None]:
    """Replace the noise by a function of how many draws came before and of the deviation."""

    def install(noise: Callable[[int, Fraction], int]) -> None:
        drawn = iter(range(10**9))
        monkeypatch.setattr(
            ExactNoise, "rounded_normal", lambda self, stddev: noise(next(drawn), stddev)
        )

    return install


def seeded() -> np.random.Generator:
    return np.random.default_rng(1)


def table_2_values(printed: list[float], ends: tuple[float, float], n: int) -> FloatArray:
    """n values whose quantiles are those printed, spread evenly in between."""
    at = (np.arange(n) + 0.5) / n
    return np.interp(at, [0.0, *DECILES, 1.0], [ends[0], *printed, ends[1]])


# The mean


@given(values=epsilons)
def test_mean_without_noise_is_the_mean_of_clipped_values(values: list[float]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ExactNoise, "rounded_normal", lambda self, stddev: 0)
        release = release_mean(values, 7.5, noise_stddev=1.0, generator=seeded())
    assert release.estimate == pytest.approx(np.minimum(values, 7.5).mean(), abs=7.5 * 2**-29)
    assert release.count == len(values)


def test_mean_depends_on_a_user_through_the_two_noisy_sums_only(
    play: Callable[[Callable[[int, Fraction], int]], None],
) -> None:
    """Noise that makes up for one user more gives the same release, bit for bit."""
    values, more = np.linspace(0.3, 1.9, 50), 0.7
    play(lambda draw, stddev: 10**10 + draw)
    release = release_mean(values, 2.0, noise_stddev=1.0, generator=seeded())
    first = round(Fraction(more) * 2**29)
    shifts = [first, 2**30 - first]
    play(lambda draw, stddev: 10**10 + draw - shifts[draw])
    moved = release_mean([*values, more], 2.0, noise_stddev=1.0, generator=seeded())
    assert moved == release
    # Such noise is as likely as that of a Gaussian step of the charged norm.
    assert math.hypot(*shifts) / 2**29 <= release.cost.norm == 2.0


@pytest.mark.slow
def test_mean_errs_by_the_stated_standard_error() -> None:
    rng = np.random.default_rng(3)
    values, generator = np.minimum(rng.lognormal(-0.8, 0.8, 20_000), 3.0), np.random.default_rng(4)
    releases = [
        release_mean(values, 3.0, noise_stddev=100.0, generator=generator) for _ in range(2000)
    ]
    scaled = [(r.estimate - values.mean()) / r.standard_error for r in releases]
    # Each fails for fewer than one seed in a million.
    assert stats.kstest(scaled, "norm").pvalue > 1e-7
    counts = [(r.count - 20_000) / (math.sqrt(2.0) * 100.0 / 3.0) for r in releases]
    assert stats.kstest(counts, "norm").pvalue > 1e-7
    # As little as if the number of users were public.
    assert max(r.standard_error for r in releases) < 1.01 * 100.0 / 20_000


def test_values_above_upper_count_as_upper(
    play: Callable[[Callable[[int, Fraction], int]], None],
) -> None:
    play(lambda draw, stddev: 0)
    release = release_mean([0.5, 2.0, math.inf], 1.0, noise_stddev=1.0, generator=seeded())
    assert release.estimate == pytest.approx(2.5 / 3, abs=1e-9)
    quantiles = release_quantiles(
        [2.0, math.inf], [0.5], 1.0, noise_stddev=1.0, levels=4, generator=seeded()
    )
    assert quantiles.estimates[0] == 0.875


# Quantiles


@given(
    values=epsilons,
    quantiles=st.lists(st.floats(0.001, 0.999), min_size=1, max_size=6),
    levels=st.integers(2, 80),
)
def test_quantiles_without_noise_are_right_within_one_level(
    values: list[float], quantiles: list[float], levels: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ExactNoise, "rounded_normal", lambda self, stddev: 0)
        release = release_quantiles(
            values, quantiles, 10.0, noise_stddev=1.0, levels=levels, generator=seeded()
        )
    slack = 10.0 / levels * (1 + 1e-9) + 1e-9
    below = np.quantile(values, quantiles, method="inverted_cdf")
    above = np.quantile(values, quantiles, method="higher")
    assert (release.estimates >= below - slack).all()
    assert (release.estimates <= above + slack).all()
    assert release.count == pytest.approx(len(values), rel=1e-12)


def test_one_user_more_is_one_count_more_in_the_counter(monkeypatch: pytest.MonkeyPatch) -> None:
    counted: list[list[int]] = []
    add = ContinualCounter.add

    def watch(self: ContinualCounter, count: int) -> float:
        counted[-1].append(count)
        return add(self, count)

    monkeypatch.setattr(ContinualCounter, "add", watch)
    for values in ([0.2, 0.2, 0.9], [0.2, 0.2, 0.9, 0.6]):
        counted.append([])
        release_quantiles(values, [0.5], 1.0, noise_stddev=1.0, levels=4, generator=seeded())
    assert counted == [[2, 0, 0, 1], [2, 0, 1, 1]]


def test_estimates_do_not_fall_as_the_fraction_rises() -> None:
    generator, fractions = np.random.default_rng(5), np.linspace(0.01, 0.99, 99)
    values = np.random.default_rng(6).uniform(0.0, 1.0, 300)
    for _ in range(20):
        release = release_quantiles(
            values, fractions, 1.0, noise_stddev=20.0, levels=64, generator=generator
        )
        assert (np.diff(release.estimates) >= 0.0).all()
        assert ((release.estimates >= 0.0) & (release.estimates <= 1.0)).all()


# Both


@pytest.mark.slow
@pytest.mark.parametrize(
    ("printed", "ends", "upper", "users", "claimed"),
    [
        (MNIST, (0.1, 2.6), 3.0, 60_000, 0.0113),
        (CIFAR, (1.0, 7.85), 8.0, 50_000, 0.0091),
    ],
    ids=["mnist", "cifar"],
)
def test_mean_and_quantiles_under_epsilon_0_1_err_less_than_in_table_2(
    printed: tuple[float, list[float]],
    ends: tuple[float, float],
    upper: float,
    users: int,
    claimed: float,
) -> None:
    """Yu et al., Table 2: all six numbers under (0.1, 1e-5)-DP, and their average relative error.

    The individual epsilons themselves are not published; these have the printed quantiles.
    """
    values = table_2_values(printed[1], ends, users)
    assert values.mean() == pytest.approx(printed[0], rel=0.15)
    truth = np.array([values.mean(), *np.quantile(values, DECILES)])
    rho = zcdp_budget(0.1, 1e-5)
    rule, generator = ZcdpFilter(rho), np.random.default_rng(8)
    errors = []
    for _ in range(10):
        mean = release_mean(values, upper, rho=rho / 6, generator=generator)
        quantiles = release_quantiles(values, DECILES, upper, rho=rho * 5 / 6, generator=generator)
        state = rule.initial_state(1)
        for cost in (mean.cost, quantiles.cost):
            state, admitted = rule.admit(state, zcdp_cost(cost.mechanism, [cost.norm]))
            assert admitted.tolist() == [True]
        errors.append(np.abs(np.array([mean.estimate, *quantiles.estimates]) / truth - 1.0))
    assert np.mean(errors) < claimed


@pytest.mark.parametrize("rho", [1e-5, 0.3])
def test_cost_is_the_largest_norm_and_charges_at_most_rho(rho: float) -> None:
    values = np.linspace(0.0, 3.0, 40)
    mean = release_mean(values, 2.0, rho=rho, generator=seeded())
    quantiles = release_quantiles(values, [0.5], 2.0, rho=rho, levels=16, generator=seeded())
    assert mean.cost.norm == 2.0
    assert quantiles.cost.norm == ContinualCounter(16, rho=rho).cost().norm
    for cost in (mean.cost, quantiles.cost):
        assert rho * (1 - 1e-3) < cost.rho <= rho
        charge = MEASURES["zcdp"].charge_units(cost.mechanism, [cost.norm])
        rule = ZcdpFilter(rho)
        assert rule.admit_units(rule.initial_state(1), charge)[1].tolist() == [True]
    given_noise = release_mean(values, 2.0, noise_stddev=4.0, generator=seeded())
    assert given_noise.cost.mechanism == Gaussian(4.0)


def test_a_number_of_users_below_the_noise_gives_no_estimate(
    play: Callable[[Callable[[int, Fraction], int]], None],
) -> None:
    play(lambda draw, stddev: -int(3 * stddev))
    mean = release_mean([1.0], 2.0, noise_stddev=10.0, generator=seeded())
    assert math.isnan(mean.estimate)
    assert mean.standard_error == math.inf
    assert mean.count < 0.0
    quantiles = release_quantiles(
        [1.0], [0.1, 0.9], 2.0, noise_stddev=10.0, levels=8, generator=seeded()
    )
    assert np.isnan(quantiles.estimates).all()
    assert quantiles.count < 0.0


def test_noise_is_fresh_in_every_release() -> None:
    generator = np.random.default_rng(9)
    counts = set()
    for _ in range(50):
        counts.add(release_mean([1.0], 2.0, noise_stddev=5.0, generator=generator).count)
        counts.add(
            release_quantiles(
                [1.0], [0.5], 2.0, noise_stddev=5.0, levels=4, generator=generator
            ).count
        )
    assert len(counts) == 100


def test_a_refused_release_draws_nothing() -> None:
    generator = seeded()
    for upper in (0.0, math.nan, 1e300):
        with refused("upper"):
            release_mean([1.0], upper, noise_stddev=1.0, generator=generator)
    assert generator.random() == seeded().random()
