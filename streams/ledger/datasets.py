"""Datasets: create, close, withdraw and erase; and the budgets that runs hold.

``streams.ledger.run_states`` has the states of a run, ``streams.ledger.authorization`` those of an
access list, ``streams.ledger.erasure`` those of a user. The states of a dataset in one partition:

    (unknown) --create-dataset--> policy                    the first one binds P of the log
    policy --create-dataset, same policy--> unchanged
    policy --open-run--> policy, in use
    policy --create-dataset nested in it--> policy, in use
    policy --withdraw-dataset--> (unknown)                  not if it is in use
    policy, in use or not --close-dataset--> closed, as are those nested in it and all their runs
    closed --close-dataset--> unchanged                     nothing leads from there
    (unknown) --withdraw-dataset--> unchanged

A request that is refused raises ``Rejection``, and nothing has changed.

One run at a time may charge a budget, unless the policy states an assumption. If two runs draw on
one budget, the admitted users depend on which charge comes first. That order follows from running
times, and running times can depend on data, so one user's data could move other users'
contributions from one release to another (``docs/research/conditions.md``, A2). Therefore a
run holds each outermost budget that it charges. A request takes all of them or none:

    free --open-run of run R--> held by R
    held by R --open-run of R, a new attempt--> held by R
    held by R --open-run of S, take_over, a new attempt--> held by S    R has to be opened again
    held by R --close-run of R, or R's dataset is closed--> free
    held by R --any other open-run, or a charge of another run--> rejected, BUDGET_HELD

All datasets nested in an outermost dataset charge its budget, so one run at a time charges any of
them. ``assume_independent_timing`` in the policy of an outermost dataset switches its hold off.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from msgspec import UNSET

from streams.ledger.accrual import (
    budgets_of,
    check_open,
    drop_roster,
    open_budgets_of,
    store_settled,
)
from streams.ledger.authorization import check_access
from streams.ledger.budgets import Budgets
from streams.ledger.collecting import MAX_AHEAD, terms_of
from streams.ledger.erasure import check_key
from streams.ledger.outputs import Output, Place, answer, answer_to, tombstone_of
from streams.ledger.partition_errors import LayoutMismatch
from streams.ledger.run_states import (
    RunState,
    closed,
    opened,
    takes_terms,
    under_current_attempt,
)
from streams.ledger.separation import separation_of
from streams.ledger.state import State
from streams.ledger.tracked import Address
from streams.ledger.validation import (
    check_ancestors,
    check_homes,
    check_policy,
    check_share,
    is_same_policy,
    policy_to_store,
)
from streams.records import (
    MAX_DATASETS,
    MAX_NAMES_BYTES,
    AccessSet,
    CloseDataset,
    CloseRun,
    CreateDataset,
    DatasetClosed,
    DatasetCreated,
    DatasetWithdrawn,
    Erase,
    Erased,
    Holder,
    OpenRun,
    Policy,
    Reason,
    Rejection,
    RunClosed,
    RunOpened,
    Sender,
    SetAccess,
    WithdrawDataset,
    encode,
)
from streams.records.users import UserIds


def create_dataset(
    state: State, place: Place, request: CreateDataset, sender: Sender | None
) -> DatasetCreated:
    """Create a dataset, or confirm that it exists under the same policy."""
    policy = request.policy
    check_policy(policy)
    state.authorization.check_list(request)
    outer = _policies_around(state, policy)
    whole = None if policy.share_of is UNSET else state.policies.get((policy.share_of,))
    check_ancestors(policy, outer)
    if policy.partitions != state.partitions:
        if not state.layout:
            raise LayoutMismatch(policy.partitions, state.partitions)
        detail = f"the topic has {state.partitions} partitions, not {policy.partitions}"
        raise Rejection(Reason.INVALID_POLICY, detail)
    stored = state.policies.get(request.address)
    if stored is None:
        named = [policy.share_of] if policy.share_of is not UNSET else policy.parents or []
        for name in named:
            budgets_of(state, name)
        state.authorization.check_creation(request, sender)
        for name in named:
            check_open(state, name)
        names = state.policies.keys() | state.access.keys()  # with some that were withdrawn
        if request.address not in names and len(names) >= MAX_DATASETS:
            detail = f"the log has {MAX_DATASETS} datasets, closed ones included, and takes no more"
            raise Rejection(Reason.TOO_LARGE, detail)
        size = sum(len(name) + 3 for (name,) in names | {request.address})
        if size > MAX_NAMES_BYTES:
            detail = (
                f"the names of all datasets of the log, closed ones included, would have {size} "
                f"bytes, and {MAX_NAMES_BYTES} are allowed: choose shorter names"
            )
            raise Rejection(Reason.TOO_LARGE, detail)
        _check_shares(state, policy, whole)
        _check_families(state, policy)
        stored = policy_to_store(policy, outer if whole is None else [whole])
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
    return answer(DatasetCreated, request, place, policy=stored)


def withdraw_dataset(state: State, place: Place, request: WithdrawDataset) -> DatasetWithdrawn:
    """Withdraw a dataset that has never been used, or confirm that it does not exist."""
    name = request.dataset
    accounts = state.datasets.get(name)
    if accounts is not None:
        check_open(state, name)
        use = None
        if name in state.runs.datasets or len(accounts):
            use = "a run of it has been opened"
        elif state.policies.shares_of(name):
            use = "another dataset has a share of it"
        elif state.policies.has_nested(name):
            use = "another dataset is nested in it"
        if use is not None:
            detail = f"dataset {name!r} cannot be withdrawn: {use}"
            raise Rejection(Reason.DATASET_IN_USE, detail)
        del state.policies[request.address]
        state.authorization.withdrawn(request.address)
    return answer(DatasetWithdrawn, request, place)


def close_dataset(state: State, place: Place, request: CloseDataset) -> DatasetClosed:
    """Close a dataset, the datasets nested in it and all their runs permanently."""
    budgets_of(state, request.dataset)
    shares = state.policies.shares_of(request.dataset)
    if still_open := [share for share in shares if (share,) not in state.closed]:
        detail = f"dataset {request.dataset!r} has shares that are open: close {still_open} first"
        raise Rejection(Reason.DATASET_SHARED, detail)
    datasets = state.policies.with_nested(request.dataset)
    end_runs(state, datasets)
    for name in datasets:
        if (name,) not in state.closed:
            state.closed[name,] = place.offset
    return answer(DatasetClosed, request, place, datasets=datasets)


def open_run(state: State, place: Place, request: OpenRun) -> RunOpened:
    """Open a run, or a new attempt of it."""
    budgets = open_budgets_of(state, request.dataset)
    if shares := state.policies.shares_of(request.dataset):
        detail = (
            f"dataset {request.dataset!r} is charged through its shares {shares}: open a run there"
        )
        raise Rejection(Reason.DATASET_SHARED, detail)
    address = request.address
    known, separation = state.runs.get(address), state.separations.get(address, UNSET)
    run = opened(known, request)
    is_fresh = takes_terms(known, run, has_roster=address in state.rosters)
    asked = separation_of(request, separation, is_fresh=is_fresh)
    taken = holds_to_take(state, budgets, request, known, run)
    before = state.collecting.get(address)
    terms = terms_of(request, before, budgets, is_fresh=is_fresh)
    for name in taken:
        state.holds[name,] = Holder(dataset=request.dataset, run=request.run)
    state.runs[address] = run
    if terms is not None and terms != before:
        state.collected.drop(address, run.step + MAX_AHEAD)  # of other terms
        state.collecting[address] = terms
    if asked is not UNSET and asked != separation:
        state.separations[address] = asked
    return answer(
        RunOpened,
        request,
        place,
        attempt=run.attempt,
        last_step=run.step,
        policy=budgets.own.policy,
        outer=budgets.policies[1:] if budgets.is_nested else UNSET,
        min_separation=asked,
        collect=UNSET if terms is None else terms,
    )


def close_run(state: State, place: Place, request: CloseRun) -> RunClosed:
    """Close a run permanently."""
    budgets_of(state, request.dataset)
    run = under_current_attempt(state.runs.get(request.address), request)
    _end_run(state, request.address, run)
    return answer(RunClosed, request, place, attempt=run.attempt, last_step=run.step)


def end_runs(state: State, datasets: Collection[str] | None = None) -> None:
    """Close all open runs of these datasets permanently; of all datasets by default."""
    for address, run in list(state.runs.items()):
        if not run.closed and (datasets is None or address[0] in datasets):
            _end_run(state, address, run)


def set_access(state: State, place: Place, request: SetAccess, sender: Sender | None) -> AccessSet:
    """Replace the access list of a dataset."""
    check_access(request.allow)
    budgets_of(state, request.dataset)
    state.authorization.set_access(request, sender)
    return answer(AccessSet, request, place, number=request.number)


def _check_shares(state: State, policy: Policy, whole: Policy | None) -> None:
    """Check that a new share fits into the divided budget, which only shares charge.

    Rejected with INVALID_POLICY or DATASET_SHARED.
    """
    for parent in policy.parents or ():
        if shares := state.policies.shares_of(parent):
            detail = f"dataset {parent!r} is charged through its shares {shares}: name one of them"
            raise Rejection(Reason.DATASET_SHARED, detail)
    if whole is not None:
        name = whole.dataset
        if name in state.runs.datasets or state.policies.has_nested(name):
            detail = (
                f"dataset {name!r} has been charged itself, so it cannot be divided into shares"
            )
            raise Rejection(Reason.INVALID_POLICY, detail)
        names = state.policies.shares_of(name)
        check_share(policy, whole, [state.policies[share,] for share in names])


def _check_families(state: State, policy: Policy) -> None:
    """Check that parents are of one family, but for families without any run (INVALID_POLICY).

    Otherwise a user who was erased in one of them could still be known in another.
    """
    families = {state.policies.outermost_of(parent) for parent in policy.parents or ()}
    used = [
        family
        for family in sorted(families)
        if any(name in state.runs.datasets for name in state.policies.with_nested(*family))
    ]
    if len(used) > 1:
        detail = (
            f"runs were opened under {used[0]} and under {used[1]}, which share no budget, so a "
            "dataset cannot be nested in both: create it before the first run"
        )
        raise Rejection(Reason.INVALID_POLICY, detail)


def _end_run(state: State, address: Address, run: RunState) -> None:
    """Charge what a run has accrued, and keep only the fact that it existed."""
    state.runs[address] = closed(run)
    release_holds(state, address)
    drop_roster(state, address)
    if (separation := state.separations.pop(address, None)) is not None:
        state.participants.drop(address, separation)
    if state.collecting.pop(address, None) is not None:
        state.collected.drop(address, run.step + MAX_AHEAD)


def _policies_around(state: State, policy: Policy) -> list[Policy]:
    """Return the policies of a new dataset's ancestors; none if a parent does not exist."""
    parents = policy.parents or []
    if any((name,) not in state.policies for name in parents):
        return []
    return [state.policies[name,] for name in state.policies.with_ancestors(*parents)]


