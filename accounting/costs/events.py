"""Convert DpEvents of dp_accounting to mechanisms that can be charged.

Events are recognised by the names of their classes and attributes; dp_accounting is not imported.
An event's noise is a multiple of the sensitivity, which is the clip norm here.

    event                                            mechanism, for clip norm C
    GaussianDpEvent(m)                               Gaussian(m C)
    PoissonSampledDpEvent(q, GaussianDpEvent(m))     PoissonGaussian(m C, q)
    LaplaceDpEvent(m)                                Laplace(m C)
    PoissonSampledDpEvent(1, event)                  that of the event
    SelfComposedDpEvent(event, 1)                    that of the event
    ComposedDpEvent([event])                         that of the event

All other events are rejected, with an alternative.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any, Final

from accounting.costs.mechanisms import Gaussian, Laplace, Mechanism, PoissonGaussian
from accounting.exact.errors import InvalidInput
from accounting.exact.rounding import DOWN, float_toward
from accounting.exact.validation import exact_number, positive_finite, sampling_probability

_CHARGED: Final = "GaussianDpEvent, LaplaceDpEvent, or PoissonSampledDpEvent of a GaussianDpEvent"
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
    "MixtureOfGaussiansDpEvent": (
        "given as PoissonRecords, if each record of a user is drawn by a coin of one rate"
    ),
    "ZCDpEvent": (
        "charged by RenyiFilter.admit with xi + rho a at every order a, or, if xi is 0, by "
        "ZcdpFilter.admit with rho"
    ),
    "SingleEpochTreeAggregationDpEvent": (
        "charged as a ContinualCounter, or by banded_step for each column of the matrix"
    ),
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
    scale = positive_finite("clip_norm", clip_norm, DOWN)
    match name:
        case "GaussianDpEvent":
            return Gaussian(_noise(event.noise_multiplier, scale))
        case "LaplaceDpEvent":
            return Laplace(_noise(event.noise_multiplier, scale))
        case "PoissonSampledDpEvent":
            return _sampled(event, scale)
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


def _noise(multiplier: float, scale: float) -> float:
    product = exact_number("noise_multiplier", multiplier) * Fraction(scale)
    return positive_finite("noise_multiplier", float_toward(product, DOWN))
