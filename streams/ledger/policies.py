"""From a policy on the wire to the rule of ``accounting`` that decides under it.

What there is to know of a measure is its row in ``accounting.measures``; nothing here asks for the
name of one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import msgspec
from msgspec import UNSET

from accounting import (
    MEASURES,
    BudgetFilter,
    Gaussian,
    InvalidInput,
    Laplace,
    Measure,
    Mechanism,
    PoissonGaussian,
    PureDP,
)
from streams.records import (
    MAX_BUDGETS,
    ChargeRoster,
    MechanismName,
    Policy,
    Reason,
    Rejection,
)

MECHANISMS: Mapping[MechanismName, Callable[[float], Mechanism]] = {
    "gaussian": Gaussian,
    "laplace": Laplace,
    "pure-dp": lambda _: PureDP(),
}
"""From the scale of a charge. A mechanism of the wire is one row here."""


def measure_of(policy: Policy) -> Measure:
    """What the budget of a policy is counted in."""
    return MEASURES[policy.measure]


def check_policy(policy: Policy) -> None:
    """Check what no single field can tell.

    Raises:
        Rejection: INVALID_POLICY.
    """
    measure, per_order = policy.measure, measure_of(policy).per_order
    numbers = len(policy.orders) if per_order else 1
    complaint = None
    if per_order and not policy.orders:
        complaint = f"measure {measure} needs at least one order"
    elif policy.orders and not per_order:
        complaint = f"orders belong to measure renyi, not to {measure}"
    elif not all(math.isfinite(order) for order in policy.orders):
        complaint = f"orders must be finite, not {policy.orders}"
    elif sorted(set(policy.orders)) != policy.orders:
        complaint = f"orders must increase strictly, not {policy.orders}"
    elif has_per_user_order(policy) and not per_order:
        complaint = f"per_user_order belongs to measure renyi, not to {measure}"
    elif policy.on_exhaustion == "clip" and not measure_of(policy).covers(Gaussian(1.0)):
        complaint = (
            f"on_exhaustion=clip grants norms of gaussian steps, which {measure} has none of"
        )
    elif policy.parent == policy.dataset:
        complaint = "a dataset cannot be its own parent"
    elif policy.share_of == policy.dataset:
        complaint = "a dataset cannot have a share of itself"
    elif policy.share_of is not UNSET and policy.parent is not UNSET:
        complaint = "a dataset cannot have both parent and share_of"
    elif policy.assume_independent_timing is not UNSET and policy.parent is not UNSET:
        complaint = "assume_independent_timing belongs to the outermost dataset"
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


def check_ancestors(policy: Policy, outer: Sequence[Policy]) -> None:
    """Check what the ancestors of a new dataset allow.

    Args:
        policy: of the new one, checked by itself.
        outer: of the others, the nearest first; empty if there is none of that name.

    Raises:
        Rejection: INVALID_POLICY.
    """
    if not outer:
        return
    nearest, complaint = outer[0], None
    no_steps = next((each for each in outer if not measure_of(each).covers(Gaussian(1.0))), None)
    if len(outer) >= MAX_BUDGETS:
        complaint = f"{MAX_BUDGETS} budgets at most are nested in one another"
    elif policy.on_exhaustion == "clip" and no_steps is not None:
        complaint = (
            f"on_exhaustion=clip grants norms of gaussian steps, which {no_steps.measure} of "
            f"dataset {no_steps.dataset!r} has none of"
        )
    elif policy.user_ids not in (UNSET, nearest.user_ids):
        complaint = (
            f"user_ids are {policy.user_ids}, and {nearest.user_ids} in dataset "
            f"{nearest.dataset!r}: they are the same people"
        )
    elif policy.pseudonyms != nearest.pseudonyms:
        complaint = (
            f"pseudonyms are of another key than those of dataset {nearest.dataset!r}: nobody in "
            "one of them would be anybody in the other"
        )
    if complaint:
        raise Rejection(Reason.INVALID_POLICY, complaint)


def check_share(policy: Policy, whole: Policy, shares: Sequence[Policy]) -> None:
    """Check a new dataset that is to have a share of another dataset's budget.

    Budgets of one measure add up in their units (mu squared, rho, epsilon, or Rényi divergence at
    each order), whichever runs charge the shares and in whatever order.

    Args:
        policy: the new dataset's policy, checked by itself.
        whole: the policy of the dataset whose budget is shared.
        shares: the policies of the shares that exist, closed ones included.

    Raises:
        Rejection: INVALID_POLICY.
    """
    name, complaint = whole.dataset, None
    taken = [sum(units) for units in zip(*(share.budget for share in shares), strict=True)]
    left = [all_of - used for all_of, used in zip(whole.budget, taken or [0] * 256, strict=False)]
    if whole.parent is not UNSET or whole.share_of is not UNSET:
        complaint = f"dataset {name!r} is nested in another one or a share itself: it has no shares"
    elif (policy.measure, policy.orders) != (whole.measure, whole.orders):
        complaint = f"measure and orders must be those of dataset {name!r}, {whole.measure}"
    elif has_per_user_order(policy) or has_per_user_order(whole):
        complaint = "budgets at an order of each user's own do not add up: give orders explicitly"
    elif any(asked > free for asked, free in zip(policy.budget, left, strict=True)):
        complaint = (
            f"the budget of {policy.budget} units is above the {left} units that the "
            f"{len(shares)} other shares leave of dataset {name!r}"
        )
    elif policy.user_ids not in (UNSET, whole.user_ids) or policy.pseudonyms != whole.pseudonyms:
        complaint = f"user_ids and pseudonyms must be those of dataset {name!r}"
    if complaint:
        raise Rejection(Reason.INVALID_POLICY, complaint)


def has_per_user_order(policy: Policy) -> bool:
    """Whether each user is bound to one of the orders, and charged there alone."""
    return policy.per_user_order is True


def policy_to_store(policy: Policy, outer: Sequence[Policy]) -> Policy:
    """Return the policy of a new dataset nested in these others.

    If it names no kinds of user ids, the dataset has those of the nearest outer one, or one kind.
    """
    if policy.user_ids is not UNSET:
        return policy
    ids = outer[0].user_ids if outer else "one-kind"
    return msgspec.structs.replace(policy, user_ids=ids)


def is_same_policy(stored: Policy, asked: Policy) -> bool:
    """Return whether a request asks for the stored policy; unnamed kinds of user ids match all."""
    if asked.user_ids is UNSET:
        asked = msgspec.structs.replace(asked, user_ids=stored.user_ids)
    return stored == asked


def filter_of(policy: Policy) -> BudgetFilter:
    """The privacy filter with the budget of a checked policy."""
    return measure_of(policy).filter_of(policy.budget, policy.orders or None)


def mechanism_of(name: MechanismName, scale: float, *policies: Policy) -> Mechanism:
    """The mechanism of a charge, if the measures of these policies can charge it.

    Args:
        name: of the mechanism.
        scale: of its noise.
        policies: of all budgets that count, that of the dataset itself first.

    Raises:
        Rejection: INVALID_MECHANISM.
    """
    try:
        mechanism = MECHANISMS[name](scale)
    except InvalidInput as error:
        raise Rejection(Reason.INVALID_MECHANISM, str(error)) from error
    _check_covered(mechanism, name, policies, Measure.covers)
    return mechanism


def check_roster_mechanism(charge: ChargeRoster, *policies: Policy) -> None:
    """Check the mechanism of a step whose prices a cost table says.

    Args:
        charge: the step.
        policies: of all budgets that count, that of the dataset itself first.

    Raises:
        Rejection: INVALID_MECHANISM.
    """
    if charge.mechanism != "poisson-gaussian" and charge.sampling_rate != 1.0:
        detail = (
            f"sampling_rate is {charge.sampling_rate}, but steps of {charge.mechanism} are not "
            "sampled: those of poisson-gaussian are"
        )
        raise Rejection(Reason.INVALID_MECHANISM, detail)
    try:
        mechanism = (
            PoissonGaussian(charge.scale, charge.sampling_rate)
            if charge.mechanism == "poisson-gaussian"
            else MECHANISMS[charge.mechanism](charge.scale)
        )
    except InvalidInput as error:
        raise Rejection(Reason.INVALID_MECHANISM, str(error)) from error
    _check_covered(mechanism, charge.mechanism, policies, Measure.covers_by_table)


def _check_covered(
    mechanism: Mechanism,
    name: str,
    policies: Sequence[Policy],
    covers: Callable[[Measure, Mechanism], bool],
) -> None:
    for measure in map(measure_of, policies):
        if not covers(measure, mechanism):
            covered = [known for known, make in MECHANISMS.items() if measure.covers(make(1.0))]
            other = "renyi" if isinstance(mechanism, PoissonGaussian) else "zcdp"
            detail = (
                f"measure {measure.name} charges {' and '.join(covered)} steps only, not {name}; "
                f"use measure {other}"
            )
            raise Rejection(Reason.INVALID_MECHANISM, detail)
    clips = policies[0].on_exhaustion == "clip"  # which the dataset says that is charged
    if clips and not isinstance(mechanism, Gaussian | PoissonGaussian):
        detail = f"on_exhaustion=clip grants norms of gaussian steps only, not {name}"
        raise Rejection(Reason.INVALID_MECHANISM, detail)
