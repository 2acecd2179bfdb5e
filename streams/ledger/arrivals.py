"""Datasets that come from another log, with what their users have spent there.

What a partition sees of one:

    (unknown) --receive-dataset--> arriving, 0 of n parts in            n may be 0: then arrived
    arriving, i of n --receive-dataset, the same--> unchanged           and says how far it is
    arriving, i of n --balances, part i--> arriving, i + 1 of n
    arriving --charge, open-run, forget and whatever else--> unchanged, and refused
    arriving, no user in --withdraw-dataset--> (unknown)

When all parts are in, of the outermost dataset and of all that it brings, they have arrived: these
are datasets like any others.

The record that creates the dataset says how many parts there are and what their digest is. So what
is in is what was announced, or the dataset is never charged; and whoever broke off goes on.

    digest(0)     = SHA-256("dp-turnstile balances 1" | dataset | partition | origin)
    digest(i + 1) = SHA-256(digest(i) | part i)

Numbers are checked to be what users can have spent under the policy, and odometers to say no less.
That they are what users did spend is for whoever has both logs to see: ``streams.offline.moves``.
"""

from __future__ import annotations

import hashlib

import msgspec
import numpy as np
from numpy.typing import NDArray

from accounting.rules.odometers import MAX_RUNGS
from streams.ledger.policies import has_own_orders, measure_of
from streams.schemas import (
    Balances,
    ErasureKey,
    Origin,
    Policy,
    Reason,
    ReceiveDataset,
    Rejection,
    encode,
)

_PURPOSE = b"dp-turnstile balances 1"


class Arrival(msgspec.Struct, frozen=True, array_like=True):
    """How much of a dataset is here, in one partition."""

    origin: Origin
    parts: int
    digest: bytes  # of all parts
    brings: int
    closed: bool
    erasure: list[ErasureKey]
    received: int
    reached: bytes  # the digest of those that are in
    arrived: bool = False  # of the outermost dataset: everything that comes is here

    @property
    def is_complete(self) -> bool:
        """Whether all balances are in."""
        return self.received == self.parts

    def is_of(self, request: ReceiveDataset) -> bool:
        """Whether a request asks for what is there."""
        said = ("origin", "parts", "digest", "brings", "closed", "erasure")
        return all(getattr(request, name) == getattr(self, name) for name in said)


def begun(request: ReceiveDataset, partition: int) -> Arrival:
    """A dataset of which nothing is in.

    Raises:
        Rejection: INVALID_BALANCES, if nothing is to come and the digest is another one.
    """
    reached = digest_of_none(request.policy.dataset, partition, request.origin)
    arrival = Arrival(
        origin=request.origin,
        parts=request.parts,
        digest=request.digest,
        brings=request.brings,
        closed=request.closed,
        erasure=request.erasure,
        received=0,
        reached=reached,
    )
    check_digest(arrival)
    return arrival


def with_part(arrival: Arrival, balances: Balances) -> Arrival:
    """The next part is in.

    Raises:
        Rejection: STEP_OUT_OF_ORDER.
    """
    if arrival.is_complete or balances.part != arrival.received:
        detail = (
            f"part {balances.part} of the balances of dataset {balances.dataset!r}: "
            f"{arrival.received} of {arrival.parts} are in"
        )
        raise Rejection(Reason.STEP_OUT_OF_ORDER, detail)
    reached = digest_with(arrival.reached, balances)
    return msgspec.structs.replace(arrival, received=arrival.received + 1, reached=reached)


def check_digest(arrival: Arrival) -> None:
    """Check that all parts are what was announced, if all of them are in.

    Raises:
        Rejection: INVALID_BALANCES.
    """
    if arrival.is_complete and arrival.reached != arrival.digest:
        detail = "all parts together are not the balances that were announced"
        raise Rejection(Reason.INVALID_BALANCES, detail)


