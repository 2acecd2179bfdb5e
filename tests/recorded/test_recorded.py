"""Logs that were applied once are applied the same way for ever, bit for bit."""

import re

import msgspec
import pytest

from streams.ledger.ledger import ledger_of
from streams.schemas import Decision, Enrol, Reason, tombstone_offset
from streams.wire.chain import NO_TOPIC
from tests.recorded.record import HERE, MAKERS, Recording, make_first, recording_of
from tests.unit.ledger.ledgers import Log, answer_of

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


def kinds_in(name: str) -> tuple[set, set]:
    """The types of all outputs of some recordings, with their versions; and the reasons."""
    types, reasons = set(), set()
    for path in HERE.glob(f"{name}-*.msgpack"):
        for outputs in msgspec.msgpack.decode(path.read_bytes(), type=Recording).outputs:
            for output in outputs:
                if tombstone_offset(output.value) is not None:
                    continue
                answer = msgspec.msgpack.decode(output.value)
                types.add((answer["type"], answer["v"]))
                reasons.add(answer.get("reason"))
    return types, reasons


def test_the_second_recordings_hold_what_version_2_has():
    types, reasons = kinds_in("second")
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


def test_the_third_recordings_hold_what_version_3_has():
    types, reasons = kinds_in("third")
    assert types >= {
        *((kind, v) for kind in ("decision", "odometer") for v in (2, 3)),
        *((kind, 3) for kind in ("enrolled", "roster-decision", "halted", "run-closed")),
    }
    assert reasons >= {
        *(Reason.ROSTER_CHANGED, Reason.INVALID_TARIFF, Reason.STEP_CONTENT_CHANGED),
        *(Reason.RUN_CLOSED, Reason.STEP_OUT_OF_ORDER, Reason.MALFORMED),
    }


def test_the_nested_recordings_hold_datasets_within_others():
    types, reasons = kinds_in("nested")
    assert types >= {(kind, 3) for kind in ("nested-decision", "decision", "halted", "odometer")}
    assert reasons >= {
        *(Reason.UNKNOWN_DATASET, Reason.DATASET_IN_USE, Reason.UNSUPPORTED_VERSION),
        Reason.STEP_CONTENT_CHANGED,
    }


def test_the_clipped_recordings_hold_datasets_within_others_that_clip():
    types, reasons = kinds_in("clipped")
    assert types >= {(kind, 3) for kind in ("nested-decision", "decision", "halted", "forgotten")}
    assert reasons >= {Reason.INVALID_POLICY, Reason.INVALID_MECHANISM}


def test_the_separated_recordings_hold_runs_that_keep_participations_apart():
    types, reasons = kinds_in("separated")
    assert types >= {(kind, 3) for kind in ("separated-decision", "nested-decision", "decision")}
    assert reasons >= {
        *(Reason.SEPARATION_CHANGED, Reason.NO_ROSTERS, Reason.UNSUPPORTED_VERSION),
        *(Reason.RUN_CLOSED, Reason.STEP_CONTENT_CHANGED),
    }


def test_the_forgotten_recordings_hold_users_who_are_not_known_any_more():
    types, _ = kinds_in("forgotten")
    decisions = ("decision", "nested-decision", "separated-decision", "forgetting-decision")
    assert types >= {(kind, 3) for kind in (*decisions, "forgotten", "halted", "enrolled")}


def test_the_closed_recordings_hold_datasets_that_have_ended():
    types, reasons = kinds_in("closed")
    assert types >= {(kind, 3) for kind in ("dataset-closed", "roster-decision", "rejected")}
    assert Reason.DATASET_CLOSED in reasons


def test_the_signed_recordings_hold_those_who_may_and_those_who_may_not():
    types, reasons = kinds_in("signed")
    operator = {("operator-bound", 3), ("principal-registered", 3)}
    assert types >= operator | {("nested-decision", 3), ("decision", 3), ("rejected", 3)}
    assert reasons >= {Reason.NOT_ALLOWED, Reason.SUPERSEDED}


class StoredState(msgspec.Struct):
    """What a release kept of a recorded log."""

    pages: dict[str, bytes]
    changes: list[bytes]
    head: bytes


STATES = sorted(HERE.glob("*.state"))


@pytest.mark.parametrize("path", STATES, ids=lambda path: path.stem)
def test_what_an_earlier_release_kept_of_a_log_is_opened_and_goes_on(path):
    state = msgspec.msgpack.decode(path.read_bytes(), type=StoredState)
    kept = msgspec.msgpack.decode(path.with_suffix(".msgpack").read_bytes(), type=Recording)
    straight = Log(kept.partitions, kept.partition)
    for record in kept.records:
        straight.send(record)
    ledger = ledger_of(state, kept.partition, kept.partitions, NO_TOPIC, straight.ledger.chain)
    assert ledger.chain.head == state.head
    opened = Log(kept.partitions, kept.partition)
    opened.records, opened.ledger = list(kept.records), ledger
    assert recording_of(opened).spent == kept.spent
    for log in (opened, straight):
        goes_on(log, [user for user, _ in kept.spent["numbers"]][:9])
    assert opened.outputs == straight.outputs[len(kept.records) :]
    assert opened.ledger.summary() == straight.ledger.summary()


def goes_on(log: Log, users: list) -> None:
    """Is sent again what it was sent last, charges, and enrols these users."""
    run = log.ledger.runs["numbers", "r"]
    about = {"dataset": "numbers", "attempt": run.attempt}
    log.send(log.records[-1])
    charged = log.charge(run.step + 1, users, [0.1] * len(users), v=3, **about)
    assert isinstance(charged, Decision)
    fields = {"request": "t", "first": 0, "users": users, "clip_norm": 1.0, "levels": 3}
    enrolled = answer_of(log.send(Enrol(v=3, run="r", **fields, **about)))
    assert enrolled.members == len(users)


def test_the_first_log_can_still_be_written_as_it_was():
    kept = msgspec.msgpack.decode((HERE / "first-0.msgpack").read_bytes(), type=Recording)
    assert make_first(0).records == kept.records
