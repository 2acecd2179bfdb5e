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
from streams.schemas import (
    MAX_BUDGETS,
    ChargeRoster,
    MechanismName,
    Policy,
    Reason,
    Rejection,
    UserIds,
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
        # In the words in which it was said first: a log gives the same rejects for ever.
        complaint = f"orders belong to measure renyi, not to {measure}"
    elif not all(math.isfinite(order) for order in policy.orders):
        complaint = f"orders must be finite, not {policy.orders}"
    elif sorted(set(policy.orders)) != policy.orders:
        complaint = f"orders must increase strictly, not {policy.orders}"
    elif has_own_orders(policy) and not per_order:
        complaint = f"own_order belongs to measure renyi, not to {measure}"
    elif policy.on_exhaustion == "clip" and not measure_of(policy).covers(Gaussian(1.0)):
        complaint = (
            f"on_exhaustion=clip grants norms of gaussian steps, which {measure} has none of"
        )
    elif policy.within == policy.dataset:
        complaint = "a dataset cannot be within itself"
    elif (
        policy.within is not UNSET
        and policy.on_exhaustion == "clip"
        and not has_own_exhaustion(policy)
    ):
        # In the words in which it was said first: a log gives the same rejects for ever.
        complaint = "a dataset within another one halts: on_exhaustion=clip has one budget only"
    elif has_own_exhaustion(policy) and policy.within is UNSET:
        complaint = (
            "own_exhaustion belongs to a dataset within another one: elsewhere there is no other "
            "on_exhaustion"
        )
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


def check_within(policy: Policy, outer: Sequence[Policy]) -> None:
    """Check what the datasets allow that a new one is within.

    Args:
        policy: of the new one, checked by itself.
        outer: of the others, the nearest first; empty if there is none of that name.

    Raises:
        Rejection: INVALID_POLICY.
    """
    if not outer:
        return
    nearest, complaint = outer[0], None
    clipping = next((each.dataset for each in outer if each.on_exhaustion == "clip"), None)
    no_steps = next((each for each in outer if not measure_of(each).covers(Gaussian(1.0))), None)
    if len(outer) >= MAX_BUDGETS:
        complaint = f"{MAX_BUDGETS} budgets at most hold one within the other"
    elif clipping is not None and not has_own_exhaustion(policy):
        complaint = f"dataset {clipping!r} clips; only one that halts can have others in it"
    elif policy.on_exhaustion == "clip" and no_steps is not None:
        complaint = (
            f"on_exhaustion=clip grants norms of gaussian steps, which {no_steps.measure} of "
            f"dataset {no_steps.dataset!r} has none of"
        )
    elif nearest.user_ids is UNSET:
        complaint = (
            f"dataset {nearest.dataset!r} was created by version 1, which says nothing of user "
            "ids: it can have no others in it"
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
    elif policy.allow is not UNSET and all(each.allow is UNSET for each in outer):
        complaint = (
            f"allow names who may charge it, and dataset {nearest.dataset!r}, whose budget it "
            "shares, names nobody: anybody could spend that, and forget its users"
        )
    if complaint:
        raise Rejection(Reason.INVALID_POLICY, complaint)


def user_ids_of(policy: Policy) -> UserIds:
    """Which kinds of ids a stored policy allows; version 1 allowed all."""
    return "mixed" if policy.user_ids is UNSET else policy.user_ids


def has_own_orders(policy: Policy) -> bool:
    """Whether each user is bound to one of the orders, and charged there alone."""
    return policy.own_order is True


def has_own_exhaustion(policy: Policy) -> bool:
    """Whether its ``on_exhaustion`` decides, and no other one of those that it is within."""
    return policy.own_exhaustion is True


def policy_to_store(policy: Policy, version: int, outer: Sequence[Policy]) -> Policy:
    """What a request of this version fixes, within these others.

    From version 2 on, if it names no kinds of ids, theirs, or one kind. Where all of them halt,
    ``own_exhaustion`` says nothing, and is not kept: an earlier release can read what is.
    """
    if all(each.on_exhaustion == "halt" for each in (policy, *outer)):
        policy = msgspec.structs.replace(policy, own_exhaustion=UNSET)
    if version >= 2 and policy.user_ids is UNSET:
        ids = user_ids_of(outer[0]) if outer else "one-kind"
        return msgspec.structs.replace(policy, user_ids=ids)
    return policy


def is_same_policy(stored: Policy, asked: Policy, version: int) -> bool:
    """Whether a request of this version asks for what is there.

    From version 2 on it leaves kinds of ids that it does not name as they are. What
    ``own_exhaustion`` says follows from the others, as far as it can be there.
    """
    stored, asked = (
        msgspec.structs.replace(policy, own_exhaustion=UNSET) for policy in (stored, asked)
    )
    if version >= 2 and asked.user_ids is UNSET:
        return _without_user_ids(stored) == asked
    same_ids = user_ids_of(stored) == user_ids_of(asked)
    return same_ids and _without_user_ids(stored) == _without_user_ids(asked)


def policy_as_of(policy: Policy, version: int) -> Policy:
    """A stored policy as an answer of this version can say it."""
    if version < 3:
        policy = msgspec.structs.replace(policy, own_order=UNSET, within=UNSET, pseudonyms=UNSET)
        policy = msgspec.structs.replace(policy, allow=UNSET, own_exhaustion=UNSET)
    return policy if version >= 2 else _without_user_ids(policy)


def quoted(policy: Policy) -> str:
    """A policy as texts quote it: as the version did that knew no more than it says."""
    text = str(policy)
    for field in ("user_ids", "own_order", "within", "pseudonyms", "allow", "own_exhaustion"):
        text = text.replace(f", {field}={UNSET}", "")
    return text


def _without_user_ids(policy: Policy) -> Policy:
    return msgspec.structs.replace(policy, user_ids=UNSET)


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
    """Check the mechanism of a step whose prices a tariff says.

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
