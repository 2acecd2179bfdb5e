"""A log that is applied twice: by a ledger, and by the auditor of the pipeline tests."""

from types import SimpleNamespace
from typing import ClassVar

from streams.ledger.ledger import Channel
from tests.audit.auditor import Auditor
from tests.audit.comparison import compare, compare_chain
from tests.audit.published import granted_norms
from tests.unit.ledger.ledgers import Log, rebuilt


class AuditedLog(Log):
    """Every record goes to both; ``audit`` asserts that they agree about everything.

    Attributes:
        made: those that the running test has made, which are audited when it is over.
    """

    made: ClassVar[list["AuditedLog"]] = []

    def __init__(self, partitions: int = 1, partition: int = 0) -> None:
        super().__init__(partitions, partition)
        self.auditor = Auditor(partitions)
        self.made.append(self)
        self.published: dict[str, list] = {channel.value: [] for channel in Channel}

    def send(self, record) -> list:
        outputs = super().send(record)
        here, offset = self.ledger.state.partition, len(self.records) - 1
        for output in outputs:
            self.published[output.channel.value].append((here, offset, output.value))
        # The auditor takes from a decision what clipping granted, and nothing else.
        fresh = [(here, offset, out.value) for out in outputs if out.channel is Channel.HALTS]
        self.auditor.apply(here, offset, self.records[-1], granted_norms(fresh))
        return outputs

    def reason(self) -> str | None:
        """Why the auditor refuses the last record, or its first event; None if it does not."""
        place = self.ledger.state.partition, len(self.records) - 1
        first = next(iter(self.auditor.event_rejects.get(place, [])), (None,))
        return self.auditor.rejects.get(place, first)[0]

    def audit(self) -> None:
        """Check state, answers, rejects, odometer records and chain, as written and as loaded."""
        here = self.ledger.state.partition
        again = rebuilt(self.changes, self.ledger.state.partitions, here)
        for ledger in (self.ledger, again):
            compare(self.auditor, SimpleNamespace(records=self.published), {here: ledger})
        compare_chain(self.auditor, here, self.ledger.chain)
