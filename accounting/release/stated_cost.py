"""The cost of a private release, in a form that can be charged like any other step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from accounting.costs.costs import zcdp_cost
from accounting.costs.mechanisms import Gaussian, Mechanism
from accounting.costs.power_cost import noise_for_norm_budget
from accounting.exact.invalid_input import InvalidInput

_SCALE_BITS: Final = 400  # keeps every intermediate result a float64


@dataclass(frozen=True)
class StatedCost:
    """The largest cost of a release to any user; pass both parts to `zcdp_cost` or `charge_units`.

    Neither part depends on the data.

    Attributes:
        mechanism: the mechanism that runs.
        norm: the largest norm of one user's contribution, in the mechanism's norm (for `PureDP`,
            eps), rounded up.
    """

    mechanism: Mechanism
    norm: float

    @property
    def rho(self) -> float:
        """The zCDP cost of that user, in nats, rounded up."""
        return float(zcdp_cost(self.mechanism, np.array([self.norm]))[0])


def gaussian_for(norm: float, noise_stddev: float | None, rho: float | None) -> Gaussian:
    """Return the mechanism with the given noise, or with the noise at which `norm` costs `rho`.

    Exactly one is given: `noise_stddev`, from 2**-400 to 2**400, in the units of the norm, or
    `rho`, in nats of zCDP. The noise for `rho` is rounded up, so the cost is at most `rho`.
    """
    if (noise_stddev is None) == (rho is None):
        given = "both" if rho is not None else None
        raise InvalidInput("noise_stddev", given, "given if rho is not, and only then")
    if rho is not None:
        return Gaussian(noise_for_norm_budget(norm * norm, rho))
    assert noise_stddev is not None
    mechanism = Gaussian(noise_stddev)
    if not 2.0**-_SCALE_BITS <= mechanism.noise_stddev <= 2.0**_SCALE_BITS:
        raise InvalidInput(
            "noise_stddev", noise_stddev, f"within 2**-{_SCALE_BITS} and its inverse"
        )
    return mechanism
