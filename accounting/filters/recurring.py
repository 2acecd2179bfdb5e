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
*Proof.* Let nothing happen to a user for at most q steps, q as given by `accounts.quiet_steps`. In
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

import operator
from collections.abc import Iterable, Sequence
from functools import reduce
from typing import Final, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from accounting.costs.norm_levels import LevelArray
from accounting.exact.argument_checks import BoolArray, IntArray
from accounting.exact.invalid_input import InvalidInput
from accounting.filters.account_terms import (
    AccountCostTable,
    AccountTerms,
    AccruedSteps,
    BalanceColumns,
    LevelPayment,
    quiet_steps,
)
from accounting.filters.due_steps import NEVER, NO_ROWS, DueSteps, distinct
from accounting.filters.payment import grant
from accounting.filters.roster_columns import (
    EPOCH,
    EXHAUSTED,
    HALTED,
    LISTED,
    FlagArray,
    RosterColumns,
    RosterState,
    Rows,
)

_BLOCK: Final = 2**14  # users at a time, so that the temporaries stay in the cache
_Number = TypeVar("_Number", bound=np.generic)


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
    had_accrued: bool = False


class BudgetAccount:
    """The balances of one dataset, and the recurring charges that accrue in it.

    Between two steps the balances of users with accrued charges are out of date. Call `settle`
    before reading rows, and `settle_for_write` before writing them.

    Args:
        terms: budgets and odometer.
        balances: columns that the caller owns.
    """

    def __init__(self, terms: AccountTerms, balances: BalanceColumns) -> None:
        self.terms = terms
        self.balances = balances
        self.recurring_charges: list[RecurringCharge] = []

    def settle(self, slots: Rows) -> None:
        """Bring the balances of these rows up to date; rows may be repeated."""
        if self.recurring_charges:
            rows = _listed(slots)
            for recurring in self.recurring_charges:
                recurring.settle(recurring.positions_of(self, rows))

    def settle_for_write(self, slots: Rows, but: RecurringCharge | None = None) -> None:
        """Bring the balances of these rows up to date, before the caller changes them.

        The next steps of the recurring charges look at these users again.

        Args:
            slots: the rows that are about to be read and written.
            but: a recurring charge that does not need to look again.
        """
        others = [recurring for recurring in self.recurring_charges if recurring is not but]
        if others:
            rows = _listed(slots)
            for recurring in others:
                recurring.settle_for_write(recurring.positions_of(self, rows))

    def order_of(self, rows: Rows) -> IntArray | None:
        """Return the index of each user's order, if each user is bound to one."""
        if self.terms.orders != "per-user":
            return None
        # As array indices: numpy would convert them at every use.
        return self.balances.order[rows].astype(np.intp)


