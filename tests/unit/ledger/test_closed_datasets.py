"""Datasets that are closed: nothing is charged any more, and what was charged stays charged."""

from streams.records import CloseDataset, DatasetClosed, Reason, Rejected
from tests.unit.ledger.ledgers import Log, answer_of
from tests.unit.ledger.roster_logs import begun, prices
from tests.unit.ledger.test_nested import nested
from tests.unit.ledger.test_nested import prices as prices_of


def close(log: Log, dataset: str):
    return answer_of(log.send(CloseDataset(dataset=dataset, request="c")))


def reason(answer) -> Reason | None:
    return answer.reason if isinstance(answer, Rejected) else None


def test_closed_dataset_rejects_every_request():
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


def test_nested_datasets_are_closed_and_parents_go_on():
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
