"""Verification of signatures, and of odometer records from before a snapshot."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from streams.kafka.authentic import RecordVerifier, record_signer_of
from streams.kafka.batches import FetchedRecord
from streams.records.signatures import Content, TrustStore, new_keys
from streams.replay.archive import ArchivedRecord
from streams.replay.findings import Check, LogFinding
from streams.replay.service import stored
from streams.replay.verify import verify
from tests.unit.kafka.test_authentic import config
from tests.unit.replay.service import Archived, used

PRIVATE, PUBLIC = new_keys()
LOG = b"log of 16 bytes."


# --- odometer records older than a snapshot ---


@pytest.fixture
def trimmed() -> Archived:
    """A service whose log was trimmed as far as its snapshots go; its odometer is from before."""
    archived = used()
    for partition in range(2):
        archived.draw(partition)
        archived.apply(partition, b"one more record")
        snapshot = archived.snapshot(partition)
        assert snapshot is not None
        archived.trim("norms", partition, snapshot.manifest.meta.next - 1)
    return archived


def newest(archived: Archived, partition: int = 0) -> tuple[int, dict[str, Any]]:
    """The place of the last odometer record of a user of dataset d, and what it says."""
    records = archived.topics["odometer", partition]
    for place in reversed(range(len(records))):
        said = msgspec.msgpack.decode(records[place].value or b"")
        if said["dataset"] == "d":
            return place, said
    raise AssertionError("no odometer rose")


def found(archived: Archived) -> list[LogFinding]:
    findings = verify(archived).findings
    assert {finding.check for finding in findings} <= {Check.ODOMETER}
    return findings


def put(archived: Archived, place: int, **fields: Any) -> None:
    records = archived.topics["odometer", 0]
    said = msgspec.msgpack.decode(records[place].value or b"")
    value = msgspec.msgpack.encode({**said, **fields})
    records[place] = records[place]._replace(value=value)


def test_compaction_may_remove_earlier_records_of_a_user(trimmed: Archived) -> None:
    assert found(trimmed) == []
    last = {record.key: record for record in trimmed.topics["odometer", 0]}
    trimmed.topics["odometer", 0] = list(last.values())
    assert found(trimmed) == []


@pytest.mark.parametrize("factor", [0.5, 2.0])
def test_another_bound_than_the_snapshot_implies_is_found(trimmed: Archived, factor: float) -> None:
    place, said = newest(trimmed)
    bound = [said["bound"][0] * factor]
    put(trimmed, place, bound=bound)
    finding, *_ = found(trimmed)
    assert (finding.expected, finding.found["bound"]) == ({"bound": said["bound"]}, bound)


def test_missing_last_record_is_found(trimmed: Archived) -> None:
    place, said = newest(trimmed)
    del trimmed.topics["odometer", 0][place]
    (finding,) = found(trimmed)
    assert finding.about == {"dataset": "d", "user": said["user"]}


def test_record_of_an_unknown_user_is_found(trimmed: Archived) -> None:
    place, said = newest(trimmed)
    record = trimmed.topics["odometer", 0][place]
    value = msgspec.msgpack.encode({**said, "user": 10**9})
    trimmed.topics["odometer", 0].append(record._replace(offset=10**6, key=b"x", value=value))
    (finding,) = found(trimmed)
    assert (finding.about["user"], finding.expected) == (10**9, None)


# --- signatures ---


def from_kafka(key: bytes, value: bytes, headers: Any, topic: str = "t.halts") -> ArchivedRecord:
    record = FetchedRecord(7, 10**12, 0, key, value, headers, 0)
    return stored(topic, 0, record, RecordVerifier(TrustStore(PUBLIC), LOG))


def test_signatures_are_checked_if_keys_are_given() -> None:
    signer = record_signer_of(config(signing_key=PRIVATE), LOG)
    assert signer is not None
    ((*headers,),) = signer.headers("t.halts", 0, [Content(b"k", b"v")])
    good = from_kafka(b"k", b"v", headers)
    assert (good.signed, good.unsigned) == (True, None)
    for wrong in (
        from_kafka(b"k", b"w", headers),
        from_kafka(b"k", b"v", headers, topic="t.rejects"),
    ):
        assert wrong.signed
        assert wrong.unsigned
    bare = from_kafka(b"k", b"v", [])
    assert (bare.signed, bare.unsigned) == (False, None)
    assert stored("t.norms", 0, FetchedRecord(7, 10**12, 0, None, b"v", [], 0), None).signed is None


def test_wrong_signature_is_found_and_missing_one_is_counted() -> None:
    archived = used()
    for (topic, _), records in archived.topics.items():
        if topic in ("halts", "rejects", "odometer"):
            records[:] = [record._replace(signed=True) for record in records]
    halts = archived.topics["halts", 1]
    halts[2] = halts[2]._replace(unsigned="key 00ff has not signed this")
    halts[3] = halts[3]._replace(signed=False)
    verified = verify(archived)
    (finding,) = verified.findings
    assert (finding.check, finding.partition) == (Check.SIGNATURES, 1)
    assert finding.about == {"at": "halts 2"}
    part = verified.partitions[1]
    records = sum(len(archived.topics.get((t, 1), [])) for t in ("halts", "rejects", "odometer"))
    assert (part.signed, part.without_signature) == (records - 2, 1)
