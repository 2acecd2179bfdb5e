"""Datasets with several parents: budgets, families, erasure and access lists."""

from __future__ import annotations

from streams.records import Erase, Reason
from tests.unit.ledger.ledgers import answer_of
from tests.unit.ledger.roster_logs import RosterLog
from tests.unit.ledger.test_authorization import SignedLog, allowing, refusal


def erase(log: RosterLog, user: int, **dataset: str):
    return answer_of(log.send(Erase(request="f", user=user, **dataset)))


def test_a_new_dataset_joins_families_of_which_one_was_charged():
    log = RosterLog()
    for name in ("left", "right", "unused"):
        log.create(name)
    log.open("left")
    log.charge(0, [7], [0.1], dataset="left")
    assert log.create("joint", parents=["left", "unused"]).policy.parents == ["left", "unused"]
    log.open("right")
    for parents in (["left", "right"], ["right", "unused"], ["joint", "right"]):
        assert log.create("other", parents=parents).reason is Reason.INVALID_POLICY
    assert log.create("other", parents=["left", "unused"]).policy.dataset == "other"


def listed(**lists) -> SignedLog:
    """A log of an outermost dataset for each list, in which mary manages all."""
    log = SignedLog()
    for name, allow in lists.items():
        log.create(name, allow=allow)
    return log


def test_keys_need_the_rights_of_all_parents():
    log = listed(
        left=allowing(alice="charge", bob="charge", mary="manage"),
        right=allowing(alice="charge", mary="manage", zoe="charge manage"),
    )
    with log.signing("zoe"):
        assert refusal(log.create("joint", parents=["left", "right"])) is Reason.NOT_ALLOWED
    with log.signing("mary"):
        assert refusal(log.create("joint", parents=["left", "right"])) is None
    for name, expected in (
        ("bob", Reason.NOT_ALLOWED),
        ("zoe", Reason.NOT_ALLOWED),
        ("mary", Reason.NOT_ALLOWED),
        ("alice", None),
    ):
        with log.signing(name):
            assert refusal(log.open("joint")) is expected
    allowed = log.ledger.summary().datasets["joint"].allow
    assert allowed == allowing(alice="charge", mary="manage")


def test_parents_with_and_without_lists_do_not_mix():
    log = listed(left=allowing(mary="charge manage"))
    log.create("open")
    with log.signing("mary"):
        for fields in ({}, {"allow": allowing(mary="charge manage")}):
            made = log.create("joint", parents=["left", "open"], **fields)
            assert refusal(made) is Reason.INVALID_ACCESS


def test_key_that_manages_a_part_of_a_family_erases_nobody():
    log = listed(
        left=allowing(alice="charge", mary="manage"),
        right=allowing(alice="charge", mary="manage", zoe="manage"),
        own=allowing(zoe="charge manage"),
    )
    with log.signing("mary"):
        log.create("joint", parents=["left", "right"])
    with log.signing("alice"):
        log.open("joint")
        log.charge(0, [7], [0.1], dataset="joint")
    with log.signing("zoe"):
        log.open("own")
        log.charge(0, [7], [0.1], dataset="own")
        assert refusal(erase(log, 7, dataset="right")) is Reason.NOT_ALLOWED
        answer = erase(log, 7)
    assert (answer.datasets, answer.not_allowed) == (["own"], ["left", "right"])
    with log.signing("mary"):
        answer = erase(log, 7)
    assert (answer.datasets, answer.not_allowed) == (["joint", "left", "right"], ["own"])
