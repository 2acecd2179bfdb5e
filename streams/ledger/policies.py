"""From a policy on the wire to the rule of ``accounting`` that decides under it."""

from __future__ import annotations

import math
from typing import TypeAlias

import msgspec
import numpy as np
from msgspec import UNSET
from numpy.typing import NDArray

from accounting import (
    ApproxDPFilter,
    Gaussian,
    GdpFilter,
    InvalidInput,
    Laplace,
    Mechanism,
    PureDP,
    RenyiFilter,
    ZcdpFilter,
)
from accounting.exact.units import from_units
from streams.schemas import MechanismName, Policy, Reason, Rejection, UserIds

BudgetFilter: TypeAlias = RenyiFilter | ZcdpFilter | GdpFilter | ApproxDPFilter


def check_policy(policy: Policy) -> None:
    """Check what no single field can tell.

    Raises:
        Rejection: INVALID_POLICY.
    """
    numbers = len(policy.orders) if policy.measure == "renyi" else 1
    complaint = None
    if policy.measure == "renyi" and not policy.orders:
        complaint = "measure renyi needs at least one order"
    elif policy.measure != "renyi" and policy.orders:
        complaint = f"orders belong to measure renyi, not to {policy.measure}"
    elif not all(math.isfinite(order) for order in policy.orders):
        complaint = f"orders must be finite, not {policy.orders}"
    elif sorted(set(policy.orders)) != policy.orders:
        complaint = f"orders must increase strictly, not {policy.orders}"
    elif len(policy.budget) != numbers or len(policy.odometer_step) != numbers:
        complaint = (
            f"{numbers} budget and odometer_step entries are needed, "
            f"not {len(policy.budget)} and {len(policy.odometer_step)}"
        )
    if complaint:
        raise Rejection(Reason.INVALID_POLICY, complaint)
    try:
        filter_of(policy)
    except InvalidInput as error:
        raise Rejection(Reason.INVALID_POLICY, str(error)) from error


def user_ids_of(policy: Policy) -> UserIds:
    """Which kinds of ids a stored policy allows; version 1 allowed all."""
    return "mixed" if policy.user_ids is UNSET else policy.user_ids


def policy_to_store(policy: Policy, version: int) -> Policy:
    """What a request of this version fixes: from version 2 on one kind of ids, if it names none."""
    if version >= 2 and policy.user_ids is UNSET:
        return msgspec.structs.replace(policy, user_ids="one-kind")
    return policy


def is_same_policy(stored: Policy, asked: Policy, version: int) -> bool:
    """Whether a request of this version asks for what is there.

    From version 2 on it leaves kinds of ids that it does not name as they are.
    """
    if version >= 2 and asked.user_ids is UNSET:
        return _without_user_ids(stored) == asked
    same_ids = user_ids_of(stored) == user_ids_of(asked)
    return same_ids and _without_user_ids(stored) == _without_user_ids(asked)


def policy_as_of(policy: Policy, version: int) -> Policy:
    """A stored policy as an answer of this version can say it."""
    return policy if version >= 2 else _without_user_ids(policy)


def quoted(policy: Policy) -> str:
    """A policy as texts quote it; one of version 1 as version 1 did."""
    return str(policy).replace(f", user_ids={UNSET}", "")


def _without_user_ids(policy: Policy) -> Policy:
    return msgspec.structs.replace(policy, user_ids=UNSET)


def filter_of(policy: Policy) -> BudgetFilter:
    """The privacy filter with the budget of a checked policy."""
    match policy.measure:
        case "renyi":
            return RenyiFilter.from_units(policy.orders, policy.budget)
        case "zcdp":
            return ZcdpFilter.from_units(policy.budget[0])
        case "gdp":
            return GdpFilter.from_units(policy.budget[0])
        case "approx-dp":
            return ApproxDPFilter.from_units(policy.budget[0])


def mechanism_of(name: MechanismName, scale: float, policy: Policy) -> Mechanism:
    """The mechanism of a charge, if the policy's measure can charge it.

    Raises:
        Rejection: INVALID_MECHANISM.
    """
    try:
        mechanism: Mechanism
        match name:
            case "gaussian":
                mechanism = Gaussian(scale)
            case "laplace":
                mechanism = Laplace(scale)
            case "pure-dp":
                mechanism = PureDP()
    except InvalidInput as error:
        raise Rejection(Reason.INVALID_MECHANISM, str(error)) from error
    gaussian = isinstance(mechanism, Gaussian)
    if policy.measure == "gdp" and not gaussian:
        detail = f"measure gdp charges gaussian steps only, not {name}; use measure zcdp"
        raise Rejection(Reason.INVALID_MECHANISM, detail)
    if policy.on_exhaustion == "clip" and not gaussian:
        detail = f"on_exhaustion=clip grants norms of gaussian steps only, not {name}"
        raise Rejection(Reason.INVALID_MECHANISM, detail)
    return mechanism


def bound_in_measure(policy: Policy, units: NDArray[np.int64]) -> NDArray[np.float64]:
    """Units as numbers of the policy's own measure (mu for gdp), never less; shape kept."""
    bound = from_units(units)
    if policy.measure != "gdp":
        return bound
    return np.where(units > 0, np.nextafter(np.sqrt(bound), np.inf), 0.0)
