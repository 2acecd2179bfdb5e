"""The numbers of users, and how they are stored: by pages, and by what changed of them."""

from __future__ import annotations

from typing import Annotated, NamedTuple

import msgspec

from streams.ledger.columns import (
    PER_ORDER,
    Column,
    Columns,
    Numbers,
    RowChanges,
)
from streams.ledger.rule import OrderIndex
from streams.records import Users

_CHANGES_BYTES = 512
"""Of what surrounds the arrays of a change."""


class Balances(Columns):
    """The numbers of every user. A new one is one line here; ``columns`` does the rest."""

    spent: Annotated[Numbers, PER_ORDER]  # units charged so far: never above the budget
    base: Annotated[Numbers, PER_ORDER]  # units that were spent when the odometer last restarted
    ticks: Annotated[Numbers, Column(initial=1)]  # how many odometer steps the bound has climbed


class OwnBalances(Balances):
    """The same, of users who are bound to an order of their own."""

    order: Annotated[OrderIndex, Column(dtype="|u1")]  # which one
    bound: Annotated[OrderIndex, Column(dtype="|u1")]  # 1 from the first charge on that costs


class Page(msgspec.Struct, frozen=True, array_like=True):
    """The users and balances in consecutive slots of one dataset, as they are stored."""

    users: Users
    columns: dict[str, bytes]


class AccountsChanges(msgspec.Struct, frozen=True, array_like=True):
    """What one charge changed: new values, which may be set twice, or levels (``Accounts``)."""

    dataset: str
    new_users: Users  # they take the next slots
    first_new_slot: int
    rows: list[RowChanges]
    charged: int = 0  # how many steps were kept by their levels until then, this one included
    # What a step costs that is kept by its levels; empty: the same as that before it in the batch.
    cost_table: bytes = b""

    @property
    def size(self) -> int:
        """About how many bytes it takes."""
        rows = sum(changes.size for changes in self.rows)
        return _ids_size(self.new_users) + len(self.cost_table) + rows + _CHANGES_BYTES


def _ids_size(users: Users) -> int:
    """Return the size of ids in bytes, at most."""
    if isinstance(users, bytes):
        return len(users)
    strings = [user for user in users if isinstance(user, str)]
    return 9 * len(users) + len("".join(strings).encode())


class ByLevel(NamedTuple):
    """What users were charged by one step, all of them for it alone."""

    cost_table: bytes  # int64, (levels + 1,) or (levels + 1, orders)
    levels: bytes  # that were granted
