"""What makes datasets and runs, and what ends them.

``streams.ledger.runs`` has the states of a run, ``streams.ledger.authorization`` those of an access
list. The states of a dataset in one partition:

    (unknown) --create-dataset--> policy                    the first one binds P of the log
    policy --create-dataset, same policy--> unchanged
    policy --open-run--> policy, in use
    policy --create-dataset nested in it--> policy, in use
    policy --withdraw-dataset--> (unknown)                  not if it is in use
    policy, in use or not --close-dataset--> closed, as are those nested in it and all their runs
    closed --close-dataset--> unchanged                     nothing leads from there
    (unknown) --withdraw-dataset--> unchanged

Whatever is refused raises ``Rejection``, and nothing has changed.
"""

from __future__ import annotations

from collections.abc import Collection

from msgspec import UNSET

from streams.ledger.access import budgets_of, check_open, open_budgets_of
from streams.ledger.accrual import drop_roster
from streams.ledger.authorization import check_access
from streams.ledger.holds import release_hold, take_hold
from streams.ledger.outputs import Place
from streams.ledger.policies import (
    check_ancestors,
    check_policy,
    check_share,
    is_same_policy,
    policy_to_store,
)
from streams.ledger.runs import RunState, closed, opened, under_current_attempt
from streams.ledger.separations import separation_of
from streams.ledger.state import LayoutMismatch, State
from streams.ledger.tracked import Address
from streams.records import (
    MAX_DATASETS,
    AccessSet,
    CloseDataset,
    CloseRun,
    CreateDataset,
    DatasetClosed,
    DatasetCreated,
    DatasetWithdrawn,
    OpenRun,
    Policy,
    Reason,
    Rejection,
    RunClosed,
    RunOpened,
    Sender,
    SetAccess,
    WithdrawDataset,
)


def create_dataset(
    state: State, place: Place, request: CreateDataset, sender: Sender | None
) -> DatasetCreated:
    """Have a dataset under a policy, or find that it is there under the same one."""
    policy = request.policy
    check_policy(policy)
    state.authorization.check_list(request)
    outer = _policies_around(state, policy)
    whole = _policy_shared(state, policy)
    check_ancestors(policy, outer)
    above = whole or outer
    if policy.partitions != state.partitions:
        if not state.layout:
            raise LayoutMismatch(policy.partitions, state.partitions)
        detail = f"the topic has {state.partitions} partitions, not {policy.partitions}"
        raise Rejection(Reason.INVALID_POLICY, detail)
    stored = state.policies.get(request.address)
    if stored is None:
        named = policy.parent if policy.share_of is UNSET else policy.share_of
        if named is not UNSET and not above:
            detail = f"dataset {named!r} does not exist: create it first"
            raise Rejection(Reason.UNKNOWN_DATASET, detail)
        state.authorization.check_creation(request, sender)
        if above:
            check_open(state, above[0].dataset)
        names = state.policies.keys() | state.access.keys()  # with some that were withdrawn
        if request.address not in names and len(names) >= MAX_DATASETS:
            detail = f"the log has {MAX_DATASETS} datasets, closed ones included, and takes no more"
            raise Rejection(Reason.TOO_LARGE, detail)
        _check_shares(state, policy, whole)
        stored = policy_to_store(policy, above)
        if not state.layout:  # the first dataset binds P of the log
            state.layout[()] = stored.partitions
        state.policies[request.address] = stored
        state.authorization.created(request)
    elif not is_same_policy(stored, policy):
        detail = (
            f"dataset {policy.dataset!r} exists with another policy, and a policy never changes"
        )
        raise Rejection(Reason.POLICY_CHANGED, detail, held=stored)
    state.authorization.check_log(request)
    check_open(state, policy.dataset)
    return DatasetCreated(
        request=request.request,
        partition=place.partition,
        offset=place.offset,
        policy=stored,
    )


def withdraw_dataset(state: State, place: Place, request: WithdrawDataset) -> DatasetWithdrawn:
    """Withdraw a dataset that has never been used, or confirm that it does not exist."""
    name = request.dataset
    accounts = state.datasets.get(name)
    if accounts is not None:
        check_open(state, name)
        if name in state.runs.datasets or len(accounts):
            detail = f"dataset {name!r} cannot be withdrawn: a run of it has been opened"
            raise Rejection(Reason.DATASET_IN_USE, detail)
        if state.policies.shares_of(name):
            detail = f"dataset {name!r} cannot be withdrawn: another dataset has a share of it"
            raise Rejection(Reason.DATASET_IN_USE, detail)
        if state.policies.has_nested(name):
            detail = f"dataset {name!r} cannot be withdrawn: another dataset is nested in it"
            raise Rejection(Reason.DATASET_IN_USE, detail)
        del state.policies[request.address]
        state.authorization.withdrawn(request.address)
    return DatasetWithdrawn(
        dataset=name,
        request=request.request,
        partition=place.partition,
        offset=place.offset,
    )


