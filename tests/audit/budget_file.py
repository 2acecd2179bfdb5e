"""A budget file, held against the auditor and against a replay of its own log."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

from streams.ledger.ledger import Ledger
from streams.ledger.outputs import Channel
from streams.records import tombstone_offset
from streams.sdk.budget_file import NORMS, BudgetFile, FileRecord
from tests.audit.auditor import Auditor
from tests.audit.comparison import compare, compare_chain

Places = list[tuple[int, int, bytes]]


def records(file: BudgetFile, table: str, partition: int) -> Iterator[FileRecord]:
    """Yield all records of a partition, in order."""
    position = 0
    while some := file.read(table, position, 1 << 62, partition):
        yield from some
        position = some[-1].offset + 1


def audit_file(path: Any) -> Auditor:
    """Assert that log, outputs and state of a file belong together, and that the audit agrees."""
    file = BudgetFile(str(path), 30.0, writable=False)
    try:
        return _audit(file)
    finally:
        file.close()


def _audit(file: BudgetFile) -> Auditor:
    published: dict[str, Places] = {name: [] for name in (NORMS, *(c.value for c in Channel))}
    stored = file.load()
    for partition in range(file.partitions):
        ledger = Ledger(partition, file.partitions, file.topic)
        outputs = []
        for record in records(file, NORMS, partition):
            published[NORMS].append((partition, record.offset, record.value))
            outputs += ledger.apply(record.offset, record.value)
        for output in outputs:
            published[output.channel.value].append((partition, 0, output.value))
        for channel in (Channel.HALTS, Channel.REJECTS):
            expected = [(o.key, o.value) for o in outputs if o.channel is channel]
            found = [(r.key, r.value) for r in records(file, channel.value, partition)]
            assert found == expected, f"{channel.value} of partition {partition}"
        last = {o.key: o.value for o in outputs if o.channel is Channel.ODOMETER}
        expected = {k: v for k, v in last.items() if tombstone_offset(v) is None}
        found = {r.key: r.value for r in records(file, Channel.ODOMETER.value, partition)}
        assert found == expected, f"odometer of partition {partition}"
    auditor = Auditor(file.partitions, file.topic)
    log: Any = SimpleNamespace(records=published)
    auditor.apply_all(log)
    for partition, ledger in enumerate(stored):
        compare_chain(auditor, partition, ledger.chain)
    compare(auditor, log, dict(enumerate(stored)))
    return auditor
