"""The state of a retired log, for a log with another number of partitions.

The result is a function of the retired partitions alone, bit for bit. Each living user has one
account, in the user's new home partition, with the same numbers. The home of an erased user is
unknown, because the id is gone. So all partitions have the account of each keyed hash, which has
nothing left. Runs have ended; policies, access lists, and which datasets are closed are the same in
all partitions of a retired log (``retirement.agreement``). Access lists name the new log, so that
requests that were signed for the old one are invalid in it.

    digest = SHA-256(MessagePack([[name, page], ...]))      of all pages but ``origin``, by name
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from msgspec import structs

from streams.ledger.ledger import Ledger
from streams.ledger.outputs import Output, Place, odometer_output
from streams.ledger.run_states import RunState, closed
from streams.ledger.state import ImportOrigin, State
from streams.records import Import, User, encode

NEXT = 1
"""The offset to apply next after an import."""


class Imported(NamedTuple):
    """One partition of the log that continues a retired one."""

    ledger: Ledger
    pages: dict[str, bytes]


def import_record(origins: Sequence[Ledger]) -> bytes:
    """Return the first record of each partition of the log that continues a log.

    Args:
        origins: all partitions of the log that is continued.
    """
    return encode(Import(origin=origins[0].state.topic, partitions=len(origins)))


def imported(origins: Sequence[Ledger], topic: bytes, partition: int, partitions: int) -> Imported:
    """Return a partition as it is after its import.

    Args:
        origins: all partitions of the retired log, in their order.
        topic: the id of the log that continues it.
        partition: of that log.
        partitions: their number in that log.

    Raises:
        LostErasureKey: users were erased under a key that is not known here.
    """
    first = origins[0].state
    ledger = Ledger(partition, partitions, topic, origins[0].erasure_keys)
    state = ledger.state
    if first.layout:
        state.layout[()] = partitions
    for address, policy in sorted(first.policies.items()):
        state.policies[address] = structs.replace(policy, partitions=partitions)
    for address, access in sorted(first.access.items()):
        state.access[address] = structs.replace(access, log=topic)
    for address in sorted(first.closed):
        state.closed[address] = 0
    for address in sorted({address for origin in origins for address in origin.state.erasure}):
        state.erasure[address] = True
    for address in sorted({address for origin in origins for address in origin.state.runs}):
        state.runs[address] = _last_of(origins, address)
    for name in sorted(state.datasets):
        _add_users(state, name, origins)
    pages = _pages(state)
    heads = [(end.next, end.head) for origin in origins for end in origin.state.retired.values()]
    state.origin[()] = ImportOrigin(first.topic, heads, digest_of(pages))
    ledger.chain = ledger.chain.after(0, import_record(origins))
    return Imported(ledger, pages | _pages(state))


def digest_of(pages: dict[str, bytes]) -> bytes:
    """Return the digest of an imported state."""
    return hashlib.sha256(encode(sorted(pages.items()))).digest()


def odometer_records(ledger: Ledger) -> Iterator[Output]:
    """Yield an odometer record for each living user whose bound is above the first tick."""
    state = ledger.state
    place = Place(state.partition, 0)
    for name, accounts in state.datasets.items():
        slots = np.arange(len(accounts))
        erased = [int(slot) for dataset, slot in state.erased if dataset == name]
        living = np.delete(slots, erased)
        for raised in accounts.bounds_raised(living, np.ones_like(living)):
            yield odometer_output(name, raised, place)


def _add_users(state: State, name: str, origins: Sequence[Ledger]) -> None:
    accounts, known = state.datasets[name], set[User]()
    for origin in origins:
        theirs = origin.state.datasets[name]
        users = theirs.users_at(np.arange(len(theirs)))
        # An account that a charge created after the erasure has no entry in ``state.erased``.
        erased = origin.state.policies.budgets(name).erased_at(np.arange(len(theirs)))
        chosen = users.homes(state.partitions) == state.partition
        for slot in erased.tolist():
            chosen[slot] = users[slot] not in known
        known.update(users.select(erased))
        slots = np.flatnonzero(chosen)
        added = accounts.add(users.select(slots), theirs.numbers(slots))
        for slot in erased[chosen[erased]].tolist():
            state.erased[name, str(added[np.searchsorted(slots, slot)])] = str(users[slot])


def _last_of(origins: Sequence[Ledger], address: tuple[str, ...]) -> RunState:
    """Return a run as it ended in the partition that charged most of its steps."""
    found = [run for origin in origins if (run := origin.state.runs.get(address)) is not None]
    return closed(max(found, key=lambda run: (run.attempt, run.step, run.roster_steps)))


def _pages(state: State) -> dict[str, bytes]:
    """Return the pages that changed since they were last taken."""
    state.take_delta()
    pages = {name: state.take_page(name) for name in state.unmerged()}
    return {name: page for name, page in pages.items() if page is not None}
