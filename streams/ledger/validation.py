"""Checks of requests before anything changes: policies, mechanisms, users, norms and maxima.

Every check raises ``Rejection`` for the first problem that it finds; the reasons are in brackets.
All properties of a measure are in its row of ``accounting.measures``; ``MEASURES`` has no row of
measures with a shape.

A record changes one balance per user, budget and order. The number of balances bounds what a worker
computes, writes to Redis and publishes for the record. The store writes large batches in pieces, so
no limit depends on a size in bytes, except that of a decision, which is one Kafka record.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import msgspec
import numpy as np
from msgspec import UNSET
from numpy.typing import NDArray

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
    StepShape,
    steps_measure,
)
from accounting.exact.invalid_input import quoted
from streams.ledger.slots import UNKNOWN
from streams.records import (
    ERASED_INTEGER,
    ERASED_STRING,
    HIDDEN,
    MAX_ACCOUNTS,
    MAX_ANSWER_BYTES,
    MAX_BALANCES,
    MAX_BUDGETS,
    MAX_CHARGE_USERS,
    MAX_ROSTERS,
    RESERVED,
    Charge,
    ChargeRoster,
    Policy,
    Reason,
    Rejection,
    RosterMechanism,
    User,
    Users,
)
from streams.records.packing import unpack_norms
from streams.records.users import UserIds

MECHANISMS: Mapping[RosterMechanism, Callable[[float, float], Mechanism]] = {
    "gaussian": lambda scale, _: Gaussian(scale),
    "laplace": lambda scale, _: Laplace(scale),
    "pure-dp": lambda *_: PureDP(),
    "poisson-gaussian": PoissonGaussian,
}
"""Makes each mechanism of the wire from the scale and the sampling rate of a step."""

_HIDDEN = (ERASED_INTEGER + HIDDEN, ERASED_STRING + HIDDEN)


def check_policy(policy: Policy) -> None:
    """Check the fields of a policy against each other (INVALID_POLICY)."""
    shape = policy.sampling_rate, policy.noise_multiplier
    if shape.count(UNSET) != (2 if policy.measure in MEASURES else 0):
        raise Rejection(
            Reason.INVALID_POLICY,
            "measure steps needs sampling_rate and noise_multiplier, and no other measure has them",
        )
    measure, per_order = policy.measure, policy.row.per_order
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
    elif policy.per_user_order is True and not per_order:
        complaint = f"per_user_order belongs to measure renyi, not to {measure}"
    elif policy.on_exhaustion == "clip" and not policy.row.can_clip:
        complaint = (
            f"on_exhaustion is clip, but measure {measure} does not charge a smaller norm of a "
            "gaussian step less: use halt"
        )
    elif policy.parents and policy.dataset in policy.parents:
        complaint = "a dataset cannot be its own parent"
    elif policy.parents and sorted(set(policy.parents)) != policy.parents:
        complaint = f"parents must be distinct and in increasing order, not {policy.parents}"
    elif policy.share_of == policy.dataset:
        complaint = "a dataset cannot have a share of itself"
    elif policy.share_of is not UNSET and policy.parents is not UNSET:
        complaint = "a dataset cannot have both parents and share_of"
    elif policy.assume_independent_timing is not UNSET and policy.parents is not UNSET:
        complaint = "assume_independent_timing belongs to outermost datasets"
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
    """Check a new dataset against its ancestors (INVALID_POLICY).

    The nearest ancestor is first; there are none if a parent does not exist.
    """
    if not outer:
        return
    nearest, complaint = outer[0], None
    other = next((each for each in outer if each.user_ids != nearest.user_ids), None)
    stranger = next((each for each in outer if each.pseudonyms != policy.pseudonyms), None)
    no_clip = next((each for each in outer if not each.row.can_clip), None)
    if len(outer) >= MAX_BUDGETS:
        complaint = (
            f"a charge would draw on {len(outer) + 1} budgets, and {MAX_BUDGETS} are allowed"
        )
    elif policy.on_exhaustion == "clip" and no_clip is not None:
        complaint = (
            f"on_exhaustion is clip, but dataset {no_clip.dataset!r} of measure "
            f"{no_clip.measure} does not charge a smaller norm of a gaussian step less: use halt"
        )
    elif policy.user_ids not in (UNSET, nearest.user_ids):
        complaint = (
            f"user_ids are {policy.user_ids}, and {nearest.user_ids} in dataset "
            f"{nearest.dataset!r}: they are the same people"
        )
    elif other is not None:
        complaint = (
            f"user_ids are {nearest.user_ids} in dataset {nearest.dataset!r}, and {other.user_ids} "
            f"in dataset {other.dataset!r}: they are the same people"
        )
    elif stranger is not None:
        complaint = (
            f"pseudonyms are of another key than those of dataset {stranger.dataset!r}: the "
            "two datasets would have no user in common"
        )
    if complaint:
        raise Rejection(Reason.INVALID_POLICY, complaint)


def check_share(policy: Policy, whole: Policy, shares: Sequence[Policy]) -> None:
    """Check a new dataset that is to have a share of another dataset's budget (INVALID_POLICY).

    Budgets of one measure add up in their units (mu squared, rho, epsilon, or Rényi divergence at
    each order), whichever runs charge the shares and in whatever order. ``shares`` are those that
    exist, closed ones included.
    """
    name, complaint = whole.dataset, None
    taken = [sum(units) for units in zip(*(share.budget for share in shares), strict=True)]
    left = [all_of - used for all_of, used in zip(whole.budget, taken or [0] * 256, strict=False)]
    if whole.parents is not UNSET or whole.share_of is not UNSET:
        complaint = f"dataset {name!r} is nested in another one or a share itself: it has no shares"
    elif _charged_in(policy) != _charged_in(whole):
        complaint = (
            f"measure, orders, sampling_rate and noise_multiplier must be those of dataset {name!r}"
        )
    elif policy.per_user_order is True or whole.per_user_order is True:
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


def _charged_in(policy: Policy) -> tuple[object, ...]:
    """Return the fields that say in what a budget is counted."""
    return policy.measure, policy.orders, policy.sampling_rate, policy.noise_multiplier


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
    """Return the privacy filter with the budget of a checked policy."""
    return policy.row.filter_of(policy.budget, policy.orders or None)


def mechanism_of(charge: Charge | ChargeRoster) -> Mechanism:
    """Return the mechanism that a step names, or raise ``InvalidInput``."""
    sampling_rate = charge.sampling_rate if isinstance(charge, ChargeRoster) else 1.0
    return MECHANISMS[charge.mechanism](charge.scale, sampling_rate)


def check_mechanism(
    charge: Charge | ChargeRoster, clip_norm: float, policies: Sequence[Policy]
) -> Mechanism:
    """Return the mechanism of a step, if these policies can charge it (INVALID_MECHANISM).

    Args:
        clip_norm: the largest norm; 0 if it is not known.
        policies: of all budgets charged, the dataset's own first.
    """
    covers = Measure.covers
    if isinstance(charge, ChargeRoster):
        covers = Measure.covers_by_table
        if charge.mechanism != "poisson-gaussian" and charge.sampling_rate != 1.0:
            detail = (
                f"sampling_rate is {charge.sampling_rate}, but steps of {charge.mechanism} are not "
                "sampled; only steps of poisson-gaussian are"
            )
            raise Rejection(Reason.INVALID_MECHANISM, detail)
    try:
        mechanism = mechanism_of(charge)
    except InvalidInput as error:
        raise Rejection(Reason.INVALID_MECHANISM, str(error)) from error
    check_covered(mechanism, policies, covers, clip_norm)
    return mechanism


def check_covered(
    mechanism: Mechanism,
    policies: Sequence[Policy],
    covers: Callable[[Measure, Mechanism], bool],
    clip_norm: float = 0.0,
) -> None:
    """Check that every budget's measure can charge a step (INVALID_MECHANISM).

    The rejection lists the measures that can. Under clip, the mechanism must have norms that can be
    clipped; a measure that counts steps charges users up to the clip norm only if the noise is high
    enough.

    Args:
        policies: of all budgets charged, the dataset's own first.
        covers: ``Measure.covers`` or, for steps with a cost table, ``Measure.covers_by_table``.
        clip_norm: the largest norm; 0 if it is not known.
    """
    for policy in policies:
        measure = policy.row
        if not covers(measure, mechanism):
            rows = *MEASURES.values(), steps_measure(StepShape(1.0, 1.0))
            others = tuple(row.name for row in rows if covers(row, mechanism))
            held = f"measure {measure.name}"
            if measure.shape is not None:
                held += f" for sampling rates up to {measure.shape.sampling_rate}"
            detail = (
                f"dataset {policy.dataset!r} has {held}, which does not charge {mechanism}. Use a "
                f"dataset with a measure that does: {', '.join(others)}"
            )
            raise Rejection(
                Reason.INVALID_MECHANISM, detail, uncovered=measure.name, covered_by=others
            )
    clips = bool(policies) and policies[0].on_exhaustion == "clip"  # the charged dataset decides
    if clips and not isinstance(mechanism, Gaussian | PoissonGaussian):
        detail = f"on_exhaustion=clip grants norms of gaussian steps only, not of {mechanism}"
        raise Rejection(Reason.INVALID_MECHANISM, detail)
    for policy in policies:
        shape = policy.row.shape
        if shape is not None and clip_norm > shape.largest_norm(mechanism):
            detail = (
                f"the noise of {mechanism} is too low for clip norm {clip_norm}: dataset "
                f"{policy.dataset!r} counts steps with noise of at least {shape.noise_multiplier} "
                f"times the clip norm, here {shape.noise_multiplier * clip_norm:.6g}"
            )
            raise Rejection(Reason.INVALID_MECHANISM, detail)


def check_charge(
    charge: Charge, held: Sequence[tuple[Policy, User | None]]
) -> tuple[UserIds, NDArray[np.float64], Mechanism]:
    """Check everything about a charge that needs no accounts (LENGTH_MISMATCH to NORM_ABOVE_CLIP).

    ``held`` has for each budget charged, the dataset's own first, the policy, and the first user in
    this partition, if there is one.
    """
    users, norms = UserIds.unpack(charge.users), unpack_norms(charge.norms)
    if len(norms) != len(users):
        raise Rejection(Reason.LENGTH_MISMATCH, f"{len(users)} users, but {len(norms)} norms")
    # A step without users costs nothing, whatever its mechanism.
    policies = [policy for policy, _ in held if len(users)]
    mechanism = check_mechanism(charge, charge.clip_norm or 0.0, policies)
    for policy, first in held:
        check_kinds(policy, first, users)
    check_norms(norms, charge.clip_norm)
    return users, norms, mechanism


def check_distinct(users: UserIds) -> None:
    """Check that no user appears twice (DUPLICATE_USER)."""
    user = users.duplicate()
    if user is not None:
        detail = (
            f"user {quoted(published(user))} appears twice in this step: add its norms up first"
        )
        raise Rejection(Reason.DUPLICATE_USER, detail)


def check_once(users: UserIds, slots: NDArray[np.int64]) -> None:
    """Check that no known user appears twice (DUPLICATE_USER); slots are UNKNOWN for new ones."""
    ordered = np.sort(slots.astype(np.int32))  # half as long, sorted in half the time
    repeated = ordered[1:] == ordered[:-1]
    if not repeated.any():
        return
    twice = ordered[1:][repeated & (ordered[1:] != UNKNOWN)]
    if len(twice):
        first = int(np.flatnonzero(np.isin(slots, twice))[0])
        detail = f"user {quoted(published(users[first]))} appears twice in this step"
        raise Rejection(Reason.DUPLICATE_USER, detail)


def check_no_member(users: UserIds, slots: NDArray[np.int64], members: NDArray[np.int64]) -> None:
    """Check that no user is a member of the roster (DUPLICATE_USER), which are given by slots."""
    repeated = np.isin(slots, members)
    if repeated.any():
        user = published(users[int(repeated.argmax())])
        detail = f"user {quoted(user)} is a member already, at another position"
        raise Rejection(Reason.DUPLICATE_USER, detail)


def check_new_users(users: UserIds, partition: int, partitions: int) -> None:
    """Check users who were not known before (DUPLICATE_USER, WRONG_PARTITION).

    Keyed hashes of erased users belong to no partition.
    """
    check_distinct(users)
    if not users.are_integers:
        users = UserIds([user for user in users if not is_keyed_hash(user)])
    check_homes(users, partition, partitions)


def is_keyed_hash(user: User) -> bool:
    """Return whether this is the keyed hash of an erased user; no id begins like one."""
    return isinstance(user, str) and user.startswith(RESERVED)


def published(user: User) -> User:
    """Return an id as outputs have it: a hidden hash, which depends on a key, is left out."""
    if isinstance(user, str) and user.startswith(_HIDDEN):
        return user[: len(ERASED_STRING)]
    return user


def check_kinds(policy: Policy, first: User | None, users: UserIds) -> None:
    """Check that these ids are of the kinds that the dataset has (MIXED_USERS).

    ``first`` is its first user in this partition, if it has one.
    """
    allowed = policy.user_ids
    if allowed == "mixed" or not len(users):
        return
    kind = _kind(users[0] if first is None else first) if allowed == "one-kind" else allowed
    if users.are_integers:
        strange = None if kind == "integer" else users[0]
    else:
        names = [user for user in users if isinstance(user, str)] if kind == "string" else []
        if len(names) == len(users) and ERASED_INTEGER not in "".join(names):
            return  # one search is faster than a look at every prefix
        strange = next((user for user in users if _kind(user) != kind), None)
    if strange is not None:
        detail = (
            f"user {quoted(published(strange))} is of kind {_kind(strange)}, those of dataset "
            f"{policy.dataset!r} are of kind {kind} (user_ids: {allowed}): one person must not "
            "have two budgets. Convert the ids to one kind, or use a dataset with user_ids=mixed"
        )
        raise Rejection(Reason.MIXED_USERS, detail)


def check_norms(norms: NDArray[np.float64], clip_norm: float | None) -> None:
    """Check norms, and ``clip_norm``, the largest allowed (INVALID_NORM, NORM_ABOVE_CLIP)."""
    if clip_norm is not None and not (0 <= clip_norm < np.inf):
        raise Rejection(Reason.INVALID_NORM, f"clip_norm {clip_norm} is not a finite number >= 0")
    if not len(norms):
        return
    largest = norms.max()
    if not (norms.min() >= 0 and largest < np.inf):  # NaN propagates through both
        position = int(np.flatnonzero(~((norms >= 0) & (norms < np.inf)))[0])
        norm = norms[position].item()
        detail = f"norm {norm} at position {position} is not a finite number >= 0"
        raise Rejection(Reason.INVALID_NORM, detail)
    if clip_norm is not None and largest > clip_norm:
        position = int(norms.argmax())
        detail = (
            f"norm {norms[position].item()} at position {position} is above clip_norm {clip_norm}: "
            "clip the contribution before it is charged, to a little less if rounding exceeds it"
        )
        raise Rejection(Reason.NORM_ABOVE_CLIP, detail)


def check_homes(users: UserIds, partition: int, partitions: int) -> None:
    """Check that all users live in this partition (WRONG_PARTITION)."""
    homes = users.homes(partitions)
    strangers = np.flatnonzero(homes != partition)
    if len(strangers):
        first = int(strangers[0])
        detail = (
            f"user {quoted(published(users[first]))} lives in partition {int(homes[first])} "
            f"of {partitions}, not in {partition}"
        )
        raise Rejection(Reason.WRONG_PARTITION, detail)


def _kind(user: User) -> Literal["integer", "string"]:
    """Return the kind of an id, or of the id that a keyed hash has taken the place of."""
    is_string = isinstance(user, str) and not user.startswith(ERASED_INTEGER)
    return "string" if is_string else "integer"


_FIXED = 4096  # names, tokens, headers


def check_request(users: int) -> None:
    """Check the number of users in one request (TOO_LARGE)."""
    if users > MAX_CHARGE_USERS:
        detail = f"the request has {users} users; it may have {MAX_CHARGE_USERS}: send several"
        raise Rejection(Reason.TOO_LARGE, detail)


def check_balances(users: int, orders: Mapping[str, int]) -> None:
    """Check how many accounts and balances one step changes (TOO_LARGE).

    The users are those of the charge, or the members of the roster; each budget has its orders.
    """
    accounts, balances = users * len(orders), users * sum(orders.values())
    if accounts > MAX_ACCOUNTS or balances > MAX_BALANCES:
        detail = (
            f"{users} users have {accounts} accounts and {balances} balances in the budgets "
            f"{sorted(orders)}; a step may change {MAX_ACCOUNTS} accounts and {MAX_BALANCES} "
            "balances per partition: charge fewer users per step, use fewer orders or create the "
            "topics with more partitions"
        )
        raise Rejection(Reason.TOO_LARGE, detail)


def check_rosters(rosters: int) -> None:
    """Check whether another roster may charge a budget that so many rosters charge (TOO_LARGE).

    A user has accrued charges on one roster at most. Charging the user settles them in all budgets
    of that roster, so the number of rosters bounds what one record settles.
    """
    if rosters >= MAX_ROSTERS:
        detail = (
            f"{rosters} runs with a roster share this budget, and no more may: close those that "
            "are finished"
        )
        raise Rejection(Reason.TOO_LARGE, detail)


def check_decision(users: UserIds, *, clips: bool) -> None:
    """Check that a charge's decision fits into an answer (TOO_LARGE).

    The decision has two bits for each user, and either the id and a reason byte, if the user is
    halted, or the granted norm. Usually that is less than the request, where a norm takes eight
    bytes. It is more where norms take fewer bytes, or where the keyed hashes of erased users are
    longer than their ids.

    Users are given by the names that the decision has.
    """
    least = 12 if clips else 0
    if users.are_integers:
        size = len(users) * max(8, least)
    elif not clips:
        strings = [user for user in users if isinstance(user, str)]
        size = 9 * (len(users) - len(strings)) + 3 * len(strings) + len("".join(strings).encode())
    else:
        size = sum(
            max(len(user.encode()) + 3 if isinstance(user, str) else 9, least) for user in users
        )
    size += _FIXED + 3 * len(users) // 2
    if size > MAX_ANSWER_BYTES:
        detail = (
            f"the decision about {len(users)} users may take {size} bytes, more than "
            f"{MAX_ANSWER_BYTES}: charge fewer users per step, or create the topics with more "
            "partitions"
        )
        raise Rejection(Reason.TOO_LARGE, detail)


def count_of(users: Users) -> int:
    """Return the number of users in a list of ids."""
    return len(users) // 8 if isinstance(users, bytes) else len(users)
