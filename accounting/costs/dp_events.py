"""Convert DpEvents of dp_accounting to mechanisms that can be charged.

Events are recognised by the names of their classes and attributes; dp_accounting is not imported.
An event's noise is a multiple of the sensitivity, which is the clip norm here.

    event                                            mechanism, for clip norm C
    GaussianDpEvent(m)                               Gaussian(m C)
    PoissonSampledDpEvent(q, GaussianDpEvent(m))     PoissonGaussian(m C, q)
    LaplaceDpEvent(m)                                Laplace(m C)
    MixtureOfGaussiansDpEvent(s, [0, c, .., k c],    PoissonRecords(s C / c, q, k)
        weights of Bin(k, q))
    PoissonSampledDpEvent(1, event)                  that of the event
    SelfComposedDpEvent(event, 1)                    that of the event
    ComposedDpEvent([event])                         that of the event

All other events are rejected, with an alternative.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any, Final

from accounting.costs.mechanisms import (
    MAX_RECORDS,
    Gaussian,
    Laplace,
    Mechanism,
    PoissonGaussian,
    PoissonRecords,
)
from accounting.costs.sampled_records import binomial_weights
from accounting.exact.argument_checks import exact_number, positive_finite, sampling_probability
from accounting.exact.invalid_input import InvalidInput
from accounting.exact.rounding import DOWN, UP, float_toward

_CHARGED: Final = (
    "GaussianDpEvent, LaplaceDpEvent, PoissonSampledDpEvent of a GaussianDpEvent, or "
    "MixtureOfGaussiansDpEvent"
)
_BINOMIAL: Final = (
    "records of one norm c, each drawn by a coin of one rate q: sensitivities 0, c, 2c, .., k c "
    f"with the weights of Bin(k, q), k at most {MAX_RECORDS}. For records of different norms, give "
    "all the largest; for other weights, charge the step's own divergence by RenyiFilter.admit"
)
# Relative: how much sensitivities and weights may be off by rounding.
_ROUNDED: Final = Fraction(1, 2**30)
_EACH_STEP: Final = "one step: charge each of its events as a step"
_POISSON_ONLY: Final = (
    "Poisson-sampled: batches of a fixed size, or truncated, lose more than is charged for "
    "Poisson sampling, and have no individual charge here"
)
_INSTEAD: Final = {
    "ComposedDpEvent": _EACH_STEP,
    "SelfComposedDpEvent": _EACH_STEP,
    "SampledWithReplacementDpEvent": _POISSON_ONLY,
    "SampledWithoutReplacementDpEvent": _POISSON_ONLY,
    "TruncatedSubsampledGaussianDpEvent": _POISSON_ONLY,
    "NoOpDpEvent": "an event that reads data: other steps are not charged",
    "NonPrivateDpEvent": "private",
    "DiscreteLaplaceDpEvent": "PureDP(), charged with norms of sensitivity x noise_parameter",
    "RandomizedResponseDpEvent": "PureDP(), charged with its epsilon as the norm",
    "ZCDpEvent": (
        "charged by RenyiFilter.admit with xi + rho a at every order a, or, if xi is 0, by "
        "ZcdpFilter.admit with rho"
    ),
    "SingleEpochTreeAggregationDpEvent": "charged by banded_step for each column of the matrix",
}


def mechanism_from(event: Any, clip_norm: float = 1.0) -> Mechanism:
    """Return the mechanism of the one step that a DpEvent of dp_accounting describes.

    Args:
        event: see the table of this module.
        clip_norm: the sensitivity, of which the noise is a multiple: L2 for Gaussian noise, L1
            for Laplace noise; finite, > 0. Charged norms are in the same units.

    Returns:
        The mechanism, with parameters rounded so that the step costs more. A mechanism is returned
        unchanged.

    Raises:
        InvalidInput: for all other events, with an alternative.
    """
    if isinstance(event, Mechanism):
        return event
    name = type(event).__name__
    scale = positive_finite("clip_norm", clip_norm)
    match name:
        case "GaussianDpEvent":
            return Gaussian(_noise(event.noise_multiplier, scale))
        case "LaplaceDpEvent":
            return Laplace(_noise(event.noise_multiplier, scale))
        case "PoissonSampledDpEvent":
            return _sampled(event, scale)
        case "MixtureOfGaussiansDpEvent":
            return _records(event, scale)
        case "SelfComposedDpEvent" if event.count == 1:
            return mechanism_from(event.event, scale)
        case "ComposedDpEvent" if len(event.events) == 1:
            return mechanism_from(event.events[0], scale)
    raise InvalidInput("event", event, _INSTEAD.get(name, _CHARGED))


def _sampled(event: Any, scale: float) -> Mechanism:
    step = mechanism_from(event.event, scale)
    rate = sampling_probability("sampling_probability", event.sampling_probability)
    if isinstance(step, Gaussian):
        return PoissonGaussian(step.noise_stddev, rate)
    if rate == 1.0:
        return step
    raise InvalidInput("event", event, f"{_CHARGED}: other steps are not amplified by sampling")


def _records(event: Any, scale: float) -> Mechanism:
    """Return the step whose binomial number of records drawn is never below that of the event.

    Its rate is a relative 2**-30 above that of the event's mean, so weights may be rounded.
    """
    weights, norm = _weights_of_multiples(event)
    records = len(weights) - 1
    drawn = sum((j * weight for j, weight in enumerate(weights)), Fraction(0))
    mean = drawn / (records * sum(weights, Fraction(0)))
    raised = mean if records == 1 else min(mean * (1 + _ROUNDED), Fraction(1))
    rate = float_toward(raised, UP)
    if records > 1 and not _is_dominated(weights, rate):
        raise InvalidInput("event", event, _BINOMIAL)
    stddev = exact_number("standard_deviation", event.standard_deviation)
    noise = float_toward(stddev / norm * Fraction(scale), DOWN)
    if records > 1:
        return PoissonRecords(noise, rate, records)
    return Gaussian(noise) if rate == 1.0 else PoissonGaussian(noise, rate)


def _weights_of_multiples(event: Any) -> tuple[list[Fraction], Fraction]:
    """Return the weights of 0, 1, .., k records, and the norm of a record, rounded up."""
    sensitivities = [exact_number("sensitivities", one) for one in event.sensitivities]
    weights = [exact_number("sampling_probs", one) for one in event.sampling_probs]
    if len(sensitivities) != len(weights) or not 2 <= len(weights) <= MAX_RECORDS + 1:
        raise InvalidInput("event", event, _BINOMIAL)
    norm = max(one / j for j, one in enumerate(sensitivities) if j)
    total = sum(weights, Fraction(0))
    if min(weights) < 0 or abs(total - 1) > _ROUNDED or not any(weights[1:]):
        raise InvalidInput("event", event, "weights >= 0 that add up to 1, some above 0 draws")
    off = [abs(one - j * norm) > j * norm * _ROUNDED for j, one in enumerate(sensitivities)]
    if norm <= 0 or any(off):
        raise InvalidInput("event", event, _BINOMIAL)
    return weights, norm


def _is_dominated(weights: list[Fraction], rate: float) -> bool:
    """Return whether Bin(k, rate) has at least the share of `weights` from every j on.

    Shares of the sum are compared, because rounded weights add up to 1 only nearly: a sum above 1
    would hide a tail of that size. Equally, no share of what comes before j is below that of the
    binomial.
    """
    binomial, whole = binomial_weights(rate, len(weights) - 1)
    total, before, before_binomial = sum(weights), Fraction(0), 0
    for weight, mass in zip(weights, binomial, strict=True):
        before, before_binomial = before + weight, before_binomial + mass
        if before * whole < before_binomial * total:
            return False
    return True


def _noise(multiplier: float, scale: float) -> float:
    product = exact_number("noise_multiplier", multiplier) * Fraction(scale)
    return positive_finite("noise_multiplier", float_toward(product, DOWN))
