"""Cost tables of a roster step: the charge at every norm level, under each budget that counts.

The table is the same for all users. The client computes it once, in whole units, and sends it with
the first step that has the mechanism.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from accounting import Gaussian, InvalidInput, Laplace, Mechanism, PoissonGaussian, PureDP
from accounting.costs.mechanisms import noise_scale
from accounting.measures import cost_table
from streams.records import Policy, RosterMechanism
from streams.records.digests import cost_table_digest
from streams.sdk.arguments import read_event
from streams.sdk.errors import InvalidRequest

_NAMES: Mapping[type[Mechanism], RosterMechanism] = {
    Gaussian: "gaussian",
    PoissonGaussian: "poisson-gaussian",
    Laplace: "laplace",
    PureDP: "pure-dp",
}


class Priced(NamedTuple):
    """A mechanism and its cost table, with the table's digest."""

    name: RosterMechanism
    scale: float
    sampling_rate: float
    units: bytes
    digest: bytes


def price(
    mechanism: Mechanism, policies: Sequence[Policy], clip_norm: float, levels: int
) -> Priced:
    """Return a mechanism with its cost table under these policies, on a norm grid up to a clip
    norm.

    Raises:
        InvalidRequest: a measure cannot charge the mechanism.
    """
    units = b"".join(_cost_table(mechanism, policy, clip_norm, levels) for policy in policies)
    return Priced(
        name=_NAMES[type(mechanism)],
        scale=_scale_of(mechanism),
        sampling_rate=getattr(mechanism, "sampling_rate", 1.0),
        units=units,
        digest=cost_table_digest(units),
    )


def chosen_mechanism(
    noise_stddev: float | None, sampling_rate: float, mechanism: Any, clip_norm: float
) -> Mechanism:
    """Return the mechanism of a step: the given one, or Gaussian noise, sampled or not.

    Raises:
        InvalidRequest: it cannot be charged by level.
    """
    if (noise_stddev is None) == (mechanism is None):
        raise InvalidRequest("give either noise_stddev or mechanism")
    try:
        if noise_stddev is not None:
            if sampling_rate == 1:
                return Gaussian(noise_stddev)
            return PoissonGaussian(noise_stddev, sampling_rate)
        chosen = read_event(mechanism, clip_norm)
    except InvalidInput as error:
        raise InvalidRequest(str(error)) from error
    if sampling_rate != 1:
        raise InvalidRequest(
            f"sampling_rate is {sampling_rate}, but a mechanism was given: give the rate with the "
            "mechanism, as in PoissonGaussian"
        )
    if type(chosen) not in _NAMES:
        known = ", ".join(kind.__name__ for kind in _NAMES)
        raise InvalidRequest(f"mechanism is {mechanism!r}; a roster charges steps of {known}")
    return chosen


def _cost_table(mechanism: Mechanism, policy: Policy, clip_norm: float, levels: int) -> bytes:
    try:
        units = cost_table(policy.measure, mechanism, clip_norm, levels, policy.orders or None)
    except InvalidInput as error:
        raise InvalidRequest(str(error)) from error
    return units.astype("<i8").tobytes()


def _scale_of(mechanism: Mechanism) -> float:
    if isinstance(mechanism, PoissonGaussian):
        return mechanism.noise_stddev
    return noise_scale(mechanism)
