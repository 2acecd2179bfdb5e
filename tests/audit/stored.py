"""What a ledger has, in the auditor's terms."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

import numpy as np

from streams.ledger.accrual import budgets_of
from streams.ledger.ledger import Ledger
from tests.audit.auditor_requests import User, numbers_of
from tests.audit.auditor_rosters import Roster, prices_in
from tests.audit.auditor_state import octets_of
from tests.spending import spent_units

Rows = dict[User, tuple[tuple[int, ...], tuple[int, ...], int, int | None]]


_SAME: Mapping[User, User] = {}


def state_of(ledger: Ledger, name: str, known: Mapping[User, User] = _SAME) -> Rows:
    """user -> (spent, used on the current tick, ticks, per-user order), with accrued charges.

    Args:
        ledger: to read.
        name: of the dataset.
        known: user -> the name to use instead.
    """
    accounts = budgets_of(
        ledger.state, name
    ).own  # which has rosters go on from what Redis has of them
    width = 1 if accounts.policy.per_user_order is True else len(accounts.policy.budget)
    users, spent = spent_units(accounts)
    spent = spent.reshape(-1, width).tolist()
    rows: Rows = {}
    number = 0
    while len(rows) < len(accounts):
        page = accounts.take_page(number)
        number += 1
        columns = {name.rstrip("~"): unpacked(packed) for name, packed in page.columns.items()}
        base, ticks = columns["base"], columns["ticks"]
        for i, user in enumerate(numbers_of(page.users, "q")):
            paid = tuple(spent[len(rows)])
            used = tuple(
                s - b for s, b in zip(paid, base[i * width : (i + 1) * width], strict=True)
            )
            is_bound = "bound" in columns and columns["bound"][i]
            rows[known.get(user, user)] = (
                paid,
                used,
                ticks[i],
                columns["order"][i] if is_bound else None,
            )
    assert list(rows) == [known.get(user, user) for user in users]
    return rows


def participations_of(
    ledger: Ledger, address: tuple[str, ...], known: Mapping[User, User] = _SAME
) -> tuple[int, dict[User, int]]:
    """How far a run keeps participations apart, and the steps that still count, by user."""
    separation, last = ledger.state.separations[address], ledger.state.runs[address].step
    steps: dict[User, int] = {}
    for (*run, place), packed in ledger.state.participants.items():
        if run == list(address):
            slots = struct.unpack(f"<{len(packed) // 4}I", packed)
            step = next(s for s in range(last, -1, -1) if s % (separation - 1) == int(place))
            users = ledger.state.datasets[address[0]].users_at(np.array(slots, dtype=np.int64))
            ids = [known.get(user, user) for user in users]
            assert ids, f"nobody took part in step {step} of {address}, and that is kept"
            assert not steps.keys() & set(ids), f"{ids} took part before step {step} of {address}"
            steps |= dict.fromkeys(ids, step)
    return separation, steps


def collected_of(ledger: Ledger) -> dict[tuple[str, ...], Any]:
    """The terms of each run that collects norms, and by step the norms, events and octets."""
    found: dict[tuple[str, ...], Any] = {
        address: ({"clip_norm": terms.clip_norm, "mechanism": terms.mechanism}, {})
        for address, terms in ledger.state.collecting.items()
    }
    blocks = sorted(ledger.state.collected.items(), key=lambda entry: int(entry[0][3]))
    for (*address, step, _), block in blocks:
        steps = found.setdefault((*address,), (None, {}))[1]
        norms, events, octets = steps.get(int(step), ([], 0, 0))
        norms += [row for row in zip(block.users, block.norms, strict=True) if row[0] != ""]
        octets += block.erased + sum(8 + octets_of(user) for user in block.users)
        steps[int(step)] = norms, events + len(block.users), octets
    return found


def unpacked(packed: bytes) -> list[int]:
    """A column of a page: distances of so many bytes from a number, or from it and their place."""
    least, count, width, steps = struct.unpack_from("<qIBB", packed)
    ends = range(14, 14 + count * width, width) if width else [14] * count
    distances = [int.from_bytes(packed[at : at + width], "little") for at in ends]
    return [least + distance + steps * i for i, distance in enumerate(distances)]


def roster_of(
    ledger: Ledger, address: tuple[str, ...], known: Mapping[User, User] = _SAME
) -> Roster:
    """A roster, as Redis has it."""
    terms, members = ledger.state.rosters[address], ledger.state.rosters.members[address]
    accounts = ledger.state.datasets[address[0]]
    orders = [len(policy.budget) for policy in ledger.state.policies.budgets(address[0]).policies]
    users = accounts.users_at(members.slots)
    return Roster(
        clip_norm=terms.clip_norm,
        grid=terms.levels,
        members=[known.get(user, user) for user in users],
        levels=list(members.levels),
        granted=list(members.granted),
        halted=set(members.halted.tolist()),
        exhausted=set(members.exhausted.tolist()),
        cost_table_digest=terms.cost_table_digest,
        prices=prices_in(terms.units, terms.levels, orders) if terms.units else [],
    )
