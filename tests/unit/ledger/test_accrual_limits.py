"""A charge writes the accrued charges of its users too, so they are counted before."""

import numpy as np
import pytest

from streams.ledger import accrual_limits, limits
from streams.ledger.accrual_limits import Counted, most_accrued
from streams.ledger.limits import most_written
from streams.schemas import CloseDataset, Decision, Enrolled, Reason, RosterDecision, encode
from tests.audit import auditor_charges
from tests.unit.ledger.ledgers import Log, answer_of, rebuilt
from tests.unit.ledger.roster_logs import RosterLog, prices

LONG = "n" * 126
USERS = 40
IDS = list(range(2**62, 2**62 + USERS))


def renyi(orders: int, **fields) -> dict:
    return {
        "measure": "renyi",
        "orders": [1.5 + number for number in range(orders)],
        "budget": [100.0] * orders,
        "user_ids": "mixed",
        **fields,
    }


def nested(runs: int = 1, users=IDS, name: str = "i") -> RosterLog:
    """Dataset o of 2 orders, and within it one of 64 with rosters of these users."""
    log = RosterLog()
    log.create("o", **renyi(2))
    log.create(name, parent="o", **renyi(64))
    for number in range(runs):
        log.open(name, f"r{number}")
        log.enrol(users, dataset=name, run=f"r{number}")
    return log


def accrue(log: RosterLog, users: int = USERS, name: str = "i", run: str = "r0") -> None:
    units = prices(1000.0, "renyi", renyi(64)["orders"]) + prices(1000.0, "renyi", [1.5, 2.5])
    for step, said in enumerate([units, b""]):
        answer = log.step(step, said, users, dataset=name, run=run)
        assert isinstance(answer, RosterDecision)


def limit(monkeypatch, charges: int = 2**28, rosters: int = 5 * 2**27) -> None:
    """Have the ledger and the auditor allow so many bytes."""
    for module, name, most in (
        (limits, "MAX_WRITE_BYTES", charges),
        (auditor_charges, "_MOST_WRITTEN", charges),
        (limits, "MAX_ROSTER_WRITE_BYTES", rosters),
        (accrual_limits, "MAX_ROSTER_WRITE_BYTES", rosters),
        (auditor_charges, "_MOST_WRITTEN_BY_ROSTERS", rosters),
    ):
        monkeypatch.setattr(module, name, most)


def written_last(log: Log) -> int:
    return len(log.changes[-1]) + len(encode(log.outputs[-1]))


def at(dataset: str, members: int, *orders: int) -> Counted:
    names = [dataset, *(f"o{number}" for number in range(len(orders) - 1))]
    return Counted(dataset, "r", members, 0, dict(zip(names, orders, strict=True)))


@pytest.mark.parametrize(
    ("users", "charged", "rosters", "most"),
    [
        (9, {"o0"}, [], 0),
        (9, {"a", "o0"}, [at("a", 9, 4, 2)], 512),
        (9, {"o0"}, [at("a", 9, 4, 2)], 512 + 256 + 9 * 36),
        (9, set(), [at("a", 9, 4, 2)], 512 + 512 + 9 * 56),
        (9, {"o0"}, [at("a", 5, 4, 2)], 512 + 256 + 5 * 36),
        (9, {"o0"}, [at("b", 7, 1, 2), at("a", 5, 4, 2)], 2 * 768 + 5 * 36 + 4 * 12),
        (9, {"o0"}, [at("b", 2, 1, 2), at("a", 5, 4, 2)], 2 * 768 + 5 * 36 + 2 * 12),
        (9, {"o0"}, [at("a", 9, 4, 2), at("b", 9, 1, 2)], 2 * 768 + 9 * 36),
    ],
)
def test_a_user_has_accrued_charges_on_one_roster_and_the_largest_are_counted_first(
    users, charged, rosters, most
):
    assert most_accrued(users, charged, rosters) == most


@pytest.mark.parametrize("name", ["i", LONG])
def test_no_charge_writes_more_than_is_counted_where_all_of_its_users_have_accrued_charges(name):
    log = nested(name=name)
    accrue(log, name=name)
    log.open("o")
    assert isinstance(log.charge(0, IDS, np.ones(USERS), dataset="o"), Decision)
    roster = Counted(name, "r0", USERS, 0, {name: 64, "o": 2})
    alone = most_written(USERS, 0, "o", 2)
    assert alone < written_last(log) <= alone + most_accrued(USERS, {"o"}, [roster])
    log.audit()


def test_a_charge_that_might_write_too_many_accrued_charges_is_refused_until_runs_are_closed(
    monkeypatch,
):
    most = most_written(USERS, 0, "o", 2) + 512 + 256 + USERS * (4 + 8 * 64)
    log = nested()
    log.open("o")
    limit(monkeypatch, charges=most - 1)
    rejected = log.charge(0, IDS, np.ones(USERS), dataset="o")
    assert rejected.reason is Reason.TOO_LARGE
    limit(monkeypatch, charges=most)
    assert isinstance(log.charge(0, IDS, np.ones(USERS), dataset="o"), Decision)
    log.open("i", "more")
    log.enrol(IDS, dataset="i", run="more")  # their charges accrue on one roster alone
    limit(monkeypatch, charges=most + 512 + 256 - 1)
    log.hand_over(rebuilt(log.changes))
    assert log.charge(1, IDS, np.ones(USERS), dataset="o").reason is Reason.TOO_LARGE
    log.close("i", "r0")
    assert isinstance(log.charge(1, IDS, np.ones(USERS), dataset="o"), Decision)
    log.audit()