class RecurringCharge:
    """A roster whose users are charged by every step.

    Args:
        accounts: one or more accounts in which every user has a budget, the innermost first.
        slots: for each account the row of each position, int64, all different, shape (n,).
        levels: the level asked for at each position, bytes, shape (n,).
        highest: L, the highest level.
        clip: whether users who cannot pay are granted a lower level.

    Attributes:
        accounts, clip: as given.
        settled_by_others: None, or a list that the caller empties: the positions whose accrued
            charges were settled by `settle_for_write`. Their `since` and their balances changed.
    """

    def __init__(
        self,
        accounts: Sequence[BudgetAccount],
        slots: Sequence[IntArray],
        levels: npt.ArrayLike,
        highest: int,
        *,
        clip: bool = False,
    ) -> None:
        if not accounts:
            raise InvalidInput("accounts", accounts, "one or more")
        self.accounts = tuple(accounts)
        self.clip = clip
        self.settled_by_others: list[IntArray] | None = None
        self._roster = RosterState(len(accounts), highest)
        self._due = DueSteps()
        self._tables: tuple[AccountCostTable, ...] = ()
        self._all_due = True  # the next step settles every position
        self._scheduled = True  # otherwise the next step schedules every position first
        self.enrol(slots, levels)
        for account in self.accounts:
            account.recurring_charges.append(self)

    def __len__(self) -> int:
        return len(self._roster)

    @property
    def steps(self) -> int:
        """The number of steps taken."""
        return self._roster.steps

    @property
    def cost_tables(self) -> tuple[IntArray, ...]:
        """The cost table of each account; empty before the first step."""
        return tuple(table.units for table in self._tables)

    def columns(self, where: Rows = slice(None)) -> RosterColumns:
        """Return the columns to store for these positions, along with the balances as they are."""
        return self._roster.columns(where)

    def column(self, name: str, where: Rows) -> IntArray | LevelArray:
        """Return one of these columns; for a slice it may be a view."""
        numbers: IntArray | LevelArray = getattr(self._roster, name)[where]
        return numbers.astype(np.int64) + self._roster.epoch if name == "since" else numbers

    @classmethod
    def restored(
        cls,
        accounts: Sequence[BudgetAccount],
        slots: Sequence[IntArray],
        columns: RosterColumns,
        highest: int,
        *,
        steps: int,
        cost_tables: Sequence[npt.ArrayLike],
        clip: bool = False,
    ) -> RecurringCharge:
        """Return a roster as it was when its columns and the balances were stored.

        The next step schedules all positions, so the calendar queue need not be stored.

        Raises:
            InvalidInput: if no roster can have such columns.
        """
        recurring = cls(accounts, slots, columns.level, highest, clip=clip)
        try:
            recurring._roster.restore(columns, steps)
            recurring._tables = recurring._checked_tables(cost_tables) if cost_tables else ()
            recurring._check_accrued()
        except InvalidInput:
            recurring._leave()
            raise
        return recurring

    def enrol(self, slots: Sequence[IntArray], levels: npt.ArrayLike) -> None:
        """Append positions; the next step is the first to charge them.

        Args:
            slots: for each account the rows, different from those of all other positions.
            levels: bytes, shape (m,).
        """
        self._due.extend(self._roster.enrol(slots, levels), self._now + 1)
        self._all_due |= not self._scheduled

    def step(
        self,
        cost_tables: Sequence[npt.ArrayLike] | None = None,
        positions: npt.ArrayLike | None = None,
        levels: npt.ArrayLike | None = None,
    ) -> StepOutcome:
        """Charge every user once.

        Args:
            cost_tables: the charge at each level in each account, from this step on; given at the
                first step and whenever it changes. Shapes (L + 1,), or (L + 1, k) for orders
                "per-user" and "all".
            positions: the positions whose levels this step changes, all different, shape (m,); None
                with levels changes all positions.
            levels: their levels from this step on, shape (m,) or (n,).

        Raises:
            InvalidInput: for other arguments; then nothing has changed.
        """
        # Step 1. Check everything.
        tables = self._checked_tables(cost_tables)
        listed, asked = self._roster.checked_levels(positions, levels)
        # Step 2. Find the users to whom something may happen. Nothing fails from here on.
        self._restart_epoch()
        if asked.size:
            self._roster.level[listed] = asked
            if self.clip:
                self._roster.flags[listed] |= LISTED
        rows: Rows = slice(0, len(self))
        if tables is self._tables and not (self._all_due or isinstance(listed, slice)):
            self._schedule_all()
            due = self._due.take(self._now + 1)
            both = due.size and listed.size
            rows = distinct(np.concatenate([due, listed])) if both else due if due.size else listed
        # Step 3. Settle them, carry out their step, and schedule their next one. If every step
        # brings all levels, a schedule would never be used.
        self._scheduled = not isinstance(listed, slice)
        outcome = self._charge(rows, tables)
        self._all_due = False
        return outcome

    def settle(self, positions: Rows = slice(None)) -> None:
        """Bring balances up to date, as after the last step; positions may be repeated."""
        for where in self._blocks(positions):
            accrued = self._accrued_steps(where, self._now)
            for account, known, steps in zip(
                self.accounts, self._roster.slots, accrued, strict=False
            ):
                rows = known.rows(where)
                account.balances.spent[rows] += steps.units(account.order_of(rows))
            if accrued:
                self._roster.since[where] = self._now

    def settle_for_write(self, positions: IntArray) -> None:
        """Bring balances up to date before the caller changes them; the next step looks again."""
        accruing = distinct(self.accruing(positions))
        self.settle(accruing)
        if self.settled_by_others is not None and accruing.size:
            self.settled_by_others.append(accruing)
        self._all_due |= not self._scheduled
        if not self._all_due:
            following = self._now + 1
            later = distinct(positions[self._due.due[positions] != following])
            self._due.put(later, np.full(later.size, following, dtype=np.uint32))

    def accruing(self, positions: IntArray) -> IntArray:
        """Return those of these positions that have accrued charges."""
        if not self._tables:
            return NO_ROWS
        return np.asarray(positions[self._roster.since[positions] != self._now])

    def positions_of(self, account: BudgetAccount, slots: IntArray) -> IntArray:
        """Return the positions of these rows of an account, without rows not on the roster."""
        for own, known in zip(self.accounts, self._roster.slots, strict=True):
            if own is account:
                return known.positions(slots)
        return NO_ROWS

    def rows(self, account: int, positions: Rows) -> Rows:
        """Return the rows of these positions in the account of this index."""
        return self._roster.slots[account].rows(positions)

    def close(self) -> None:
        """Bring all balances up to date, and leave the accounts; no step may follow."""
        self.settle()
        self._leave()

    def _leave(self) -> None:
        for account in self.accounts:
            account.recurring_charges.remove(self)

    @property
    def _now(self) -> int:
        return self._roster.now

    def _charge(self, rows: Rows, tables: tuple[AccountCostTable, ...]) -> StepOutcome:
        """Carry out a step for some positions or for all (a slice); the others' step accrues."""
        if isinstance(rows, slice):
            self._due.forget()
        self._roster.steps += 1
        parts = [self._charge_block(block, tables) for block in self._blocks(rows)]
        self._tables = tables
        outcomes = [outcome for outcome, _ in parts if outcome is not None]
        accrued = any(had_accrued for _, had_accrued in parts)
        return _joined_outcome(outcomes, rows, len(self.accounts), had_accrued=accrued)

    def _charge_block(
        self, where: Rows, tables: tuple[AccountCostTable, ...]
    ) -> tuple[StepOutcome | None, bool]:
        """Return (the outcome of a step for a block, if anything changed; had_accrued)."""
        roster = self._roster
        accrued = self._accrued_steps(where, self._now - 1)
        asked = roster.level[where]
        for account, known in zip(self.accounts, roster.slots, strict=True):
            account.settle_for_write(known.rows(where), but=self)
        payments = self._payments(where, tables, asked, accrued)
        granted, refused_by = grant(payments, asked, clip=self.clip)
        raised = [payment.pay() for payment in payments]
        # Nothing changes for all others: their flags stay 0, and they are granted what they asked.
        noticed = roster.flags[where] != 0
        if self.clip:
            noticed |= roster.granted[where] != asked
        for payment in payments:
            noticed[payment.close] = True
        few = np.flatnonzero(noticed)
        outcome = None
        if few.size:
            at = _positions_at(where, few)
            outcome, roster.flags[at] = _block_outcome(
                at,
                asked=asked[few],
                granted=granted[few],
                exhausted=reduce(np.logical_or, [payment.exhausted(few) for payment in payments]),
                flags_before=roster.flags[at],
                granted_before=roster.granted[at] if self.clip else None,
                refused_by=refused_by[few],
                raised=[(_positions_at(where, one.users), one.ticks_before) for one in raised],
            )
        roster.granted[where], roster.since[where] = granted, self._now
        if self._scheduled:
            self._schedule(where, payments)
        return outcome, bool(accrued)

    def _payments(
        self,
        where: Rows,
        tables: tuple[AccountCostTable, ...],
        levels: LevelArray,
        accrued: Sequence[AccruedSteps] = (),
    ) -> list[LevelPayment]:
        payments = []
        for index, (account, known) in enumerate(
            zip(self.accounts, self._roster.slots, strict=True)
        ):
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
                payments = self._payments(where, self._tables, self._roster.granted[where])
                for payment in payments:
                    payment.skip_payment()
                self._schedule(where, payments)
            self._scheduled = True

    def _schedule(self, where: Rows, payments: Sequence[LevelPayment]) -> None:
        """Set the step at which these positions must be settled next."""
        following = self._now + 1
        due = np.fmin(quiet_steps(payments), NEVER - following).astype(np.uint32)
        due += np.uint32(following)
        if isinstance(where, slice):
            self._due.replace(where, due)
        else:
            self._due.put(where, due)

    def _accrued_steps(self, where: Rows, now: int) -> list[AccruedSteps]:
        """Return the accrued steps of these positions in each account up to `now`, or []."""
        since = self._roster.since[where]
        if not self._tables or bool((since == now).all()):
            return []
        elapsed, granted = now - since.astype(np.int64), self._roster.granted[where]
        return [AccruedSteps(table, granted, elapsed) for table in self._tables]

    def _restart_epoch(self) -> None:
        """Count steps from the current one before their numbers exceed the stored columns."""
        if self._now >= EPOCH:
            self.settle()
            self._roster.restart_epoch()
            self._all_due = True

    def _blocks(self, positions: Rows) -> list[Rows]:
        count = len(self) if isinstance(positions, slice) else positions.size
        parts = [slice(i, min(i + _BLOCK, count)) for i in range(0, count, _BLOCK)]
        return list(parts) if isinstance(positions, slice) else [positions[p] for p in parts]

    def _checked_tables(
        self, cost_tables: Sequence[npt.ArrayLike] | None
    ) -> tuple[AccountCostTable, ...]:
        """Return the tables to look up: the current ones, if the given ones are the same."""
        if cost_tables is None:
            if not self._tables:
                raise InvalidInput("cost_tables", None, "given at the first step")
            return self._tables
        if not isinstance(cost_tables, (list, tuple)) or len(cost_tables) != len(self.accounts):
            raise InvalidInput("cost_tables", cost_tables, f"a list of {len(self.accounts)}")
        if self._tables and all(map(operator.is_, self.cost_tables, cost_tables)):
            return self._tables
        checked = [
            account.terms.checked_cost_table(one, self._roster.highest)
            for account, one in zip(self.accounts, cost_tables, strict=True)
        ]
        if self._tables and all(map(np.array_equal, self.cost_tables, checked)):
            return self._tables
        return tuple(
            AccountCostTable(account.terms, units)
            for account, units in zip(self.accounts, checked, strict=True)
        )

    def _check_accrued(self) -> None:
        """Check that nothing can have happened to a user since the balances were written."""
        for where in self._blocks(slice(None)):
            elapsed = self._roster.now - self._roster.since[where].astype(np.int64)
            if not elapsed.any():
                continue
            if not self._tables:
                raise InvalidInput("cost_tables", (), "given, because charges have accrued")
            for payment in self._payments(where, self._tables, self._roster.granted[where]):
                if not payment.can_repeat(elapsed).all():
                    allowed = "after the last step at which something happened to the user"
                    raise InvalidInput("since", int(elapsed.max()), allowed)


