"""A retired log refuses everything, for ever, and names the one log that continues it."""

import pytest

from streams.ledger.partition_errors import ImportPending
from streams.ledger.retirement import agreement
from streams.records import Erase, Import, LogRetired, Reason, Rejected, Retire
from tests.keys import allowing, signed
from tests.unit.ledger.audited import AuditedLog
from tests.unit.ledger.ledgers import Log, answer_of
from tests.unit.ledger.roster_logs import begun, prices

NEXT, OTHER = b"the next log's 1", b"the next log's 2"


def retire(log: Log, successor: bytes = NEXT, **fields) -> Retire:
    given = {"agreement": agreement(log.ledger.state), **fields}
    return Retire(request="t", successor=successor, partitions=3, **given)


def test_a_retired_log_refuses_every_request():
    log = AuditedLog()
    log.create()
    log.open()
    log.charge(0, [1, 2], [0.1, 0.2])
    end = log.ledger.chain.head
    assert isinstance(answer_of(log.send(retire(log))), LogRetired)
    retirement = log.ledger.state.retired[()]
    assert (retirement.successor, retirement.partitions) == (NEXT, 3)
    assert (retirement.next, retirement.head) == (3, end)
    before = dict(log.ledger.state.runs)
    log.charge(1, [1, 2], [0.1, 0.2])
    assert log.reason() == "log-retired"
    log.open(run="another")
    assert log.reason() == "log-retired"
    assert answer_of(log.send(Erase(request="t", user=1))).reason == Reason.LOG_RETIRED
    assert answer_of(log.send(retire(log, OTHER))).reason == Reason.LOG_RETIRED
    assert isinstance(answer_of(log.send(retire(log))), LogRetired)
    assert log.ledger.state.retired[()] == retirement
    assert dict(log.ledger.state.runs) == before


def test_a_retirement_ends_all_runs_and_charges_what_has_accrued():
    log = begun()
    log.step(0, prices(), levels=[1, 2, 3, 4])
    log.step(1)
    log.send(retire(log))
    state = log.ledger.state
    assert all(run.closed for run in state.runs.values())
    assert not {*state.rosters, *state.holds}


@pytest.mark.parametrize("kind", ["dataset", "access"])
def test_a_partition_with_other_datasets_does_not_retire(kind):
    log = AuditedLog()
    log.create()
    old = retire(log)
    log.create("late", **({"allow": allowing(mary="manage")} if kind == "access" else {}))
    outputs = log.send(old)
    assert isinstance(answer_of(outputs), Rejected)
    assert not log.ledger.state.retired
    log.open()
    assert log.reason() is None


def test_only_a_manager_of_all_datasets_retires_the_log():
    log = AuditedLog()
    log.create()
    log.create("listed", allow=allowing(alice="charge", mary="manage"))
    request = retire(log)
    for sender in (None, "alice"):
        log.send(request if sender is None else signed(request, sender))
        assert log.reason() == "not-allowed"
    log.send(signed(request, "mary"))
    assert log.reason() is None
    assert log.ledger.state.retired


def test_log_that_begins_with_an_import_needs_its_snapshot():
    log = Log()
    with pytest.raises(ImportPending) as pending:
        log.send(Import(origin=OTHER, partitions=2))
    assert pending.value.reason == "import-pending"
    assert log.ledger.chain.last < 0