def close_dataset(state: State, place: Place, request: CloseDataset) -> DatasetClosed:
    """Close a dataset, the datasets nested in it and all their runs permanently."""
    budgets_of(state, request.dataset)
    _check_shares_closed(state, request.dataset)
    datasets = state.policies.with_nested(request.dataset)
    end_runs(state, datasets)
    for name in datasets:
        if (name,) not in state.closed:
            state.closed[name,] = place.offset
    return DatasetClosed(
        dataset=request.dataset,
        request=request.request,
        partition=place.partition,
        offset=place.offset,
        datasets=datasets,
    )


def open_run(state: State, place: Place, request: OpenRun) -> RunOpened:
    """Open a run, or another attempt of it."""
    budgets = open_budgets_of(state, request.dataset)
    if shares := state.policies.shares_of(request.dataset):
        detail = (
            f"dataset {request.dataset!r} is charged through its shares {shares}: open a run there"
        )
        raise Rejection(Reason.DATASET_SHARED, detail)
    address = request.address
    known, separation = state.runs.get(address), state.separations.get(address, UNSET)
    run = opened(known, request)
    asked = separation_of(request, known, run, separation, has_roster=address in state.rosters)
    take_hold(state, budgets, request, known, run)
    state.runs[address] = run
    if asked is not UNSET and asked != separation:
        state.separations[address] = asked
    return RunOpened(
        dataset=request.dataset,
        run=request.run,
        attempt=run.attempt,
        request=request.request,
        partition=place.partition,
        offset=place.offset,
        last_step=run.step,
        policy=budgets.own.policy,
        outer=budgets.policies[1:] if budgets.is_nested else UNSET,
        min_separation=asked,
    )


def close_run(state: State, place: Place, request: CloseRun) -> RunClosed:
    """Close a run for good."""
    budgets_of(state, request.dataset)
    run = under_current_attempt(state.runs.get(request.address), request)
    _end_run(state, request.address, run)
    return RunClosed(
        dataset=request.dataset,
        run=request.run,
        attempt=run.attempt,
        request=request.request,
        partition=place.partition,
        offset=place.offset,
        last_step=run.step,
    )


def end_runs(state: State, datasets: Collection[str] | None = None) -> None:
    """Close all open runs of these datasets permanently; of all datasets by default."""
    for address, run in list(state.runs.items()):
        if not run.closed and (datasets is None or address[0] in datasets):
            budgets_of(state, address[0])  # restores its roster
            _end_run(state, address, run)


def set_access(state: State, place: Place, request: SetAccess, sender: Sender | None) -> AccessSet:
    """Replace the access list of a dataset."""
    check_access(request.allow)
    if request.address not in state.policies:
        detail = f"dataset {request.dataset!r} does not exist: create it first"
        raise Rejection(Reason.UNKNOWN_DATASET, detail)
    state.authorization.set_access(request, sender)
    return AccessSet(
        dataset=request.dataset,
        request=request.request,
        partition=place.partition,
        offset=place.offset,
        number=request.number,
    )


def _policy_shared(state: State, policy: Policy) -> list[Policy]:
    """Return the policy of which a new dataset is to have a share, if it is and there is one."""
    whole = None if policy.share_of is UNSET else state.policies.get((policy.share_of,))
    return [] if whole is None else [whole]


def _check_shares(state: State, policy: Policy, whole: list[Policy]) -> None:
    """Check that a new dataset's share is left of the budget, and is charged by nobody else.

    Raises:
        Rejection: INVALID_POLICY or DATASET_SHARED.
    """
    if policy.parent is not UNSET and (shares := state.policies.shares_of(policy.parent)):
        detail = (
            f"dataset {policy.parent!r} is charged through its shares {shares}: name one of them"
        )
        raise Rejection(Reason.DATASET_SHARED, detail)
    for shared in whole:
        name = shared.dataset
        if name in state.runs.datasets or state.policies.has_nested(name):
            detail = (
                f"dataset {name!r} has been charged itself, so it cannot be divided into shares"
            )
            raise Rejection(Reason.INVALID_POLICY, detail)
        names = state.policies.shares_of(name)
        check_share(policy, shared, [state.policies[share,] for share in names])


def _check_shares_closed(state: State, dataset: str) -> None:
    """Check that all shares of a dataset's budget are closed before the dataset is.

    Raises:
        Rejection: DATASET_SHARED.
    """
    shares = state.policies.shares_of(dataset)
    if still_open := [share for share in shares if (share,) not in state.closed]:
        detail = f"dataset {dataset!r} has shares that are open: close {still_open} first"
        raise Rejection(Reason.DATASET_SHARED, detail)


def _end_run(state: State, address: Address, run: RunState) -> None:
    """Charge what has accrued, and keep of a run only that there was one."""
    state.runs[address] = closed(run)
    release_hold(state, address)
    drop_roster(state, address)
    if (separation := state.separations.pop(address, None)) is not None:
        state.participants.drop(address, separation)


def _policies_around(state: State, policy: Policy) -> list[Policy]:
    """Of the datasets that a new one would be nested in; none if there is none of that name."""
    return [] if policy.parent is UNSET else state.policies.policies_of(policy.parent)
