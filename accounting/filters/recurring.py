"""Recurring charges: each step charges every user as the step before did, except for given changes.

Between two changes a user's spend is a known spend plus the number of steps since times one charge.
So the step at which the user will no longer be admitted, and the step at which the odometer rises
next, are known in advance. A calendar queue (`accounting.filters.due_steps`) holds them, and a step
does work only for the users to whom something happens:

    a step at which nothing happens to any user        O(1)
    k users at other levels, k explicit charges        O(k)
    another cost table; the first step after a restart O(n)

*Theorem.* State, admissions and odometers are, bit for bit, those of the filter and of
`accounting.odometers.advance_units` applied to every user at every step.
*Proof.* Let nothing happen to a user for at most q steps, q from `LevelPayment.quiet_steps`. In
each of them the spend grows by the same charge c, to s + j c. For j <= q this is within the budget
and within the odometer's tick, because both conditions are monotone in j. So the filter admits, the
odometer keeps its base and its ticks, and only the spend changes, by j c. A user who is refused is
charged nothing, and is refused again until the charge changes; a larger spend does not help. All
other steps of a user are not predicted: the functions of the filter and the odometer carry them
out.

    user     quiet: charges accrue         due: settled at the next step, or at a known later one
                | <---- scheduled by a step ---- ^
                |                                |
                +-- other level, cost table, ----+
                    explicit charge, or roster;
                    its due step

With `clip`, a user who cannot pay for the level asked for is granted the highest lower level that
can be paid for, at each step again. So a user's last steps have ever lower levels, until not even
level 1 fits. The granted level is the one that is charged, and the one to clip to: the budget rule
(FZ Alg. 7, with norms on a grid) holds as for any step of that norm. The remainder never grows,
and a cost table never falls. So the granted level does not rise while level and cost table stay the
same, and a user is quiet at it as at any other.

A user may have budgets in several accounts. All of them must admit the user, and then all are
charged; with `clip`, at the highest level that all of them can pay for. A user may be on several
rosters: charges accrue on at most one of them. A step of another roster, or an explicit charge,
first settles its users' accrued charges, and makes them due at the next step of their own roster.
This holds for any number of rosters that have an account in common with each of their users: a step
that charges a user settles that user on all other rosters first.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Final, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from accounting.costs.norm_levels import LevelArray
from accounting.exact.argument_checks import BoolArray, IntArray
from accounting.filters.account_terms import (
    AccountCostTable,
    AccountTerms,
    AccruedSteps,
    BalanceColumns,
    LevelPayment,
)
from accounting.filters.due_steps import NEVER, NO_ROWS, DueSteps, distinct
from accounting.filters.payment import grant
from accounting.filters.roster_columns import (
    EXHAUSTED,
    HALTED,
    LISTED,
    FlagArray,
    RosterColumns,
    Rows,
    SlotMap,
    listed_rows,
    rows_at,
)

_BLOCK: Final = 2**14  # users at a time, so that the temporaries stay in the cache
NO_LEVELS: Final = np.empty(0, dtype=np.uint8)


class OdometerRise(NamedTuple):
    """The positions whose odometer rose in one account, and their ticks before."""

    positions: IntArray
    ticks_before: IntArray


class StepOutcome(NamedTuple):
    """The changes of a step. Everything else is as after the step before; positions ascend.

    Before its first step a user counts as admitted, at the level asked for, and not as exhausted.

    Attributes:
        halted: positions of users who are not admitted, and were before.
        refused_by: for each of these, the first account that has too little left, uint8; with
            `clip`, the first that has too little for any level.
        readmitted: positions of users who are admitted, and were not before.
        exhausted: positions of users who have nothing left in some account, and had before.
        regranted: with `clip`, positions of admitted users who are granted another level than
            before; or another than asked for, if they were not admitted before or their level was
            set by this step.
        levels: the granted levels of these, uint8.
        raised: the rises of the odometer, one entry per account.
        settled: positions of all users whose rows were written; a slice if these are all positions.
        had_accrued: whether charges of earlier steps were settled with this step.
    """

    halted: IntArray
    refused_by: npt.NDArray[np.uint8]
    readmitted: IntArray
    exhausted: IntArray
    regranted: IntArray
    levels: LevelArray
    raised: tuple[OdometerRise, ...]
    settled: Rows
    had_accrued: bool


class BudgetAccount:
    """The balances of one dataset, and the recurring charges that accrue in it.

    Between two steps the balances of users with accrued charges are out of date. Call
    `settle_for_write` before reading or writing rows.

    Args:
        terms: budgets and odometer.
        balances: columns that the caller owns.
    """

    def __init__(self, terms: AccountTerms, balances: BalanceColumns) -> None:
        self.terms = terms
        self.balances = balances
        self.recurring_charges: list[RecurringCharge] = []

    def settle_for_write(self, slots: Rows, but: RecurringCharge | None = None) -> None:
        """Bring the balances of these rows up to date, before the caller changes them.

        The next steps of the recurring charges look at these users again.

        Args:
            slots: the rows that are about to be read and written.
            but: a recurring charge that does not need to look again.
        """
        others = [recurring for recurring in self.recurring_charges if recurring is not but]
        if others:
            rows = listed_rows(slots)
            for recurring in others:
                recurring.settle_for_write(recurring.positions_of(self, rows))

    def order_of(self, rows: Rows) -> IntArray | None:
        """Return the index of each user's order, if each user is bound to one."""
        if self.terms.orders != "per-user":
            return None
        # As array indices: numpy would convert them at every use.
        return self.balances.order[rows].astype(np.intp)


