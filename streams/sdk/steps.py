"""One step charged by norms: the request for each partition, and the decision over all of them.

A decision that a worker cannot have made for the request is rejected. A ``Witness`` detects two
decisions that contradict each other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple, cast

import numpy as np
from msgspec import Raw
from msgspec.structs import replace
from numpy.typing import NDArray

from streams.records import (
    ERASED,
    MAX_CHARGE_USERS,
    MAX_REQUEST_BYTES,
    TOO_SOON,
    Answer,
    Charge,
    Decision,
    Policy,
    User,
    Users,
    encode,
)
from streams.records.digests import charge_digest
from streams.records.packing import pack_norms, pack_users, select_users, unpack_bits
from streams.records.users import normal_form, partitions_of
from streams.sdk.arguments import Ids, check_strings, strings_of
from streams.sdk.errors import ConflictingDecisions, InvalidRequest
from streams.sdk.followers import is_whole, reasons_of
from streams.sdk.pseudonyms import Pseudonyms


@dataclass(frozen=True, eq=False)
class StepDecision:
    """The users who take part in one step. All arrays are in the order of the users given.

    Attributes:
        step: the step that was charged.
        admitted: bool (n,), users who may contribute to the release.
        granted: float64 (n,), the norm to which each contribution must be clipped; 0 if halted.
            ``accounting.release.clipping`` clips to it. A narrower type must round it down:
            ``accounting.round_to(granted, np.float32, "down")``.
        exhausted: bool (n,), users who have nothing left after this step.
        too_soon: bool (n,), users who are halted because their last participation is less than
            ``min_separation`` steps ago, whatever is left; all False in other runs.
        erased: bool (n,), users who are halted because they were erased: leave them out of
            every later step, and of the data.
    """

    step: int
    admitted: NDArray[np.bool_]
    granted: NDArray[np.float64]
    exhausted: NDArray[np.bool_]
    too_soon: NDArray[np.bool_]
    erased: NDArray[np.bool_]

    @property
    def halted(self) -> NDArray[np.bool_]:
        """Return the users to leave out of this step; they were charged nothing for it."""
        return ~self.admitted


class ChargePart(NamedTuple):
    """A partition's share of a step.

    Attributes:
        record: the encoded request.
        digest: the digest of its content, which its decision carries.
        norms: (n,) the norms of the users in this partition.
    """

    record: bytes
    digest: bytes
    norms: NDArray[np.float64]

    def decided(self, answer: Answer) -> StepDecision:
        """Return the decision about these users, in their order.

        Raises:
            ConflictingDecisions: a worker cannot have made this decision for this request.
        """
        if not isinstance(answer, Decision):
            raise ConflictingDecisions(
                f"partition {answer.partition} answered a charge with {answer}"
            )
        if answer.digest != self.digest:
            raise _not_of_a_worker(answer, "is about other content")
        if answer.users != len(self.norms) or not is_whole(answer):
            raise _not_of_a_worker(answer, f"does not fit {len(self.norms)} users")
        admitted = unpack_bits(answer.admitted, answer.users)
        granted = np.where(admitted, self.norms, 0.0)
        clipped = np.frombuffer(answer.clipped, dtype="<u4")
        lower = np.frombuffer(answer.granted, dtype="<f8")
        if not np.all(admitted[clipped] & (lower >= 0) & (lower <= self.norms[clipped])):
            raise _not_of_a_worker(answer, "grants what was not asked for")
        granted[clipped] = lower
        reasons = reasons_of(answer)
        return StepDecision(
            answer.step,
            admitted,
            granted,
            unpack_bits(answer.exhausted, answer.users),
            reasons == TOO_SOON,
            reasons == ERASED,
        )


@dataclass(frozen=True, eq=False)
class Layout:
    """Users by partition, computed once for all steps with the same users.

    Attributes:
        ids: all users as the caller gave them; never modified.
        known: the same users as the log knows them: normalised ids or pseudonyms.
        homes: the partition of each user.
        positions: for each partition, the indices of its users in ``ids``.
        users: for each partition, its users as they are packed in a request.
    """

    ids: Ids
    known: Ids
    homes: NDArray[np.int64]
    positions: list[NDArray[np.int64]]
    users: list[Users]

    def is_of(self, ids: Ids) -> bool:
        """Return whether these are the same users in the same order."""
        return ids is self.ids or (len(ids) == len(self.ids) and self.begins(ids))

    def begins(self, ids: Ids) -> bool:
        """Return whether ``ids`` starts with the users of this layout, in the same order."""
        first = ids[: len(self.ids)]
        if isinstance(first, list) and isinstance(self.ids, list):
            return first == self.ids
        return type(first) is type(self.ids) and np.array_equal(first, self.ids)

    @cached_property
    def names(self) -> list[Raw | None]:
        """Return the encoded ids of each partition; None where all of them are integers."""
        return [
            Raw(encode(users)) if isinstance(users, list) and strings_of(users) else None
            for users in self.users
        ]

    def parts(self, charge: Charge, norms: NDArray[np.float64]) -> dict[int, ChargePart]:
        """Return each partition's part of a charge.

        Args:
            charge: the charge without users and norms.
            norms: (n,) in the order of the users given.

        Raises:
            InvalidRequest: too many users live in one partition.
        """
        return {
            partition: _part(partition, replace(charge, users=users), names, norms[mine])
            for partition, (users, names, mine) in enumerate(
                zip(self.users, self.names, self.positions, strict=True)
            )
        }

    def put_together(self, step: int, decisions: Mapping[int, StepDecision]) -> StepDecision:
        """Return the decision over all partitions, in the order of the users given."""
        whole = StepDecision(
            step,
            admitted=np.zeros(len(self.ids), dtype=np.bool_),
            granted=np.zeros(len(self.ids)),
            exhausted=np.zeros(len(self.ids), dtype=np.bool_),
            too_soon=np.zeros(len(self.ids), dtype=np.bool_),
            erased=np.zeros(len(self.ids), dtype=np.bool_),
        )
        for partition, decision in decisions.items():
            mine = self.positions[partition]
            whole.admitted[mine] = decision.admitted
            whole.granted[mine] = decision.granted
            whole.exhausted[mine] = decision.exhausted
            whole.too_soon[mine] = decision.too_soon
            whole.erased[mine] = decision.erased
        return whole


def lay_out(
    ids: Ids,
    policy: Policy,
    before: Layout | None = None,
    pseudonyms: Pseudonyms | None = None,
) -> Layout:
    """Find the partition of each user.

    Args:
        ids: the users; they must not be modified afterwards.
        policy: the policy of their dataset.
        before: an earlier layout of this dataset; if ``ids`` starts with its users, it is extended.
        pseudonyms: make the users' pseudonyms; None if the log has their ids.

    Raises:
        InvalidRequest: an id appears twice, or is of a kind that the dataset does not have.
    """
    count = len(before.ids) if before is not None and before.begins(ids) else 0
    more = _known(ids[count:], policy, pseudonyms)
    homes = partitions_of(more, policy.partitions)
    known = more
    if before is not None and count:
        known = _joined(before.known, more)
        homes = np.concatenate([before.homes, homes])
    if pseudonyms is not None and isinstance(known, np.ndarray):
        pseudonyms.check_distinct(ids, known)
    check_distinct(known)
    _check_kinds(known, policy)
    order = np.argsort(homes, kind="stable")
    bounds = np.searchsorted(homes[order], np.arange(policy.partitions + 1))
    positions = [order[start:stop] for start, stop in pairwise(bounds)]
    users = [pack_users(select_users(known, mine)) for mine in positions]
    return Layout(ids, known, homes, positions, users)


def check_distinct(ids: Ids) -> None:
    """Check that no id appears twice.

    Raises:
        InvalidRequest: names the first id that does.
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


