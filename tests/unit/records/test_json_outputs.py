"""Published JSON has exactly the contents of the output that a ledger made."""

from __future__ import annotations

import json
from itertools import chain
from pathlib import Path
from typing import Any, get_args, get_type_hints

import msgspec
import numpy as np
import pytest

from accounting import MEASURES, StepShape, steps_measure
from streams.records import (
    BUDGET,
    HALT_REASONS,
    MAX_BUDGETS,
    Decision,
    OdometerRecord,
    Policy,
    RosterDecision,
    decode_answer,
    encode,
    halt_reason,
    tombstone,
)
from streams.records.json_outputs import UNITS, HaltEvent, to_json, to_msgpack
from streams.records.packing import pack_bits, pack_norms
from streams.records.users import UserIds
from tests.recorded.record import HERE, Recording

ABOUT = {"dataset": "d", "run": "r", "attempt": 1, "step": 4, "partition": 0, "offset": 17}


def decision(users: int, halted: list[Any], exhausted: int, clipped: int = 0) -> bytes:
    """Return a decision that halts the last users; the first ones are exhausted and clipped."""
    places = np.arange(users)
    reasons = [(0, 1, 254, 255)[n % 4] for n in range(len(halted))]
    return encode(
        Decision(
            **ABOUT,
            digest=b"d" * 16,
            users=users,
            admitted=pack_bits(places < users - len(halted)),
            exhausted=pack_bits(places < exhausted),
            halted=UserIds(halted).pack(),
            reasons=bytes(reasons),
            budgets=["d", "person"],
            clipped=np.arange(clipped, dtype="<u4").tobytes(),
            granted=pack_norms(np.full(clipped, 0.1)),
        )
    )


@pytest.mark.parametrize("path", sorted(HERE.glob("*.msgpack")), ids=lambda path: path.stem)
def test_recorded_outputs_return_bit_for_bit(path: Path) -> None:
    recording = msgspec.msgpack.decode(path.read_bytes(), type=Recording)
    for output in (output for outputs in recording.outputs for output in outputs):
        assert to_msgpack(to_json(output.value)) == output.value


def test_halts_can_be_read() -> None:
    shown = json.loads(to_json(decision(4, ["ann", "bob"], 1, 1)))
    assert shown["admitted"] == [True, True, False, False]
    assert shown["exhausted"] == [True, False, False, False]
    assert shown["halted"] == [
        {"user": "ann", "reason": "budget", "budget": "d", "exhausted": False},
        {"user": "bob", "reason": "budget", "budget": "person", "exhausted": False},
    ]
    assert (shown["clipped"], shown["granted"]) == ([0], [0.1])


@pytest.mark.parametrize(
    "changed",
    [
        {"users": 5},
        {"admitted": [True, True, True, False]},
        {"exhausted": [True, False, True, False]},
        {"reasons": "AAA="},
        {"halted": ["ann", {"user": "bob", "reason": "erased", "exhausted": False}]},
        {"halted": [{"user": "ann", "reason": "budget", "exhausted": False}] * 2},
        {"halted": [{"user": "a", "reason": "erased", "budget": "d", "exhausted": False}] * 2},
        {"halted": [{"user": "a", "reason": "budget", "budget": "e", "exhausted": False}] * 2},
        {"users": 2**62, "admitted": "Aw==", "exhausted": "AQ=="},
        {"admitted": "8w=="},
        {"budgets": [f"b{n}" for n in range(254)] + ["d", "person"]},
        {"clipped": [-1]},
        {"granted": "mpmZmZmZuT8="},
        {"more": 1},
    ],
    ids=lambda changed: str(changed)[:60],
)
def test_contradictions_are_no_output(changed: dict[str, Any]) -> None:
    published = json.dumps(json.loads(to_json(decision(4, ["ann", "bob"], 1, 1))) | changed)
    assert to_msgpack(published.encode()) == published.encode()


@pytest.mark.parametrize("members", [10, 1000])
@pytest.mark.parametrize(
    "changed",
    [
        {"regranted": [5, 3], "granted": [1, 2]},
        {"halted": [3, 3]},
        {"halted": [-1]},
        {"halted": [2**32 + 5]},
        {"halted": "AAUAAAADAAAA"},
    ],
    ids=str,
)
def test_other_positions_are_no_output(members: int, changed: dict[str, Any]) -> None:
    made = RosterDecision(**ABOUT, digest=b"", members=members)
    published = json.dumps(json.loads(to_json(encode(made))) | changed).encode()
    assert to_msgpack(published) == published


@pytest.mark.parametrize("again", ['"step": 5', '"\\u0073tep": 5', '"step": 4'])
def test_a_key_given_twice_is_no_output(again: str) -> None:
    published = to_json(decision(4, ["ann", "bob"], 1, 1))[:-1] + f",{again}}}".encode()
    assert to_msgpack(published) == published


@pytest.mark.parametrize("other", [b"", b"{", b"{}", b'{"type": "charge"}', b"\xff", tombstone(3)])
def test_other_bytes_stay(other: bytes) -> None:
    assert to_msgpack(other) == other


def test_tombstones_stay_as_they_are() -> None:
    assert to_json(tombstone(3)) == tombstone(3)


def test_every_reason_has_its_name() -> None:
    names = [*map(halt_reason, HALT_REASONS), BUDGET]
    assert sorted(names) == sorted(get_args(get_type_hints(HaltEvent)["reason"]))
    assert all(all(reason) for reason in HALT_REASONS.values())
    assert {halt_reason(byte) for byte in range(MAX_BUDGETS)} == {BUDGET}


def test_odometer_records_name_measure_unit_and_share() -> None:
    """Every recorded one says what its policy says."""
    seen = set()
    for path in sorted(HERE.glob("*.msgpack")):
        recording = msgspec.msgpack.decode(path.read_bytes(), type=Recording)
        policies: dict[str, Policy] = {}
        for output in chain(*recording.outputs):
            published = to_json(output.value)
            record = json.loads(published) if published[:1] == b"{" else {}
            if record.get("type") == "dataset-created":
                policies[record["policy"]["dataset"]] = decode_answer(output.value).policy
            if record.get("type") == "odometer":
                policy = policies[record["dataset"]]
                assert (record["measure"], record["unit"]) == (policy.measure, policy.row.unit)
                odometer = msgspec.msgpack.decode(output.value, type=OdometerRecord)
                assert record["spent_share"] == odometer.share(policy)
                seen.add(policy.measure)
    assert seen >= {"zcdp", "renyi", "gdp"}
    assert {measure: row.unit for measure, row in MEASURES.items()}.items() <= UNITS.items()
    assert steps_measure(StepShape(1.0, 1.0)).unit == UNITS["steps"]
