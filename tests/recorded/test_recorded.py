"""Recorded logs are applied as they were, bit for bit."""

from itertools import chain

import msgspec
import pytest
from msgspec import UNSET

from streams.ledger.ledger import Channel, Ledger
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
from tests.recorded.record import (
    HERE,
    SEEDS,
    Recording,
    random_log,
    recording_of,
    with_parts_of,
)
from tests.unit.ledger.ledgers import Log

TYPES = {
    *("dataset-created", "dataset-withdrawn", "dataset-closed", "access-set", "erased", "rejected"),
    *("run-opened", "run-closed", "decision", "odometer", "enrolled", "roster-decision", "halted"),
}
REJECTED = {
    *(Reason.MALFORMED, Reason.UNSUPPORTED_VERSION, Reason.INVALID_MECHANISM, Reason.MIXED_USERS),
    *(Reason.DATASET_IN_USE, Reason.DATASET_CLOSED, Reason.BUDGET_HELD, Reason.RUN_CLOSED),
    *(Reason.OLDER_ATTEMPT, Reason.SEPARATION_CHANGED, Reason.STEP_CONTENT_CHANGED),
    *(Reason.STEP_OUT_OF_ORDER, Reason.ROSTER_CHANGED, Reason.INVALID_COST_TABLE),
    *(Reason.NO_ROSTERS, Reason.NOT_ALLOWED, Reason.SUPERSEDED, Reason.STEP_DECIDED),
    *(Reason.NORM_CHANGED, Reason.WRONG_PARTITION),
}


def recording(seed: int) -> Recording:
    return msgspec.msgpack.decode((HERE / f"{seed}.msgpack").read_bytes(), type=Recording)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_recorded_log_is_applied_as_it_was(seed):
    kept = recording(seed)
    log = Log(kept.partitions, kept.partition)
    with with_parts_of(kept.part_bytes):
        for record in kept.records:
            log.send(record)
        found = recording_of(log)
    # A release may write other deltas, but has to read these; see the next test.
    found.stored.deltas = kept.stored.deltas
    assert found == kept


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_recorded_state_decides_the_rest_as_it_did(seed):
    kept = recording(seed)
    log = Log(kept.partitions, kept.partition)
    with with_parts_of(kept.part_bytes):
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


def test_recordings_hold_every_kind_of_record():
    types, rejected, halted, parts = set(), set(), set(), set()
    for output in chain.from_iterable(chain(*(recording(seed).outputs for seed in SEEDS))):
        if tombstone_offset(output.value) is not None:
            continue
        types.add(msgspec.msgpack.decode(output.value)["type"])
        if output.channel is Channel.REJECTS:
            rejected.add(msgspec.msgpack.decode(output.value, type=Rejected).reason)
        elif output.channel is Channel.HALTS:
            answer = decode_answer(output.value)
            halted |= {*answer.reasons} if isinstance(answer, Decision | Halted) else set()
            if isinstance(answer, Decision) and answer.collected:
                parts.add(answer.part)
    assert types >= TYPES
    assert rejected >= REJECTED
    assert halted >= {0, 1, TOO_SOON, ERASED}
    assert parts >= {UNSET, 0, 1}


def test_a_log_can_still_be_recorded_as_it_was():
    assert random_log(0).records == recording(0).records
