"""Pseudonyms: ids never reach the log, and nobody is somebody else under another key."""

import hashlib
import sys
from threading import Thread

import numpy as np
import pytest

from streams.records import Charge, Enrol, decode_request
from streams.records.users import UserIds
from streams.sdk.client import Turnstile
from streams.sdk.errors import InvalidRequest, PolicyChanged, RequestRejected
from streams.sdk.memory_connection import MemoryConnection
from streams.sdk.step_layout import Pseudonyms

KEY, OTHER_KEY = "0123456789abcdef", b"another key, of which nobody knows"
# None of them is written in the digits of a token.
NAMES = ["lovelace", "grace", "mary", "emmy", "sofia"]


class Recorded(MemoryConnection):
    """A connection that keeps what is sent."""

    def __init__(self):
        super().__init__(3, 5.0)
        self.sent = []

    def _publish(self, requests, waiting):
        self.sent += requests.values()
        super()._publish(requests, waiting)


def opened(connection, key=KEY, dataset="d", run="r", **policy):
    turnstile = Turnstile(connection=connection, pseudonym_key=key)
    turnstile.create_dataset(dataset, **({"measure": "zcdp", "budget": 1.0} | policy))
    return turnstile, turnstile.run(dataset, run)


def test_pseudonym_begins_a_keyed_hash_of_the_id():
    made = Pseudonyms(KEY).of(UserIds(["lovelace", "42"]))
    for user, pseudonym in zip(["lovelace", "42"], made.tolist(), strict=True):
        digest = hashlib.blake2b(
            user.encode(), digest_size=8, key=KEY.encode(), person=b"dp-turnstile 1"
        ).digest()
        assert pseudonym == int.from_bytes(digest, "big", signed=True)


@pytest.mark.parametrize("same", [(1, "1"), (-7, "-7"), ("\u00e9", "e\u0301"), (np.int64(3), "3")])
def test_spellings_of_one_id_are_one_user(same):
    one, other = (Pseudonyms(KEY).of_user(user) for user in same)
    assert one == other


def test_log_contains_no_id():
    connection = Recorded()
    turnstile, run = opened(connection)
    decision = run.charge(NAMES, [0.1, 0.1, 9.0, 0.1, 9.0], noise_stddev=1.0)
    assert decision.halted.tolist() == [False, False, True, False, True]
    log = b"".join(connection.sent)
    assert not any(name.encode() in log for name in NAMES)
    charged = [decode_request(record) for record in connection.sent]
    users = [
        user
        for charge in charged
        if isinstance(charge, Charge)
        for user in UserIds.unpack(charge.users).tolist()
    ]
    assert sorted(users) == sorted(Pseudonyms(KEY).of(UserIds(NAMES)).tolist())
    assert [halt.user for halt in turnstile.halts(follow=False)] in (
        ["mary", "sofia"],
        ["sofia", "mary"],
    )
    assert {c.user for c in turnstile.odometer(follow=False)} <= set(NAMES)


def test_a_roster_has_pseudonyms_too():
    connection = Recorded()
    turnstile, run = opened(connection, measure="renyi", epsilon=2.0, delta=1e-6, budget=None)
    roster = run.enrol(NAMES, clip_norm=1.0)
    roster.charge(noise_stddev=1.0, sampling_rate=0.5)
    enrolled = [r for r in map(decode_request, connection.sent) if isinstance(r, Enrol)]
    users = [user for record in enrolled for user in UserIds.unpack(record.users).tolist()]
    assert sorted(users) == sorted(Pseudonyms(KEY).of(UserIds(NAMES)).tolist())
    for user in NAMES:
        for odometer in turnstile.odometer(user=user, follow=False):
            assert odometer.user == user


@pytest.mark.parametrize(("first", "key"), [(KEY, None), (KEY, OTHER_KEY), (None, KEY)])
def test_another_key_cannot_charge_a_dataset(first, key):
    connection = Recorded()
    opened(connection, first)
    turnstile = Turnstile(connection=connection, pseudonym_key=key)
    with pytest.raises(InvalidRequest):
        turnstile.run("d", "r")
    with pytest.raises(PolicyChanged):
        turnstile.create_dataset("d", measure="zcdp", budget=1.0)


def test_a_budget_over_several_datasets_has_one_key():
    connection = Recorded()
    _, outer = opened(connection, dataset="person")
    outer.close()
    inner, run = opened(connection, dataset="inner", parents="person")
    run.charge(NAMES, np.ones(5), noise_stddev=2.0)
    assert (
        inner.run("inner", "r", take_over=True).outer[0].pseudonyms == Pseudonyms(KEY).fingerprint
    )
    other = Turnstile(connection=connection, pseudonym_key=OTHER_KEY)
    with pytest.raises(RequestRejected):
        other.create_dataset("elsewhere", measure="zcdp", budget=1.0, parents="person")


def test_equal_pseudonyms_in_one_step_are_rejected(monkeypatch):
    _, run = opened(Recorded())
    with pytest.raises(InvalidRequest):
        run.charge([1, "2", "1"], [1.0, 1.0, 1.0], noise_stddev=1.0)
    monkeypatch.setattr(Pseudonyms, "_digest", lambda self, user: bytes(8))
    with pytest.raises(InvalidRequest):
        run.charge(["lovelace", "grace"], [1.0, 1.0], noise_stddev=1.0)


@pytest.mark.parametrize("key", ["short", "x" * 65])
def test_key_of_invalid_length_is_rejected(key):
    with pytest.raises(InvalidRequest):
        Turnstile.in_memory(pseudonym_key=key)


def test_ids_of_many_pseudonyms_are_found():
    pseudonyms = Pseudonyms(KEY)
    made = [pseudonyms.of(UserIds(range(start, start + 50_000))) for start in (0, 25_000, 0)]
    assert pseudonyms.user_of(int(made[1][-1])) == 74999
    assert [pseudonyms.user_of(int(p)) for p in made[0][:3]] == [0, 1, 2]
    assert pseudonyms.user_of(12345) == 12345
    assert pseudonyms.user_of("a name") == "a name"


@pytest.mark.slow
def test_threads_that_charge_do_not_change_the_ids_of_halts() -> None:
    """A HALT of one user must not carry the id of another while pseudonyms are being made."""
    pseudonyms = Pseudonyms(KEY)
    wrong: list[object] = []

    def follow() -> None:
        known = {name: pseudonyms.of_user(name) for name in NAMES}
        while len(done) < 2:
            wrong.extend(name for name, made in known.items() if pseudonyms.user_of(made) != name)

    def charge(number: int) -> None:
        for step in range(150):
            pseudonyms.of(UserIds(range(20 * (2 * step + number), 20 * (2 * step + number + 1))))
            pseudonyms.user_of(0)
        done.append(number)

    done: list[int] = []
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [Thread(target=follow), *(Thread(target=charge, args=(k,)) for k in range(2))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert wrong == []
    users = range(6000)
    assert [pseudonyms.user_of(made) for made in Pseudonyms(KEY).of(UserIds(users)).tolist()] == [
        *users
    ]
