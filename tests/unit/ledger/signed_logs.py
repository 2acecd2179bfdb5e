"""Logs of an operator, whose requests are signed; the auditor looks on."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from streams.ledger.ledger import Ledger
from streams.schemas import Allow, Reason, Rejected
from tests.keys import binding, registration, signed
from tests.unit.ledger.ledgers import answer_of
from tests.unit.ledger.roster_logs import RosterLog

ALLOW = Allow(charge=["alice", "anna"], manage=["mary"])
NAMES = ("alice", "anna", "mary", "cora", "bob")


class SignedLog(RosterLog):
    """What is sent within ``signing`` is signed by somebody, for this log and partition."""

    def __init__(self, partitions: int = 1, partition: int = 0) -> None:
        super().__init__(partitions, partition)
        self.how: dict[str, Any] | None = None

    def send(self, record) -> list:
        if self.how is not None:
            record = signed(record, **{"partition": self.ledger.state.partition, **self.how})
        return super().send(record)

    @contextmanager
    def signing(self, by: str | None, **how: Any) -> Iterator[None]:
        """Sign what is sent: by whom, and by which key, for which partition or log instead."""
        before, self.how = self.how, {"by": by, **how}
        yield
        self.how = before

    def tell(self, record, **how: Any) -> Reason | None:
        """Have the operator say something; why it is refused, if it is."""
        with self.signing(None, **how):
            return refusal(answer_of(self.send(record)))

    def follow(self, operator_keys: str) -> None:
        """Be a worker with these settings."""
        ledger = self.ledger
        self.ledger = Ledger(
            ledger.state.partition, ledger.state.partitions, operator_keys=operator_keys
        )


def refusal(answer: Any) -> Reason | None:
    """Why a request was refused, if it was."""
    return answer.reason if isinstance(answer, Rejected) else None


def operated(names=NAMES, **where: int) -> SignedLog:
    """A log of an operator, who has registered these; cora may create datasets."""
    log = SignedLog(**where)
    assert log.tell(binding()) is None
    for number, name in enumerate(names, start=10):
        assert log.tell(registration(name, number, creates=name == "cora")) is None
    return log


def guarded(**where: int) -> SignedLog:
    """A dataset that alice and anna charge and mary manages; cora, who made it, may create."""
    log = operated(**where)
    with log.signing("cora"):
        assert refusal(log.create(allow=ALLOW)) is None
    return log