class _Noticed(NamedTuple):
    """The step of some users, among them all to whom something happens; arrays of shape (m,)."""

    positions: IntArray
    asked: LevelArray
    granted: LevelArray
    refused_by: npt.NDArray[np.uint8]  # see `StepOutcome`
    exhausted: BoolArray  # whether the user has nothing left in some account
    flags_before: FlagArray  # after the step before, and LISTED
    granted_before: LevelArray


class RecurringCharge:
    """A roster whose users are charged by every step.

    The caller has checked all arguments; a level has a row in each cost table.

    Args:
        accounts: one or more accounts in which every user has a budget, the innermost first.
        slots: for each account the row of each position, all different.
        columns: the roster's columns, as they were stored with the balances. The calendar queue
            need not be stored: the next step schedules all positions.
        steps: the number of steps taken, less than `roster.MAX_STEPS`.
        tables: the cost table of each account at the last step; none before the first.
        clip: whether users who cannot pay are granted a lower level.

    Attributes:
        accounts, slots, columns, steps, tables, clip: as given, and as they are now.
    """

    def __init__(
        self,
        accounts: Sequence[BudgetAccount],
        slots: Sequence[SlotMap],
        columns: RosterColumns,
        *,
        steps: int = 0,
        tables: Sequence[AccountCostTable] = (),
        clip: bool = False,
    ) -> None:
        self.accounts, self.slots, self.clip = tuple(accounts), tuple(slots), clip
        self.steps, self.tables = steps, tuple(tables)
        self.columns = columns
        self._settled_by_others: list[IntArray] = []
        self._due = DueSteps()
        self._due.extend(len(self), steps + 1)
        self._all_due = True  # the next step settles every position
        self._scheduled = True  # otherwise the next step schedules every position first
        for account in self.accounts:
            account.recurring_charges.append(self)

    def __len__(self) -> int:
        return len(self.slots[0])

    def enrol(self, slots: Sequence[IntArray], level: int) -> None:
        """Append positions at a level; the next step is the first to charge them.

        Args:
            slots: for each account the rows, different from those of all other positions.
            level: asked for at each position. The columns have room for the positions.
        """
        first = len(self)
        for known, rows in zip(self.slots, slots, strict=True):
            known.extend(rows)
        new, columns = slice(first, len(self)), self.columns
        columns.level[new] = columns.granted[new] = level
        columns.flags[new], columns.since[new] = 0, self.steps
        self._due.extend(len(self) - first, self.steps + 1)
        self._all_due |= not self._scheduled

    def step(
        self,
        tables: Sequence[AccountCostTable] | None = None,
        listed: Rows = NO_ROWS,
        levels: LevelArray = NO_LEVELS,
    ) -> StepOutcome:
        """Charge every user once.

        Args:
            tables: the cost table of each account from this step on; given at the first step and
                whenever it changes.
            listed: the positions whose levels this step changes, ascending; a slice of all.
            levels: their levels from this step on.
        """
        if levels.size:
            self.columns.level[listed] = levels
            if self.clip:
                self.columns.flags[listed] |= LISTED
        rows: Rows = slice(0, len(self))
        if tables is None and not (self._all_due or isinstance(listed, slice)):
            self._schedule_all()
            due = self._due.take(self.steps + 1)
            both = due.size and listed.size
            rows = distinct(np.concatenate([due, listed])) if both else due if due.size else listed
        # If every step brings all levels, a schedule would never be used.
        self._scheduled = not isinstance(listed, slice)
        outcome = self._charge(rows, self.tables if tables is None else tuple(tables))
        self._all_due = False
        return outcome

    def settle(self, positions: Rows = slice(None)) -> None:
        """Bring balances up to date, as after the last step; positions may be repeated."""
        for where in self._blocks(positions):
            accrued = self._accrued_steps(where, self.steps)
            for account, known, steps in zip(self.accounts, self.slots, accrued, strict=False):
                rows = known.rows(where)
                account.balances.spent[rows] += steps.units(account.order_of(rows))
            if accrued:
                self.columns.since[where] = self.steps

    def settle_for_write(self, positions: IntArray) -> None:
        """Bring balances up to date before the caller changes them; the next step looks again."""
        accruing = distinct(self.accruing(positions))
        self.settle(accruing)
        if accruing.size:
            self._settled_by_others.append(accruing)
        self._all_due |= not self._scheduled
        if not self._all_due:
            following = self.steps + 1
            later = distinct(positions[self._due.due[positions] != following])
            self._due.put(later, np.full(later.size, following, dtype=np.uint32))

    def take_settled(self) -> IntArray:
        """Return the positions that `settle_for_write` has settled since the last call, ascending.

        Their `since` and their balances changed.
        """
        taken, self._settled_by_others = self._settled_by_others, []
        return np.sort(np.concatenate([NO_ROWS, *taken]))

    def accruing(self, positions: IntArray) -> IntArray:
        """Return those of these positions that have accrued charges."""
        if not self.tables:
            return NO_ROWS
        return np.asarray(positions[self.columns.since[positions] != self.steps])

    def positions_of(self, account: BudgetAccount, slots: IntArray) -> IntArray:
        """Return the positions of these rows of an account, without rows not on the roster."""
        for own, known in zip(self.accounts, self.slots, strict=True):
            if own is account:
                return known.positions(slots)
        return NO_ROWS

    def close(self) -> None:
        """Bring all balances up to date, and leave the accounts; no step may follow."""
        self.settle()
        for account in self.accounts:
            account.recurring_charges.remove(self)

    def _charge(self, rows: Rows, tables: tuple[AccountCostTable, ...]) -> StepOutcome:
        """Carry out a step for some positions or for all (a slice); the others' step accrues."""
        if isinstance(rows, slice):
            self._due.forget()
        self.steps += 1
        noticed: list[_Noticed] = []
        rises: list[list[OdometerRise]] = [[] for _ in self.accounts]
        accrued = [
            self._charge_block(where, tables, noticed, rises) for where in self._blocks(rows)
        ]
        self.tables = tables
        raised = tuple(
            _joined(blocks) if blocks else OdometerRise(NO_ROWS, NO_ROWS) for blocks in rises
        )
        quiet = StepOutcome(
            *(NO_ROWS, NO_LEVELS, NO_ROWS, NO_ROWS, NO_ROWS, NO_LEVELS), raised, rows, any(accrued)
        )
        return self._changed(quiet, _joined(noticed)) if noticed else quiet

    def _charge_block(
        self,
        where: Rows,
        tables: tuple[AccountCostTable, ...],
        noticed: list[_Noticed],
        rises: list[list[OdometerRise]],
    ) -> bool:
        """Carry out a step for a block; return whether steps before it were charged as well.

        Args:
            where: the positions.
            tables: the step's cost tables.
            noticed: receives the users to whom something may have happened, if there are any.
            rises: for each account, receives the odometers that rose, if any did.
        """
        columns = self.columns
        accrued = self._accrued_steps(where, self.steps - 1)
        asked = columns.level[where]
        for account, known in zip(self.accounts, self.slots, strict=True):
            account.settle_for_write(known.rows(where), but=self)
        payments = self._payments(where, tables, asked, accrued)
        granted, refused_by = grant(payments, asked, clip=self.clip)
        # Nothing changes for all others: their flags stay 0, and they are granted what they asked.
        may_change = columns.flags[where] != 0
        if self.clip:
            may_change |= columns.granted[where] != asked
        for payment, risen in zip(payments, rises, strict=True):
            restart = payment.pay()
            if restart.users.size:
                positions = rows_at(where, restart.users)
                risen.append(OdometerRise(positions, restart.ticks_before))
            may_change[payment.close] = True
        few = np.flatnonzero(may_change)
        if few.size:
            at = rows_at(where, few)
            noticed.append(
                _Noticed(
                    at,
                    asked[few],
                    granted[few],
                    refused_by[few],
                    reduce(np.logical_or, [payment.exhausted(few) for payment in payments]),
                    columns.flags[at],
                    columns.granted[at],
                )
            )
        columns.granted[where], columns.since[where] = granted, self.steps
        if self._scheduled:
            self._schedule(where, payments)
        return bool(accrued)

    def _changed(self, quiet: StepOutcome, noticed: _Noticed) -> StepOutcome:
        """Return what a step changed for these users, and store their flags."""
        where, asked, granted, refused_by, exhausted, before, granted_before = noticed
        halted = (granted == 0) & (asked > 0)
        flags: FlagArray = halted.view(np.uint8) | exhausted.view(np.uint8) << 1
        self.columns.flags[where] = flags
        regranted = NO_ROWS
        if self.clip:
            expected = np.where(before & (LISTED | HALTED) != 0, asked, granted_before)
            regranted = np.flatnonzero((granted != expected) & ~halted)
        changed = flags ^ before
        left = np.flatnonzero(changed & flags & HALTED)
        return quiet._replace(
            halted=where[left],
            refused_by=refused_by[left],
            readmitted=where[np.flatnonzero(changed & before & HALTED)],
            exhausted=where[np.flatnonzero(changed & flags & EXHAUSTED)],
            regranted=where[regranted],
            levels=granted[regranted],
        )

    def _payments(
        self,
        where: Rows,
        tables: tuple[AccountCostTable, ...],
        levels: LevelArray,
        accrued: Sequence[AccruedSteps] = (),
    ) -> list[LevelPayment]:
        payments = []
        for index, (account, known) in enumerate(zip(self.accounts, self.slots, strict=True)):
            rows = known.rows(where)
            steps = accrued[index] if accrued else None
            order = account.order_of(rows)
            payments.append(
                LevelPayment(tables[index], account.balances, rows, order, levels, steps)
            )
        return payments

    def _schedule_all(self) -> None:
        """Schedule every position, if the last step, which settled all of them, did not."""
        if not self._scheduled:
            for where in self._blocks(slice(None)):
                payments = self._payments(where, self.tables, self.columns.granted[where])
                for payment in payments:
                    payment.skip_payment()
                self._schedule(where, payments)

    def _schedule(self, where: Rows, payments: Sequence[LevelPayment]) -> None:
        """Set the step at which these positions must be settled next."""
        following = self.steps + 1
        quiet = reduce(np.fmin, [payment.quiet_steps() for payment in payments])
        due = np.fmin(quiet, NEVER - following).astype(np.uint32)
        due += np.uint32(following)
        if isinstance(where, slice):
            self._due.replace(where, due)
        else:
            self._due.put(where, due)

    def _accrued_steps(self, where: Rows, now: int) -> list[AccruedSteps]:
        """Return the accrued steps of these positions in each account up to `now`, or []."""
        since = self.columns.since[where]
        if not self.tables or bool((since == now).all()):
            return []
        elapsed, granted = now - since.astype(np.int64), self.columns.granted[where]
        return [AccruedSteps(table, granted, elapsed) for table in self.tables]

    def _blocks(self, positions: Rows) -> list[Rows]:
        count = len(self) if isinstance(positions, slice) else positions.size
        parts = [slice(i, min(i + _BLOCK, count)) for i in range(0, count, _BLOCK)]
        return list(parts) if isinstance(positions, slice) else [positions[p] for p in parts]


_Arrays = TypeVar("_Arrays", OdometerRise, _Noticed)


def _joined(blocks: Sequence[_Arrays]) -> _Arrays:
    """Return the arrays of one or more blocks together."""
    first = blocks[0]
    if len(blocks) == 1:
        return first
    return type(first)(*map(np.concatenate, zip(*blocks, strict=True)))
