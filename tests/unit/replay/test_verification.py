"""Verification finds every difference from the replayed log, and nothing else."""

from __future__ import annotations

import copy
from typing import Any

import msgspec
import numpy as np
import pytest

from accounting import Gaussian, PoissonGaussian
from streams import Turnstile
from streams.ledger.accounts import AccountDelta
from streams.ledger.columns import RowDelta
from streams.ledger.ledger import Delta, Ledger
from streams.records import ChargeRoster, Holder, decode_request, encode
from streams.replay.findings import Check, LogFinding, Verified
from streams.replay.log_replay import LogReplay
from streams.replay.receipts import Head, Receipt
from streams.replay.verify import verify
from streams.sdk.arguments import price
from streams.store.layout import pack_change
from tests.recorded.record import HERE, Recording
from tests.spending import spent_units
from tests.unit.replay.service import TOPIC, Archived, Tamper, new_service, used


@pytest.fixture(scope="module")
def _used() -> Archived:
    return used()


@pytest.fixture
def archived(_used: Archived) -> Archived:
    """A service that has been used, whose topics and state a test may tamper with."""
    fresh = copy.copy(_used)
    fresh.topics = {place: list(records) for place, records in _used.topics.items()}
    fresh.starts, fresh.kept = {}, copy.deepcopy(_used.kept)
    return fresh


def verified(archived: Archived, **options: Any) -> Verified:
    return verify(archived, **options)


def only(archived: Archived, **options: Any) -> LogFinding:
    (finding,) = verified(archived, **options).findings
    return finding


def test_untouched_service_fits(archived: Archived) -> None:
    ends: list[tuple[int, int]] = []

    def note(replay: LogReplay) -> None:
        ends.append((replay.next, replay.extent.end))

    result = verified(archived, progress=note)
    assert result.fits
    assert not result.findings
    assert all(part.state_at == part.next for part in result.partitions)
    assert sum(part.users for part in result.partitions) == 3 * 40
    assert all(part.answers and part.rejects and part.odometers for part in result.partitions)
    assert {part.cost_tables for part in result.partitions} == {6 + 5}
    # A slow verification reports in between, too.
    assert {(part.next, part.next) for part in result.partitions} <= set(ends)


def copied(archived: Archived, kind: str, key: bytes, **fields: Any) -> None:
    """Append a copy of the last HALT record of a kind, with other fields, under a key."""
    content, _ = archived.change("halts", kind)
    archived.append("halts", 0, msgspec.msgpack.encode({**content, **fields}), key)


def rekeyed(archived: Archived) -> None:
    records = archived.topics["halts", 0]
    records[-3] = records[-3]._replace(key=b"elsewhere")


