"""The accounts of one dataset in one partition: who has spent what, and who is admitted.

``charge`` carries out a plan that was made of what ``seek`` found. What a step comes to is said by
``rule``: here that is asked for blocks of users, and written to their rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from accounting import Mechanism, best_order
from streams.ledger.balances import AccountsChanges
from streams.ledger.columns import Numbers, RowChanges, joined
from streams.ledger.kept_accounts import KeptAccounts, Raised
from streams.ledger.rule import NOBODY, Before, Bill, Settled
from streams.schemas import User
from streams.wire.packing import pack_users

_Number = TypeVar("_Number", bound=np.generic)


@dataclass(frozen=True)
class Plan:
    """A charge that has passed every check."""

    users: NDArray[np.int64] | list[User]
    norms: NDArray[np.float64]
    mechanism: Mechanism
    clips: bool  # whether less than these norms may be granted: the dataset that is charged says so
    slots: Numbers
    new_users: NDArray[np.int64] | list[User]


@dataclass(frozen=True)
class Outcome:
    """What a charge did; arrays in the order of its users."""

    admitted: NDArray[np.bool_]
    exhausted: NDArray[np.bool_]
    clipped: Numbers  # positions granted less than asked for
    granted: NDArray[np.float64]  # the norms of those positions
    raised: Iterator[Raised]
    changes: AccountsChanges


class Accounts(KeptAccounts):
    """Charges users, and writes what comes of it."""

    def spend_the_rest(self, slot: int) -> AccountsChanges:
        """Charge a user all that is left; the odometer says nothing of it."""
        slots, bound = np.array([slot]), NOBODY
        self.account.settle_for_write(slots)
        budget = np.array(self.policy.budget)
        if self._own is not None:
            if not self._own.bound[slot]:
                self._own.order[slot], self._own.bound[slot] = 0, 1
                bound = slots
            budget = budget[self._own.order[slot]]
        rest = budget - self._rows.spent[slots]
        self._rows.spent[slots] += rest
        self._rows.base[slots] += rest
        return self.note(slots, slots, bound)

    def prepare(self, plan: Plan) -> None:
        """Have rows, up to date, for all users of a plan that was made of the accounts as they are.

        What ``grants`` says and what ``charge`` does is of these.
        """
        if len(plan.new_users):
            self._enrol(plan.new_users)
        self.account.settle_for_write(plan.slots)

    def grants(self, plan: Plan) -> NDArray[np.float64]:
        """What norm this budget alone grants each user, 0 to whom it halts; nothing changes."""
        return _joined(self._grants(plan, block) for block in self._blocks(plan.slots))

    def charge(self, plan: Plan, granted: NDArray[np.float64] | None = None) -> Outcome:
        """Carry out a plan that is prepared.

        Args:
            plan: of the charge.
            granted: the norm that all budgets together grant each user, (n,), at most what this one
                grants; None: there are no others.
        """
        first_new_slot = len(self._index) - len(plan.new_users)
        blocks = self._blocks(plan.slots)
        decided: list[tuple[NDArray[np.bool_], Bill, Settled]] = []
        written: list[list[RowChanges]] = []
        for block in blocks:
            admitted, bill, settled = self._decide(plan, block, granted)
            written.append(self._write(plan.slots[block], bill, settled))
            # What grows with the orders is kept once, as bytes.
            decided.append(
                (admitted, bill._replace(cost=NOBODY), settled._replace(spent=NOBODY, base=NOBODY))
            )
        self._exhausted = None
        changes = AccountsChanges(
            dataset=self.policy.dataset,
            new_users=pack_users(plan.new_users),
            first_new_slot=first_new_slot,
            rows=self._as_written(written),
            charged=self._charged,
        )
        parts = list(zip(blocks, decided, strict=True))
        return Outcome(
            admitted=_joined(admitted for _, (admitted, _, _) in parts),
            exhausted=_joined(settled.exhausted for _, (_, _, settled) in parts),
            clipped=_joined(b.start + bill.clipped for b, (_, bill, _) in parts),
            granted=_joined(bill.granted for _, (_, bill, _) in parts),
            raised=self.bounds_raised(
                _joined(plan.slots[b][settled.raised] for b, (_, _, settled) in parts),
                _joined(settled.ticks_before for _, (_, _, settled) in parts),
            ),
            changes=changes,
        )

    def bind(
        self, slots: Numbers, cost_table: Numbers, levels: NDArray[np.uint8]
    ) -> tuple[Numbers, bool]:
        """Bind those of these users who are not bound yet, and are charged something.

        Args:
            slots: of the users.
            cost_table: what a step costs at every level and order.
            levels: of the users.

        Returns:
            Whose order was bound, and whether anybody is left whose order is not.
        """
        rows = self._own
        if rows is None:
            return NOBODY, False
        free = np.flatnonzero(rows.bound[slots] == 0)
        costs = np.asarray(cost_table.any(axis=1))
        charged = free[costs[levels[free]]]
        if not len(charged):
            return NOBODY, len(free) > 0
        best = best_order(cost_table, self.policy.budget)
        rows.order[slots[charged]] = best[levels[charged]]
        rows.bound[slots[charged]] = 1
        return slots[charged], len(charged) < len(free)

    def _blocks(self, slots: Numbers) -> list[slice]:
        users = self.rule.block_users
        return [slice(i, i + users) for i in range(0, max(1, len(slots)), users)]

    def _before(self, slots: Numbers) -> Before:
        """The numbers of the users in these slots, as they are, which most charges need."""
        rows, own = self._rows, self._own
        return Before(
            rows.spent.take(slots, axis=0),
            rows.base.take(slots, axis=0),
            None if own is None else own.order.take(slots),
            None if own is None else own.bound.take(slots) != 0,
        )

    def _bill(
        self, plan: Plan, block: slice, granted: NDArray[np.float64] | None = None
    ) -> tuple[Before, Bill, NDArray[np.bool_]]:
        """What a block of users is asked for, and who of them is admitted; writes nothing."""
        rows = self._before(plan.slots[block])
        least = None if granted is None else granted[block]
        bill = self.rule.bill(rows, plan.mechanism, plan.norms[block], least, clips=plan.clips)
        return rows, bill, self.rule.fits(rows, bill) if bill.admitted is None else bill.admitted

    def _grants(self, plan: Plan, block: slice) -> NDArray[np.float64]:
        _, bill, admitted = self._bill(plan, block)
        granted = np.where(admitted, plan.norms[block], 0.0)
        granted[bill.clipped] = bill.granted
        return granted

    def _decide(
        self, plan: Plan, block: slice, granted: NDArray[np.float64] | None = None
    ) -> tuple[NDArray[np.bool_], Bill, Settled]:
        """Who of a block of users is admitted, for what, and what that leaves; writes nothing."""
        rows, bill, admitted = self._bill(plan, block, granted)
        if bill.admitted is None and not admitted.all():
            # A product takes the same time however the halted lie among the others.
            np.multiply(bill.cost.T, admitted, out=bill.cost.T)
        slots = plan.slots[block]
        return admitted, bill, self.rule.settle(rows, bill, lambda at: self._rows.ticks[slots[at]])

    def _write(self, slots: Numbers, bill: Bill, settled: Settled) -> list[RowChanges]:
        """Move the rows of these slots to their new values."""
        if self.account.recurring_charges:
            return [self._write_all(slots, bill, settled)]
        changed = settled.charged if bill.bound is None else settled.charged | bill.bound
        values: dict[str, NDArray[Any]] = {"spent": settled.spent}
        if bill.order is not None:
            values |= {"order": bill.order, "bound": np.ones(len(slots), dtype=np.uint8)}
        written = slots
        if not changed.all():
            rows = np.flatnonzero(changed)
            written = slots.take(rows)
            values = {name: numbers.take(rows, axis=0) for name, numbers in values.items()}
        spent = self._rows.write(written, values)
        # Whose odometer rose has spent something.
        risen = {"base": settled.base, "ticks": settled.ticks}
        raised = self._rows.write(slots.take(settled.raised), risen, touched=True)
        return [spent, raised]

    def _as_written(self, blocks: list[list[RowChanges]]) -> list[RowChanges]:
        """What was written in blocks: the same columns of all of them as one."""
        if self.account.recurring_charges:  # a block tells once what is the same in all of its rows
            return [rows for parts in blocks for rows in parts if rows.rows]
        return [rows for parts in zip(*blocks, strict=True) if (rows := joined(parts)).rows]

    def _write_all(self, slots: Numbers, bill: Bill, settled: Settled) -> RowChanges:
        """The same, with all that has been brought up to date before."""
        rows = self._rows
        rows.spent[slots] = settled.spent
        rows.base[slots[settled.raised]] = settled.base
        rows.ticks[slots[settled.raised]] = settled.ticks
        if self._own is not None and bill.order is not None and bill.bound is not None:
            bound = np.flatnonzero(bill.bound)
            self._own.order[slots[bound]] = bill.order[bound]
            self._own.bound[slots[bound]] = 1
        return rows.note(slots)


def _joined(parts: Iterable[NDArray[_Number]]) -> NDArray[_Number]:
    arrays = list(parts)
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)