def _block_outcome(
    where: IntArray,
    *,
    asked: LevelArray,
    granted: LevelArray,
    exhausted: BoolArray,
    flags_before: FlagArray,
    granted_before: LevelArray | None,
    refused_by: npt.NDArray[np.uint8],
    raised: Sequence[tuple[IntArray, IntArray]],
) -> tuple[StepOutcome, FlagArray]:
    """Return (what a step changed for some users; their flags now).

    Args:
        where: the users' positions.
        asked, granted: levels.
        exhausted: whether a user has nothing left in some account.
        flags_before: the flags after the step before, and LISTED.
        granted_before: given if granted levels may be lower than asked for.
        refused_by: see `StepOutcome`, for all these users.
        raised: for each account the positions whose odometer rose, and their ticks before.
    """
    halted = (granted == 0) & (asked > 0)
    flags: FlagArray = halted.view(np.uint8) | exhausted.view(np.uint8) << 1
    regranted = NO_ROWS
    if granted_before is not None:
        reset = flags_before & (LISTED | HALTED) != 0
        expected = np.where(reset, asked, granted_before)
        regranted = np.flatnonzero((granted != expected) & ~halted)
    changed = flags ^ flags_before
    left = back = empty = NO_ROWS
    if changed.any():
        left = np.flatnonzero(changed & flags & HALTED)
        back = np.flatnonzero(changed & flags_before & HALTED)
        empty = np.flatnonzero(changed & flags & EXHAUSTED)
    outcome = StepOutcome(
        halted=where[left],
        refused_by=refused_by[left],
        readmitted=where[back],
        exhausted=where[empty],
        regranted=where[regranted],
        levels=granted[regranted],
        raised=tuple(OdometerRise(*rise) for rise in raised),
        settled=NO_ROWS,  # known of all blocks together
    )
    return outcome, flags