HELD = {"hold:d": encode(Holder(dataset="d", run="forged"))}
BOTH, LOST, FOREIGN, NEITHER = (True, True), (True, False), (False, True), (False, False)
FORGERIES: dict[str, tuple[str, tuple[bool, bool], Tamper, dict[str, Any]]] = {
    # the check that finds it, whether it has an expected and a found value, the change, about what
    "a decision that admits another user": (
        *("halts", BOTH, lambda a: a.change("halts", "decision", admitted=b"\xff" * 3)),
        {"run": "names", "step": 0},
    ),
    "a second decision beside the first": (
        *("halts", BOTH, lambda a: copied(a, "roster-decision", b"n", regranted=bytes(5))),
        {"run": "n"},
    ),
    "a decision lost": (
        *("halts", LOST, lambda a: a.drop("halts", "roster-decision")),
        {"run": "n", "step": 4},
    ),
    "a HALT lost": ("halts", LOST, lambda a: a.drop("halts", "halted"), {"run": "n"}),
    "a decision under another key": ("halts", BOTH, rekeyed, {"run": "names"}),
    "a decision of a run that never was": (
        *("halts", FOREIGN, lambda a: copied(a, "decision", b"forged", run="forged")),
        {"run": "forged"},
    ),
    "bytes that no worker can have written": (
        *("halts", FOREIGN, lambda a: a.append("halts", 0, b"\xc1", b"r")),
        {},
    ),
    "a reject for another reason": (
        *("rejects", BOTH, lambda a: a.change("rejects", "rejected", reason="too-large")),
        {},
    ),
    "a reject lost": ("rejects", LOST, lambda a: a.drop("rejects", "rejected"), {}),
    "an odometer that was lowered": (
        *("odometer", FOREIGN, lambda a: a.change("odometer", "odometer", bound=[0.0])),
        {},
    ),
    "a policy that Redis has changed": (
        *("state", BOTH, lambda a: change_state(a, {"policy:d": policy_of(a)})),
        {"dataset": "d"},
    ),
    "a run that Redis has set back": (
        *("state", LOST, lambda a: change_state(a, {"run:d/r": b"\xc0"})),
        {"dataset": "d", "run": "r"},
    ),
    "a budget that Redis has another run hold": (
        *("state", FOREIGN, lambda a: change_state(a, HELD)),
        {"dataset": "d"},
    ),
    "a unit less spent": ("state", BOTH, lambda a: spend(a, -1), {"dataset": "d"}),
    "a unit more spent": ("state", BOTH, lambda a: spend(a, 1), {"dataset": "d"}),
    "another head": ("state", BOTH, lambda a: a.kept[0].fields.update(head="00" * 32), {}),
    "another topic": ("state", BOTH, lambda a: a.kept[0].fields.update(topic="00" * 16), {}),
    "a change that is gone": ("state", NEITHER, lambda a: a.kept[0].changes.pop(1), {}),
    "a state beyond the log": ("state", BOTH, lambda a: a.topics["norms", 0].pop(), {}),
}


def change_state(archived: Archived, entries: dict[str, bytes], *rows: AccountDelta) -> None:
    """Set entries of what Redis has of partition 0, as a change that came with its last batch."""
    kept = archived.kept[0]
    last = kept.next - 1
    raw = {name: msgspec.Raw(packed) for name, packed in entries.items()}
    kept.changes[-1:] = pack_change(last, kept.next, encode(Delta(raw, list(rows))))


def policy_of(archived: Archived) -> bytes:
    policy = archived.ledgers[0].state.policies["d",]
    return encode(msgspec.structs.replace(policy, budget=[2 * policy.budget[0]]))


def spend(archived: Archived, units: int) -> None:
    accounts = archived.ledgers[0].state.datasets["d"]
    spent = spent_units(accounts)[1][:1] + units
    row = RowDelta(bytes(4), {"spent": spent.astype("<i8").tobytes()})
    change_state(archived, {}, AccountDelta("d", b"", len(accounts), [row]))


@pytest.mark.parametrize(("check", "given", "tamper", "about"), FORGERIES.values(), ids=FORGERIES)
def test_forgery_is_found(
    archived: Archived, check: str, given: tuple[bool, bool], tamper: Tamper, about: dict[str, Any]
) -> None:
    tamper(archived)
    result = verified(archived)
    assert not result.fits
    assert any(
        finding.check == check
        and given == (finding.expected is not None, finding.found is not None)
        and about.items() <= finding.about.items()
        for finding in result.findings
    ), result.findings
    assert {finding.partition for finding in result.findings} == {0}


def test_changed_decision_shows_expected_and_found_fields(archived: Archived) -> None:
    before, after = archived.change("halts", "decision", exhausted=b"\xff", partition=1)
    finding = only(archived)
    assert (finding.partition, finding.offset) == (1, before["offset"])
    assert finding.expected == {"exhausted": before["exhausted"]}
    assert finding.found == {"exhausted": after["exhausted"]}


def test_older_odometer_record_written_last_is_found(archived: Archived) -> None:
    """As compaction leaves it when a worker that was paused has written last."""
    records = archived.topics["odometer", 0]
    keys = [record.key for record in records]
    key = next(key for key in reversed(keys) if keys.count(key) > 1)
    *_, older, newest = (number for number, other in enumerate(keys) if other == key)
    dataset, user = msgspec.json.decode(key)
    del records[newest]
    finding = only(archived)
    assert (finding.check, finding.about) == (Check.ODOMETER, {"dataset": dataset, "user": user})
    assert finding.found["offset"] == msgspec.msgpack.decode(records[older].value)["offset"]
    assert finding.expected["bound"] > finding.found["bound"]