def check_hold(state: State, budgets: Budgets, address: Address) -> None:
    """Check that no other run, open or closed, took a budget of this one over (BUDGET_HELD)."""
    if lacking := _not_held(state, budgets, address):
        raise _held(lacking)


def holds_to_take(
    state: State, budgets: Budgets, request: OpenRun, before: RunState | None, run: RunState
) -> list[str]:
    """Return the outermost budgets that an opened run lacks and takes; BUDGET_HELD if it may not.

    ``before`` is the run before the request, None if it is new, and ``run`` is the run after it.
    """
    lacking = _not_held(state, budgets, request.address)
    # A repeated opening, by its sender or by the network, takes over no budget.
    is_new_attempt = before is None or run.attempt > before.attempt
    is_free = not any(lacking.values())
    if lacking and not (is_new_attempt and (is_free or request.take_over is True)):
        raise _held(lacking)
    return list(lacking)


def release_holds(state: State, address: Address) -> None:
    """Free the budgets that a run holds."""
    for name in state.policies.with_ancestors(address[0]):
        holder = state.holds.get((name,))
        if holder is not None and _address(holder) == address:
            del state.holds[name,]


def _not_held(state: State, budgets: Budgets, address: Address) -> dict[str, Holder | None]:
    """Return the outermost budgets that a run has to hold and does not, and their holders."""
    holders = {
        accounts.policy.dataset: state.holds.get((accounts.policy.dataset,))
        for accounts in budgets.outermost
        if accounts.policy.assume_independent_timing is not True
    }
    return {
        name: holder
        for name, holder in holders.items()
        if holder is None or _address(holder) != address
    }


