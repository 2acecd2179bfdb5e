"""What comes from another log is what users can have spent there, or it is refused; so says the
auditor. What a move of a whole service comes to is in tests/unit/offline/test_moving.py.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from streams.ledger.arrivals import digest_of_none, digest_with
from streams.ledger.forgotten import public_fingerprint
from streams.ledger.ledger import Ledger, LostErasureKey
from streams.ledger.moving import MAX_NAMES
from streams.schemas import (
    Balances,
    CloseDataset,
    ErasureKey,
    Forget,
    Origin,
    Policy,
    Reason,
    ReceiveDataset,
    WithdrawDataset,
    encode,
)
from tests.unit.ledger.ledgers import answer_of
from tests.unit.ledger.roster_logs import LEVELS, RosterLog, prices

STEP, BUDGET = 2**41, 2**44
ORIGIN = Origin(topic="ab" * 16, partitions=3, heads=bytes(32))


def policy(name: str = "d", **fields: Any) -> Policy:
    about = {"budget": [BUDGET], "odometer_step": [STEP], "measure": "zcdp", "user_ids": "integer"}
    return Policy(**{**about, "dataset": name, "partitions": 1, **fields})


OWN = policy(measure="renyi", orders=[2.0, 8.0], own_order=True, budget=[BUDGET] * 2)
OWN = replace(OWN, odometer_step=[STEP] * 2)


def balances(name: str = "d", part: int = 0, **fields: Any) -> Balances:
    numbers = {"spent": [STEP], "base": [0], "rungs": [1], **fields}
    packed = {
        column: np.array(numbers.pop(column), dtype="<i8").tobytes()
        for column in ("spent", "base", "rungs")
    }
    about = {"dataset": name, "request": "b", "part": part, "users": [7]}
    return Balances(v=3, **{**about, **packed, **numbers})


def announced(of: Policy, *parts: Balances, **fields: Any) -> ReceiveDataset:
    origin = fields.get("origin", ORIGIN)
    digest = digest_of_none(of.dataset, 0, origin)
    for part in parts:
        digest = digest_with(digest, part)
    given = {"origin": origin, "parts": len(parts), "digest": digest, **fields}
    return ReceiveDataset(v=3, request="a", policy=of, **given)


def reason_of(log: RosterLog, record: Any) -> Reason | None:
    return getattr(answer_of(log.send(record)), "reason", None)


def test_what_came_is_charged_on_and_its_odometer_is_told():
    log, part = RosterLog(), balances(spent=[3 * STEP], base=[2 * STEP], rungs=[3])
    assert reason_of(log, announced(policy(), part)) is None
    assert reason_of(log, part) is None
    assert [output.channel.value for output in log.outputs[-1]] == ["halts", "odometer"]
    log.open()
    log.charge(0, [7, 8], [1.0, 1.0])
    assert log.spent()[7] - 3 * STEP == log.spent()[8]
    log.audit()


@pytest.mark.parametrize(
    ("of", "fields"),
    [
        (policy(), {"spent": [2 * STEP], "base": [STEP]}),  # the bound says less than was spent
        (policy(), {"spent": [2 * STEP], "rungs": [2]}),  # more than a step on one rung
        (policy(), {"base": [STEP + 1]}),
        (policy(), {"base": [-1]}),
        (policy(), {"rungs": [0]}),
        (policy(), {"rungs": [2**61 + 1]}),  # more than an odometer counts
        (policy(), {"spent": [BUDGET + 1], "base": [BUDGET], "rungs": [99]}),
        (policy(), {"forgotten": True}),  # with something left
        (OWN, {"order": b"\2", "bound": b"\1"}),
        (OWN, {"order": b"\0", "bound": b"\0"}),  # has spent, and is bound to no order
        (OWN, {"order": b"\1", "bound": b"\2"}),
        (OWN, {"order": b"\1", "bound": b"\0", "spent": [0]}),
    ],
)
def test_what_nobody_can_have_spent_is_refused(of, fields):
    log, part = RosterLog(), balances(**fields)
    log.send(announced(of, part))
    assert reason_of(log, part) is Reason.INVALID_BALANCES
    assert not len(log.ledger.datasets["d"])
    log.audit()


@pytest.mark.parametrize("by_roster", [False, True])
def test_an_odometer_that_counts_no_further_is_charged_on(by_roster):
    log, part = RosterLog(), balances(rungs=[2**61])
    log.send(announced(policy(), part))
    assert reason_of(log, part) is None
    log.open()
    if by_roster:
        log.enrol([7])
    for step in range(6):
        if by_roster:
            levels = () if step else [LEVELS]
            log.step(step, b"" if step else prices(), members=1, levels=levels)
        else:
            log.charge(step, [7], [1.0])
    log.ledger.wake()
    assert log.spent()[7] > 2 * STEP
    log.audit()


def test_what_is_not_what_was_announced_is_refused_and_the_right_one_still_taken():
    log, part = RosterLog(), balances()
    log.send(announced(policy(), part))
    assert reason_of(log, balances(spent=[0])) is Reason.INVALID_BALANCES
    assert reason_of(log, part) is None
    assert reason_of(log, part) is Reason.STEP_OUT_OF_ORDER
    log.audit()


def test_a_family_comes_from_one_log_together():
    log, outer, inner = RosterLog(), balances(), balances("inner", users=[8])
    nested = policy("inner", within="d")
    assert reason_of(log, announced(nested, inner)) is Reason.UNKNOWN_DATASET
    log.send(announced(policy(), outer, brings=1))
    other = announced(nested, inner, origin=replace(ORIGIN, topic="cd" * 16))
    assert reason_of(log, other) is Reason.DATASET_MOVING
    assert log.create("within", within="d", user_ids="integer").reason is Reason.DATASET_MOVING
    log.send(announced(nested, inner))
    log.send(outer)
    assert reason_of(log, inner) is Reason.INVALID_BALANCES  # of somebody the outer one has not
    assert log.open().reason is Reason.DATASET_MOVING
    log.audit()


def test_nothing_more_comes_within_what_has_arrived():
    log = RosterLog()
    log.send(announced(policy()))
    inner = announced(policy("inner", within="d"))
    assert reason_of(log, inner) is Reason.DATASET_MOVING
    assert getattr(log.open(), "reason", None) is None
    log.audit()


def test_one_that_is_on_its_way_does_not_move_on_before_it_is_there():
    log, part = RosterLog(), balances()
    log.send(announced(policy(), part))
    close = CloseDataset(v=3, dataset="d", request="c", moves_to="cd" * 16)
    assert reason_of(log, close) is Reason.DATASET_MOVING
    log.send(part)
    assert reason_of(log, close) is None
    log.audit()


def test_names_by_a_key_that_is_lost_leave_no_trace():
    ledger = Ledger(0, 1)
    key = ErasureKey(fingerprint="0" * 16, highest=0)
    head = ledger.chain
    with pytest.raises(LostErasureKey):
        ledger.apply(0, encode(announced(policy(), erasure=[key])))
    assert (ledger.chain, len(ledger.policies), len(ledger.arrivals)) == (head, 0, 0)
    assert ledger.take_changes().entries == {}


# --- what was forgotten there ---------------------------------------------------------------------


@pytest.mark.parametrize("forgotten", [(False, True), (True, False)], ids=["inner", "outer"])
def test_who_was_forgotten_was_forgotten_in_all_datasets_that_share_the_budget(forgotten):
    """Else a worker that begins with what is kept would decide otherwise than one that goes on."""
    log = RosterLog()
    nothing_left = {"spent": [BUDGET], "base": [BUDGET - STEP], "rungs": [BUDGET // STEP]}
    outer = balances(forgotten=forgotten[0], **nothing_left)
    inner = balances("inner", forgotten=forgotten[1], **nothing_left)
    log.send(announced(policy(), outer, brings=1))
    log.send(announced(policy("inner", within="d"), inner))
    assert reason_of(log, outer) is None
    assert reason_of(log, inner) is Reason.INVALID_BALANCES
    log.audit()


PUBLIC = public_fingerprint(ORIGIN.topic)


@pytest.mark.parametrize(
    "keys",
    [
        [ErasureKey(fingerprint="0" * 16, highest=0, topic=ORIGIN.topic)],  # not that of the log
        [ErasureKey(fingerprint=PUBLIC, highest=MAX_NAMES, topic=ORIGIN.topic)],
        [
            ErasureKey(
                fingerprint=public_fingerprint(topic * 16), highest=MAX_NAMES // 2, topic=topic * 16
            )
            for topic in ("ab", "cd")
        ],
    ],
    ids=["wrong", "many", "many in all"],
)
def test_keys_that_nobody_can_have_or_search_are_refused(keys):
    log = RosterLog()
    assert reason_of(log, announced(policy(), erasure=keys)) is Reason.INVALID_BALANCES
    most = ErasureKey(fingerprint=PUBLIC, highest=MAX_NAMES - 1, topic=ORIGIN.topic)
    assert reason_of(log, announced(policy(), erasure=[most])) is None
    more = announced(policy("e"), erasure=[replace(keys[-1], highest=MAX_NAMES)])
    assert reason_of(log, more) is Reason.INVALID_BALANCES
    log.audit()


# --- what does not arrive -------------------------------------------------------------------------


def test_what_is_on_its_way_is_not_closed_and_can_be_withdrawn_until_somebody_has_come():
    log, part = RosterLog(), balances("inner")
    log.create("beside", user_ids="integer")
    log.send(announced(policy(), brings=1, closed=True))
    assert reason_of(log, CloseDataset(v=3, dataset="d", request="c")) is Reason.DATASET_MOVING
    log.send(announced(policy("inner", within="d"), part))
    assert reason_of(log, Forget(v=3, request="f", user=1)) is Reason.DATASET_MOVING
    assert reason_of(log, withdrawing("d")) is Reason.DATASET_IN_USE
    for name in ("inner", "d"):
        assert reason_of(log, withdrawing(name)) is None
    log.audit()
    assert reason_of(log, Forget(v=3, request="f", user=1)) is None
    assert reason_of(log, announced(policy(), balances())) is None
    assert reason_of(log, balances()) is None
    assert reason_of(log, withdrawing("d")) is Reason.DATASET_IN_USE
    log.open()
    assert log.charge(0, [7], [1.0]).admitted
    log.audit()


def withdrawing(name: str) -> WithdrawDataset:
    return WithdrawDataset(v=3, dataset=name, request="w")