def digest_of_none(dataset: str, partition: int, origin: Origin) -> bytes:
    """The digest of no balances of a dataset, in a partition."""
    about = (dataset, partition, origin.topic, origin.partitions, origin.heads)
    return hashlib.sha256(_PURPOSE + encode(about)).digest()


def digest_with(before: bytes, balances: Balances) -> bytes:
    """The digest with one part more: of all that it says but its token."""
    content = (
        (balances.dataset, balances.part, balances.forgotten, balances.users),
        (balances.spent, balances.base, balances.rungs, balances.order, balances.bound),
    )
    return hashlib.sha256(before + encode(content)).digest()


def numbers_of(balances: Balances, users: int, policy: Policy) -> dict[str, NDArray[np.integer]]:
    """The numbers of users, by the names of their columns.

    Args:
        balances: one part.
        users: how many it has.
        policy: of the dataset.

    Raises:
        Rejection: LENGTH_MISMATCH or INVALID_BALANCES.
    """
    binds = has_own_orders(policy)
    per_order = measure_of(policy).per_order and not binds
    width = len(policy.orders) if per_order else 1
    expected = {"spent": 8 * width, "base": 8 * width, "rungs": 8, "order": binds, "bound": binds}
    for name, size in expected.items():
        if len(getattr(balances, name)) != users * size:
            detail = (
                f"{name} has {len(getattr(balances, name))} bytes; of {users} users it has "
                f"{users * size}"
            )
            raise Rejection(Reason.LENGTH_MISMATCH, detail)
    shape = (users, width) if per_order else (users,)
    numbers: dict[str, NDArray[np.integer]] = {
        name: np.frombuffer(getattr(balances, name), dtype="<i8").astype(np.int64).reshape(shape)
        for name in ("spent", "base")
    }
    numbers["rungs"] = np.frombuffer(balances.rungs, dtype="<i8").astype(np.int64)
    if binds:
        for name in ("order", "bound"):
            numbers[name] = np.frombuffer(getattr(balances, name), dtype=np.uint8)
    if complaint := _complaint(balances, numbers, policy):
        raise Rejection(Reason.INVALID_BALANCES, complaint)
    return numbers


def _complaint(
    balances: Balances, numbers: dict[str, NDArray[np.integer]], policy: Policy
) -> str | None:
    """Why users cannot have spent this, if so."""
    spent, base, rungs = numbers["spent"], numbers["base"], numbers["rungs"]
    budget, step = np.array(policy.budget), np.array(policy.odometer_step)
    if "order" in numbers:
        order, bound = numbers["order"], numbers["bound"]
        if bool((order >= len(budget)).any()) or bool((bound > 1).any()):
            return "order is beyond those of the policy, or bound is neither 0 nor 1"
        if bool(((bound == 0) & ((order > 0) | (spent > 0))).any()):
            return "who is bound to no order has spent nothing"
        budget, step = budget[order], step[order]
    if bool(((base < 0) | (base > spent) | (spent > budget)).any()):
        return "spent is above the budget, or base is not from 0 to spent"
    if bool((spent - base > step).any()):
        return "more than an odometer step was spent since the odometer last restarted"
    if bool(((rungs < 1) | (rungs > MAX_RUNGS)).any()):
        return f"rungs are not from 1 to {MAX_RUNGS}"
    if balances.forgotten:
        return None  # their odometers say nothing of the rest that was spent
    climbed = rungs[:, np.newaxis] if spent.ndim == 2 else rungs
    if bool((np.minimum(climbed, -(-budget // step)) * step < spent).any()):
        return "an odometer says less than was spent"
    return None


def nothing_left(numbers: dict[str, NDArray[np.integer]], policy: Policy) -> bool:
    """Whether all these users have spent the whole budget, as who was forgotten has."""
    budget = np.array(policy.budget)
    if "order" in numbers:
        budget = budget[numbers["order"]]
    return bool((numbers["spent"] == budget).all())
