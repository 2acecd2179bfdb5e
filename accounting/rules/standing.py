"""Charges that stand: steps that charge everybody as the step before, save for what is said anew.

Between two changes a user's spend is what it was plus the steps since times one charge. So the step
at which the user will not be admitted any more, and the next one at which the odometer rises, are
known, and a calendar holds them: a step does work for those to whom something happens.

    a step at which nothing happens to anybody      O(1)
    k users at other levels, k explicit charges     O(k)
    another tariff; the first step after a restart  O(n)

State, admissions and odometers are those of the filter and of `advance_units` applied to every user
at every step, bit for bit. The argument: let nothing happen to a user for q steps, q as
`Terms.quiet_steps` gives it. In each of them the spend grows by the same charge c, s + j c, which
is within the budget and within the rung for j <= q because these conditions are monotone in j; so
the filter admits, the odometer keeps its base and its rungs, and only the spend has changed, by
j c. Whoever is refused is charged nothing, and is refused again until charge or spend change, which
nobody but a change can bring about, and a larger spend does not help. All other steps of a user are
not foretold but carried out, by the functions of the filter and of the odometer.

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
in all. A user may be on several rosters, too: at most one of them charges a user in arrears. A step
of another one, or an explicit charge, first takes its users: their spends are brought up to date,
and what they did not know of is settled at their next step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from accounting.costs.tariffs import MAX_LEVELS, LevelArray, checked_levels
from accounting.exact.errors import InvalidInput
from accounting.exact.validation import BoolArray, IntArray, unit_array, whole_number
from accounting.rules.calendar import NEVER, Calendar, StepArray
from accounting.rules.outcomes import NOBODY, Raised, StepOutcome, joined
from accounting.rules.own_order import OrderArray
from accounting.rules.slot_map import Rows, SlotMap
from accounting.rules.terms import Balances, Seat, Terms

_BLOCK: Final = 2**15  # users at a time, so that the temporaries stay in the cache
_EPOCH: Final = 2**31  # steps after which they are counted from 0 again, so that they fit in uint32
_HALTED: Final = np.uint8(1)
_EXHAUSTED: Final = np.uint8(2)
_LISTED: Final = np.uint8(4)  # within a step: the level was set with it
_MAX_STEPS: Final = 2**62


class RosterColumns(NamedTuple):
    """What to store of a roster besides the balances, a row for each position.

    Attributes:
        level: what is asked for, uint8.
        granted: what the last step granted, uint8.
        flags: 1 for who was not admitted, 2 for who had nothing left, in the last step; uint8.
        since: after which step the balances were last brought up to date; int64.
    """

    level: LevelArray
    granted: LevelArray
    flags: npt.NDArray[np.uint8]
    since: IntArray


class Account:
    """The balances of one dataset, and the rosters whose users they are.

    Between two steps balances are behind, for those who are charged in arrears. Before they are
    read, `settle` the rows; before they are written by anybody else, `take` them.

    Args:
        terms: budgets and odometer.
        balances: columns that the caller owns.
    """

    def __init__(self, terms: Terms, balances: Balances) -> None:
        self.terms = terms
        self.balances = balances
        self.standings: list[Standing] = []

    def settle(self, slots: IntArray) -> None:
        """Bring the balances of these rows up to date; they may be repeated."""
        for standing in self.standings:
            standing.settle(standing.positions_of(self, slots))

    def take(self, slots: Rows, but: Standing | None = None) -> None:
        """Bring the balances of these rows up to date, to be written: rosters look at them anew."""
        others = [standing for standing in self.standings if standing is not but]
        if others:
            rows = np.arange(slots.start, slots.stop) if isinstance(slots, slice) else slots
            for standing in others:
                standing.review(standing.positions_of(self, rows))

    def order(self, rows: Rows) -> OrderArray | None:
        """Return the orders that these users are bound to, if they are bound to any."""
        return self.balances.order[rows] if self.terms.orders == "own" else None


class Standing:
    """A roster that is charged by steps that stand.

    Args:
        accounts: where every user of it has a budget, the innermost first; one or more.
        slots: for each account the row of each position, int64, all different, shape (n,).
        levels: what is asked for at each position, bytes, shape (n,).
        highest: L, the highest level.
        clip: whether users who cannot pay are granted a lower level.

    Attributes:
        steps: how many were taken.
    """

    def __init__(
        self,
        accounts: Sequence[Account],
        slots: Sequence[IntArray],
        levels: npt.ArrayLike,
        highest: int,
        *,
        clip: bool = False,
    ) -> None:
        if not accounts:
            raise InvalidInput("accounts", accounts, "one or more")
        self.highest = whole_number("highest", highest, 1, MAX_LEVELS)
        self.accounts = tuple(accounts)
        self.clip = clip
        self.steps = 0
        self._epoch = 0  # the step from which those in columns are counted
        self._slots = tuple(SlotMap() for _ in accounts)
        self._level = self._granted = self._flags = np.empty(0, dtype=np.uint8)
        self._since: StepArray = np.empty(0, dtype=np.uint32)
        self._calendar = Calendar()
        self._tariffs: tuple[IntArray, ...] = ()
        self._everybody = True  # is settled at the next step
        self.enrol(slots, levels)
        for account in self.accounts:
            account.standings.append(self)

    def __len__(self) -> int:
        return self._level.size

    @property
    def tariffs(self) -> tuple[IntArray, ...]:
        """Of each account, what steps charge; none before the first step."""
        return self._tariffs

    @property
    def admitted(self) -> BoolArray:
        """Who was admitted to the last step, or has not seen one; (n,)."""
        return np.asarray(self._flags & _HALTED == 0)

    @property
    def exhausted(self) -> BoolArray:
        """Who had nothing left after the last step, (n,)."""
        return np.asarray(self._flags & _EXHAUSTED != 0)

    @property
    def granted(self) -> LevelArray:
        """What level the last step granted, 0 for who was not admitted; (n,)."""
        return self._granted.copy()

    def columns(self, where: Rows = slice(None)) -> RosterColumns:
        """Return what to store of these positions, with the balances as they are."""
        since = self._since[where].astype(np.int64) + self._epoch
        return RosterColumns(
            self._level[where].copy(), self._granted[where].copy(), self._flags[where].copy(), since
        )

    @classmethod
    def restored(
        cls,
        accounts: Sequence[Account],
        slots: Sequence[IntArray],
        columns: RosterColumns,
        highest: int,
        *,
        steps: int,
        tariffs: Sequence[npt.ArrayLike],
        clip: bool = False,
    ) -> Standing:
        """Return a roster as it was when its columns and the balances were stored.

        Nothing else is needed: the calendar is made by the next step.

        Raises:
            InvalidInput: for columns that no roster has.
        """
        standing = cls(accounts, slots, columns.level, highest, clip=clip)
        try:
            standing._restore(columns, whole_number("steps", steps, 0, _MAX_STEPS), tariffs)
        except InvalidInput:
            standing.close()
            raise
        return standing

    def enrol(self, slots: Sequence[IntArray], levels: npt.ArrayLike) -> None:
        """Add positions behind the others, which the next step charges first.

        Args:
            slots: for each account the rows, different from those of all other positions.
            levels: bytes, shape (m,).
        """
        asked = checked_levels(levels, self.highest)
        if len(slots) != len(self.accounts) or any(rows.shape != asked.shape for rows in slots):
            shapes = [rows.shape for rows in slots]
            raise InvalidInput("slots", shapes, f"{asked.shape} for each of the accounts")
        for known, rows in zip(self._slots, slots, strict=True):
            known.extend(rows)
        self._level = np.concatenate([self._level, asked])
        self._granted = np.concatenate([self._granted, asked])
        self._flags = np.concatenate([self._flags, np.zeros_like(asked)])
        now = np.full(asked.size, self._now, dtype=np.uint32)
        self._since = np.concatenate([self._since, now])
        self._calendar.extend(asked.size, self._now + 1)

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
        charges = self._checked_tariffs(tariffs)
        listed, asked = self._checked_levels(positions, levels)
        # Step 2. Whose step was not foretold, or is one that matters? Nothing fails from here on.
        self._turn_epoch()
        if listed is not None and asked is not None:
            self._level[listed] = asked
            self._flags[listed] |= _LISTED
        changed = not all(map(np.array_equal, self._tariffs, charges)) or not self._tariffs
        rows = None  # everybody
        if not (changed or self._everybody or isinstance(listed, slice)):
            due = self._calendar.take(self._now + 1)
            rows = due if listed is None else np.union1d(due, listed)
        # Step 3. They are brought up to date, their step is carried out, and the next one found.
        outcome = self._settle(rows, charges)
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
        charges = self._checked_tariffs(tariffs)
        _, asked = self._checked_levels(None, levels)
        self._turn_epoch()
        self._flags |= _LISTED
        outcome = self._settle(None, charges, once=asked)
        self._granted = self._level * self.admitted
        self._everybody = True
        return outcome

    def settle(self, positions: Rows = slice(None)) -> None:
        """Bring balances up to date, as after the last step; positions may be repeated."""
        for block in self._blocks(positions):
            self._collect(block, self._now)

    def review(self, positions: IntArray) -> None:
        """As `settle`, for balances that are about to be written: the next step looks at them."""
        self.settle(positions)
        if not self._everybody:
            following = self._now + 1
            later = np.unique(positions[self._calendar.due[positions] != following])
            self._calendar.put(later, np.full(later.size, following, dtype=np.uint32))

    def owed(self, account: Account) -> tuple[IntArray, IntArray]:
        """Return the rows of all positions in an account, and what each owes; writes nothing."""
        for own, known, tariff in zip(self.accounts, self._slots, self._tariffs, strict=False):
            if own is account:
                rows = known.rows(np.arange(len(self)))
                charge = account.terms.charges(tariff, self._granted, account.order(rows))
                elapsed = self._now - self._since.astype(np.int64)
                charge *= elapsed if charge.ndim == 1 else elapsed[:, np.newaxis]
                return np.arange(rows.start, rows.stop) if isinstance(rows, slice) else rows, charge
        return NOBODY, NOBODY

    def positions_of(self, account: Account, slots: IntArray) -> IntArray:
        """Return the positions of those of these rows of an account that are on the roster."""
        for own, known in zip(self.accounts, self._slots, strict=True):
            if own is account:
                return known.positions(slots)
        return NOBODY

    def close(self) -> None:
        """Bring all balances up to date, and leave the accounts; no step may follow."""
        self.settle()
        for account in self.accounts:
            account.standings.remove(self)

    @property
    def _now(self) -> int:
        """The steps taken, as columns count them."""
        return self.steps - self._epoch

    def _settle(
        self, rows: IntArray | None, charges: tuple[IntArray, ...], once: LevelArray | None = None
    ) -> StepOutcome:
        """Carry out a step for some, or for everybody; that of the others is as foretold."""
        if rows is None:
            self._calendar.forget()
        self.steps += 1
        blocks = self._blocks(slice(None) if rows is None else rows)
        parts = [self._settle_block(block, charges, once) for block in blocks]
        if once is None:
            self._tariffs = charges
        return joined(parts, rows, len(self.accounts))

    def _settle_block(
        self, where: Rows, charges: tuple[IntArray, ...], once: LevelArray | None
    ) -> StepOutcome:
        self._collect(where, self._now - 1)
        asked = (self._level if once is None else once)[where]
        seats = []
        for account, known, tariff in zip(self.accounts, self._slots, charges, strict=True):
            rows = known.rows(where)
            account.take(rows, but=self)
            seats.append(Seat(account.terms, account.balances, rows, tariff, asked))
        granted, refused_by = self._grant(seats, asked)
        raised = [seat.pay() for seat in seats]
        # What is news is told from what the step before left behind.
        flags, granted_before = self._flags[where].copy(), self._granted[where]
        halted = (granted == 0) & (asked > 0)
        exhausted = np.logical_or.reduce([seat.exhausted() for seat in seats])
        flags_now = halted * _HALTED | exhausted * _EXHAUSTED
        news = flags ^ flags_now
        regranted = NOBODY
        if self.clip:
            afresh = flags & (_LISTED | _HALTED) != 0
            believed = np.where(afresh, asked, granted_before)
            regranted = np.flatnonzero((granted != believed) & ~halted)
        left = np.flatnonzero(news & flags_now & _HALTED)
        self._flags[where], self._granted[where] = flags_now, granted
        self._since[where] = self._now
        if once is None:
            self._place(where, seats)
        return StepOutcome(
            halted=_at(where, left),
            refused_by=refused_by[left],
            readmitted=_at(where, np.flatnonzero(news & flags & _HALTED)),
            exhausted=_at(where, np.flatnonzero(news & flags_now & _EXHAUSTED)),
            regranted=_at(where, regranted),
            levels=granted[regranted],
            raised=tuple(Raised(_at(where, users), before) for users, before in raised),
            settled=None,
        )

    def _grant(
        self, seats: Sequence[Seat], asked: LevelArray
    ) -> tuple[LevelArray, npt.NDArray[np.uint8]]:
        """Return (what each user is granted; the first account that refuses), charged as such."""
        refused_by = np.zeros(asked.size, dtype=np.uint8)
        admitted = np.ones(asked.size, dtype=np.bool_)
        for index, seat in reversed(list(enumerate(seats))):
            fits = seat.fits()
            if not fits.all():
                refused_by[~fits] = index
                admitted &= fits
        short = np.flatnonzero(~admitted)
        if not short.size:
            return asked, refused_by
        granted, levels = asked.copy(), np.zeros(short.size, dtype=np.uint8)
        if self.clip:
            levels = np.minimum.reduce([seat.highest_level(short) for seat in seats])
        granted[short] = levels
        for seat in seats:
            seat.lower(short, levels)
        return granted, refused_by

    def _place(self, where: Rows, seats: Sequence[Seat]) -> None:
        """Say at which step these users are to be settled next."""
        steps, filled = seats[0].quiet_steps()
        for seat in seats[1:]:
            others, others_filled = seat.quiet_steps()
            filled = (filled & (steps <= others)) | (others_filled & (others <= steps))
            steps = np.minimum(steps, others)
        # The step that spends a budget to the last unit is admitted, and told.
        steps -= filled & (steps > 0)
        due = np.minimum(steps + (self._now + 1), NEVER).astype(np.uint32)
        if isinstance(where, slice):
            self._calendar.replace(where, due)
        else:
            self._calendar.put(where, due)

    def _collect(self, where: Rows, now: int) -> None:
        """Charge these users for the steps since they were last settled, up to `now`."""
        if not self._tariffs:
            return
        elapsed = now - self._since[where].astype(np.int64)
        if not elapsed.any():
            return
        granted = self._granted[where]
        for account, known, tariff in zip(self.accounts, self._slots, self._tariffs, strict=True):
            rows, spent = known.rows(where), account.balances.spent
            charge = account.terms.charges(tariff, granted, account.order(rows))
            charge *= elapsed if charge.ndim == 1 else elapsed[:, np.newaxis]
            spent[rows] = spent[rows] + charge
        self._since[where] = now

    def _turn_epoch(self) -> None:
        """Count steps from here, before their numbers become too large for the columns."""
        if self._now >= _EPOCH:
            self.settle()
            self._since[:] = 0
            self._epoch = self.steps
            self._everybody = True

    def _blocks(self, positions: Rows) -> list[Rows]:
        count = len(self) if isinstance(positions, slice) else positions.size
        parts = [slice(i, min(i + _BLOCK, count)) for i in range(0, count, _BLOCK)]
        return list(parts) if isinstance(positions, slice) else [positions[p] for p in parts]

    def _checked_tariffs(self, tariffs: Sequence[npt.ArrayLike] | None) -> tuple[IntArray, ...]:
        if tariffs is None:
            if not self._tariffs:
                raise InvalidInput("tariffs", None, "given at the first step")
            return self._tariffs
        if len(tariffs) != len(self.accounts):
            raise InvalidInput("tariffs", len(tariffs), f"one for each of {len(self.accounts)}")
        pairs = zip(self.accounts, tariffs, strict=True)
        return tuple(account.terms.checked_tariff(one, self.highest) for account, one in pairs)

    def _checked_levels(
        self, positions: npt.ArrayLike | None, levels: npt.ArrayLike | None
    ) -> tuple[Rows | None, LevelArray | None]:
        """Return (whose levels are set, ascending or all of them; these levels)."""
        if levels is None:
            if positions is not None:
                raise InvalidInput("levels", None, "given if positions are")
            return None, None
        asked = checked_levels(levels, self.highest)
        if positions is None:
            if asked.shape != (len(self),):
                raise InvalidInput("levels", asked.shape, f"of shape ({len(self)},)")
            return slice(None), asked
        where = np.asarray(positions)
        if where.dtype.kind not in "iu" or where.ndim != 1 or where.shape != asked.shape:
            raise InvalidInput("positions", where.shape, f"whole numbers of shape {asked.shape}")
        rows, firsts = np.unique(where.astype(np.int64), return_index=True)
        if rows.size != where.size:
            raise InvalidInput("positions", "one of them twice", "different from one another")
        if rows.size and not 0 <= int(rows[0]) <= int(rows[-1]) < len(self):
            raise InvalidInput("positions", [int(rows[0]), int(rows[-1])], f"below {len(self)}")
        return rows, asked[firsts]

    def _restore(
        self, columns: RosterColumns, steps: int, tariffs: Sequence[npt.ArrayLike]
    ) -> None:
        """Take over stored columns, if they can be those of a roster after so many steps."""
        if tariffs:
            self._tariffs = self._checked_tariffs(tariffs)
        granted, flags = columns.granted, columns.flags
        since = unit_array("since", columns.since, steps)
        for name, shape in (
            ("granted", granted.shape),
            ("flags", flags.shape),
            ("since", since.shape),
        ):
            if shape != self._level.shape:
                raise InvalidInput(name, shape, f"of shape {self._level.shape}")
        if bool((checked_levels(granted, self.highest) > self._level).any()):
            raise InvalidInput("granted", granted, "at most the level throughout")
        if bool((flags > (_HALTED | _EXHAUSTED)).any()):
            raise InvalidInput("flags", int(flags.max()), "from 0 to 3")
        self.steps = steps
        self._epoch = int(since.min(initial=steps))
        if self._now >= 2 * _EPOCH or (not self._tariffs and self._now):
            raise InvalidInput("since", self._epoch, f"near the steps taken, {steps}")
        self._granted, self._flags = granted.copy(), flags.copy()
        self._since = (since - self._epoch).astype(np.uint32)


def _at(where: Rows, users: IntArray) -> IntArray:
    """Return the positions of users of a block."""
    return where[users] if not isinstance(where, slice) else users + where.start
