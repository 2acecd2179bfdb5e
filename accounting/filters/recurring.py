"""Charges that stand: steps that charge everybody as the step before, save for what is said anew.

Between two changes a user's spend is what it was plus the steps since times one charge. So the step
at which the user will not be admitted any more, and the next one at which the odometer rises, are
known, and a calendar holds them: a step does work for those to whom something happens.

    a step at which nothing happens to anybody      O(1)
    k users at other levels, k explicit charges     O(k)
    another tariff; the first step after a restart  O(n)

State, admissions and odometers are those of the filter and of `advance_units` applied to every
user at every step, bit for bit. The argument: let nothing happen to a user for q steps, q as
`seats.quiet_steps` gives it, or fewer. In each of them the spend grows by the same charge c to
s + j c, which is within the budget and within the rung for j <= q because these conditions are
monotone in j; so the filter admits, the odometer keeps its base and its rungs, and only the spend
has changed, by j c. Whoever is refused is charged nothing, and is refused again until charge or
spend change, which nobody but a change can bring about, and a larger spend does not help. All
other steps of a user are not foretold but carried out, by the functions of the filter and of the
odometer.

    user     quiet: charged in arrears          due: settled at the next step, or at a known one
                | <------- placed by a step -------- ^
                |                                    |
                +-- level, tariff, explicit charge, --+
                    another roster, calendar

Under `clip` a user who cannot pay for the level asked for is granted the highest level below it
that can be paid for: each step by itself, so that the last steps of a user are of ever lower
levels, until not even level 1 fits. What is granted is what is charged and what must be clipped to:
the budget rule (FZ Alg. 7, with norms on a grid) holds as for any step of that norm. As what is
left never grows and a tariff never falls, that level does not rise while level and tariff stay, and
a user is quiet at it as at any other.

A user may have budgets in several accounts, and is admitted if all of them admit, and then charged
in all; under `clip` at the highest level that all of them can pay for. A user may be on several
rosters, too: at most one of them charges a user in arrears. A step of another one, or an explicit
charge, first takes its users: their spends are brought up to date, and what they did not know of is
settled at their next step. That it is one at most is so of all rosters that have an account in
common with each of their users, however many they are: a step that charges a user takes the user of
all others, who are due at their next steps, and does the same there before they are quiet again.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Final

import numpy as np
import numpy.typing as npt

from accounting.costs.tariffs import LevelArray
from accounting.exact.errors import InvalidInput
from accounting.exact.validation import BoolArray, IntArray
from accounting.filters.account_block import (
    NOBODY,
    AccountBlock,
    AccountCostTable,
    AccruedSteps,
    grant,
    quiet_steps,
)
from accounting.filters.accounts import BudgetAccount
from accounting.filters.due_steps import NEVER, DueSteps, distinct
from accounting.filters.outcomes import StepOutcome, joined, positions_at, told
from accounting.filters.roster import EPOCH, LISTED, RosterColumns, RosterState
from accounting.filters.slot_map import Rows

_BLOCK: Final = 2**14  # users at a time, so that the temporaries stay in the cache


class RecurringCharge:
    """A roster that is charged by steps that stand.

    Args:
        accounts: where every user of it has a budget, the innermost first; one or more.
        slots: for each account the row of each position, int64, all different, shape (n,).
        levels: what is asked for at each position, bytes, shape (n,).
        highest: L, the highest level.
        clip: whether users who cannot pay are granted a lower level.

    Attributes:
        accounts, clip: as they were given.
        taken: None, or what a caller empties who stores columns: the positions that were in arrears
            when others took them, of whom `since` and the balances have changed with it.
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
        self.taken: list[IntArray] | None = None
        self._roster = RosterState(len(accounts), highest)
        self._calendar = DueSteps()
        self._tables: tuple[AccountCostTable, ...] = ()
        self._everybody = True  # is settled at the next step
        self._foretold = True  # else the next step finds out first who is to be settled when
        self.enrol(slots, levels)
        for account in self.accounts:
            account.recurring_charges.append(self)

    def __len__(self) -> int:
        return len(self._roster)

    @property
    def steps(self) -> int:
        """How many steps were taken."""
        return self._roster.steps

    @property
    def tariffs(self) -> tuple[IntArray, ...]:
        """Of each account, what steps charge; none before the first step."""
        return tuple(tables.tariff for tables in self._tables)

    @property
    def admitted(self) -> BoolArray:
        """Who was admitted to the last step, or has not seen one; (n,)."""
        return self._roster.admitted()

    @property
    def exhausted(self) -> BoolArray:
        """Who had nothing left after the last step, (n,)."""
        return self._roster.exhausted()

    @property
    def granted(self) -> LevelArray:
        """What level the last step granted, 0 for who was not admitted; (n,)."""
        return self._roster.granted.copy()

    def columns(self, where: Rows = slice(None)) -> RosterColumns:
        """Return what to store of these positions, along with the balances as they are."""
        return self._roster.columns(where)

    def column(self, name: str, where: Rows) -> IntArray | LevelArray:
        """Return one of these columns; it is not a copy if these positions are a slice."""
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
        tariffs: Sequence[npt.ArrayLike],
        clip: bool = False,
    ) -> RecurringCharge:
        """Return a roster as it was when its columns and the balances were stored.

        Nothing else is needed: the calendar is made by the next step.

        Raises:
            InvalidInput: for columns that no roster has.
        """
        recurring = cls(accounts, slots, columns.level, highest, clip=clip)
        try:
            recurring._roster.restore(columns, steps)
            recurring._tables = recurring._checked_tariffs(tariffs) if tariffs else ()
            recurring._check_arrears()
        except InvalidInput:
            recurring._leave()
            raise
        return recurring

    def enrol(self, slots: Sequence[IntArray], levels: npt.ArrayLike) -> None:
        """Add positions behind the others, which the next step charges first.

        Args:
            slots: for each account the rows, different from those of all other positions.
            levels: bytes, shape (m,).
        """
        self._calendar.extend(self._roster.enrol(slots, levels), self._now + 1)
        self._everybody |= not self._foretold

    def step(
        self,
        tariffs: Sequence[npt.ArrayLike] | None = None,
        positions: npt.ArrayLike | None = None,
        levels: npt.ArrayLike | None = None,
    ) -> StepOutcome:
        """Charge everybody once.

        Args:
            tariffs: what it charges in each account, from now on; given at the first step, and
                when it changes. Shapes (L + 1,), or (L + 1, k) for orders "own" and "all".
            positions: whose levels change with this step, all different, shape (m,); None with
                levels for all.
            levels: of these, from now on; shape (m,) or (n,).

        Raises:
            InvalidInput: for other arguments; then nothing has changed.
        """
        # Step 1. Check everything.
        tables = self._checked_tariffs(tariffs)
        listed, asked = self._roster.checked_levels(positions, levels)
        # Step 2. Whose step was not foretold, or is one that matters? Nothing fails from here on.
        self._turn_epoch()
        if listed is not None and asked is not None:
            self._roster.level[listed] = asked
            if self.clip:
                self._roster.flags[listed] |= LISTED
        rows = None  # everybody
        if tables is self._tables and not (self._everybody or isinstance(listed, slice)):
            self._foretell()
            due = self._calendar.take(self._now + 1)
            rows = due
            if listed is not None:
                rows = distinct(np.concatenate([due, listed])) if due.size else listed
        # Step 3. They are brought up to date, their step is carried out, and the next one found.
        # If all levels are new with every step, nothing is foretold in vain.
        self._foretold = not isinstance(listed, slice)
        outcome = self._settle(rows, tables)
        self._everybody = False
        return outcome

    def step_once(
        self, tariffs: Sequence[npt.ArrayLike], levels: npt.ArrayLike | None = None
    ) -> StepOutcome:
        """Charge everybody once at levels and tariffs of this step alone: an explicit dense step.

        What is asked for of standing steps stays as it is.

        Args:
            tariffs: one for each account.
            levels: of all positions, bytes, shape (n,).

        Raises:
            InvalidInput: for other arguments; then nothing has changed.
        """
        tables = self._checked_tariffs(tariffs)
        _, asked = self._roster.checked_levels(None, levels)
        self._turn_epoch()
        if self.clip:
            self._roster.flags |= LISTED
        outcome = self._settle(None, tables, once=asked)
        self._roster.granted = self._roster.level * self.admitted
        self._everybody = True
        return outcome

    def settle(self, positions: Rows = slice(None)) -> None:
        """Bring balances up to date, as after the last step; positions may be repeated."""
        for block in self._blocks(positions):
            self._collect(block, self._now)

    def review(self, positions: IntArray) -> None:
        """As `settle`, for balances that are about to be written: the next step looks at them."""
        behind = distinct(self.behind(positions))
        self.settle(behind)
        if self.taken is not None and behind.size:
            self.taken.append(behind)
        self._everybody |= not self._foretold
        if not self._everybody:
            following = self._now + 1
            later = distinct(positions[self._calendar.due[positions] != following])
            self._calendar.put(later, np.full(later.size, following, dtype=np.uint32))

    def behind(self, positions: IntArray) -> IntArray:
        """Return those of these positions that are in arrears: who were charged, not counted."""
        if not self._tables:
            return NOBODY
        return np.asarray(positions[self._roster.since[positions] != self._now])

    def owed(self, account: BudgetAccount) -> tuple[IntArray, IntArray]:
        """Return the rows of all positions in an account, and what each owes; writes nothing."""
        roster = self._roster
        for own, known, tables in zip(self.accounts, roster.slots, self._tables, strict=False):
            if own is account:
                rows = known.rows(np.arange(len(self)))
                charge = tables.charges(tables.cells(roster.granted, account.order(rows)))
                elapsed = self._now - roster.since.astype(np.int64)
                charge *= elapsed if charge.ndim == 1 else elapsed[:, np.newaxis]
                return np.arange(rows.start, rows.stop) if isinstance(rows, slice) else rows, charge
        return NOBODY, NOBODY

    def positions_of(self, account: BudgetAccount, slots: IntArray) -> IntArray:
        """Return the positions of those of these rows of an account that are on the roster."""
        for own, known in zip(self.accounts, self._roster.slots, strict=True):
            if own is account:
                return known.positions(slots)
        return NOBODY

    def rows(self, account: int, positions: Rows) -> Rows:
        """Return the rows of these positions in the account of that number."""
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

    def _settle(
        self,
        rows: IntArray | None,
        tables: tuple[AccountCostTable, ...],
        once: LevelArray | None = None,
    ) -> StepOutcome:
        """Carry out a step for some, or for everybody; that of the others is as foretold."""
        if rows is None:
            self._calendar.forget()
        self._roster.steps += 1
        blocks = self._blocks(slice(None) if rows is None else rows)
        parts = [self._settle_block(block, tables, once) for block in blocks]
        if once is None:
            self._tables = tables
        news = [outcome for outcome, _ in parts if outcome is not None]
        return joined(news, rows, len(self.accounts), behind=any(behind for _, behind in parts))

    def _settle_block(
        self, where: Rows, tables: tuple[AccountCostTable, ...], once: LevelArray | None
    ) -> tuple[StepOutcome | None, bool]:
        """Carry out a step for a block, and say what is news of it, if anything is, and whether
        anybody was behind.
        """
        roster = self._roster
        arrears = self._arrears(where, self._now - 1)
        asked = (roster.level if once is None else once)[where]
        for account, known in zip(self.accounts, roster.slots, strict=True):
            account.take(known.rows(where), but=self)
        seats = self._seats(where, tables, asked, arrears)
        granted, refused_by = grant(seats, asked, clip=self.clip)
        raised = [seat.pay() for seat in seats]
        # Of all others there is no news: their flags stay 0, and what was asked for is granted.
        noticed = roster.flags[where] != 0
        if self.clip:
            noticed |= roster.granted[where] != asked
        for seat in seats:
            noticed[seat.close] = True
        few = np.flatnonzero(noticed)
        outcome = None
        if few.size:
            at = positions_at(where, few)
            outcome, roster.flags[at] = told(
                at,
                asked=asked[few],
                granted=granted[few],
                exhausted=reduce(np.logical_or, [seat.exhausted(few) for seat in seats]),
                flags_before=roster.flags[at],
                granted_before=roster.granted[at] if self.clip else None,
                refused_by=refused_by[few],
                raised=[(positions_at(where, users), before) for users, before in raised],
            )
        roster.granted[where], roster.since[where] = granted, self._now
        if once is None and self._foretold:
            self._place(where, seats)
        return outcome, bool(arrears)

    def _seats(
        self,
        where: Rows,
        tables: tuple[AccountCostTable, ...],
        levels: LevelArray,
        arrears: Sequence[AccruedSteps] = (),
    ) -> list[AccountBlock]:
        seats = []
        for index, (account, known) in enumerate(
            zip(self.accounts, self._roster.slots, strict=True)
        ):
            rows = known.rows(where)
            owed = arrears[index] if arrears else None
            order = account.order(rows)
            seats.append(AccountBlock(tables[index], account.balances, rows, order, levels, owed))
        return seats

    def _foretell(self) -> None:
        """Say of everybody, all of whom the last step has settled, what it left unsaid."""
        if not self._foretold:
            for where in self._blocks(slice(None)):
                seats = self._seats(where, self._tables, self._roster.granted[where])
                for seat in seats:
                    seat.pay_nothing()
                self._place(where, seats)
            self._foretold = True

    def _place(self, where: Rows, seats: Sequence[AccountBlock]) -> None:
        """Say at which step these users are to be settled next."""
        following = self._now + 1
        due = np.fmin(quiet_steps(seats), NEVER - following).astype(np.uint32)
        due += np.uint32(following)
        if isinstance(where, slice):
            self._calendar.replace(where, due)
        else:
            self._calendar.put(where, due)

    def _collect(self, where: Rows, now: int) -> None:
        """Charge these users for the steps since they were last settled, up to `now`."""
        arrears = self._arrears(where, now)
        for account, known, owed in zip(self.accounts, self._roster.slots, arrears, strict=False):
            rows = known.rows(where)
            account.balances.spent[rows] += owed.units(account.order(rows))
        if arrears:
            self._roster.since[where] = now

    def _arrears(self, where: Rows, now: int) -> list[AccruedSteps]:
        """Return what these users owe in each account up to `now`; nothing if none of them does."""
        since = self._roster.since[where]
        if not self._tables or bool((since == now).all()):
            return []
        elapsed, granted = now - since.astype(np.int64), self._roster.granted[where]
        return [AccruedSteps(tables, granted, elapsed) for tables in self._tables]

    def _turn_epoch(self) -> None:
        """Count steps from here, before their numbers become too large for the columns."""
        if self._now >= EPOCH:
            self.settle()
            self._roster.turn_epoch()
            self._everybody = True

    def _blocks(self, positions: Rows) -> list[Rows]:
        count = len(self) if isinstance(positions, slice) else positions.size
        parts = [slice(i, min(i + _BLOCK, count)) for i in range(0, count, _BLOCK)]
        return list(parts) if isinstance(positions, slice) else [positions[p] for p in parts]

    def _checked_tariffs(
        self, tariffs: Sequence[npt.ArrayLike] | None
    ) -> tuple[AccountCostTable, ...]:
        """Return what to look up; what is in force, if that is not another tariff."""
        if tariffs is None:
            if not self._tables:
                raise InvalidInput("tariffs", None, "given at the first step")
            return self._tables
        if not isinstance(tariffs, (list, tuple)) or len(tariffs) != len(self.accounts):
            raise InvalidInput("tariffs", tariffs, f"a list of {len(self.accounts)}")
        pairs = list(zip(self.accounts, tariffs, strict=True))
        checked = [
            account.terms.checked_tariff(one, self._roster.highest) for account, one in pairs
        ]
        if self._tables and all(map(np.array_equal, self.tariffs, checked)):
            return self._tables
        return tuple(
            AccountCostTable(account.terms, tariff)
            for account, tariff in zip(self.accounts, checked, strict=True)
        )

    def _check_arrears(self) -> None:
        """Check that nothing can have happened to anybody since the balances were written."""
        for where in self._blocks(slice(None)):
            elapsed = self._roster.now - self._roster.since[where].astype(np.int64)
            if not elapsed.any():
                continue
            if not self._tables:
                raise InvalidInput("tariffs", (), "given, for steps that are not charged yet")
            for seat in self._seats(where, self._tables, self._roster.granted[where]):
                if not seat.can_repeat(elapsed).all():
                    allowed = "after the last step at which something happened to the user"
                    raise InvalidInput("since", int(elapsed.max()), allowed)
