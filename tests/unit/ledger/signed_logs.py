"""Logs of listed datasets, whose requests are signed; the auditor looks on."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from streams.records import Reason, Rejected
from tests.keys import allowing, setting, signed
from tests.unit.ledger.ledgers import answer_of
from tests.unit.ledger.roster_logs import RosterLog

ALLOW = allowing(alice="charge", anna="charge", mary="manage")


class SignedLog(RosterLog):
    """What is sent within ``signing`` is signed by a key, for this log and partition."""

    def __init__(self, partitions: int = 1, partition: int = 0) -> None:
        super().__init__(partitions, partition)
        self.how: dict[str, Any] | None = None

    def send(self, record) -> list:
        if self.how is not None:
            record = signed(record, **{"partition": self.ledger.state.partition, **self.how})
        return super().send(record)

    @contextmanager
    def signing(self, key: str | None, **how: Any) -> Iterator[None]:
        """Sign what is sent, for another partition or log if one is given; None: do not sign."""
        before, self.how = self.how, None if key is None else {"key": key, **how}
        yield
        self.how = before

    def set(self, number: int, allow=ALLOW, dataset="d", *, key="mary", **fields: Any) -> Any:
        """Set an access list; why it is refused, if it is."""
        how = {name: fields.pop(name) for name in ("partition", "signed_for") if name in fields}
        if "signed_for" in how:
            how["log"] = how.pop("signed_for")
        with self.signing(key, **how):
            return refusal(answer_of(self.send(setting(dataset, number, allow, **fields))))


def refusal(answer: Any) -> Reason | None:
    """Why a request was refused, if it was."""
    return answer.reason if isinstance(answer, Rejected) else None


def listed(allow=ALLOW, **where: int) -> SignedLog:
    """A dataset that alice and anna charge and mary manages."""
    log = SignedLog(**where)
    assert refusal(log.create(allow=allow)) is None
    return log