def test_compaction_may_leave_only_records_from_after_the_state() -> None:
    archived = used()
    stood = copy.deepcopy(archived.kept)
    before = {key for p in range(2) for key in keys_of(archived, p)}
    later = Turnstile(connection=archived).run("d", "later", take_over=True)
    later.charge(list(range(40)), [1.0] * 40, noise_stddev=4.0)
    archived.kept = stood
    risen = set[bytes | None]()
    for partition in range(2):
        records = archived.topics["odometer", partition]
        newest = {record.key: record for record in records}
        offsets = {k: msgspec.msgpack.decode(r.value)["offset"] for k, r in newest.items()}
        risen |= {key for key, offset in offsets.items() if offset >= stood[partition].next}
        archived.topics["odometer", partition] = sorted(newest.values(), key=lambda r: r.offset)
    assert risen & before
    assert verified(archived).fits


def keys_of(archived: Archived, partition: int) -> list[bytes | None]:
    return [record.key for record in archived.topics["odometer", partition]]


def test_missing_odometer_records_of_a_user_are_found(archived: Archived) -> None:
    records = archived.topics["odometer", 0]
    key = records[0].key
    archived.topics["odometer", 0] = [record for record in records if record.key != key]
    finding = only(archived)
    dataset, user = msgspec.json.decode(key)
    assert finding.about == {"dataset": dataset, "user": user}
    assert finding.found is None


def test_records_published_twice_fit(archived: Archived) -> None:
    for (topic, partition), records in list(archived.topics.items()):
        if topic != "norms":
            for record in records[-7:]:
                archived.append(topic, partition, record.value, record.key)
    assert verified(archived).fits


def test_expired_answers_fit_unless_one_is_missing_in_between(archived: Archived) -> None:
    archived.trim("halts", 0, 12)
    archived.trim("rejects", 0, 1)
    result = verified(archived)
    assert result.fits
    assert result.partitions[0].expired == 12 + 1
    # But not from the middle.
    del archived.topics["halts", 0][5]
    assert [finding.check for finding in verified(archived).findings] == [Check.HALTS]


def test_only_outputs_in_the_outbox_may_be_missing(archived: Archived) -> None:
    archived.publishing = False
    archived.apply(0, b"not published yet")
    result = verified(archived)
    assert result.fits
    assert result.partitions[0].in_outbox == 1
    archived.kept[0].outbox.clear()
    assert [finding.check for finding in verified(archived).findings] == [Check.REJECTS]


def test_running_service_is_compared_at_the_offset_of_its_state(archived: Archived) -> None:
    """The state was read, then came more records, of which some were answered before the ends."""
    stood = copy.deepcopy(archived.kept)
    archived.apply(0, b"later, and answered")
    archived.publishing = False
    archived.apply(0, b"later, and not answered yet")
    archived.kept = stood
    result = verified(archived)
    assert result.fits
    assert [part.state_at for part in result.partitions] == [kept.next for kept in stood]
    assert result.partitions[0].next == stood[0].next + 2


def test_partition_without_state_does_not_fit(archived: Archived) -> None:
    archived.kept[1].fields = {}
    archived.load = lambda p: Archived.load(archived, p) if p == 0 else None
    result = verified(archived)
    assert not result.fits
    assert not result.wrong
    assert len(result.partitions[1].impossible) == 1


def test_trimmed_log_without_snapshot_does_not_fit(archived: Archived) -> None:
    archived.trim("norms", 0, 5)
    result = verified(archived)
    finding, *others = result.findings
    assert (finding.check, finding.offset) == (Check.LOG, 5)
    assert not others
    assert result.partitions[0].impossible
    # Whether Redis goes on in it is still said.
    last = archived.topics["norms", 0][-1]
    archived.topics["norms", 0][-1] = last._replace(value=b"another record")
    assert [f.check for f in verified(archived).findings] == [Check.LOG, Check.STATE]


