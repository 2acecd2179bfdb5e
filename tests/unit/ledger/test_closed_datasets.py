"""Datasets that are closed: nothing is charged any more, and what was charged stays charged."""

from msgspec import UNSET

from streams.records import CloseDataset, DatasetClosed, Erase, Reason, Rejected
from tests.unit.ledger.ledgers import Log, answer_of, rebuilt
from tests.unit.ledger.roster_logs import RosterLog, begun, prices
from tests.unit.ledger.test_nested import nested
from tests.unit.ledger.test_nested import prices as prices_of


def close(log: Log, dataset: str):
    return answer_of(log.send(CloseDataset(dataset=dataset, request="c")))


def reason(answer) -> Reason | None:
    return answer.reason if isinstance(answer, Rejected) else None


def test_nothing_can_be_charged_opened_created_or_withdrawn_any_more():
    log = begun()
    log.charge(0, [7], [1.0])
    spent = log.spent()
    closed = close(log, "d")
    assert isinstance(closed, DatasetClosed)
    assert closed.datasets == ["d"]
    refused = [
        log.charge(0, [7], [1.0]),  # not even the step that was decided
        log.charge(1, [7], [1.0]),
        log.enrol([7, 8, 9, 10]),
        log.step(1, prices()),
        log.open(run="other"),
        log.open(attempt=2),
        log.create(),
        log.withdraw(),
        log.create("inner", parents=["d"]),
    ]
    assert {reason(answer) for answer in refused} == {Reason.DATASET_CLOSED}
    assert reason(log.create(budget=2.0)) is Reason.POLICY_CHANGED
    assert log.spent() == spent
    assert log.ledger.summary().datasets["d"].closed
    assert log.ledger.summary().open_runs == 0
    log.audit()


def test_accrued_charges_of_members_are_charged_when_it_is_closed():
    log = begun()
    for step in range(3):
        log.step(step, prices() if step == 0 else b"")
    spent = log.spent()
    close(log, "d")
    assert log.spent() == spent
    assert min(spent.values()) > 0
    assert not log.ledger.state.rosters
    log.audit()


def test_those_within_it_are_closed_with_it_and_those_around_it_go_on():
    log = nested()
    for run, dataset in (("t", "tuning"), ("s", "search")):
        log.enrol([1, 5], dataset=dataset, run=run)
        log.step(0, prices_of(dataset, 4.0), members=2, dataset=dataset, run=run)
    assert close(log, "ads").datasets == ["ads", "both", "tuning"]
    assert reason(log.charge(1, [1], [0.1], dataset="tuning", run="t")) is Reason.DATASET_CLOSED
    assert reason(log.charge(0, [1], [0.1], dataset="both", run="b")) is Reason.DATASET_CLOSED
    for run, dataset in (("p", "person"), ("s", "search")):
        state = log.ledger.state.runs[dataset, run]
        assert reason(log.charge(state.step + 1, [1], [0.1], dataset=dataset, run=run)) is None
    log.audit()


def test_closing_again_and_closing_its_runs_is_answered_and_changes_nothing():
    log = nested()
    first = close(log, "person")
    assert close(log, "person").datasets == first.datasets == sorted(first.datasets)
    assert len(first.datasets) == 5
    assert reason(log.close("ads", "a")) is None
    log.audit()


def test_a_run_that_kept_participations_apart_leaves_nothing_of_it():
    log = RosterLog()
    log.create()
    log.open(min_separation=3)
    log.charge(0, [1, 2], [1.0, 1.0])
    close(log, "d")
    assert not log.ledger.state.separations
    assert not log.ledger.state.participants
    log.audit()


def test_users_of_a_closed_dataset_can_be_erased():
    log = begun()
    log.charge(0, [7], [1.0])
    close(log, "d")
    answer = answer_of(log.send(Erase(request="f", user=7, dataset=UNSET)))
    assert answer.datasets == ["d"]
    log.audit()


def test_there_has_to_be_such_a_dataset():
    assert reason(close(begun(), "nobody")) is Reason.UNKNOWN_DATASET


def test_a_new_owner_knows_what_is_closed():
    log = nested()
    close(log, "ads")
    again = rebuilt(log.changes)
    assert dict(again.state.closed) == dict(log.ledger.state.closed)
    pages = {name: log.ledger.state.take_page(name) for name in log.ledger.state.unmerged()}
    assert {"closed:ads", "closed:tuning"} <= pages.keys()
