"""What a partition does with a dataset that goes to another log, or comes from one.

    here:   policy --close-dataset, moves_to L--> closed for good; L may take it, and no other log
    in L:   see ``streams.ledger.arrivals``

A family moves as one, by its outermost dataset: budgets that count together stay together. What is
left of a budget exists once: here until the record that names L is applied, from then on in L.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
from msgspec import UNSET

from streams.ledger.arrivals import (
    Arrival,
    begun,
    check_digest,
    nothing_left,
    numbers_of,
    with_part,
)
from streams.ledger.budgets import Budgets, Ids
from streams.ledger.charges import check_distinct, check_homes
from streams.ledger.forgotten import public_fingerprint
from streams.ledger.limits import check_balances
from streams.ledger.outputs import Output, Place, answer_to, checkpoint_of
from streams.ledger.policies import check_policy, check_within
from streams.ledger.state import LayoutMismatch, State
from streams.ledger.tracked import Address
from streams.schemas import (
    Balances,
    DatasetReceived,
    ErasureKey,
    Policy,
    Reason,
    ReceiveDataset,
    Rejection,
    encode,
)
from streams.wire.packing import unpack_users

MAX_NAMES = 4096
"""That an id may have, by all keys together: so many are looked at for everybody who is new."""


def check_movable(state: State, budgets: Budgets, here: str, log: str) -> None:
    """Check that a dataset of one log may go to another one, by the ids of their norms.

    Raises:
        Rejection: DATASET_MOVING.
    """
    name = budgets.own.policy.dataset
    there = state.moved.get((name,), log)
    complaint = None
    if budgets.is_nested:
        complaint = (
            f"dataset {name!r} is within others, whose budgets it is charged to: move "
            f"{budgets.outermost.policy.dataset!r}, with all that are within it"
        )
    elif log == here:
        complaint = f"dataset {name!r} is in the log {log}: it can move to another one only"
    elif there != log:
        complaint = (
            f"dataset {name!r} moves to the log {there}: in a second one what is left of each "
            "budget could be spent once more"
        )
    if complaint:
        raise Rejection(Reason.DATASET_MOVING, complaint)
    check_arrived(state, name)


def check_stays(state: State, dataset: str) -> None:
    """Check that users of a dataset, which is within no other, can be forgotten here.

    Raises:
        Rejection: DATASET_MOVING.
    """
    if (dataset,) in state.moved:
        detail = (
            f"dataset {dataset!r} moved to the log {state.moved[dataset,]}: forget the user there"
        )
        raise Rejection(Reason.DATASET_MOVING, detail)


def check_arrived(state: State, dataset: str) -> None:
    """Check that everything is here of what came with a dataset, if it came.

    Raises:
        Rejection: DATASET_MOVING.
    """
    if not state.arrivals:
        return
    outermost = state.policies.budgets(dataset).outermost.policy.dataset
    arrival = state.arrivals.get((outermost,))
    if arrival is not None and not arrival.arrived:
        coming = _arrivals_of(state, outermost)
        detail = (
            f"dataset {outermost!r} is on its way here from the log {arrival.origin.topic}: of "
            f"{arrival.brings + 1} datasets {len(coming)} are known, with "
            f"{sum(one.received for one in coming)} of {sum(one.parts for one in coming)} parts of "
            "what users spent there"
        )
        raise Rejection(Reason.DATASET_MOVING, detail)


def check_partitions(state: State, policy: Policy, check_sender: Callable[[], None]) -> None:
    """Check that a policy is of this P.

    Args:
        state: of the partition.
        policy: of a dataset that is to be here.
        check_sender: whether who asks for it may do so: nobody else stops a partition.

    Raises:
        LayoutMismatch: it is not, and it is the first one.
        Rejection: INVALID_POLICY, if it is not.
    """
    if policy.partitions != state.partitions:
        if not state.layout:
            check_sender()
            raise LayoutMismatch(policy.partitions, state.partitions)
        detail = f"the topic has {state.partitions} partitions, not {policy.partitions}"
        raise Rejection(Reason.INVALID_POLICY, detail)


def check_around(policy: Policy, outer: Sequence[Policy]) -> None:
    """Check that there is a dataset that a new one is to be within.

    Raises:
        Rejection: UNKNOWN_DATASET.
    """
    if policy.within is not UNSET and not outer:
        detail = f"dataset {policy.within!r} does not exist: create the outer one first"
        raise Rejection(Reason.UNKNOWN_DATASET, detail)


def add_policy(state: State, policy: Policy) -> None:
    """Have a new dataset; the first one binds P of the log."""
    if not state.layout:
        state.layout[()] = policy.partitions
    state.policies[policy.dataset,] = policy


def check_receivable(
    state: State, policy: Policy, outer: Sequence[Policy], check_sender: Callable[[], None]
) -> None:
    """Check that a dataset with this policy can be here.

    Args:
        state: of the partition.
        policy: of a dataset that comes.
        outer: the policies of the datasets that it is within.
        check_sender: whether who asks for it may do so.

    Raises:
        LayoutMismatch: the log is of another P.
        Rejection: it cannot be.
    """
    check_policy(policy)
    check_within(policy, outer)
    check_partitions(state, policy, check_sender)
    if (policy.dataset,) not in state.policies:
        check_around(policy, outer)


def receive(
    state: State, place: Place, request: ReceiveDataset, outer: Sequence[Policy]
) -> DatasetReceived:
    """Create a dataset that comes from another log, or say how far it is.

    Args:
        state: of the partition.
        place: of the record.
        request: what it says; its policy is one that can be here.
        outer: the policies of the datasets that it is within.

    Raises:
        LostErasureKey: users were forgotten there under a key that is not known here.
        Rejection: it cannot be; nothing has changed.
    """
    policy, arrival = request.policy, state.arrivals.get(request.address)
    stored = state.policies.get(request.address)
    if stored is None:
        if outer:
            _check_same_origin(state, request, outer[0].dataset)
        arrival = begun(request, place.partition)
        keys = [_address_of(key) for key in request.erasure]
        _check_keys(state, request.erasure)
        # As it is there: also what no request of this version could ask for.
        add_policy(state, policy)
        state.arrivals[request.address] = arrival
        for address, key in zip(keys, request.erasure, strict=True):
            state.erasure[address] = max(key.highest, state.erasure.get(address, 0))
        if request.closed:
            state.closed[request.address] = place.offset
        _note_arrived(state, policy.dataset)
    elif arrival is None or stored != policy or not arrival.is_of(request):
        detail = (
            f"dataset {policy.dataset!r} is here already, and is not what comes now from the log "
            f"{request.origin.topic}: what users spent there cannot be added"
        )
        raise Rejection(Reason.DATASET_MOVING, detail)
    return _received(place, request, policy.dataset, arrival)


def is_only_announced(state: State, dataset: str) -> bool:
    """Whether a dataset is on its way here, of whose users none has come."""
    if (dataset,) not in state.arrivals or len(state.datasets[dataset]):
        return False
    outermost = state.policies.budgets(dataset).outermost.policy.dataset
    return not state.arrivals[outermost,].arrived


def take_balances(state: State, place: Place, request: Balances, budgets: Budgets) -> list[Output]:
    """Take in the next part of what users have spent; what is published.

    Args:
        state: of the partition.
        place: of the record.
        request: what it says.
        budgets: of the dataset, and those that it is within.

    Raises:
        Rejection: it is not the next part, or cannot be; nothing has changed.
    """
    accounts, address = budgets.own, request.address
    if address not in state.arrivals:
        detail = f"dataset {request.dataset!r} did not come from another log: nothing is added"
        raise Rejection(Reason.DATASET_MOVING, detail)
    arrival = with_part(state.arrivals[address], request)
    check_balances(request, accounts.rule.orders or 1)
    users = unpack_users(request.users)
    numbers = numbers_of(request, len(users), accounts.policy)
    if request.forgotten and not budgets.is_nested and not nothing_left(numbers, accounts.policy):
        detail = "users who were forgotten have something left, and have to be denied"
        raise Rejection(Reason.INVALID_BALANCES, detail)
    for outer in budgets.accounts[1:]:
        if not outer.knows(users).all():
            detail = (
                f"a user has a balance in dataset {request.dataset!r} and none in "
                f"{outer.policy.dataset!r} around it, of which all parts come first"
            )
            raise Rejection(Reason.INVALID_BALANCES, detail)
    if budgets.is_nested:
        _check_forgotten_alike(request, budgets, users)
    check_digest(arrival)
    check_distinct(users)
    if accounts.knows(users).any():
        raise Rejection(Reason.DUPLICATE_USER, "a user has a balance already")
    if not request.forgotten:
        check_homes(users, state.partition, state.partitions)
    first = len(accounts)
    changes, raised = accounts.receive(users, numbers)
    state.note(changes)
    state.arrivals[address] = arrival
    _note_arrived(state, request.dataset)
    answer = answer_to(request, encode(_received(place, request, request.dataset, arrival)))
    if request.forgotten:  # whose ids nobody knows: there is nobody to be told
        names = users if isinstance(users, list) else users.tolist()
        for slot, name in enumerate(names, first):
            state.forgotten[request.dataset, str(slot)] = name
        return [answer]
    return [
        answer,
        *(checkpoint_of(request, request.dataset, one, place) for one in raised),
    ]


def _check_same_origin(state: State, request: ReceiveDataset, outer: str) -> None:
    around = state.arrivals.get((outer,))
    if around is None or around.origin != request.origin or around.arrived:
        detail = (
            f"dataset {outer!r} did not come from the log {request.origin.topic} as "
            f"{request.policy.dataset!r} does, or has all that it brings: what was spent of its "
            "budget there is not known here"
        )
        raise Rejection(Reason.DATASET_MOVING, detail)


def _check_forgotten_alike(request: Balances, budgets: Budgets, users: Ids) -> None:
    """Check that these users were forgotten in all datasets that share the budget, or in none."""
    if (budgets.outermost.forgotten.among(users) != request.forgotten).any():
        detail = (
            f"users of dataset {request.dataset!r} were forgotten there, and not in "
            f"{budgets.outermost.policy.dataset!r} around it, or the other way round"
        )
        raise Rejection(Reason.INVALID_BALANCES, detail)


def _check_keys(state: State, keys: Sequence[ErasureKey]) -> None:
    """Check that names by these keys can be looked for.

    Raises:
        LostErasureKey: one is a secret that is not known here.
        Rejection: INVALID_BALANCES, if one is none, or there were too many names to look at.
    """
    for key in keys:
        if key.topic is not UNSET and key.fingerprint != public_fingerprint(key.topic):
            detail = f"{key.fingerprint} is not the erasure key of the log {key.topic}"
            raise Rejection(Reason.INVALID_BALANCES, detail)
    in_use = dict(state.erasure.items())
    for key in keys:
        address = _address_of(key)
        in_use[address] = max(key.highest, in_use.get(address, 0))
    names = sum(highest + 1 for highest in in_use.values())
    if names > MAX_NAMES:
        detail = (
            f"{names} names of each new user would have to be looked at; {MAX_NAMES} are the most"
        )
        raise Rejection(Reason.INVALID_BALANCES, detail)
    for key in keys:
        state.erasure.check(_address_of(key))


def _arrivals_of(state: State, outermost: str) -> list[Arrival]:
    names = state.policies.within(outermost)
    return [state.arrivals[name,] for name in names if (name,) in state.arrivals]


def _note_arrived(state: State, dataset: str) -> None:
    """Note it if with this one everything is here."""
    outermost = state.policies.budgets(dataset).outermost.policy.dataset
    arrival, coming = state.arrivals[outermost,], _arrivals_of(state, outermost)
    if len(coming) == arrival.brings + 1 and all(one.is_complete for one in coming):
        state.arrivals[outermost,] = msgspec.structs.replace(arrival, arrived=True)


def _received(
    place: Place, request: ReceiveDataset | Balances, dataset: str, arrival: Arrival
) -> DatasetReceived:
    return DatasetReceived(
        v=request.v,
        dataset=dataset,
        request=request.request,
        partition=place.partition,
        offset=place.offset,
        received=arrival.received,
        parts=arrival.parts,
        digest=arrival.reached,
    )


def _address_of(key: ErasureKey) -> Address:
    """Where a key is among those in use."""
    return (key.fingerprint,) if key.topic is UNSET else (key.fingerprint, key.topic)
