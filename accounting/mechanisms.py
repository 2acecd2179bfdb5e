"""The mechanisms whose cost is known: what was run on the data in one step.

Neighbouring data sets differ by adding or removing one user. "Norm" is that user's contribution
to the released sum in this step, in the norm that the mechanism names.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from accounting.validation import positive_finite


@dataclass(frozen=True)
class Gaussian:
    """A sum released with Gaussian noise; norms are L2 (Feldman and Zrnic, Ex. 2.7).

    `noise_stddev`: standard deviation of the noise in each coordinate, absolute, in the units of
    the norms (not multiplied by a clip bound). Finite, > 0.

    For a Lipschitz analysis with constant L in this user's data (Ex. 2.8) the norm is L times the
    distance.
    """

    noise_stddev: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "noise_stddev", positive_finite("noise_stddev", self.noise_stddev))


@dataclass(frozen=True)
class Laplace:
    """A sum released with Laplace noise; norms are L1. A norm c is (c / scale)-DP for its user.

    `scale`: the scale of the noise in each coordinate, in the units of the norms. Finite, > 0.
    """

    scale: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "scale", positive_finite("scale", self.scale))


@dataclass(frozen=True)
class PureDP:
    """Any eps-DP mechanism; the "norm" of a user is eps itself, in nats."""


Mechanism: TypeAlias = Gaussian | Laplace | PureDP


def noise_scale(mechanism: Mechanism) -> float:
    """Return s such that rho of a user with norm c is c^2 / (2 s^2).

    The standard deviation for `Gaussian`, the scale for `Laplace`, 1 for `PureDP`.
    """
    match mechanism:
        case Gaussian(noise_stddev):
            return noise_stddev
        case Laplace(scale):
            return scale
        case PureDP():
            return 1.0
