"""Each user sees their own records once each: all of them, or none."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from streams.config import Config
from streams.ledger.outputs import Channel
from streams.ledger.parts import part_of
from streams.local.server_process import free_ports
from streams.records import (
    DELTA,
    TOO_SOON,
    Decision,
    Halted,
    OdometerRecord,
    User,
    encode,
    odometer_key,
)
from streams.records.packing import pack_bits
from streams.records.users import UserIds
from streams.web.links import Claims
from streams.web.owner import Owners
from streams.web.record_reader import RecordReader
from streams.web.user_records import MOST_POINTS, Account, Episode, RecordDatabase
from tests.waiting import eventually


@pytest.fixture
def database() -> Iterator[RecordDatabase]:
    with closing(RecordDatabase()) as database:
        database.done = 1.0
        yield database


def record(key: bytes | None, value: bytes | None, at: float = 0.0) -> SimpleNamespace:
    return SimpleNamespace(key=key, value=value, timestamp=1000 * at, partition=0)


def odometer(offset: int, bound: float, user: User = "ada", dataset: str = "d") -> SimpleNamespace:
    written = OdometerRecord(
        dataset=dataset, user=user, partition=0, offset=offset, bound=[bound, 1.0], order=4.0
    )
    return record(odometer_key(dataset, user), encode(written), offset)


def erasure(user: User = "ada", dataset: str = "d") -> SimpleNamespace:
    return record(odometer_key(dataset, user), None)


def add(database: RecordDatabase, *records: Any, believed: Iterable[Any] | None = None) -> None:
    """Add records of the topic odometer; all are authentic unless some are named."""
    database.add(
        Channel.ODOMETER,
        records,
        lambda one: believed is None or any(one is other for other in believed),
    )


def account(database: RecordDatabase, user: User = "ada", dataset: str = "d") -> Account:
    own = database.of(user)
    assert own is not None
    return own.accounts.get(dataset, Account())


def test_odometer_records_are_in_the_order_of_the_log_and_once(database: RecordDatabase) -> None:
    add(database, odometer(5, 0.5), odometer(2, 0.25), odometer(5, 0.5), odometer(7, 0.1, "eve"))
    points = account(database).points
    assert points == ((2, 2.0, (0.25, 1.0), 4.0), (5, 5.0, (0.5, 1.0), 4.0))


USERS = st.one_of(st.integers(-(2**63), 2**63 - 1), st.sampled_from(["1", "ada", "ÿ"]))


@given(st.lists(st.tuples(st.sampled_from("abc"), USERS), max_size=60))
def test_each_user_gets_exactly_the_own_records(names: list[tuple[str, User]]) -> None:
    with closing(RecordDatabase()) as database:
        database.done = 1.0
        add(database, *(odometer(at, 0.1, user, name) for at, (name, user) in enumerate(names)))
        for dataset, user in [*names, ("a", 0), ("a", "0")]:
            wanted = [
                at
                for at, (name, other) in enumerate(names)
                if (name, other, type(other)) == (dataset, user, type(user))
            ]
            assert [point.offset for point in account(database, user, dataset).points] == wanted


def test_an_erased_user_has_no_points(database: RecordDatabase) -> None:
    add(database, odometer(2, 0.25), erasure(), odometer(3, 0.25, dataset="other"))
    assert account(database) == Account(is_erased=True)
    assert account(database, dataset="other").points


def test_a_bound_without_a_valid_record_is_unknown(database: RecordDatabase) -> None:
    true, forged, forged_erasure = odometer(5, 0.5), odometer(9, 0.01), erasure()
    add(database, true, forged, forged_erasure, believed=[true])
    assert [point.offset for point in account(database).points] == [5]
    unreadable = record(odometer_key("d", "eve"), b"\xc1")
    unusable = record(b"no key", b""), record(None, b""), odometer(2**63, 0.01, "liz")
    add(database, unreadable, *unusable)
    add(database, record(odometer_key("d", 2**63), b""))
    add(database, odometer(9, 0.01, "bob"), erasure("tom"), believed=[])
    for user in ("eve", "bob", "tom", "liz"):
        assert account(database, user) == Account(is_doubtful=True)


def test_many_points_are_thinned_and_the_newest_one_stays(database: RecordDatabase) -> None:
    add(database, *(odometer(at, at / 500) for at in range(500)))
    offsets = [point.offset for point in account(database).points]
    assert len(offsets) <= MOST_POINTS
    assert offsets == sorted(set(offsets))
    assert offsets[-1] == 499
    assert offsets[0] < 500 / MOST_POINTS


def test_nothing_is_shown_until_everything_was_read(database: RecordDatabase) -> None:
    add(database, odometer(1, 0.1))
    database.done = 0.999
    assert database.of("ada") is None
    database.clear()
    assert database.of("ada") is None
    database.done = 1.0
    assert account(database) == Account()


COMMON: dict[str, Any] = {"dataset": "d", "attempt": 1, "partition": 0, "budgets": ["d"]}


def decided(step: int, halted: list[User], exhausted: Sequence[User] = ()) -> Decision:
    """One step of partition 0, of these users and one who is admitted."""
    users = [*halted, 10**6]
    return Decision(
        **COMMON,
        run="r",
        step=step,
        offset=step,
        digest=b"",
        users=len(users),
        admitted=pack_bits(np.array([user == 10**6 for user in users])),
        exhausted=pack_bits(np.array([user in exhausted for user in users])),
        halted=UserIds(np.array(halted, dtype=np.int64)).pack(),
        reasons=bytes(len(halted)),
    )


def halt(database: RecordDatabase, answer: Decision | Halted, at: float = 0.0) -> None:
    database.add(Channel.HALTS, [record(None, encode(answer), at)], lambda _: True)


def episodes(database: RecordDatabase, user: User) -> list[Episode]:
    own = database.of(user)
    assert own is not None
    return own.episodes


def test_halts_have_their_number_and_their_first_and_last_step(database: RecordDatabase) -> None:
    for step, halted in enumerate([[3], [1, 3], [], [3, 2], [1]]):
        halt(database, decided(step, list(halted), [3] if step == 3 else []), 100.0 + step)
    (three,), (one,) = episodes(database, 3), episodes(database, 1)
    assert three == Episode("d", "r", 0, 3, 100.0, 103.0, 3, False, "budget", True, "d")
    assert one == Episode("d", "r", 1, 4, 101.0, 104.0, 2, False, "budget", False, "d")
    assert episodes(database, 4) == episodes(database, "3") == []
    assert database.halts_since == 100.0


def test_a_record_that_is_published_again_counts_once(database: RecordDatabase) -> None:
    for step in (0, 1, 0, 1, 1, 2):
        halt(database, decided(step, [7]), float(step))
    (episode,) = episodes(database, 7)
    assert (episode.times, episode.last) == (3, 2)


def test_forged_and_unreadable_halts_are_skipped(database: RecordDatabase) -> None:
    forged = record(None, encode(decided(0, [7])))
    database.add(Channel.HALTS, [forged], lambda _: False)
    database.add(Channel.HALTS, [record(None, b"\xc1"), record(None, None)], lambda _: True)
    halt(database, decided(2**63, [7]))
    assert episodes(database, 7) == []


def test_members_of_a_roster_are_left_out_from_a_step_on(database: RecordDatabase) -> None:
    for part, user in enumerate((5, 6)):
        users = UserIds(np.array([user])).pack()
        place = {"run": "r", "step": 9, "offset": 9, "part": part, "parts": 2}
        halt(database, Halted(**COMMON, **place, users=users, exhausted=b"\0", reasons=b"\0"))
    for user in (5, 6):
        (episode,) = episodes(database, user)
        assert (episode.is_roster, episode.last) == (True, 9)


def test_each_part_of_a_decision_has_its_halts(database: RecordDatabase) -> None:
    whole = decided(0, [5, 6, 7])
    for part in range(2):
        some = part_of(whole, 2 * part, 2 * part + 2)
        halt(database, replace(some, part=part, parts=2))
    assert [len(episodes(database, user)) for user in (5, 6, 7)] == [1, 1, 1]


def test_a_halt_has_its_reason_and_the_budget_that_refused(database: RecordDatabase) -> None:
    plain = decided(0, [1, 2])
    halt(database, replace(plain, budgets=["d", "person"], reasons=b"\1\0"))
    assert [episodes(database, user)[0].refused_by for user in (1, 2)] == ["person", "d"]
    halt(database, replace(plain, step=1, reasons=bytes([TOO_SOON, 0])))
    (first,), (second,) = episodes(database, 1), episodes(database, 2)
    assert (first.reason, first.refused_by) == ("too-soon", None)
    assert (second.reason, second.refused_by) == ("budget", "d")


def test_no_halt_is_missing_after_each_partition_has_begun(database: RecordDatabase) -> None:
    for partition, at in ((0, 100.0), (1, 300.0), (2, 200.0), (0, 400.0)):
        one = record(None, encode(decided(int(at), [3])), at)
        one.partition = partition
        database.add(Channel.HALTS, [one], lambda _: True)
    assert database.halts_since == 300.0


def test_a_user_learns_that_kafka_does_not_answer() -> None:
    config = Config(kafka=f"127.0.0.1:{free_ports(1)[0]}", timeout=0.1)
    with closing(RecordReader(config)) as reader:
        reader.start()
        eventually(lambda: reader.is_away)
        seen = Owners(reader, DELTA).content(Claims.new(user="ada", ends=2**33))
    assert (seen["state"], seen["is_away"], seen["as_of"]) == ("reading", True, None)
