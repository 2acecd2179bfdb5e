"""Logs that were applied once are applied the same way for ever, bit for bit."""

import re

import msgspec
import pytest

from streams.schemas import Reason
from tests.recorded.record import HERE, MAKERS, Recording, make_first, recording_of
from tests.unit.ledger.ledgers import Log

RECORDINGS = sorted(HERE.glob("*.msgpack"))


def test_there_are_recordings():
    assert {path.stem for path in RECORDINGS} >= {f"{name}-{i}" for name in MAKERS for i in (0, 1)}


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.stem)
def test_a_recorded_log_is_applied_as_it_was(path):
    kept = msgspec.msgpack.decode(path.read_bytes(), type=Recording)
    log = Log(kept.partitions, kept.partition)
    for record in kept.records:
        log.send(record)
    again = recording_of(log)
    assert said(again) == said(kept)
    assert again.spent == kept.spent
    assert again.head == kept.head or kept.head is None


def said(recording: Recording) -> list[list[tuple]]:
    """All outputs, but for the newest version that a worker reads, which grows."""
    return [
        [
            (o.channel, o.key, re.sub(rb"(reads versions 1 to )\d", rb"\1N", o.value))
            for o in outputs
        ]
        for outputs in recording.outputs
    ]


def test_the_second_recordings_hold_what_version_2_has():
    types, reasons = set(), set()
    for path in HERE.glob("second-*.msgpack"):
        for outputs in msgspec.msgpack.decode(path.read_bytes(), type=Recording).outputs:
            for output in outputs:
                answer = msgspec.msgpack.decode(output.value)
                types.add((answer["type"], answer["v"]))
                reasons.add(answer.get("reason"))
    both = ["dataset-created", "run-opened", "decision", "odometer", "rejected"]
    assert types == {
        *((kind, v) for kind in both for v in (1, 2)),
        ("dataset-withdrawn", 2),
        ("run-closed", 2),
    }
    assert reasons >= {
        *(Reason.MALFORMED, Reason.UNSUPPORTED_VERSION, Reason.DATASET_IN_USE, Reason.RUN_CLOSED),
        *(Reason.OLDER_ATTEMPT, Reason.MIXED_USERS, Reason.STEP_CONTENT_CHANGED),
    }


def test_the_first_log_can_still_be_written_as_it_was():
    kept = msgspec.msgpack.decode((HERE / "first-0.msgpack").read_bytes(), type=Recording)
    assert make_first(0).records == kept.records
