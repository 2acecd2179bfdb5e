"""Which run may charge a budget: one at a time, unless the policy states an assumption.

If two runs draw on one budget, the admitted users depend on which charge comes first. That order
follows from running times, and running times can depend on data, so one user's data could move
other users' contributions from one release to another (``accounting/THEOREMS.md``, condition A2).
Therefore a run holds the outermost budget that it charges:

    free --open-run of run R--> held by R
    held by R --open-run of R, a new attempt--> held by R
    held by R --open-run of S, take_over, a new attempt--> held by S    R has to be opened again
    held by R --close-run of R, or R's dataset is closed--> free
    held by R --any other open-run, or a charge of another run--> rejected, BUDGET_HELD

All datasets nested in an outermost dataset charge its budget, so one run at a time charges any of
them. ``assume_independent_timing`` in the policy of the outermost dataset switches holds off.
"""

from __future__ import annotations

from streams.ledger.budgets import Budgets
from streams.ledger.runs import RunState
from streams.ledger.state import State
from streams.ledger.tracked import Address
from streams.records import Holder, OpenRun, Policy, Reason, Rejection


def check_hold(state: State, budgets: Budgets, address: Address) -> None:
    """Check that a run holds the outermost budget that it charges.

    Raises:
        Rejection: BUDGET_HELD, if another run has taken it over, even if that one is closed now.
    """
    outermost = budgets.policies[-1]
    if outermost.assume_independent_timing is True:
        return
    holder = state.holds.get((outermost.dataset,))
    if holder is None or _address(holder) != address:
        raise _held(outermost, holder)


def take_hold(
    state: State, budgets: Budgets, request: OpenRun, before: RunState | None, run: RunState
) -> None:
    """Let a run that is opened hold the outermost budget that it charges.

    Args:
        state: the partition's state.
        budgets: those of the run's dataset, the nearest first.
        request: the opening.
        before: the run as it was; None if it is new.
        run: the run as the request leaves it.

    Raises:
        Rejection: BUDGET_HELD, if another run holds the budget and the request does not take over.
    """
    outermost = budgets.policies[-1]
    if outermost.assume_independent_timing is True:
        return
    holder = state.holds.get((outermost.dataset,))
    if holder is not None and _address(holder) == request.address:
        return
    # An opening that is repeated, by its sender or by the network, takes nothing over.
    is_new_attempt = before is None or run.attempt > before.attempt
    if not is_new_attempt or (holder is not None and request.take_over is not True):
        raise _held(outermost, holder)
    state.holds[outermost.dataset,] = Holder(dataset=request.dataset, run=request.run)


def release_hold(state: State, address: Address) -> None:
    """Free the budget that a run holds, if it holds one."""
    outermost = state.policies.policies_of(address[0])[-1].dataset
    holder = state.holds.get((outermost,))
    if holder is not None and _address(holder) == address:
        del state.holds[outermost,]


def _address(holder: Holder) -> Address:
    return holder.dataset, holder.run


def _held(outermost: Policy, holder: Holder | None) -> Rejection:
    by = "no run" if holder is None else f"run {holder.run!r} of dataset {holder.dataset!r}"
    detail = f"{by} holds the budget of dataset {outermost.dataset!r}; one run at a time charges it"
    return Rejection(Reason.BUDGET_HELD, detail, holder=holder)
