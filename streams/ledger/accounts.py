"""The accounts of one dataset in one partition: users, their balances, and the charges to them.

``seek`` finds users and changes nothing: a ``Rejection`` leaves no trace. ``prepare`` enrols those
found, ``payment`` reads their rows, and ``pay`` writes them. Rows are stored in pages and deltas,
and restored from them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat
from typing import Annotated, NamedTuple, cast

import msgspec
import numpy as np
from numpy.typing import NDArray

from accounting.filters.account_terms import BalanceColumns
from accounting.filters.due_steps import NO_ROWS
from accounting.filters.payment import any_order
from accounting.filters.recurring import BudgetAccount
from streams.ledger.columns import (
    PAGE_ROWS,
    PER_ORDER,
    Column,
    Columns,
    Numbers,
    RowDelta,
    Rows,
    pack_numbers,
    slots_of,
    unpack_numbers,
)
from streams.ledger.rule import NormPayment, OrderIndex, Rule, UserRows, positions
from streams.ledger.slots import UNKNOWN
from streams.ledger.user_index import UserIndex
from streams.ledger.validation import check_new_users, check_no_member, check_once, is_keyed_hash
from streams.records import Policy, User, Users
from streams.records.users import UserIds

_CHANGES_BYTES = 512
"""The encoding overhead of one change, in bytes."""


class Balances(Columns):
    """The numbers of every user. A new column is one line here; ``columns`` does the rest."""

    spent: Annotated[Numbers, PER_ORDER]  # units charged so far: never above the budget
    base: Annotated[Numbers, PER_ORDER]  # units that were spent when the odometer last restarted
    ticks: Annotated[Numbers, Column(initial=1)]  # how many odometer steps the bound has climbed


class OwnBalances(Balances):
    """The numbers of every user, with per-user Rényi orders."""

    order: Annotated[OrderIndex, Column(dtype="|u1")]  # its index
    bound: Annotated[OrderIndex, Column(dtype="|u1")]  # 1 from the first charge that costs


class Page(msgspec.Struct, frozen=True, array_like=True):
    """The users and balances in consecutive slots of one dataset, as they are stored."""

    users: Users
    columns: dict[str, bytes]


class AccountDelta(msgspec.Struct, frozen=True, array_like=True):
    """The changes of one charge: new values, which may be set twice, or levels (``Accounts``)."""

    dataset: str
    new_users: Users  # they take the next slots
    first_new_slot: int
    rows: list[RowDelta]
    charged: int = 0  # steps stored as levels so far, this one included
    cost_table: bytes = b""  # of a step stored as levels

    @property
    def size(self) -> int:
        """The approximate size in bytes."""
        rows = sum(changes.size for changes in self.rows)
        return _ids_size(self.new_users) + len(self.cost_table) + rows + _CHANGES_BYTES


def _ids_size(users: Users) -> int:
    """Return the size of ids in bytes, at most."""
    if isinstance(users, bytes):
        return len(users)
    strings = [user for user in users if isinstance(user, str)]
    return 9 * len(users) + len("".join(strings).encode())


class ByLevel(NamedTuple):
    """A step that charged all its users the cost of their levels, and nothing else."""

    cost_table: Numbers  # (levels + 1,) or (levels + 1, orders)
    levels: NDArray[np.uint8]  # that were granted


_BY_LEVEL = "spent+"
"""Replaces a column in changes: the levels at which rows are charged."""
_SMALL_COST_TABLE = 1024
"""A delta may have a cost table of this many bytes even for few users."""
_SEEN = "charged~"
"""Beside the columns of a page: the number of steps kept by levels that it includes."""


class Sought(NamedTuple):
    """The slots of users, and the users who are new."""

    slots: Numbers  # those of new users are the next ones
    new_users: UserIds


class Raised(NamedTuple):
    """A user whose odometer bound rose."""

    user: User
    bound: list[float]
    share: float  # of the budget
    order: float | None  # that the user is bound to, if so


class PaidSlots(NamedTuple):
    """The slots of a block of users after a payment."""

    charged: Numbers  # with another balance than before
    spent: Numbers  # these balances
    bound: Numbers  # bound to an order by the payment
    raised: Numbers  # whose odometer rose or restarted
    ticks_before: Numbers  # of these


class Accounts:
    """All users of one dataset in one partition.

    A roster step that changes all levels is stored as levels, one byte per user, instead of the new
    balances, eight bytes per order. The charges are then repeated when the state is restored, and
    must be made exactly once. So such steps are counted, and changes and pages contain the count. A
    page with a higher count than some changes is newer and includes them.

    Charges by norms use ``columns``, and rosters ``account``, over the same rows. ``erased`` has
    the keyed hashes among the users.
    """

    def __init__(self, policy: Policy, partition: int) -> None:
        self.policy = policy
        self.rule = Rule(policy)
        self._partition = partition
        self._index = UserIndex()
        self._own = OwnBalances() if self.rule.binds else None
        self._rows = Balances(self.rule.orders) if self._own is None else self._own
        self.columns = cast(UserRows, self._rows)
        self.account = BudgetAccount(self.rule.terms, cast(BalanceColumns, self._rows))
        self._exhausted: int | None = 0  # None: to be counted
        self.erased: set[str] = set()
        self._charged = 0  # steps that are stored as levels
        self._seen: dict[int, int] = {}  # their number in each page that was loaded

    def __len__(self) -> int:
        return len(self._index)

    @property
    def exhausted_users(self) -> int:
        """Return the number of users with nothing left; accrued charges do not count."""
        if self._exhausted is None:
            count = len(self._index)
            order = None if self._own is None else self._own.order[:count]
            exhausted = self.rule.exhausted(self._rows.spent[:count], order)
            self._exhausted = int(np.count_nonzero(exhausted))
        return self._exhausted

    @property
    def first_user(self) -> User | None:
        """Return the user that was charged or enrolled first; None without users."""
        return self._index.user(0) if len(self._index) else None

    def seek(self, users: UserIds, members: Numbers = NO_ROWS) -> Sought:
        """Return the slots of distinct users, and the new users; change nothing.

        New users have the next slots, in their order. ``members`` are slots that must not be found.
        Reasons: DUPLICATE_USER, WRONG_PARTITION.
        """
        slots = self._index.find(users)
        new = positions(slots == UNKNOWN)
        new_users = users.select(new)
        check_once(users, slots)
        if len(members):
            check_no_member(users, slots, members)
        if len(new):
            check_new_users(new_users, self._partition, self.policy.partitions)
            slots[new] = np.arange(len(self._index), len(self._index) + len(new))
        return Sought(slots, new_users)

    def knows(self, users: UserIds) -> NDArray[np.bool_]:
        """Return which of these users have an account, (n,)."""
        return np.asarray(self._index.find(users) != UNKNOWN)

    def erase(self, slot: int, name: str) -> None:
        """Replace an id by a keyed hash, unless that was done before."""
        if self._index.user(slot) != name:
            self._index.erase(slot, name)
            self._rows.touch(np.array([slot]))
        self.erased.add(name)

    def users_at(self, slots: Numbers) -> UserIds:
        """Return the ids in these slots."""
        return self._index.users_at(slots)

    def enrol(self, new_users: UserIds) -> AccountDelta:
        """Give users their slots before anything is charged to them."""
        first = len(self._index)
        self._enrol(new_users)
        return AccountDelta(self.policy.dataset, new_users.pack(), first, [], self._charged)

    def spend_the_rest(self, slot: int) -> AccountDelta:
        """Charge a user all that is left, without an odometer record."""
        slots, bound = np.array([slot]), NO_ROWS
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

    def prepare(self, sought: Sought) -> None:
        """Enrol the new users of a charge, and charge what its users have accrued."""
        if len(sought.new_users):
            self._enrol(sought.new_users)
        if self.account.recurring_charges:
            self.account.settle_for_write(sought.slots)

    def pay(self, slots: Numbers, payment: NormPayment, bound: Numbers) -> PaidSlots:
        """Settle a payment that fits, and write the rows of its users; see `payment`."""
        rows = self._rows
        restart = payment.settle(lambda at: rows.ticks[slots[at]])
        charged, spent, changed = slots, payment.spent, any_order(payment.cost != 0)
        if not changed.all():
            at = np.flatnonzero(changed)
            charged, spent = slots.take(at), spent.take(at, axis=0)
        rows.spent[charged] = spent
        raised = slots.take(restart.users)
        rows.base[raised], rows.ticks[raised] = restart.base, restart.ticks
        return PaidSlots(charged, spent, bound, raised, restart.ticks_before)

    def charged(
        self, sought: Sought, written: Sequence[PaidSlots]
    ) -> tuple[AccountDelta, Iterator[Raised]]:
        """Return the changes of a charge that was written in blocks, and the bounds that rose."""
        self._exhausted = None
        # A charge may have no users, and so no blocks. Most have one.
        parts = zip(*written, strict=True) if written else [(NO_ROWS,)] * len(PaidSlots._fields)
        charged, spent, bound, raised, before = (
            part[0] if len(part) == 1 else np.concatenate(part) for part in parts
        )
        if self.account.recurring_charges:  # accrued charges have changed other balances, too
            noted = self.note(sought.slots, raised, bound)
        else:
            noted = self.note(charged, raised, bound, spent=spent)
        first = len(self._index) - len(sought.new_users)
        noted = msgspec.structs.replace(
            noted, new_users=sought.new_users.pack(), first_new_slot=first
        )
        return noted, self.bounds_raised(raised, before)

    def note(
        self,
        slots: Rows,
        raised: Numbers,
        bound: Numbers,
        charged: ByLevel | None = None,
        spent: Numbers | None = None,
    ) -> AccountDelta:
        """Return changes with the rows that a charge has written.

        Args:
            slots: whose balance changed.
            raised: whose odometer rose.
            bound: who were bound to an order.
            charged: the levels charged, if a roster has charged nothing else.
            spent: the new balances, if the caller has them: to read those of many orders again
                takes a twentieth of a charge.
        """
        by_level = charged is not None and self._is_shorter(charged)
        rows = [
            self._rows.note(written, *columns)
            for written, columns in (
                (bound, ("order", "bound")),  # before what is charged there
                (slots if spent is None and not by_level else NO_ROWS, ("spent",)),
                (raised, ("base", "ticks")),
            )
            if isinstance(written, slice) or len(written)
        ]
        if spent is not None and len(spent):
            rows.append(self._rows.note_by(slots, {"spent": spent.astype("<i8").tobytes()}))
        cost_table = b""
        if charged is not None and by_level:
            rows.append(self._rows.note_by(slots, {_BY_LEVEL: charged.levels.tobytes()}))
            cost_table = charged.cost_table.astype("<i8").tobytes()
            self._charged += 1
        if rows:
            self._exhausted = None
        count = len(self._index)
        return AccountDelta(self.policy.dataset, b"", count, rows, self._charged, cost_table)

    def apply_delta(self, changes: AccountDelta) -> None:
        """Set the values of a batch, and repeat the charges that it stores as levels."""
        known = len(self._index) - changes.first_new_slot
        if known < 0:
            first = changes.first_new_slot
            raise ValueError(f"changes enrol from slot {first}: {-known} are missing")
        self._enrol(
            UserIds.unpack(changes.new_users)[known:]
        )  # a newer page may hold the first ones
        self._charged = max(self._charged, changes.charged)
        for rows in changes.rows:
            if _BY_LEVEL in rows.values:
                self._charge_again(rows, changes)
            else:
                self._rows.apply_delta(rows, self._behind(slots_of(rows), changes.charged))
        self._exhausted = None

    def changed_pages(self) -> list[int]:
        """Return the numbers of the pages that changed since they were last taken."""
        return self._rows.changed_pages()

    def expect(self, pages: int) -> None:
        """Reserve room for this many pages, which are about to be loaded."""
        self._index.expect(pages * PAGE_ROWS)
        self._rows.reserve(pages * PAGE_ROWS)

    def take_page(self, number: int) -> Page:
        """Return a page as it is now; from here on it counts as written."""
        count = len(self._index)
        first, end = number * PAGE_ROWS, min((number + 1) * PAGE_ROWS, count)
        users = self._index.users_at(np.arange(first, end)).pack()
        columns = self._rows.take_page(number)
        if self._charged:
            columns[_SEEN] = pack_numbers(np.array([self._charged]))
        return Page(users, columns)

    def load_page(self, number: int, page: Page) -> None:
        """Load a page; pages come in the order of their numbers, from 0."""
        start = number * PAGE_ROWS
        if start != len(self._index):
            raise ValueError(f"page {number} follows {len(self._index)} users, not {start}")
        self._enrol(UserIds.unpack(page.users))
        columns = dict(page.columns)
        if (seen := columns.pop(_SEEN, None)) is not None:
            self._seen[number] = int(unpack_numbers(seen)[0])
            self._charged = max(self._charged, self._seen[number])
        self._rows.load_page(number, columns)
        self._exhausted = None

    def numbers(self, slots: Rows) -> dict[str, NDArray[np.integer]]:
        """Return all numbers of these users by column, accrued charges included.

        Accrued charges are settled without a note of it, so nothing of this ledger may be stored.
        """
        self.account.settle_for_write(slots)
        return self._rows.all_numbers(slots)

    def bounds(self) -> NDArray[np.float64]:
        """Return the odometer bound of every user in the policy's measure, (n,) or (n, orders)."""
        count = len(self._index)
        order = None if self._own is None else self._own.order[:count]
        return self.rule.bounds(self._rows.ticks[:count], order)

    def bounds_raised(self, slots: Numbers, ticks_before: Numbers) -> Iterator[Raised]:
        """Yield the users whose bound rose, of those whose odometer rose; read it before the next
        charge.
        """
        users = self.rule.block_users
        for start in range(0, len(slots), users):
            risen = slots[start : start + users]
            order = None if self._own is None else self._own.order.take(risen)
            ticks = np.concatenate(
                [self._rows.ticks.take(risen), ticks_before[start : start + users]]
            )
            both = self.rule.bounds(ticks, None if order is None else np.tile(order, 2))
            bounds, before = both[: len(both) // 2], both[len(both) // 2 :]
            higher = bounds > before
            news = np.flatnonzero(higher.any(axis=1) if higher.ndim == 2 else higher)
            names = self._index.users_at(risen[news])
            orders: Iterable[float | None] = repeat(None)
            if order is not None:
                order = order[news]
                orders = map(self.policy.orders.__getitem__, order.tolist())
            shares = self.rule.shares(bounds[news], order)
            yield from map(Raised, names, _lists(bounds[news]), shares.tolist(), orders)

    def _enrol(self, new_users: UserIds) -> None:
        slots = self._index.add(new_users)
        if not new_users.are_integers:
            self.erased.update(str(user) for user in new_users if is_keyed_hash(user))
        self._rows.grow(len(self._index))
        self._rows.touch(slots)

    def _is_shorter(self, charged: ByLevel) -> bool:
        """Return whether to store a step as levels: not if another roster has the same users."""
        spent = 8 * (self.rule.orders or 1) * len(charged.levels)
        alone = len(self.account.recurring_charges) == 1
        return alone and charged.cost_table.nbytes <= max(2 * spent, _SMALL_COST_TABLE)

    def _behind(self, slots: Numbers, charged: int) -> NDArray[np.bool_] | None:
        """Return which rows, (n,), are in pages that do not include this step; None: all rows."""
        newer = [number for number, seen in self._seen.items() if seen > charged]
        return np.isin(slots // PAGE_ROWS, newer, invert=True) if newer else None

    def _charge_again(self, rows: RowDelta, changes: AccountDelta) -> None:
        """Repeat the charges of a step in the pages that do not include it."""
        slots = slots_of(rows)
        levels = np.broadcast_to(np.frombuffer(rows.values[_BY_LEVEL], np.uint8), slots.shape)
        behind = self._behind(slots, changes.charged - 1)
        if behind is not None:
            slots, levels = slots[behind], levels[behind]
        table = self.rule.cost_table(changes.cost_table)
        cells = table.cells(levels, self.account.order_of(slots))
        self._rows.spent[slots] += table.charges(cells)
        self._rows.touch(slots)


def _lists(bounds: NDArray[np.float64]) -> list[list[float]]:
    rows: list[list[float]] = (bounds if bounds.ndim == 2 else bounds[:, np.newaxis]).tolist()
    return rows
