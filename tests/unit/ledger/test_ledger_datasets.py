"""What a dataset is in one partition: its policy and kinds of ids, withdrawal, and P of the log."""

import msgspec
import pytest
from msgspec import UNSET

from streams.ledger.ledger import Channel, LayoutMismatch, Ledger
from streams.records import (
    VERSION,
    CreateDataset,
    DatasetCreated,
    Decision,
    Policy,
    Reason,
    encode,
)
from tests.unit.ledger.audited import AuditedLog
from tests.unit.ledger.ledgers import Log, rebuilt


def compacted(ledger: Ledger) -> Ledger:
    """A ledger that loads the pages of this one, after the changes before were dropped."""
    pages = {name: ledger.state.take_page(name) for name in ledger.state.unmerged()}
    loaded = Ledger(ledger.state.partition, ledger.state.partitions)
    loaded.state.load({name: value for name, value in pages.items() if value is not None})
    return loaded


# --- kinds of ids -------------------------------------------------------------------------------

CREATED_AGAIN = [
    # user_ids of the first request, of the second, user_ids of the answer to it
    (UNSET, UNSET, "one-kind"),
    (UNSET, "one-kind", "one-kind"),
    (UNSET, "mixed", None),
    ("string", UNSET, "string"),
    ("string", "integer", None),
]


@pytest.mark.parametrize(("first", "second", "answered"), CREATED_AGAIN, ids=str)
def test_kinds_of_ids_are_part_of_the_policy_that_never_changes(first, second, answered):
    log = AuditedLog()
    log.create(user_ids=first)
    policy = log.ledger.state.datasets["d"].policy
    again = log.create(user_ids=second)
    if answered is None:
        assert again.reason is Reason.POLICY_CHANGED
    else:
        assert again.policy.user_ids == answered
        opened = log.open()
        assert opened.policy == again.policy
    assert log.ledger.state.datasets["d"].policy == policy


KINDS = [
    # user_ids, the users of one step after the other, which of these steps are charged
    ("one-kind", [[1, 2], [3], ["a"], [4, "a"]], [0, 1]),
    ("one-kind", [["a"], [1], ["b", 1], ["b"]], [0, 3]),
    ("one-kind", [["a", 1], [1, "a"], [], [1], ["a"]], [2, 3]),
    ("integer", [["a"], ["a", 1], [], [1]], [2, 3]),
    ("string", [[1], ["a", 1], [], ["a"]], [2, 3]),
    ("mixed", [[1], ["a"], ["b", 2]], [0, 1, 2]),
]


@pytest.mark.parametrize(("user_ids", "steps", "charged"), KINDS, ids=str)
def test_ids_of_another_kind_are_refused_and_change_nothing(user_ids, steps, charged):
    log = AuditedLog()
    log.create(user_ids=user_ids)
    log.open()
    step, users_charged = 0, []
    for number, users in enumerate(steps):
        answer = log.charge(step, users, [1.0] * len(users))
        if number in charged:
            assert isinstance(answer, Decision)
            step, users_charged = step + 1, users_charged + users
        else:
            assert answer.reason is Reason.MIXED_USERS
        log.hand_over(rebuilt(log.changes))  # the kind is known to whoever comes after
    assert list(log.spent()) == list(dict.fromkeys(users_charged))


# --- withdrawal ---------------------------------------------------------------------------------


def test_a_dataset_is_in_use_from_the_first_run_on_for_ever():
    log = AuditedLog()
    log.create()
    log.open()
    for _ in range(2):
        assert log.withdraw().reason is Reason.DATASET_IN_USE
        log.close()
    assert rebuilt(log.changes).apply(99, log.records[-2])[0].channel is Channel.REJECTS


# --- P of the log -------------------------------------------------------------------------------


def policy_for(partitions: int, name: str = "d") -> Policy:
    return Policy(
        dataset=name, partitions=partitions, measure="zcdp", budget=[8], odometer_step=[1]
    )


def everything(ledger: Ledger) -> tuple:
    """All that a record might have changed."""
    return ledger.chain, ledger.summary(), ledger.state.unmerged(), ledger.state.unwritten_bytes


def test_another_partition_count_suspends_before_anything_changes():
    ledger = Ledger(1, 4)
    ledger.apply(0, b"garbage")
    before = everything(ledger)
    with pytest.raises(LayoutMismatch):
        ledger.apply(1, encode(CreateDataset(request="t", policy=policy_for(2))))
    assert everything(ledger) == before


BEFORE_THE_FIRST = [
    ("garbage", b"{"),
    ("a tombstone", None),
    ("a policy that makes no sense", {"policy": {"orders": [2.0]}}),
    ("a version that is not known", {"v": VERSION + 1}),
]


@pytest.mark.parametrize(("what", "record"), BEFORE_THE_FIRST, ids=[r[0] for r in BEFORE_THE_FIRST])
def test_what_is_refused_does_not_bind_a_log_to_its_partitions(what, record):
    log = AuditedLog(partitions=3)
    if isinstance(record, dict):
        policy = {**msgspec.to_builtins(policy_for(2)), **record.get("policy", {})}
        record = encode({"type": "create-dataset", "request": "t", **record, "policy": policy})
    log.send(record)
    assert log.reason() is not None
    with pytest.raises(LayoutMismatch):
        log.ledger.apply(1, encode(CreateDataset(request="t", policy=policy_for(2))))


def test_another_partition_count_is_rejected_after_a_dataset():
    """Also after the dataset is gone: a client's mistake must not stop a log that is right."""
    log = AuditedLog()
    log.create()
    log.withdraw()
    wrong = encode(CreateDataset(request="t", policy=policy_for(2)))
    for ledger in (rebuilt(log.changes), compacted(log.ledger)):
        (output,) = ledger.apply(2, wrong)
        assert output.channel is Channel.REJECTS
    log.send(wrong)
    assert log.reason() == "invalid-policy"
    assert isinstance(log.create(), DatasetCreated)


def test_the_auditor_stops_where_the_ledger_stops():
    log = AuditedLog(partitions=2)
    log.send(b"garbage")
    log.auditor.apply(0, 1, encode(CreateDataset(request="t", policy=policy_for(3))), {})
    assert log.auditor.suspended == {0: 1}


def test_state_of_another_number_of_partitions_is_not_loaded():
    log = Log()
    log.create()
    with pytest.raises(LayoutMismatch):
        Ledger(0, 2).state.load({}, log.changes)
    with pytest.raises(LayoutMismatch):
        Ledger(0, 2).state.load({"partitions": log.ledger.state.take_page("partitions")})