# --- snapshots ---


@pytest.fixture
def drawn() -> Archived:
    """A service that went on after its snapshots were written."""
    archived = used()
    for partition in range(2):
        archived.draw(partition)
        archived.apply(partition, b"one more record")
    charged(archived, PoissonGaussian(1.1, 0.1), sampling_rate=0.1)
    return archived


def end_of_snapshot(archived: Archived, partition: int) -> int:
    snapshot = archived.snapshot(partition)
    assert snapshot is not None
    return snapshot.manifest.meta.next


def trim_as_far_as_it_goes(archived: Archived, partition: int) -> None:
    """The last record that the snapshot covers stays."""
    archived.trim("norms", partition, end_of_snapshot(archived, partition) - 1)


def test_last_snapshot_is_compared_at_its_offset(drawn: Archived) -> None:
    result = verified(drawn)
    assert result.fits, result.findings
    for partition, part in enumerate(result.partitions):
        assert part.snapshot_at == end_of_snapshot(drawn, partition) < part.next


def test_snapshot_with_another_state_is_found() -> None:
    archived = used()
    spend(archived, -1)
    archived.draw(0)
    checks = [finding.check for finding in verified(archived).findings]
    assert checks == [Check.SNAPSHOT, Check.STATE]


def test_incomplete_snapshot_is_found(drawn: Archived) -> None:
    drawn.topics["snapshots", 1].pop(0)
    (finding,) = verified(drawn).findings
    assert (finding.check, finding.partition) == (Check.SNAPSHOT, 1)


def test_trimmed_log_is_replayed_from_its_snapshot(drawn: Archived) -> None:
    for partition in range(2):
        trim_as_far_as_it_goes(drawn, partition)
    result = verified(drawn)
    assert result.fits, result.findings
    for part, kept in zip(result.partitions, drawn.kept, strict=True):
        assert part.began == end_of_snapshot(drawn, part.partition)
        assert part.snapshot_at == part.began
        assert part.state_at == kept.next
        assert part.head == drawn.ledgers[part.partition].chain.head
    # What came before is not compared, what comes after it is.
    drawn.change("halts", "roster-decision", digest=bytes(16))
    assert [f.check for f in verified(drawn).findings] == [Check.HALTS]


def test_trimmed_log_with_another_last_record_is_found(
    drawn: Archived,
) -> None:
    trim_as_far_as_it_goes(drawn, 0)
    first, *others = drawn.topics["norms", 0]
    drawn.topics["norms", 0] = [first._replace(value=b"another"), *others]
    (finding,) = verified(drawn).findings
    assert finding.check is Check.SNAPSHOT


def test_receipt_from_before_the_snapshot_cannot_be_compared(drawn: Archived) -> None:
    receipt = Receipt(
        prefix="",
        topic=TOPIC.hex(),
        partitions=2,
        heads=[Head(0, 0, Ledger(0, 2, TOPIC).chain.head.hex())],
        policies="",
        time="",
    )
    assert verified(drawn, against=receipt).fits
    trim_as_far_as_it_goes(drawn, 0)
    result = verified(drawn, against=receipt)
    assert not result.fits
    assert len(result.partitions[0].impossible) == 1


def test_state_from_before_the_snapshot_cannot_be_compared() -> None:
    archived = used()
    behind = copy.deepcopy(archived.kept)
    archived.apply(0, b"one more record")
    archived.draw(0)
    trim_as_far_as_it_goes(archived, 0)
    archived.kept = behind
    result = verified(archived)
    assert len(result.partitions[0].impossible) == 1
    assert not result.fits


