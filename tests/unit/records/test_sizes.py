"""The answers to every record fit in their topics.

A record that the broker rejects would end each worker that reads it from the outbox.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
from msgspec import UNSET

from streams.ledger.ledger import Channel, Ledger, Output
from streams.records import (
    MAX_ACCOUNTS,
    MAX_BALANCES,
    MAX_BUDGETS,
    MAX_CHARGE_USERS,
    MAX_KEYS,
    MAX_NAMES_BYTES,
    MAX_QUOTED_BYTES,
    MAX_RECORD_BYTES,
    Allowed,
    ChargeRoster,
    CreateDataset,
    DatasetClosed,
    Enrol,
    OpenRun,
    Policy,
    encode,
)
from streams.records.digests import cost_table_digest
from streams.records.json_outputs import to_json
from tests.keys import public_key, signed

KAFKA_DEFAULT = 1_048_588  # of max.message.bytes
BATCH = 512  # what surrounds a record in a batch of one
CHARGE = {"type": "charge", "dataset": "d", "run": "r", "attempt": 1, "step": 0}


def outputs_fit(value: bytes, **policy: Any) -> bool:
    """Return whether every output of a record of an open run fits."""
    ledger = Ledger(partition=0, partitions=1)
    rules = {"measure": "zcdp", "budget": [1], "odometer_step": [1]} | policy
    policy = Policy(dataset="d", partitions=1, **rules)
    ledger.apply(0, encode(CreateDataset(request="t", policy=policy)))
    ledger.apply(1, encode(OpenRun(dataset="d", run="r", attempt=1, request="t")))
    outputs = ledger.apply(2, value)
    assert outputs
    return all(map(fits, outputs))


def fits(output: Output) -> bool:
    """Return whether the broker accepts an output."""
    size = len(output.value)
    if 6 * size > MAX_RECORD_BYTES:
        size = max(size, len(to_json(output.value)))
    return size <= MAX_RECORD_BYTES and size + len(output.key or b"") + BATCH <= KAFKA_DEFAULT


@pytest.mark.parametrize("value", [b"x" * 2**23, b"x" * (2**23 + 1), b"{" * 2**23])
def test_unreadable_record_fits_in_the_rejects(value: bytes) -> None:
    assert outputs_fit(value)


@pytest.mark.parametrize("encoded", [msgspec.json.encode, msgspec.msgpack.encode])
@pytest.mark.parametrize(
    "record",
    [
        {"type": "charge", "x" * 5_000_000: 1},
        {**CHARGE, "type": "x" * 5_000_000},
        {**CHARGE, "users": [], "norms": [], "mechanism": "x" * 5_000_000},
    ],
    ids=["field", "type", "value"],
)
def test_rejection_does_not_repeat_a_long_value(encoded: Any, record: dict[str, Any]) -> None:
    assert outputs_fit(encoded(record))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("users", "on_exhaustion"), [(MAX_CHARGE_USERS, "clip"), (1_390_000, "halt")]
)
def test_the_largest_lists_fit_if_all_are_clipped_or_halt(users: int, on_exhaustion: str) -> None:
    lists = {"users": list(range(users)), "norms": [9] * users}
    assert outputs_fit(msgspec.msgpack.encode(CHARGE | lists), on_exhaustion=on_exhaustion)


@pytest.mark.slow
def test_the_longest_names_fit_when_all_are_halted_or_rise() -> None:
    users = [f"{i:05}" + "日" * 251 for i in range(10_000)]
    for budget in (1, 2**50):
        lists = {"users": users, "norms": [1] * len(users)}
        rules = {"budget": [budget], "odometer_step": [1]}
        assert outputs_fit(msgspec.msgpack.encode(CHARGE | lists), **rules)


def roster_outputs(
    parts: list[Any], price: int, levels: bytes, dataset: str = "d" * 128, **policy: Any
) -> list[Output]:
    """Return the outputs of enrolling users, of two roster steps, and of asking for the roster.

    Args:
        parts: the users of each enrolment.
        price: the units of the highest level, which the first step charges; level 1 costs 3 of 5.
        levels: the levels of the second step.
        dataset: the name of the dataset.
        policy: fields of the policy.
    """
    ledger = Ledger(partition=0, partitions=1)
    rules = {"measure": "zcdp", "budget": [5], "odometer_step": [5]} | policy
    name = {"dataset": dataset, "run": "r" * 128}
    policy = Policy(dataset=name["dataset"], partitions=1, **rules)
    ledger.apply(0, encode(CreateDataset(request="t", policy=policy)))
    ledger.apply(1, encode(OpenRun(attempt=1, request="t", **name)))
    about = {"attempt": 1, **name}
    outputs, members = [], 0
    grid = {"clip_norm": 1.0, "levels": 2}
    for part in [*parts, b""]:
        count = len(part) // 8 if isinstance(part, bytes) else len(part)
        enrol = Enrol(request="t" * 64, first=members, users=part, **grid, **about)
        outputs += ledger.apply(2, encode(enrol))
        members += count
    units = np.array([0, 3, price], dtype="<i8").tobytes()
    cost_table = {"cost_table_digest": cost_table_digest(units), "members": members, **about}
    for step, terms in enumerate([{"units": units}, {"levels": levels}]):
        outputs += ledger.apply(3 + step, encode(ChargeRoster(step=step, **terms, **cost_table)))
    outputs += ledger.apply(5, encode(Enrol(request="t", first=0, users=b"", **grid, **about)))
    kinds = {msgspec.msgpack.decode(output.value)["type"] for output in outputs}
    assert kinds <= {"enrolled", "roster-decision", "halted", "odometer"}, kinds
    return outputs


@pytest.mark.slow
def test_halts_of_a_roster_with_the_longest_names_fit() -> None:
    users = [f"{i:05}" + "\U0001f9ee" * 251 for i in range(16_000)]
    parts = [users[i : i + 4_000] for i in range(0, 16_000, 4_000)]
    outputs = roster_outputs(parts, 6, b"\2" * len(users))
    halted = [o for o in outputs if msgspec.msgpack.decode(o.value)["type"] == "halted"]
    assert len(halted) > 16
    assert all(map(fits, outputs))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("on_exhaustion", "price"), [pytest.param("halt", 4, marks=pytest.mark.thorough), ("clip", 6)]
)
def test_answers_about_the_largest_roster_fit(on_exhaustion: str, price: int) -> None:
    """All members are charged, then halted or granted a lower level."""
    count = MAX_ACCOUNTS
    ids = np.arange(count, dtype="<i8")
    parts = [ids[i : i + 2**19].tobytes() for i in range(0, count, 2**19)]
    levels = b"\1" * count
    outputs = roster_outputs(parts, price, levels, dataset="d", on_exhaustion=on_exhaustion)
    assert all(map(fits, outputs))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("budgets", "orders"),
    [
        pytest.param(MAX_ACCOUNTS // MAX_CHARGE_USERS, 1, marks=pytest.mark.thorough),
        (1, MAX_BALANCES // MAX_CHARGE_USERS),
    ],
)
def test_the_largest_charge_fits_when_every_odometer_rises(budgets: int, orders: int) -> None:
    ledger = Ledger(partition=0, partitions=1)
    parent: dict[str, Any] = {}
    for number in range(budgets):
        measure = {"measure": "renyi", "orders": [2.0 + order for order in range(orders)]}
        units = {"budget": [2**60] * orders, "odometer_step": [1] * orders}
        rules = units | (measure if orders > 1 else {"measure": "zcdp"}) | parent
        policy = Policy(dataset=f"d{number}", partitions=1, **rules)
        ledger.apply(number, encode(CreateDataset(request="t", policy=policy)))
        parent = {"parents": [f"d{number}"]}
    about = {"dataset": f"d{budgets - 1}", "run": "r", "attempt": 1}
    ledger.apply(budgets, encode(OpenRun(request="t", **about)))
    users = np.arange(MAX_CHARGE_USERS, dtype="<i8").tobytes()
    norms = [1] * MAX_CHARGE_USERS
    outputs = ledger.apply(budgets + 1, encode(CHARGE | about | {"users": users, "norms": norms}))
    assert len(outputs) == 1 + budgets * MAX_CHARGE_USERS
    assert all(map(fits, outputs))


def test_answer_with_all_datasets_fits() -> None:
    most = MAX_NAMES_BYTES // 131
    names = ["d" * 128] * most + ["d" * (MAX_NAMES_BYTES - 131 * most - 3)]
    about = {"v": 1, "dataset": "d" * 128, "request": "t" * 64, "partition": 0, "offset": 2**53}
    answer = encode(DatasetClosed(**about, datasets=names))
    assert fits(Output(Channel.HALTS, None, answer))


def test_answers_with_the_largest_policies_fit() -> None:
    """Eight budgets, each with 256 orders, the longest names and the longest access list."""
    ledger = Ledger(partition=0, partitions=1)
    keys = sorted(public_key(f"{number}") for number in range(MAX_KEYS))
    rights = ["charge", "manage"]
    names = [f"{number}" + "d" * 127 for number in range(MAX_BUDGETS)]
    outputs, outer = [], names[:-1]
    for offset, name in enumerate(names):
        policy = Policy(
            dataset=name,
            partitions=1,
            measure="renyi",
            orders=[2.0 + order / 7 for order in range(256)],
            budget=[2**61 - order for order in range(256)],
            odometer_step=[2**60 + order for order in range(256)],
            allow=[Allowed(key=key, rights=rights) for key in keys],
            parents=outer if name == names[-1] else UNSET,
        )
        request = CreateDataset(request="t" * 64, policy=policy, log=bytes(16))
        outputs += ledger.apply(offset, signed(request, "0"))
    opening = OpenRun(dataset=names[-1], run="r" * 128, attempt=1, request="t" * 64)
    outputs += ledger.apply(MAX_BUDGETS, signed(opening, "0"))
    kinds = [msgspec.msgpack.decode(output.value)["type"] for output in outputs]
    assert kinds == ["dataset-created"] * MAX_BUDGETS + ["run-opened"]
    assert all(map(fits, outputs))


@pytest.mark.parametrize("length", [MAX_QUOTED_BYTES, MAX_QUOTED_BYTES + 1, MAX_RECORD_BYTES])
def test_reject_with_the_longest_fields_fits(length: int) -> None:
    """The policy that the dataset has, and a detail of control characters."""
    users = ["\x01" * 200, "\x01" * 200]
    record = {**CHARGE, "users": users, "norms": [1.0, 1.0], "mechanism": "gaussian"}
    spare = length - len(msgspec.json.encode(record))
    many = msgspec.json.encode(record) + b" " * spare
    assert len(many) == length
    assert outputs_fit(many)
