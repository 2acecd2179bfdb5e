"""A replay of another log than the one that was applied has no result."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from streams.replay.archive import BrokenLog, HeadSource, MissingRecord, StoredHead
from streams.replay.explain import explain
from streams.replay.findings import Check
from streams.replay.log_replay import HeadMismatch, LogReplay, compared_at
from streams.replay.report import report
from streams.replay.verify import verify
from tests.unit.replay.cli import command_on
from tests.unit.replay.service import Archived, new_service

USER = 3
REPLAYS: dict[str, Callable[[Archived], Any]] = {
    "explain": lambda archived: explain(archived, USER, delta=1e-5),
    "report": lambda archived: report(archived, delta=1e-5),
}
COMMANDS = {"explain": ("explain", "--user", str(USER)), "report": ("report",)}
OTHER = bytes(32)


@pytest.fixture
def archived() -> Archived:
    """One partition, charged three times; its snapshot is of the time before the third."""
    archived, turnstile = new_service(1)
    turnstile.create_dataset("d", measure="zcdp", budget=1.0)
    run = turnstile.run("d", "r")
    for step in range(3):
        if step == 2:
            archived.draw(0)
        run.charge([1, 2, USER], [0.5] * 3, noise_stddev=4.0)
    return archived


def without_redis(archived: Archived) -> Archived:
    """The same to readers that do not reach Redis."""
    heads = archived.heads
    silent = StoredHead(0, HeadSource.REDIS, lacking="it does not answer")
    archived.heads = lambda partition: [silent, *heads(partition)[1:]]
    return archived


def charge_less(archived: Archived) -> None:
    archived.change("norms", "charge", norms=bytes(24), step=2)


def change_before_the_snapshot(archived: Archived) -> None:
    archived.topics["norms", 0][0] = archived.topics["norms", 0][0]._replace(value=b"other")


def lose_the_end(archived: Archived) -> None:
    archived.topics["norms", 0].pop()


TAMPERED = {
    "a record that was changed": (charge_less, HeadSource.REDIS, 5),
    "a record before the snapshot": (change_before_the_snapshot, HeadSource.SNAPSHOT, 4),
    "a log that lost its end": (lose_the_end, HeadSource.REDIS, 5),
    "another head in Redis": (
        lambda archived: archived.kept[0].fields.update(head=OTHER.hex()),
        HeadSource.REDIS,
        5,
    ),
}


@pytest.mark.parametrize("replay", REPLAYS.values(), ids=REPLAYS)
@pytest.mark.parametrize(("tamper", "holder", "offset"), TAMPERED.values(), ids=TAMPERED)
def test_other_log_has_no_result(
    archived: Archived,
    tamper: Callable[[Archived], object],
    holder: HeadSource,
    offset: int,
    replay: Callable[[Archived], Any],
) -> None:
    tamper(archived)
    with pytest.raises(HeadMismatch) as mismatch:
        replay(archived)
    stored = mismatch.value.stored
    assert (stored.partition, stored.holder, stored.next) == (0, holder, offset)
    assert stored.head != mismatch.value.found


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_commands_show_the_compared_log_only(archived: Archived, command: tuple[str, ...]) -> None:
    archived.append("norms", 0, b"not applied yet", None)
    done = command_on(archived, *command, "--json")
    assert done.code == 0
    compared = [line["compared"] for line in done.lines]
    assert compared == [{"redis": 5, "snapshot": 4}] * 3
    archived.topics["norms", 0].pop()
    charge_less(archived)
    for form in ((), ("--json",)):
        done = command_on(archived, *command, *form)
        assert (done.code, done.out) == (1, "")


def test_verification_of_another_log_has_one_finding(archived: Archived) -> None:
    charge_less(archived)
    verified = verify(archived)
    assert not verified.fits
    (finding,) = verified.findings
    assert (finding.check, finding.offset) == (Check.STATE, 5)
    assert finding.expected == archived.kept[0].fields["head"]
    assert command_on(archived, "verify").code == 1


def test_heads_of_redis_and_snapshot_are_compared(archived: Archived) -> None:
    replay = LogReplay(without_redis(archived), 0)
    list(replay.steps())
    assert compared_at(replay.heads) == {"redis": None, "snapshot": 4}
    done = command_on(archived, *COMMANDS["explain"], "--json")
    assert (done.code, done.lines[0]["compared"]) == (0, {"redis": None, "snapshot": 4})
    change_before_the_snapshot(archived)
    with pytest.raises(HeadMismatch):
        list(LogReplay(archived, 0).steps())


def test_snapshot_at_the_start_is_not_compared(archived: Archived) -> None:
    archived.trim("norms", 0, 4)
    replay = LogReplay(archived, 0)
    list(replay.steps())
    assert (replay.began, compared_at(replay.heads)) == (4, {"redis": 5, "snapshot": None})


def test_snapshot_of_another_log_is_found(archived: Archived) -> None:
    other, _ = new_service(1, b"another topic id")
    other.apply(0, b"a record")
    other.draw(0)
    archived.topics["snapshots", 0] = other.topics["snapshots", 0]
    verified = verify(archived)
    (finding,) = verified.findings
    assert finding.check is Check.SNAPSHOT
    assert [part.state_at for part in verified.partitions] == [5]


@pytest.mark.parametrize("fields", [{"before": OTHER.hex()}, {"last": "3"}])
def test_state_with_another_last_record_is_found(
    archived: Archived, fields: dict[str, str]
) -> None:
    archived.kept[0].fields.update(fields)
    (finding,) = verify(archived).findings
    assert (finding.check, finding.offset) == (Check.STATE, 5)


@pytest.mark.parametrize("replay", REPLAYS.values(), ids=REPLAYS)
def test_log_with_a_gap_has_no_result(
    archived: Archived, replay: Callable[[Archived], Any]
) -> None:
    del archived.topics["norms", 0][3]
    with pytest.raises(BrokenLog):
        replay(archived)
    (finding,) = verify(archived).findings
    assert finding.check is Check.LOG
    with pytest.raises(MissingRecord) as missing:
        list(LogReplay(without_redis(archived), 0).steps())
    assert (missing.value.partition, missing.value.offset) == (0, 3)


def test_trimmed_log_needs_the_erasure_keys() -> None:
    archived, turnstile = new_service(1, erasure_keys="a secret of some length")
    turnstile.create_dataset("d", measure="zcdp", budget=1.0)
    turnstile.run("d", "r").charge([7, 8], [1.0, 1.0], noise_stddev=4.0)
    turnstile.erase(7)
    archived.draw(0)
    archived.trim("norms", 0, archived.kept[0].next - 1)
    replay = LogReplay(archived, 0)
    assert replay.began == archived.kept[0].next
    assert replay.cut_off is None
