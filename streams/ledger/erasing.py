"""A user is erased: the id gives way to a name, and what is left of the budget is spent."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import UNSET

from streams.ledger.access import budgets_of
from streams.ledger.accounts import Accounts
from streams.ledger.accrual import note_taken, wake
from streams.ledger.budgets import Budgets
from streams.ledger.charges import check_homes
from streams.ledger.erasure import check_key
from streams.ledger.outputs import Output, Place, answer_to, tombstone_of
from streams.ledger.state import State
from streams.records import Erase, Erased, Sender, User, encode
from streams.records.users import UserIds


def erase(state: State, place: Place, request: Erase, sender: Sender | None = None) -> list[Output]:
    """Erase a user in one dataset and those that share a budget with it, or in all.

    Without a dataset, the user is erased wherever the sender may manage, and the answer names
    the outermost datasets where the sender may not.

    Raises:
        Rejection: it cannot be done here; nothing has changed.
    """
    if request.dataset is not UNSET:
        *_, policy = budgets_of(state, request.dataset).policies
        check_key(policy, request)
    outermost = state.policies.outermost_of(request)
    check_homes(UserIds([request.user]), place.partition, state.partitions)
    erased: list[str] = []
    tombstones: list[Output] = []
    allowed = [name for name in outermost if state.authorization.may_manage(name, sender)]
    for name in allowed:
        family = state.policies.family(name)
        there, left = _erase_in(state, family, state.policies.budgets(name), request.user)
        erased += there
        tombstones += (tombstone_of(dataset, request.user, place) for dataset in left)
    answer = Erased(
        request=request.request,
        partition=place.partition,
        offset=place.offset,
        datasets=sorted(erased),
        not_allowed=[name for name in outermost if name not in allowed],
    )
    return [answer_to(request, encode(answer)), *tombstones]


def _erase_in(
    state: State, family: Sequence[Accounts], budgets: Budgets, user: User
) -> tuple[list[str], list[str]]:
    """Erase a user in datasets that share a budget, the outermost.

    Returns:
        In which of them the user is erased now, and in which since now.
    """
    (known,) = budgets.known_as(UserIds([user]))
    if known != user:
        found = UserIds([known])
        return [a.policy.dataset for a in family if a.knows(found)[0]], []
    members = [accounts for accounts in family if accounts.knows(UserIds([user]))[0]]
    if not members:
        return [], []
    wake(state, budgets)
    (slot,) = budgets.own.seek(UserIds([user])).slots.tolist()
    state.note(budgets.own.spend_the_rest(slot))
    note_taken(state, budgets)
    name = state.erased.new_name(user)
    datasets = [accounts.policy.dataset for accounts in members]
    for accounts in members:
        (slot,) = accounts.seek(UserIds([user])).slots.tolist()
        state.erased[accounts.policy.dataset, str(slot)] = name
    return datasets, datasets