def _joined(ids: Ids, more: Ids) -> Ids:
    if isinstance(ids, np.ndarray) and isinstance(more, np.ndarray):
        return np.concatenate([ids, more])
    return [*ids, *more]


def _known(ids: Ids, policy: Policy, pseudonyms: Pseudonyms | None) -> Ids:
    """Return the users as the log knows them."""
    if pseudonyms is not None:
        return pseudonyms.of(ids)
    return _in_normal_form(ids)


def _in_normal_form(ids: Ids) -> Ids:
    """Return the ids in normal form, so that two spellings of one name are one user."""
    if isinstance(ids, np.ndarray) or "".join(strings_of(ids)).isascii():
        return ids
    ids = [normal_form(user) if isinstance(user, str) else user for user in ids]
    check_strings(strings_of(ids))
    return ids


def _check_kinds(ids: Ids, policy: Policy) -> None:
    """Check that all ids are of a kind that the dataset has."""
    allowed = policy.user_ids
    kinds = {int} if isinstance(ids, np.ndarray) else set(map(type, ids))
    wrong = {"integer": str, "string": int}.get(str(allowed))
    if len(ids) and wrong in kinds:
        raise InvalidRequest(f"the users of dataset {policy.dataset!r} have {allowed} ids only")
    if allowed == "one-kind" and len(kinds) > 1:
        raise InvalidRequest(
            f"users have integer and string ids, but dataset {policy.dataset!r} has one kind: 1 "
            "and '1' would be two users with a budget each. Convert the ids to one kind, or create "
            "a dataset with user_ids='mixed' if its users have both kinds"
        )


def _part(
    partition: int, charge: Charge, names: Raw | None, norms: NDArray[np.float64]
) -> ChargePart:
    charge = replace(charge, norms=pack_norms(norms))
    record = encode(charge if names is None else replace(charge, users=cast(Users, names)))
    if len(norms) > MAX_CHARGE_USERS or len(record) > MAX_REQUEST_BYTES:
        raise InvalidRequest(
            f"partition {partition} has {len(norms)} users in {len(record)} bytes; the maximum is "
            f"{MAX_CHARGE_USERS} users and {MAX_REQUEST_BYTES} bytes: charge fewer users per step, "
            "or use more partitions"
        )
    return ChargePart(record, charge_digest(charge, names=names), norms)


def _not_of_a_worker(decision: Decision, complaint: str) -> ConflictingDecisions:
    return ConflictingDecisions(
        f"a decision of partition {decision.partition} on step {decision.step} {complaint}: it was "
        "not made by a worker. Release nothing of this step, and find out what writes to halts"
    )
