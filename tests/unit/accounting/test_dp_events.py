"""DpEvents of dp_accounting, the real ones, as mechanisms."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import dp_accounting
import pytest
from dp_accounting import dp_event

from accounting import (
    Gaussian,
    InvalidInput,
    Laplace,
    PoissonGaussian,
    PoissonRecords,
    PureDP,
    mechanism_from,
)
from accounting.costs.sampled_records import binomial_weights
from accounting.exact.rounding import float_toward
from tests.unit.accounting.refusals import refused

GAUSSIAN = dp_accounting.GaussianDpEvent(1.1)


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        (GAUSSIAN, Gaussian(1.1)),
        (dp_accounting.LaplaceDpEvent(2.0), Laplace(2.0)),
        (dp_accounting.PoissonSampledDpEvent(0.01, GAUSSIAN), PoissonGaussian(1.1, 0.01)),
        (dp_accounting.PoissonSampledDpEvent(1.0, dp_accounting.LaplaceDpEvent(2.0)), Laplace(2.0)),
        (dp_accounting.SelfComposedDpEvent(GAUSSIAN, 1), Gaussian(1.1)),
        (dp_accounting.ComposedDpEvent([GAUSSIAN]), Gaussian(1.1)),
        (Gaussian(3.0), Gaussian(3.0)),
        (PureDP(), PureDP()),
    ],
)
def test_events_of_one_step_are_mechanisms(event: Any, expected: Any) -> None:
    assert mechanism_from(event) == expected


def test_noise_is_a_multiple_of_the_clip_bound_rounded_down() -> None:
    exact = Fraction(1.1) * Fraction(0.3)
    assert mechanism_from(GAUSSIAN, 0.3) == Gaussian(float_toward(exact, "down"))
    sampled = dp_accounting.PoissonSampledDpEvent(0.5, GAUSSIAN)
    assert mechanism_from(sampled, 0.3) == PoissonGaussian(float_toward(exact, "down"), 0.5)


@pytest.mark.parametrize(
    ("event", "argument"),
    [
        (dp_accounting.SelfComposedDpEvent(GAUSSIAN, 3), "event"),
        (dp_accounting.ComposedDpEvent([GAUSSIAN, GAUSSIAN]), "event"),
        (dp_accounting.SampledWithReplacementDpEvent(10, 3, GAUSSIAN), "event"),
        (dp_accounting.SampledWithoutReplacementDpEvent(10, 3, GAUSSIAN), "event"),
        (dp_accounting.TruncatedSubsampledGaussianDpEvent(10, 0.1, 3, 1.0), "event"),
        (dp_accounting.PoissonSampledDpEvent(0.5, dp_accounting.LaplaceDpEvent(1.0)), "event"),
        (dp_accounting.NoOpDpEvent(), "event"),
        (dp_accounting.NonPrivateDpEvent(), "event"),
        (dp_accounting.ZCDpEvent(0.5, 0.1), "event"),
        (dp_accounting.RandomizedResponseDpEvent(0.5, 2), "event"),
        (dp_accounting.SingleEpochTreeAggregationDpEvent(1.0, 8), "event"),
        (dp_accounting.UnsupportedDpEvent(), "event"),
        (dp_accounting.GaussianDpEvent(0.0), "noise_multiplier"),
        (dp_accounting.GaussianDpEvent(-1.0), "noise_multiplier"),
        (dp_accounting.PoissonSampledDpEvent(1.5, GAUSSIAN), "sampling_probability"),
        ("GaussianDpEvent", "event"),
        (None, "event"),
    ],
)
def test_events_that_cannot_be_charged_are_rejected(event: Any, argument: str) -> None:
    with refused(argument):
        mechanism_from(event)


def mixture(
    records: int, rate: float, norm: float = 0.7, stddev: float = 1.4
) -> dp_event.MixtureOfGaussiansDpEvent:
    weights = [
        float(
            Fraction(math.comb(records, j))
            * Fraction(rate) ** j
            * (1 - Fraction(rate)) ** (records - j)
        )
        for j in range(records + 1)
    ]
    norms = [j * norm for j in range(records + 1)]
    return dp_event.MixtureOfGaussiansDpEvent(stddev, norms, weights)


@pytest.mark.parametrize(("records", "rate"), [(2, 0.5), (5, 0.01), (40, 1e-4), (30, 0.97)])
def test_binomial_mixtures_are_records_with_coins_of_their_own(records: int, rate: float) -> None:
    found = mechanism_from(mixture(records, rate), 3.0)
    assert isinstance(found, PoissonRecords)
    assert found.records == records
    assert rate <= found.sampling_rate <= rate * (1 + 2e-9)
    assert 6.0 * (1 - 1e-15) <= found.noise_stddev * (1 + 1e-9) <= 6.0 * (1 + 2e-9)


@pytest.mark.parametrize("changed", range(11))
@pytest.mark.parametrize("change", [-8e-10, 8e-10])
def test_charged_records_are_drawn_no_less_than_by_the_event(changed: int, change: float) -> None:
    weights = list(mixture(10, 1e-3).sampling_probs)
    weights[changed] = max(weights[changed] + change, 0.0)
    event = dp_event.MixtureOfGaussiansDpEvent(1.0, range(11), weights)
    try:
        found = mechanism_from(event)
    except InvalidInput:
        assert changed  # the first weight alone moves no other share by more than the rate covers
        return
    assert isinstance(found, PoissonRecords)
    masses, whole = binomial_weights(found.sampling_rate, found.records)
    exact = [Fraction(weight) for weight in weights]
    for j in range(len(exact)):
        assert sum(exact[j:]) / sum(exact) <= Fraction(sum(masses[j:]), whole)


def test_mixtures_of_one_record_are_simpler_steps() -> None:
    event = dp_event.MixtureOfGaussiansDpEvent
    assert mechanism_from(event(2.0, [0.0, 1.0], [0.75, 0.25])) == PoissonGaussian(2.0, 0.25)
    assert mechanism_from(event(2.0, [0.0, 0.5], [0.0, 1.0])) == Gaussian(4.0)


@pytest.mark.parametrize(
    ("sensitivities", "weights"),
    [
        ([0.0, 1.0, 2.0], [0.5, 0.25, 0.25]),  # not binomial
        ([0.0, 1.0, 2.0], [0.25, 0.5, 0.2]),  # do not add up to 1
        ([0.0, 1.0, 2.5], [0.25, 0.5, 0.25]),  # no multiples
        (range(1002), [0.5, 0.5, *[0.0] * 1000]),
        *(([0.0, 1.0, 2.0], [0.5, 0.5]), ([0.0, -1.0], [0.5, 0.5]), ([0.0, 1.0], [1.5, -0.5])),
        *(([0.0, 1.0, 1.0], [0.5, 0.4, 0.1]), ([0.0, 0.0, 0.0], [0.25, 0.5, 0.25])),
        *(([0.0, 1.0], [0.5, 0.4]), ([0.0, 1.0], [1.0, 0.0]), ([0.0], [1.0]), ([], [])),
    ],
)
def test_other_mixtures_are_refused(sensitivities: list[float], weights: list[float]) -> None:
    event = dp_event.MixtureOfGaussiansDpEvent(1.0, sensitivities, weights)
    with pytest.raises(InvalidInput):
        mechanism_from(event)
