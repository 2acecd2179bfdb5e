"""A log that continues another one, as a development version wrote it, is never replayed as new."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from streams import Turnstile
from streams.ledger.ledger import Ledger, ledger_of
from streams.ledger.partition_errors import ImportPending
from streams.ledger.state import ImportOrigin
from streams.records import CloseRun, Import, Reason, Rejected, encode
from streams.records.digests import genesis
from streams.replay.explain import explain
from streams.replay.findings import Check
from streams.replay.report import ReportRefused, report
from streams.replay.verify import verify
from streams.store.layout import pack_page
from tests.spending import spent_units
from tests.unit.replay.service import Archived, new_service, used

NEW = b"topic of another"
USERS = np.arange(40)


@pytest.fixture
def both() -> tuple[Archived, Archived]:
    """A log with one partition, and the one that continues it."""
    old, new = used(1), Archived(1, NEW)
    for (dataset, run), state in list(old.ledgers[0].state.runs.items()):
        if not state.closed:
            request = CloseRun(dataset=dataset, run=run, attempt=state.attempt, request="end")
            old.apply(0, encode(request))
    ledger, kept = old.ledgers[0], new.kept[0]
    head = old.extent("norms", 0).end, ledger.chain.head
    ledger.state.origin[()] = ImportOrigin(old.topic, [head], bytes(32))
    pages = {name: ledger.state.take_page(name) for name in ledger.state.unmerged()}
    kept.pages = {name: pack_page(1, page) for name, page in pages.items() if page is not None}
    first = encode(Import(origin=old.topic, partitions=1))
    new.append("norms", 0, first, None)
    for record in old.topics["odometer", 0]:
        fields = msgspec.msgpack.decode(record.value or b"")
        new.append("odometer", 0, encode({**fields, "offset": 0}), record.key)
    new.ledgers[0].chain = chain = genesis(NEW, 0, 1).after(0, first)
    new.kept_at(0)
    kept.fields["since"] = "1"
    new.draw(0)
    stored = new.load(0)
    assert stored is not None
    new.ledgers[0] = ledger_of(stored, 0, 1, NEW, chain)
    return old, new


def test_users_continue_with_their_remaining_budgets(both: tuple[Archived, Archived]) -> None:
    twins = []
    for service in both:
        run = Turnstile(connection=service).run("d", "after", take_over=True)
        steps = [run.charge(USERS, np.linspace(0.1, 2.0, 40), noise_stddev=2.0) for _ in range(6)]
        twins.append([step.admitted.tolist() for step in steps])
    assert twins[0] == twins[1]
    assert sum(twins[0][0]) > sum(twins[0][-1])
    old, new = both
    verified = verify(new)
    assert verified.fits, verified.findings
    assert [part.began for part in verified.partitions] == [1]
    earlier, *later = explain(new, 7, dataset="d").events
    assert (earlier.what, len(later)) == ("earlier", 6)
    users, units = spent_units(old.ledgers[0].state.datasets["d"])
    assert later[-1].budgets[0].spent[0] == pytest.approx(units[list(users).index(7)] / 2**44)


def test_no_report_is_made_of_later_steps_alone(both: tuple[Archived, Archived]) -> None:
    with pytest.raises(ReportRefused):
        report(both[1], delta=1e-5)


def test_without_its_snapshot_nothing_is_applied(both: tuple[Archived, Archived]) -> None:
    _, new = both
    (first,) = new.topics["norms", 0]
    with pytest.raises(ImportPending):
        Ledger(0, 1, NEW).apply(first.offset, first.value)
    del new.topics["snapshots", 0]
    assert Check.LOG in {finding.check for finding in verify(new).findings}
    with pytest.raises(ImportPending):
        explain(new, 7)
    with pytest.raises((ImportPending, ReportRefused)):
        report(new, delta=1e-5)


def test_later_import_is_rejected(both: tuple[Archived, Archived]) -> None:
    service, turnstile = new_service(1)
    turnstile.create_dataset("d", measure="zcdp", budget=1.0)
    (outcome,) = service.apply(0, both[1].topics["norms", 0][0].value)
    rejected = msgspec.msgpack.decode(outcome.value, type=Rejected)
    assert rejected.reason == Reason.LOG_CHANGED
    assert turnstile.run("d", "r").charge([1], [1.0], noise_stddev=4.0).admitted
