"""From a policy on the wire to the rule of ``accounting`` that decides under it.

What the ledger has to know of a measure is its row in ``MEASURES``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias, get_args

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
    from_units,
)
from streams.schemas import Measure, MechanismName, Policy, Reason, Rejection, UserIds

BudgetFilter: TypeAlias = RenyiFilter | ZcdpFilter | GdpFilter | ApproxDPFilter
Bound: TypeAlias = Callable[[NDArray[np.int64]], NDArray[np.float64]]
_ALL_MECHANISMS: tuple[MechanismName, ...] = get_args(MechanismName)


@dataclass(frozen=True)
class MeasureRow:
    """What the ledger has to know of a measure.

    Attributes:
        filter: with the budget of a checked policy.
        per_order: what a user spends is a number for each order of the policy; else one number.
        bound: units as numbers that people know, never less; shape kept.
        mechanisms: those that it can charge.
    """

    filter: Callable[[Policy], BudgetFilter]
    per_order: bool = False
    bound: Bound = from_units
    mechanisms: tuple[MechanismName, ...] = _ALL_MECHANISMS


def _root(units: NDArray[np.int64]) -> NDArray[np.float64]:
    """Mu, of units of its square."""
    return np.where(units > 0, np.nextafter(np.sqrt(from_units(units)), np.inf), 0.0)


MEASURES: dict[Measure, MeasureRow] = {
    "renyi": MeasureRow(lambda p: RenyiFilter.from_units(p.orders, p.budget), per_order=True),
    "zcdp": MeasureRow(lambda p: ZcdpFilter.from_units(p.budget[0])),
    "gdp": MeasureRow(
        lambda p: GdpFilter.from_units(p.budget[0]), bound=_root, mechanisms=("gaussian",)
    ),
    "approx-dp": MeasureRow(lambda p: ApproxDPFilter.from_units(p.budget[0])),
}
"""A measure is one row here, beside its name in ``schemas`` and its costs in ``accounting``."""


def check_policy(policy: Policy) -> None:
    """Check what no single field can tell.

    Raises:
        Rejection: INVALID_POLICY.
    """
    measure, per_order = policy.measure, MEASURES[policy.measure].per_order
    numbers = len(policy.orders) if per_order else 1
    complaint = None
    if per_order and not policy.orders:
        complaint = f"measure {measure} needs at least one order"
    elif policy.orders and not per_order:
        others = ", ".join(name for name, row in MEASURES.items() if row.per_order)
        complaint = f"orders belong to measure {others}, not to {measure}"
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
    return MEASURES[policy.measure].filter(policy)


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
    allowed = MEASURES[policy.measure].mechanisms
    if name not in allowed:
        detail = (
            f"measure {policy.measure} charges {' and '.join(allowed)} steps only, not {name}; "
            "use measure zcdp"
        )
        raise Rejection(Reason.INVALID_MECHANISM, detail)
    if policy.on_exhaustion == "clip" and name != "gaussian":
        detail = f"on_exhaustion=clip grants norms of gaussian steps only, not {name}"
        raise Rejection(Reason.INVALID_MECHANISM, detail)
    return mechanism