def test_accrued_charges_count_towards_the_maximum_write(monkeypatch):
    log = nested()
    log.open("o")
    limit(monkeypatch, charges=most_written(USERS, 0, "o", 2))
    assert log.charge(0, IDS, np.ones(USERS), dataset="o").reason is Reason.TOO_LARGE
    log.close("i", "r0")
    assert isinstance(log.charge(0, IDS, np.ones(USERS), dataset="o"), Decision)
    log.audit()


def test_an_enrolment_after_which_the_step_of_another_might_write_too_much_is_refused(monkeypatch):
    users = [f"user {number:03}" for number in range(400)]
    log = RosterLog()
    log.create("o", **renyi(2))
    log.create("i", parent="o", **renyi(64))
    for name in "oi":
        log.open(name)
    limit(monkeypatch, rosters=most_written(400, 8 * 400, "o", 2) + 512 + 256 + 20 * 516 - 1)
    assert isinstance(log.enrol(users, dataset="o"), Enrolled)
    assert isinstance(log.enrol(users[:10], dataset="i"), Enrolled)
    log.hand_over(rebuilt(log.changes))
    rejected = log.enrol(users[10:20], 10, dataset="i")
    assert rejected.reason is Reason.TOO_LARGE
    assert isinstance(log.enrol(users[10:19], 10, dataset="i"), Enrolled)
    assert isinstance(log.enrol(users[:19], dataset="i"), Enrolled)  # they are there already
    assert log.enrol(users[19:20], 19, dataset="i").reason is Reason.TOO_LARGE
    log.close("o", "r")
    assert isinstance(log.enrol(users[19:20], 19, dataset="i"), Enrolled)
    log.audit()


def test_no_step_of_a_roster_writes_more_than_was_counted_when_others_were_enrolled():
    log = nested()
    log.open("o")
    log.enrol(IDS, dataset="o")
    accrue(log)
    units = prices(1.0, "renyi", [1.5, 2.5])
    dense = {"levels": [5] * USERS, "dataset": "o"}
    assert isinstance(log.step(0, units, USERS, **dense), RosterDecision)
    roster = Counted("i", "r0", USERS, 0, {"i": 64, "o": 2})
    alone = most_written(USERS, 0, "o", 2) + len(units)
    assert USERS * 500 < written_last(log) <= alone + most_accrued(USERS, {"o"}, [roster])
    log.audit()


def test_a_dataset_that_leaves_too_much_behind_is_closed_once_its_runs_are(monkeypatch):
    log = nested(runs=1)
    log.open("i", "other")
    log.enrol(list(range(25)), dataset="i", run="other")
    log.open("o", "separated", min_separation=7)
    log.charge(0, [*range(5), "new"], np.ones(6), dataset="o", run="separated")
    everybody = 25 + USERS + 1  # of whom as many as there are members may have accrued charges
    assert everybody == len(log.ledger.datasets["o"])
    most = 4096 + 512 * 2 + 2048 * 3 + 512 * 7 + 2 * (512 + 512) + 65 * (8 + 8 * 66)
    limit(monkeypatch, rosters=most - 1)
    closing = CloseDataset(dataset="o", request="c")
    rejected = answer_of(log.send(closing))
    assert rejected.reason is Reason.TOO_LARGE
    inner = CloseDataset(dataset="i", request="c")
    limit(monkeypatch, rosters=most - 512 - 2048 - 512 * 7 - 1)
    assert answer_of(log.send(inner)).reason is Reason.TOO_LARGE
    limit(monkeypatch, rosters=most - 1)
    log.hand_over(rebuilt(log.changes))
    assert answer_of(log.send(closing)).reason is Reason.TOO_LARGE
    log.close("i", "other")
    assert answer_of(log.send(closing)).datasets == ["i", "o"]
    assert answer_of(log.send(closing)).datasets == ["i", "o"]
    log.audit()


def test_users_that_many_runs_have_enrolled_do_not_keep_their_dataset_open(monkeypatch):
    log = nested(runs=6)
    most = 4096 + 512 * 2 + 2048 * 6 + 6 * (512 + 512) + USERS * (8 + 8 * 66)
    limit(monkeypatch, rosters=most)
    assert answer_of(log.send(CloseDataset(dataset="o", request="c"))).datasets == ["i", "o"]
    log.audit()


def test_no_closing_writes_more_than_is_counted():
    """Names and tokens of maximum length, accrued charges of all members, minimum separations."""
    log = nested(name=LONG)
    accrue(log, name=LONG)
    token = "\U0001f9ee" * 64
    for number in range(3):
        run = f"{number}{LONG}"
        log.open(LONG, run, request=token, min_separation=9)
        for step in range(10):
            log.charge(step, [1000 + 10 * number + step], [1.0], dataset=LONG, run=run)
    log.send(CloseDataset(dataset="o", request=token))
    roster = Counted(LONG, "r0", USERS, 0, {LONG: 64, "o": 2})
    counted = 4096 + 512 * 2 + 2048 * 4 + 512 * 27 + most_accrued(10**6, (), [roster])
    assert USERS * 500 < written_last(log) <= counted
    log.audit()


def test_many_small_rosters_are_not_counted_each_against_all_others(monkeypatch):
    counted = []
    monkeypatch.setattr(accrual_limits, "most_accrued", lambda *about: counted.append(about) or 0)
    accrual_limits.check_beside(
        at("d", 10, 4, 2), [at(f"d{number}", 10, 4, 2) for number in range(999)]
    )
    assert len(counted) == 1
