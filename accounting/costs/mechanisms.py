"""The mechanisms that a step can run on the data, and whose cost is known.

Neighbouring datasets differ by adding or removing one user. "Norm" is the norm of that user's
contribution to the released sum in this step; the mechanism defines which norm. Parameters that
float64 cannot hold are rounded so that the step costs more: noise down, sampling rates up
(`accounting.exact.argument_checks`).
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Final, Literal, TypeAlias

from accounting.exact.argument_checks import positive_finite, sampling_probability, whole_number
from accounting.exact.invalid_input import InvalidInput
from accounting.exact.rounding import DOWN, float_toward

# The direction in which two neighbours differ: the user is removed from the data, or added.
Direction: TypeAlias = Literal["remove", "add"]
SMALLEST_RATE: Final = 1e-290  # its inverse is far from the largest float64
MAX_RECORDS: Final = 1000


@dataclass(frozen=True)
class Gaussian:
    """A sum released with Gaussian noise; norms are L2 (Feldman and Zrnic, Ex. 2.7).

    For a Lipschitz analysis with constant L in this user's data (Ex. 2.8) the norm is L times the
    distance.

    Attributes:
        noise_stddev: standard deviation of the noise in each coordinate, absolute, in the units of
            the norms (not a multiple of the clip norm). Finite, > 0.
    """

    noise_stddev: float

    def __post_init__(self) -> None:
        noise = positive_finite("noise_stddev", self.noise_stddev)
        object.__setattr__(self, "noise_stddev", noise)


@dataclass(frozen=True)
class PoissonGaussian:
    """A sum over a Poisson sample, released with Gaussian noise; norms are L2.

    Every enrolled user is charged at every step, sampled or not (Yu et al., Alg. 1). The cost is a
    curve over Rényi orders that no rho or mu describes: only `renyi_cost` and the measure renyi
    accept it. Rate 0 costs nothing, and rate 1 costs the same as `Gaussian`.

    Attributes:
        noise_stddev: as for `Gaussian`.
        sampling_rate: the probability, in [0, 1], with which each user is in the sample,
            independently of everything else. Between 0 and 1e-290 it is rounded up to 1e-290.
    """

    noise_stddev: float
    sampling_rate: float

    def __post_init__(self) -> None:
        noise = positive_finite("noise_stddev", self.noise_stddev)
        object.__setattr__(self, "noise_stddev", noise)
        rate = sampling_probability("sampling_rate", self.sampling_rate)
        rate = max(rate, SMALLEST_RATE) if rate > 0.0 else 0.0
        object.__setattr__(self, "sampling_rate", rate)


@dataclass(frozen=True)
class PoissonRecords:
    """A sum over a Poisson sample of records, released with Gaussian noise.

    Each record is drawn by a coin of its own, and norms are those of one record, L2: a user of whom
    j records are drawn adds a vector of at most j norms (each record is clipped singly). A user
    with fewer records, or with records of smaller norms, loses no more. The privacy unit is the
    user.

    Attributes:
        noise_stddev: as for `Gaussian`.
        sampling_rate: the probability, in [0, 1], with which each record is in the sample,
            independently of everything else; rounded as for `PoissonGaussian`.
        records: the largest number of records of the user, 1 to 1,000.
    """

    noise_stddev: float
    sampling_rate: float
    records: int

    def __post_init__(self) -> None:
        single = PoissonGaussian(self.noise_stddev, self.sampling_rate)
        object.__setattr__(self, "noise_stddev", single.noise_stddev)
        object.__setattr__(self, "sampling_rate", single.sampling_rate)
        count = whole_number("records", self.records, 1, MAX_RECORDS)
        object.__setattr__(self, "records", count)


@dataclass(frozen=True)
class Laplace:
    """A sum released with Laplace noise; norms are L1. A norm c is (c / scale)-DP for its user.

    Attributes:
        scale: the scale of the noise in each coordinate, in the units of the norms. Finite, > 0.
    """

    scale: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "scale", positive_finite("scale", self.scale))


@dataclass(frozen=True)
class PureDP:
    """Any eps-DP mechanism; the "norm" of a user is eps itself, in nats."""


Mechanism: TypeAlias = Gaussian | PoissonGaussian | PoissonRecords | Laplace | PureDP


UNSAMPLED: Final = (Gaussian, Laplace, PureDP)


def known(mechanism: Mechanism) -> Mechanism:
    """Return the mechanism if it is one of these, or raise `InvalidInput`."""
    if not isinstance(mechanism, Mechanism):
        allowed = "Gaussian, PoissonGaussian, PoissonRecords, Laplace or PureDP"
        raise InvalidInput("mechanism", mechanism, allowed)
    return mechanism


def simplified(mechanism: Mechanism) -> Mechanism:
    """Return `Gaussian` for sampling rate 1, otherwise the mechanism, if it is one of these.

    One record is a user, and all of k records of norm c are a norm of k c.
    """
    match known(mechanism):
        case PoissonRecords(noise_stddev, 1.0, records):
            return Gaussian(float_toward(Fraction(noise_stddev) / records, DOWN))
        case PoissonRecords(noise_stddev, sampling_rate, 1):
            return PoissonGaussian(noise_stddev, sampling_rate)
        case PoissonGaussian(noise_stddev, 1.0):
            return Gaussian(noise_stddev)
    return mechanism


def noise_scale(mechanism: Mechanism, kinds: tuple[type[Mechanism], ...] = UNSAMPLED) -> float:
    """Return s such that the cost of a norm c is a power of c / s.

    This is the standard deviation of `Gaussian`, the scale of `Laplace`, and 1 for `PureDP`.

    Raises:
        InvalidInput: for a mechanism of none of these kinds. The cost of a sampled step has no such
            form.
    """
    match known(mechanism):
        case Gaussian(scale) | Laplace(scale) if isinstance(mechanism, kinds):
            return scale
        case PureDP() if PureDP in kinds:
            return 1.0
    raise InvalidInput(
        "mechanism",
        mechanism,
        f"{' or '.join(kind.__name__ for kind in kinds)} in this measure: account Gaussian and "
        "Laplace steps in zcdp or renyi, and Poisson-sampled steps, which have no rho or mu, in "
        "renyi or steps",
    )
