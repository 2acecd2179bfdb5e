"""Who may take in a dataset that comes from another log, and close one that goes to another."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from streams.ledger.arrivals import digest_of_none, digest_with
from streams.ledger.ledger import LayoutMismatch
from streams.schemas import (
    Allow,
    Balances,
    CloseDataset,
    CreateDataset,
    DatasetReceived,
    Forget,
    Origin,
    Policy,
    Reason,
    ReceiveDataset,
)
from tests.keys import signed
from tests.unit.ledger.ledgers import answer_of, rebuilt
from tests.unit.ledger.signed_logs import ALLOW, SignedLog, guarded, operated, refusal
from tests.unit.ledger.test_principals import STRANGERS, state

ORIGIN = Origin(topic="5a" * 16, partitions=2, heads=bytes(32))
ELSEWHERE = "6b" * 16


def policy_of(name: str, **fields: Any) -> Policy:
    numbers: dict[str, Any] = {"budget": [2**44], "odometer_step": [2**41]}
    kinds: dict[str, Any] = {"measure": "zcdp", "user_ids": "integer"}
    return Policy(dataset=name, partitions=1, **numbers, **kinds, **fields)


def part_of(name: str) -> Balances:
    """What two users have spent there."""
    spent, base, rungs = (np.array(n, "<i8").tobytes() for n in ([3, 4], [0, 4], [1, 2]))
    users = np.array([7, 8], "<i8").tobytes()
    numbers = {"spent": spent, "base": base, "rungs": rungs}
    return Balances(v=3, dataset=name, request="p", part=0, users=users, **numbers)


def coming(name: str = "d", brings: int = 0, **fields: Any) -> ReceiveDataset:
    """What announces it, of one part."""
    return ReceiveDataset(
        v=3,
        request="a",
        policy=policy_of(name, **fields),
        origin=ORIGIN,
        parts=1,
        digest=digest_with(digest_of_none(name, 0, ORIGIN), part_of(name)),
        brings=brings,
    )


GUARDED = coming(allow=ALLOW)


def arriving() -> SignedLog:
    """A dataset that mary manages has been announced, by cora, who may create."""
    log = operated()
    with log.signing("cora"):
        assert isinstance(answer_of(log.send(GUARDED)), DatasetReceived)
    return log


def test_who_may_create_announces_and_who_manages_it_sends_what_was_spent():
    log = arriving()
    with log.signing("mary"):
        for record in (GUARDED, part_of("d"), GUARDED):
            assert isinstance(answer_of(log.send(record)), DatasetReceived)
    with log.signing("alice"):
        assert refusal(log.open()) is None
        assert refusal(log.charge(0, [7, 8], [0.0, 0.0])) is None
    log.audit()
    assert rebuilt(log.changes).policies["d",].allow == ALLOW


@pytest.mark.parametrize("stranger", STRANGERS)
def test_nobody_else_announces_a_dataset_where_an_operator_is_bound(stranger):
    for record in (GUARDED, coming()):
        log = operated()
        before = log.ledger.uncompacted()
        log.how = STRANGERS[stranger]
        assert refusal(answer_of(log.send(record))) is Reason.NOT_ALLOWED
        assert log.ledger.uncompacted() == before
        assert not log.ledger.layout
        log.audit()


@pytest.mark.parametrize("record", [GUARDED, part_of("d")], ids=["announced again", "balances"])
@pytest.mark.parametrize("stranger", [*STRANGERS, "who may charge it", "who announced it"])
def test_nobody_else_sends_what_was_spent_or_hears_how_much_is_there(record, stranger):
    log = arriving()
    before = state(log)
    others = {"who may charge it": {"by": "alice"}, "who announced it": {"by": "cora"}}
    log.how = (STRANGERS | others)[stranger]
    assert refusal(answer_of(log.send(record))) is Reason.NOT_ALLOWED
    assert state(log) == before
    log.audit()


def test_who_manages_the_outer_dataset_announces_those_within_it():
    log = operated()
    outer, inner = coming(brings=1, allow=ALLOW), coming("inner", within="d")
    own = coming("inner", within="d", allow=Allow(manage=["bob"]))
    with log.signing("cora"):
        log.send(outer)
        assert refusal(answer_of(log.send(inner))) is Reason.NOT_ALLOWED
    with log.signing("mary"):
        log.send(part_of("d"))
        assert isinstance(answer_of(log.send(own)), DatasetReceived)
        assert refusal(answer_of(log.send(part_of("inner")))) is Reason.NOT_ALLOWED
    with log.signing("bob"):
        assert isinstance(answer_of(log.send(part_of("inner"))), DatasetReceived)
    log.audit()


def test_where_no_operator_is_bound_a_dataset_that_names_principals_waits_for_them():
    log = SignedLog()
    assert isinstance(answer_of(log.send(GUARDED)), DatasetReceived)
    for by in (None, "mary"):
        with log.signing(by):
            assert refusal(answer_of(log.send(part_of("d")))) is Reason.NOT_ALLOWED
    log.audit()


def goes(log: SignedLog) -> Any:
    return answer_of(log.send(CloseDataset(v=3, dataset="d", request="c", moves_to=ELSEWHERE)))


@pytest.mark.parametrize("stranger", [*STRANGERS, "who may charge it"])
def test_nobody_but_who_manages_it_gives_a_dataset_to_another_log(stranger):
    log = guarded()
    before = state(log)
    log.how = (STRANGERS | {"who may charge it": {"by": "alice"}})[stranger]
    assert refusal(goes(log)) is Reason.NOT_ALLOWED
    assert state(log) == before
    with log.signing("mary"):
        assert refusal(goes(log)) is None
    log.audit()


def test_users_are_forgotten_in_the_others_by_who_does_not_manage_what_has_gone():
    log = guarded()
    with log.signing("cora"):
        log.create("stays", allow=Allow(charge=["anna"], manage=["anna"]))
    with log.signing("anna"):
        log.open(dataset="stays")
        log.charge(0, [7], [0.5], dataset="stays")
        assert refusal(answer_of(log.send(Forget(v=3, user=7, request="f")))) is Reason.NOT_ALLOWED
    with log.signing("mary"):
        assert refusal(goes(log)) is None
    with log.signing("anna"):
        answer = answer_of(log.send(Forget(v=3, user=7, request="f")))
        assert answer.datasets == ["stays"]
        again = Forget(v=3, user=7, request="f", dataset="d")
        assert refusal(answer_of(log.send(again))) is Reason.NOT_ALLOWED
    log.audit()


@pytest.mark.parametrize("sender", [None, "bob"])
@pytest.mark.parametrize("comes", [False, True], ids=["created", "from another log"])
def test_a_first_dataset_of_another_p_stops_the_partition_only_for_who_may_create(sender, comes):
    log, of_two = operated(), replace(coming().policy, partitions=2)
    request: Any = CreateDataset(v=3, request="t", policy=of_two)
    if comes:
        request = replace(coming(), policy=of_two)
    with log.signing(sender) if sender else nullcontext():
        assert refusal(answer_of(log.send(request))) is Reason.NOT_ALLOWED
    log.audit()
    with pytest.raises(LayoutMismatch):
        log.ledger.apply(99, signed(request, by="cora"))