def _address(holder: Holder) -> Address:
    return holder.dataset, holder.run


def _held(lacking: Mapping[str, Holder | None]) -> Rejection:
    name, holder = next((one for one in lacking.items() if one[1]), next(iter(lacking.items())))
    by = "no run" if holder is None else f"run {holder.run!r} of dataset {holder.dataset!r}"
    detail = f"{by} holds the budget of dataset {name!r}; one run at a time charges it"
    return Rejection(Reason.BUDGET_HELD, detail, holder=holder)


def erase(state: State, place: Place, request: Erase, sender: Sender | None = None) -> list[Output]:
    """Erase a user in the family of a dataset and those of its shares, or in all families.

    Without a dataset, the user is erased wherever the sender may manage, and the answer names
    the outermost datasets of the other families.
    """
    if request.dataset is not UNSET:
        check_key(budgets_of(state, request.dataset).own.policy, request)
    families = state.policies.families_of(request)
    check_homes(UserIds([request.user]), place.partition, state.partitions)
    erased: list[str] = []
    tombstones: list[Output] = []
    allowed = [each for each in families if state.authorization.may_erase(each, sender)]
    for outermost in allowed:
        there, left = _erase_in(state, outermost, request)
        erased += there
        tombstones += (tombstone_of(dataset, request.user, place) for dataset in left)
    others = sorted(name for each in families if each not in allowed for name in each)
    answered = answer(Erased, request, place, datasets=sorted(erased), not_allowed=others)
    return [answer_to(request, encode(answered)), *tombstones]


def _erase_in(state: State, family: Sequence[str], request: Erase) -> tuple[list[str], list[str]]:
    """Return the datasets of a family in which a user is erased now, and by this request."""
    there = [state.datasets[name] for name in state.policies.with_nested(*family)]
    for accounts in there:
        state.collected.erase(accounts.policy.dataset, request.user)
    found = UserIds([request.user])
    members = [accounts for accounts in there if accounts.knows(found)[0]]
    if not members:
        found = state.policies.budgets(family[0]).known_as(found)
        return [a.policy.dataset for a in there if a.knows(found)[0]], []
    outermost = [accounts for accounts in members if accounts.policy.parents is UNSET]
    for accounts in outermost:
        (slot,) = accounts.seek(found).slots.tolist()
        state.note(accounts.spend_the_rest(slot))
    store_settled(state, outermost)
    name = state.erased.new_name(request.user, hidden=request.hidden)
    datasets = [accounts.policy.dataset for accounts in members]
    for accounts in members:
        (slot,) = accounts.seek(found).slots.tolist()
        state.erased[accounts.policy.dataset, str(slot)] = name
    return datasets, datasets
