"""What the records of a user say; where they leave a doubt, that is said and no number."""

from __future__ import annotations

from types import SimpleNamespace

from streams.config import Config
from streams.local.server_process import free_ports
from streams.records import DELTA, OdometerRecord, encode, odometer_key
from streams.web.links import Claims
from streams.web.owner import Owners
from streams.web.reading import Account, Point, RecordReader, _account_of, _Found, _found_in
from tests.waiting import eventually

KEY = odometer_key("d", "ada")


def record(offset: int, bound: float, key: bytes = KEY) -> SimpleNamespace:
    odometer = OdometerRecord(dataset="d", user="ada", partition=0, offset=offset, bound=[bound])
    return SimpleNamespace(key=key, value=encode(odometer), timestamp=1000 * offset)


def point(offset: int, bound: float) -> Point:
    return Point(offset, float(offset), (bound,), None)


def account(read: list[_Found], places: int | None = None) -> Account:
    """Of records at the last of so many places; of as many as there are."""
    count = len(read) if places is None else places
    found = {count - len(read) + at: one for at, one in enumerate(read)}
    return _account_of(KEY, range(count), found)


def test_odometers_come_in_the_order_of_the_log_and_once() -> None:
    read = [_found_in(record(*one), True) for one in ((5, 0.5), (2, 0.25), (5, 0.5))]
    assert account(read) == Account((point(2, 0.25), point(5, 0.5)))


def test_nothing_is_left_of_a_user_who_was_erased() -> None:
    tombstone = SimpleNamespace(key=KEY, value=None, timestamp=0)
    read = [_found_in(record(2, 0.25), True), _found_in(tombstone, True)]
    assert account(read) == Account(is_erased=True)


def test_a_record_that_nobody_signed_is_passed_over_and_leaves_a_doubt_alone() -> None:
    forged, true = _found_in(record(9, 0.01), False), _found_in(record(5, 0.5), True)
    assert account([true, forged]) == Account((point(5, 0.5),))
    tombstone = _found_in(SimpleNamespace(key=KEY, value=None, timestamp=0), False)
    unreadable = _found_in(SimpleNamespace(key=KEY, value=b"\xc1", timestamp=0), True)
    for read in ([forged], [tombstone], [unreadable]):
        assert account(read) == Account(is_doubtful=True)


def test_where_a_newer_one_may_have_been_passed_by_there_is_a_doubt() -> None:
    old, forged = _found_in(record(2, 0.25), True), _found_in(record(9, 0.01), False)
    assert account([old], places=9).points == (point(2, 0.25),)  # the last one among many
    assert account([old, forged], places=9).is_doubtful
    assert _account_of(KEY, [0, 1], {0: old}).is_doubtful  # the last one is gone
    assert _account_of(KEY, [0], {}).is_doubtful


def test_records_of_users_with_the_same_hash_are_not_the_own() -> None:
    other = _found_in(record(5, 0.01, odometer_key("d", "eve")), True)
    assert account([other, _found_in(record(2, 0.25), True)]).points == (point(2, 0.25),)
    assert account([other]).is_doubtful


def test_a_user_is_told_that_kafka_does_not_answer_while_nothing_was_read_yet() -> None:
    reader = RecordReader(Config(kafka=f"127.0.0.1:{free_ports(1)[0]}", timeout=0.1), most=1024)
    reader.start()
    try:
        eventually(lambda: reader.is_away)
        seen = Owners(reader, DELTA).content(Claims.new(user="ada", ends=2**33))
    finally:
        reader.close()
    assert (seen["state"], seen["is_away"], seen["answered"]) == ("reading", True, None)
