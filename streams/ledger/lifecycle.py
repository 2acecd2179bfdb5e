"""What makes datasets and runs, and what ends them; and who is bound or registered.

What moves a run is said in ``streams.ledger.runs``, and who may do what in
``streams.ledger.principals``. A dataset, as one partition sees it:

    (unknown) --create-dataset--> policy                    the first one binds P of the log
    policy --create-dataset, same policy--> unchanged
    policy --open-run--> policy, in use
    policy --create-dataset within it--> policy, in use
    policy --withdraw-dataset--> (unknown)                  not if it is in use
    policy, in use or not --close-dataset--> closed, as are those within it and all their runs
    closed --close-dataset--> unchanged                     nothing leads from there, and where
                                                            it moves it arrives closed
    (unknown) --withdraw-dataset--> unchanged
    policy, closed or not --close-dataset, moves_to a log--> closed, and nothing changes any more
    (unknown) --receive-dataset--> arriving: see ``streams.ledger.arrivals``
    arriving --withdraw-dataset--> (unknown)                if nothing has come but its name

Whatever is refused raises ``Rejection``, and nothing has changed.
"""

from __future__ import annotations

from msgspec import UNSET

from streams.ledger.access import budgets_of, check_open, open_budgets_of
from streams.ledger.apart import separation_of
from streams.ledger.arrears import drop_roster, rosters_beside
from streams.ledger.budgets import Budgets
from streams.ledger.moving import (
    add_policy,
    check_around,
    check_arrived,
    check_movable,
    check_partitions,
    check_receivable,
    is_only_announced,
    receive,
)
from streams.ledger.outputs import Place
from streams.ledger.owed import check_closing
from streams.ledger.policies import (
    check_policy,
    check_within,
    is_same_policy,
    policy_as_of,
    policy_to_store,
    quoted,
)
from streams.ledger.runs import RunState, closed, opened, under_current_attempt
from streams.ledger.state import State
from streams.ledger.tracked import Address
from streams.schemas import (
    BindOperator,
    CloseDataset,
    CloseRun,
    CreateDataset,
    DatasetClosed,
    DatasetCreated,
    DatasetReceived,
    DatasetWithdrawn,
    OpenRun,
    OperatorBound,
    Policy,
    PrincipalRegistered,
    Reason,
    ReceiveDataset,
    RegisterPrincipal,
    Rejection,
    RunClosed,
    RunOpened,
    Sender,
    WithdrawDataset,
)


def create_dataset(
    state: State, place: Place, request: CreateDataset, sender: Sender | None
) -> DatasetCreated:
    """Have a dataset under a policy, or find that it is there under the same one."""
    policy = request.policy
    check_policy(policy)
    outer = _policies_around(state, policy)
    check_within(policy, outer)
    check_partitions(state, policy, lambda: state.gate.check_creation(policy, outer, sender))
    stored = state.policies.get(request.address)
    if stored is None:
        check_around(policy, outer)
        state.gate.check_creation(policy, outer, sender)
        if outer:
            check_open(state, outer[0].dataset)
            check_arrived(state, outer[0].dataset)
        stored = policy_to_store(policy, request.v, outer)
        add_policy(state, stored)
    elif not is_same_policy(stored, policy, request.v):
        detail = (
            f"dataset {policy.dataset!r} exists with another policy ({quoted(stored)}); "
            "a policy never changes"
        )
        if request.v == 1:  # which forgot what comes of it; later clients say it
            detail += ": create a dataset with another name"
        raise Rejection(Reason.POLICY_CHANGED, detail)
    check_open(state, policy.dataset)
    return DatasetCreated(
        v=request.v,
        request=request.request,
        partition=place.partition,
        offset=place.offset,
        policy=policy_as_of(stored, request.v),
    )


def receive_dataset(
    state: State, place: Place, request: ReceiveDataset, sender: Sender | None
) -> DatasetReceived:
    """Have a dataset come from another log, or say how far it is."""
    outer = _policies_around(state, request.policy)

    def check_sender() -> None:
        state.gate.check_arrival(request.policy, outer, sender)

    check_receivable(state, request.policy, outer, check_sender)
    check_sender()
    return receive(state, place, request, outer)


def withdraw_dataset(state: State, place: Place, request: WithdrawDataset) -> DatasetWithdrawn:
    """Take back a dataset that nobody has used, if it is there, or of which nothing has come."""
    name = request.dataset
    accounts = state.datasets.get(name)
    if accounts is not None:
        is_announced = is_only_announced(state, name)
        if not is_announced:
            check_open(state, name)
        if request.address in state.arrivals and not is_announced:
            detail = f"dataset {name!r} cannot be withdrawn: it came from another log"
            raise Rejection(Reason.DATASET_IN_USE, detail)
        if name in state.runs.datasets or len(accounts):
            detail = f"dataset {name!r} cannot be withdrawn: a run of it has been opened"
            raise Rejection(Reason.DATASET_IN_USE, detail)
        if state.policies.has_within(name):
            detail = f"dataset {name!r} cannot be withdrawn: another dataset is within it"
            raise Rejection(Reason.DATASET_IN_USE, detail)
        state.arrivals.pop(request.address, None)
        state.closed.pop(request.address, None)
        del state.policies[request.address]
    return DatasetWithdrawn(
        v=request.v,
        dataset=name,
        request=request.request,
        partition=place.partition,
        offset=place.offset,
    )


