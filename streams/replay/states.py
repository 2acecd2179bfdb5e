"""Two states of one partition, compared number by number."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from streams.ledger.accounts import Accounts
from streams.ledger.columns import PAGE_ROWS
from streams.ledger.ledger import Ledger
from streams.ledger.members import Members

Numbers = Mapping[str, NDArray[np.integer]]

_ENTRIES = (
    *("layout", "policies", "runs", "rosters", "separations", "participants"),
    *("holds", "closed", "erasure", "erased", "access", "retired", "origin"),
)
"""What a state keeps by name."""
_NAMES = {"erased": ("dataset", "slot")}
"""What the parts of an address are, where they are not a dataset and a run."""
_TOLD_OF_MEMBERS = ("slot", "level", "granted", "flags")
"""Without the step since which charges accrue: accounts are compared with accrued charges."""


class Difference(NamedTuple):
    """Where two states differ."""

    problem: str
    about: dict[str, Any]
    expected: Any
    found: Any


def differences(expected: Ledger, found: Ledger) -> Iterator[Difference]:
    """Where a state is not the one that is expected; both are brought up to date for it.

    Numbers can be compared where everything else is as it should be: a roster of other terms, or
    users under another policy, are not what these numbers are of.
    """
    entries = [
        difference
        for what in _ENTRIES
        for difference in _entries(what, getattr(expected.state, what), getattr(found.state, what))
    ]
    yield from entries
    if entries:
        return
    expected.wake()
    try:
        found.wake()
    except (ValueError, LookupError) as error:
        yield Difference(f"rosters cannot go on from what is stored: {error!r}", {}, None, None)
        return
    for name, accounts in expected.state.datasets.items():
        yield from _accounts(name, accounts, found.state.datasets[name])
    for address, members in expected.state.rosters.members.items():
        yield from _members(address, members, found.state.rosters.members[address])


def _entries(
    what: str, expected: Mapping[Any, Any], found: Mapping[Any, Any]
) -> Iterator[Difference]:
    names = _NAMES.get(what, ("dataset", "run", "place"))
    for address in sorted(expected.keys() | found.keys()):
        ours, theirs = expected.get(address), found.get(address)
        if ours != theirs:
            about = dict(zip(names, address, strict=False))
            yield Difference(f"another entry of {what}", about, _plain(ours), _plain(theirs))


def _accounts(name: str, expected: Accounts, found: Accounts) -> Iterator[Difference]:
    if len(expected) != len(found):
        yield Difference("other users", {"dataset": name}, len(expected), len(found))
        return
    for start in range(0, len(expected), PAGE_ROWS):
        rows = slice(start, min(start + PAGE_ROWS, len(expected)))
        slots = np.arange(rows.start, rows.stop)
        users, theirs = (list(accounts.users_at(slots)) for accounts in (expected, found))
        if users != theirs:
            row = next(i for i, user in enumerate(users) if user != theirs[i])
            about = {"dataset": name, "user": _plain(users[row])}
            yield Difference(
                "another user in this place", about, *map(_plain, (users[row], theirs[row]))
            )
            return
        for row, ours, other in _rows(expected.numbers(rows), found.numbers(rows)):
            about = {"dataset": name, "user": _plain(users[row])}
            yield Difference("other numbers of a user", about, ours, other)


def _members(address: tuple[str, ...], expected: Members, found: Members) -> Iterator[Difference]:
    about: dict[str, Any] = dict(zip(("dataset", "run"), address, strict=True))
    if len(expected) != len(found):
        yield Difference("other members of a roster", about, len(expected), len(found))
        return
    for start in range(0, len(expected), PAGE_ROWS):
        rows = slice(start, min(start + PAGE_ROWS, len(expected)))
        ours, theirs = (
            {
                name: numbers
                for name, numbers in members.numbers(rows).items()
                if name in _TOLD_OF_MEMBERS
            }
            for members in (expected, found)
        )
        for row, mine, other in _rows(ours, theirs):
            at = {**about, "position": start + row}
            yield Difference("other numbers of a member", at, mine, other)


def _rows(
    expected: Numbers, found: Numbers
) -> Iterator[tuple[int, dict[str, Any], dict[str, Any]]]:
    """The rows that differ, with those of their numbers that do."""
    wrong = {
        name: (numbers != found[name]).reshape(len(numbers), -1).any(axis=1)
        for name, numbers in expected.items()
    }
    for row in np.flatnonzero(np.any(list(wrong.values()), axis=0)).tolist():
        names = [name for name in expected if wrong[name][row]]
        yield (
            row,
            {name: expected[name][row].tolist() for name in names},
            {name: found[name][row].tolist() for name in names},
        )


def _plain(value: Any) -> Any:
    """As JSON has it."""
    return value.item() if isinstance(value, np.generic) else msgspec.to_builtins(value)