@pytest.mark.parametrize("wrong", ["too old", "of another log", "incomplete"])
def test_wrong_snapshot_of_a_trimmed_log_is_not_used(wrong: str) -> None:
    archived = used()
    archived.draw(0)
    archived.apply(0, b"one more record")
    archived.apply(0, b"one more record")
    archived.trim("norms", 0, archived.kept[0].next - 1 if wrong == "too old" else 3)
    if wrong == "of another log":
        archived.topic = bytes(16)
    elif wrong == "incomplete":
        archived.topics["snapshots", 0].pop(0)
    result = verified(archived)
    assert Check.LOG in [finding.check for finding in result.findings]
    assert result.partitions[0].records == 0


def test_log_of_another_partition_count_is_not_applied() -> None:
    archived, turnstile = new_service(partitions=1)
    turnstile.create_dataset("d", measure="zcdp", budget=1.0)
    (record,) = archived.topics["norms", 0]
    content = msgspec.msgpack.decode(record.value)
    content["policy"]["partitions"] = 3
    archived.topics["norms", 0] = [record._replace(value=msgspec.msgpack.encode(content))]
    result = verified(archived)
    assert result.findings[0].check is Check.LOG
    assert not result.fits


# --- cost tables ---


def charged(archived: Archived, charged_as: Any, **fields: Any) -> None:
    """A step of run `s` with one mechanism in its fields, and the prices of another one."""
    last = next(
        request
        for record in reversed(archived.topics["norms", 0])
        if isinstance(request := readable(record.value), ChargeRoster) and request.run == "s"
    )
    policies = [archived.ledgers[0].state.policies["faces",]]
    priced = price(charged_as, policies, 1.0, 10)
    step = msgspec.structs.replace(
        last,
        step=last.step + 1,
        units=priced.units,
        cost_table_digest=priced.digest,
        positions=b"",
        levels=b"",
        **fields,
    )
    archived.apply(0, encode(step))


def readable(value: bytes | None) -> object:
    try:
        return decode_request(value)
    except Exception:
        return None


@pytest.mark.parametrize(
    ("charged_as", "said", "is_less"),
    [
        (PoissonGaussian(1.1, 0.1), {"scale": 0.9}, True),
        (PoissonGaussian(1.1, 0.05), {"sampling_rate": 0.1}, True),
        (Gaussian(4.0), {"mechanism": "gaussian", "sampling_rate": 1.0, "scale": 2.0}, True),
        (PoissonGaussian(1.1, 0.2), {"sampling_rate": 0.1}, False),
    ],
)
def test_wrong_cost_table_is_found(charged_as: Any, said: dict[str, Any], is_less: bool) -> None:
    archived = used()
    charged(archived, charged_as, **said)
    finding = only(archived)
    assert finding.check is Check.COST_TABLES
    assert finding.about["run"] == "s"
    assert finding.about["step"] == 6
    assert (finding.found < finding.expected) == is_less


def test_wrong_mechanism_with_the_earlier_cost_table_is_found() -> None:
    """A step that brings no units charges those of the step before, whatever mechanism it names."""
    archived = used()
    charged(archived, PoissonGaussian(1.1, 0.1), sampling_rate=0.1)
    assert verified(archived).fits
    last = decode_request(archived.topics["norms", 0][-1].value)
    assert isinstance(last, ChargeRoster)
    cheaper = msgspec.structs.replace(last, step=last.step + 1, units=b"", scale=0.5)
    archived.apply(0, encode(cheaper))
    finding = only(archived)
    assert (finding.check, finding.about["step"]) == (Check.COST_TABLES, last.step + 1)


# --- looking changes nothing ---


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, id=path.stem, marks=() if path.stem == "0" else pytest.mark.slow)
        for path in sorted(HERE.glob("*.msgpack"))
    ],
)
def test_reading_a_state_does_not_change_it(path: Any) -> None:
    recording = msgspec.msgpack.decode(path.read_bytes(), type=Recording)
    ledgers = [Ledger(recording.partition, recording.partitions) for _ in range(2)]
    for offset, value in enumerate(recording.records):
        outputs = [ledger.apply(offset, value) for ledger in ledgers]
        assert outputs[0] == outputs[1]
        for accounts in ledgers[0].state.datasets.values():
            accounts.numbers(np.arange(len(accounts)))