def close_dataset(state: State, place: Place, request: CloseDataset) -> DatasetClosed:
    """Close a dataset and those within it for good, or have it go to another log."""
    budgets = budgets_of(state, request.dataset)
    if request.moves_to is not UNSET:
        check_movable(state, budgets, state.topic.hex(), request.moves_to)
    check_arrived(state, request.dataset)
    datasets = state.policies.within(request.dataset)
    closing = set(datasets)
    _check_closing(state, budgets, closing)
    for address, run in list(state.runs.items()):
        if address[0] in closing and not run.closed:
            _end_run(state, address, run)
    for name in datasets:
        if (name,) not in state.closed:
            state.closed[name,] = place.offset
        if request.moves_to is not UNSET and (name,) not in state.moved:
            state.moved[name,] = request.moves_to
            state.departed[name,] = place.offset
    return DatasetClosed(
        v=request.v,
        dataset=request.dataset,
        request=request.request,
        partition=place.partition,
        offset=place.offset,
        datasets=datasets,
        moves_to=state.moved.get(request.address, UNSET),
    )


def open_run(state: State, place: Place, request: OpenRun) -> RunOpened:
    """Open a run, or another attempt of it."""
    budgets = open_budgets_of(state, request.dataset, request.v)
    address = request.address
    known, separation = state.runs.get(address), state.separations.get(address, UNSET)
    run = opened(known, request)
    asked = separation_of(request, known, run, separation, has_roster=address in state.rosters)
    state.runs[address] = run
    if asked is not UNSET and asked != separation:
        state.separations[address] = asked
    return RunOpened(
        v=request.v,
        dataset=request.dataset,
        run=request.run,
        attempt=run.attempt,
        request=request.request,
        partition=place.partition,
        offset=place.offset,
        last_step=run.step,
        policy=policy_as_of(budgets.own.policy, request.v),
        outer=budgets.policies[1:] if budgets.is_nested else UNSET,
        min_separation=asked,
    )


def close_run(state: State, place: Place, request: CloseRun) -> RunClosed:
    """Close a run for good."""
    budgets_of(state, request.dataset)
    run = under_current_attempt(state.runs.get(request.address), request)
    _end_run(state, request.address, run)
    return RunClosed(
        v=request.v,
        dataset=request.dataset,
        run=request.run,
        attempt=run.attempt,
        request=request.request,
        partition=place.partition,
        offset=place.offset,
        last_step=run.step,
    )


def bind_operator(
    state: State, place: Place, request: BindOperator, sender: Sender | None
) -> OperatorBound:
    """Have an operator, or another one."""
    state.gate.bind(request, sender)
    return OperatorBound(
        v=request.v,
        request=request.request,
        partition=place.partition,
        offset=place.offset,
        number=request.number,
        operator=request.operator,
    )


def register_principal(
    state: State, place: Place, request: RegisterPrincipal, sender: Sender | None
) -> PrincipalRegistered:
    """Know a principal by another key, or no more."""
    state.gate.register(request, sender)
    return PrincipalRegistered(
        v=request.v,
        request=request.request,
        partition=place.partition,
        offset=place.offset,
        number=request.number,
        principal=request.principal,
    )


def _check_closing(state: State, budgets: Budgets, datasets: set[str]) -> None:
    """Whether a dataset and those within it can be closed by one record."""
    rosters = rosters_beside(state, budgets)
    runs = [
        address for address, run in state.runs.items() if address[0] in datasets and not run.closed
    ]
    check_closing(
        budgets.own.policy.dataset,
        len(budgets.own),
        len(datasets),
        [state.separations.get(address, 0) for address in runs],
        [roster for roster in rosters if roster.dataset in datasets],
    )


def _end_run(state: State, address: Address, run: RunState) -> None:
    """Charge what is in arrears, and keep of a run only that there was one."""
    state.runs[address] = closed(run)
    drop_roster(state, address)
    if (separation := state.separations.pop(address, None)) is not None:
        state.participants.forget(address, separation)


def _policies_around(state: State, policy: Policy) -> list[Policy]:
    """Of the datasets that a new one would be within; none if there is none of that name."""
    return [] if policy.within is UNSET else state.policies.policies_of(policy.within)
