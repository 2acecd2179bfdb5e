"""Recorded logs are applied as they were, bit for bit."""

import msgspec
import pytest

from streams.ledger.ledger import Ledger
from streams.records import (
    ERASED,
    TOO_SOON,
    Decision,
    Halted,
    Reason,
    Rejected,
    decode_answer,
    tombstone_offset,
)
from tests.recorded.record import HERE, MAKERS, Recording, make_measures, recording_of
from tests.unit.ledger.ledgers import Log


def recording(name: str) -> Recording:
    return msgspec.msgpack.decode((HERE / f"{name}.msgpack").read_bytes(), type=Recording)


@pytest.mark.parametrize("name", MAKERS)
def test_a_recorded_log_is_applied_as_it_was(name):
    kept = recording(name)
    log = Log(kept.partitions, kept.partition)
    for record in kept.records:
        log.send(record)
    found = recording_of(log)
    # A release may write other deltas, but has to read these; see the next test.
    found.stored.deltas = kept.stored.deltas
    assert found == kept


@pytest.mark.slow
@pytest.mark.parametrize("name", MAKERS)
def test_a_recorded_state_is_restored_and_decides_the_rest_as_it_did(name):
    kept = recording(name)
    log = Log(kept.partitions, kept.partition)
    for record in kept.records[: kept.stored.next]:
        log.send(record)
    restored = Ledger(kept.partition, kept.partitions)
    restored.state.load(kept.stored.pages, kept.stored.deltas)
    log.hand_over(restored)
    for record in kept.records[kept.stored.next :]:
        log.send(record)
    found = recording_of(log)
    assert found.outputs == kept.outputs
    assert found.spent == kept.spent


def contents(name: str) -> tuple[set, set, set]:
    """The types of all outputs of a recording, reasons of rejects, and reasons of HALTs."""
    types, rejected, halted = set(), set(), set()
    for outputs in recording(name).outputs:
        for output in outputs:
            if tombstone_offset(output.value) is not None:
                continue
            types.add(msgspec.msgpack.decode(output.value)["type"])
            if output.channel.value == "rejects":
                rejected.add(msgspec.msgpack.decode(output.value, type=Rejected).reason)
            elif output.channel.value == "halts":
                answer = decode_answer(output.value)
                halted |= {*answer.reasons} if isinstance(answer, Decision | Halted) else set()
    return types, rejected, halted


HOLD = [
    # recording, types of outputs, reasons of rejects, reasons of HALTs
    (
        "lifecycle",
        {"dataset-created", "dataset-withdrawn", "run-opened", "run-closed", "decision"},
        {
            *(Reason.MALFORMED, Reason.UNSUPPORTED_VERSION, Reason.DATASET_IN_USE),
            *(Reason.RUN_CLOSED, Reason.OLDER_ATTEMPT, Reason.MIXED_USERS),
            Reason.STEP_CONTENT_CHANGED,
        },
        {0},
    ),
    (
        "rosters",
        {"decision", "odometer", "enrolled", "roster-decision", "halted", "run-closed"},
        {
            *(Reason.ROSTER_CHANGED, Reason.INVALID_COST_TABLE, Reason.STEP_CONTENT_CHANGED),
            *(Reason.RUN_CLOSED, Reason.STEP_OUT_OF_ORDER, Reason.MALFORMED),
        },
        {0},
    ),
    (
        "nested",
        {"decision", "halted", "odometer"},
        {Reason.UNKNOWN_DATASET, Reason.DATASET_IN_USE, Reason.STEP_CONTENT_CHANGED},
        {0, 1, 2},
    ),
    (
        "clipped",
        {"decision", "halted", "erased"},
        {Reason.INVALID_MECHANISM},
        {0, 1, ERASED},
    ),
    (
        "separated",
        {"decision"},
        {Reason.SEPARATION_CHANGED, Reason.NO_ROSTERS, Reason.STEP_CONTENT_CHANGED},
        {0, TOO_SOON},
    ),
    ("erased", {"decision", "erased", "halted", "enrolled"}, set(), {0, TOO_SOON, ERASED}),
    (
        "closed",
        {"dataset-closed", "roster-decision", "rejected"},
        {Reason.DATASET_CLOSED},
        set(),
    ),
    (
        "signed",
        {"access-set", "decision", "erased", "dataset-closed", "rejected"},
        {Reason.NOT_ALLOWED, Reason.SUPERSEDED},
        set(),
    ),
]


@pytest.mark.parametrize(
    ("name", "types", "rejected", "halted"), HOLD, ids=[row[0] for row in HOLD]
)
def test_recordings_hold_what_they_are_named_for(name, types, rejected, halted):
    held = contents(name)
    assert held[0] >= types
    assert held[1] >= rejected
    assert held[2] >= halted


def test_a_log_can_still_be_recorded_as_it_was():
    assert make_measures(0).records == recording("measures").records