def _joined_outcome(
    parts: Sequence[StepOutcome], settled: Rows, accounts: int, *, had_accrued: bool
) -> StepOutcome:
    """Return the outcome of blocks in the order of their positions."""
    if not parts:
        none = np.empty(0, dtype=np.uint8)
        raised = (OdometerRise(NO_ROWS, NO_ROWS),) * accounts
        return StepOutcome(
            NO_ROWS, none, NO_ROWS, NO_ROWS, NO_ROWS, none, raised, settled, had_accrued
        )
    return StepOutcome(
        halted=_joined(part.halted for part in parts),
        refused_by=_joined(part.refused_by for part in parts),
        readmitted=_joined(part.readmitted for part in parts),
        exhausted=_joined(part.exhausted for part in parts),
        regranted=_joined(part.regranted for part in parts),
        levels=_joined(part.levels for part in parts),
        raised=tuple(
            OdometerRise(
                _joined(part.raised[index].positions for part in parts),
                _joined(part.raised[index].ticks_before for part in parts),
            )
            for index in range(accounts)
        ),
        settled=settled,
        had_accrued=had_accrued,
    )


def _joined(parts: Iterable[npt.NDArray[_Number]]) -> npt.NDArray[_Number]:
    arrays = list(parts)
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


def _positions_at(where: Rows, users: IntArray) -> IntArray:
    """Return the positions of a block's users, who are given as indices."""
    return where[users] if not isinstance(where, slice) else users + where.start


def _listed(slots: Rows) -> IntArray:
    return np.arange(slots.start, slots.stop) if isinstance(slots, slice) else slots
