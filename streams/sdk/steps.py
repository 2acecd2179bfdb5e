"""One step: from users, norms and a mechanism to what each partition is asked to charge, and from
their decisions back to who takes part.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from msgspec import UNSET
from numpy.typing import NDArray

from accounting import Gaussian, InvalidInput, Mechanism
from accounting.costs.mechanisms import noise_scale
from accounting.exact.validation import nonnegative_finite
from streams.ledger.policies import MECHANISMS, mechanism_of
from streams.normal_form import normal_form
from streams.schemas import Decision, MechanismName, Policy, Rejection, User, Users
from streams.sdk.columns import Ids, check_strings, read_numbers, strings_of
from streams.sdk.decisions import grants_of
from streams.sdk.errors import InvalidRequest
from streams.wire.packing import pack_users, select_users, unpack_bits
from streams.wire.partitioner import partitions_of

_NAMES = {type(mechanism(1.0)): name for name, mechanism in MECHANISMS.items()}


@dataclass(frozen=True, eq=False)
class StepDecision:
    """Who takes part in one step. All arrays are in the order of the users that were given.

    Attributes:
        step: the step that was charged.
        admitted: bool (n,), who may contribute to what is released.
        granted: float64 (n,), the norm to which each contribution must be clipped; 0 if halted.
            ``accounting.release.clipping`` clips to it. A narrower type must round it down:
            ``accounting.round_to(granted, np.float32, "down")``.
        exhausted: bool (n,), who has nothing left after this step.
    """

    step: int
    admitted: NDArray[np.bool_]
    granted: NDArray[np.float64]
    exhausted: NDArray[np.bool_]

    @property
    def halted(self) -> NDArray[np.bool_]:
        """Who must be left out of this step; they were charged nothing for it."""
        return ~self.admitted


@dataclass(frozen=True, eq=False)
class Layout:
    """Users by partition, worked out once for all steps that have the same users.

    Attributes:
        ids: all of them, as they were given.
        positions: of the users of each partition among all.
        users: of each partition, as its request carries them.
    """

    ids: Ids
    positions: list[NDArray[np.int64]]
    users: list[Users]

    def is_of(self, ids: Ids) -> bool:
        """Whether these are the same users in the same order."""
        if isinstance(ids, list) and isinstance(self.ids, list):
            return ids == self.ids
        return type(ids) is type(self.ids) and np.array_equal(ids, self.ids)


def lay_out(ids: Ids, policy: Policy) -> Layout:
    """Find the partition of each user.

    Raises:
        InvalidRequest: an id appears twice, or is of a kind that the dataset does not have.
    """
    # A dataset of version 1 knows names as they are written.
    known = ids if policy.user_ids is UNSET else _in_normal_form(ids)
    check_distinct(known)
    _check_kinds(known, policy)
    homes = partitions_of(known, policy.partitions)
    order = np.argsort(homes, kind="stable")
    bounds = np.searchsorted(homes[order], np.arange(policy.partitions + 1))
    positions = [order[start:stop] for start, stop in pairwise(bounds)]
    users = [pack_users(select_users(known, mine)) for mine in positions]
    return Layout(ids.copy(), positions, users)


def put_together(
    step: int,
    norms: NDArray[np.float64],
    positions: Sequence[NDArray[np.int64]],
    decisions: Mapping[int, Decision],
) -> StepDecision:
    """What was decided, in the order of the users that were given.

    Args:
        step: that was charged.
        norms: that were asked for, (n,).
        positions: of the users of each partition among all.
        decisions: by partition, checked.
    """
    admitted = np.zeros(len(norms), dtype=np.bool_)
    exhausted = np.zeros(len(norms), dtype=np.bool_)
    granted = np.zeros(len(norms))
    for partition, decision in decisions.items():
        mine = positions[partition]
        admitted[mine] = unpack_bits(decision.admitted, len(mine))
        exhausted[mine] = unpack_bits(decision.exhausted, len(mine))
        granted[mine] = np.where(admitted[mine], norms[mine], 0.0)
        clipped, norms_granted = grants_of(decision)
        granted[mine[clipped]] = norms_granted
    return StepDecision(step, admitted, granted, exhausted)


def check_distinct(ids: Ids) -> None:
    """Refuse ids of which one appears twice.

    Raises:
        InvalidRequest: with the first such id.
    """
    if isinstance(ids, np.ndarray):
        in_order = np.sort(ids)
        twice = in_order[1:][in_order[1:] == in_order[:-1]].tolist()
    elif len(set(ids)) == len(ids):
        return
    else:
        seen: set[User] = set()
        twice = [user for user in ids if user in seen or seen.add(user)]  # type: ignore[func-returns-value]
    if twice:
        raise InvalidRequest(f"user {twice[0]!r} appears twice in one step: add its norms up first")


def read_norms(
    norms: object, users: int, clip_norm: float | None
) -> tuple[NDArray[np.float64], float | None]:
    """One norm per user, as given, and the clip norm that none of them exceeds.

    Norms of a narrower type cannot be held against a clip norm that this type does not have: what
    was clipped to 0.1 in float32 is 0.1000000015. The clip norm is then rounded up to the type of
    the norms, for the check and for the request.

    Raises:
        InvalidRequest: not one finite norm per user, or one above the clip norm.
    """
    values, narrow = read_numbers("norms", norms)
    if values.shape != (users,):
        raise InvalidRequest(f"norms has shape {values.shape}; with {users} users it is ({users},)")
    limit = np.inf
    if clip_norm is not None:
        try:
            limit = clip_norm = _rounded_up(nonnegative_finite("clip_norm", clip_norm), narrow)
        except InvalidInput as error:
            raise InvalidRequest(str(error)) from error
    bad = ~((values >= 0) & (values < np.inf) & (values <= limit))
    if bad.any():
        position = int(np.flatnonzero(bad)[0])
        allowed = "finite and not negative"
        if clip_norm is not None:
            allowed += (
                f", and at most clip_norm = {clip_norm}: clip to a little less than clip_norm, so "
                "that no rounding exceeds it, or give a larger clip_norm"
            )
        raise InvalidRequest(
            f"norm {values[position]} at position {position}; it must be {allowed}"
        )
    return values, clip_norm


def read_mechanism(
    noise_stddev: float | None, mechanism: Mechanism | None, policy: Policy
) -> tuple[MechanismName, float]:
    """The name of a mechanism and its scale, if the policy's measure can charge it.

    Raises:
        InvalidRequest: with what can be charged.
    """
    if (noise_stddev is None) == (mechanism is None):
        raise InvalidRequest("give either noise_stddev or mechanism")
    try:
        chosen = Gaussian(noise_stddev) if mechanism is None else mechanism  # type: ignore[arg-type]
        name = _NAMES.get(type(chosen))
        if name is None:
            raise InvalidRequest(
                f"mechanism is {mechanism!r}: Gaussian, Laplace and PureDP steps can be charged. "
                "Charge Poisson-sampled ones as Gaussian, which never costs less, or account them "
                "with accounting.RenyiFilter"
            )
        scale = noise_scale(chosen)
        mechanism_of(name, scale, policy)
    except InvalidInput as error:
        raise InvalidRequest(str(error)) from error
    except Rejection as refused:
        raise InvalidRequest(refused.detail) from refused
    return name, scale


def _in_normal_form(ids: Ids) -> Ids:
    """The ids as the log knows them: a name that can be written in two ways is one user."""
    if isinstance(ids, np.ndarray) or "".join(strings_of(ids)).isascii():
        return ids
    ids = [normal_form(user) if isinstance(user, str) else user for user in ids]
    check_strings(strings_of(ids))
    return ids


def _check_kinds(ids: Ids, policy: Policy) -> None:
    """Refuse ids of a kind that the dataset does not have."""
    allowed = policy.user_ids
    kinds = {int} if isinstance(ids, np.ndarray) else set(map(type, ids))
    wrong = {"integer": str, "string": int}.get(str(allowed))
    if len(ids) and wrong in kinds:
        raise InvalidRequest(f"the users of dataset {policy.dataset!r} have {allowed} ids only")
    if allowed == "one-kind" and len(kinds) > 1:
        raise InvalidRequest(
            f"users have integer and string ids, but dataset {policy.dataset!r} has one kind: 1 "
            "and '1' would be two users with a budget each. Convert them to one kind, or create "
            "datasets whose users really have both with user_ids='mixed'"
        )


def _rounded_up(number: float, narrow: np.dtype[Any] | None) -> float:
    """The least number of the narrower type that is not below; the number itself if none is."""
    if narrow is None:
        return number
    with np.errstate(over="ignore"):
        rounded = narrow.type(number)
        if float(rounded) < number:
            rounded = np.nextafter(rounded, narrow.type(np.inf))
    return float(rounded) if np.isfinite(rounded) else number
