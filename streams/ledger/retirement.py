"""The end of a log, and the beginning of a log that continues another one's state.

No command writes these records any more. A development version could continue a log in another one
with another number of partitions, and the logs that it wrote are decided as they were then.
Otherwise the retired log would be charged again, beside the one that continues it.

The states of one partition of a log:

    (live) --retire--> retired                          all runs end
    (live) --retire that expects other datasets--> unchanged, and refused with LOG_CHANGED
    retired --retire, same successor--> unchanged       the same answer again
    retired --any other request--> unchanged, and refused with LOG_RETIRED
    (nothing applied) --import--> suspended             until the snapshot is there
    (anything applied) --import--> unchanged, and refused with LOG_CHANGED

A log that begins with ``import`` cannot be applied from nothing: all users would have their whole
budgets again. The state that it begins with is in its snapshots.
"""

from __future__ import annotations

import hashlib

from msgspec import to_builtins

from streams.ledger.datasets import end_runs
from streams.ledger.outputs import Place, answer
from streams.ledger.partition_errors import ImportPending
from streams.ledger.state import Retirement, State
from streams.records import Import, LogRetired, Reason, Rejection, Request, Retire, encode
from streams.records.digests import HashChain


def agreement(state: State) -> bytes:
    """Return the digest of the state that must be equal in all partitions of a log."""
    policies = sorted(state.policies.items())
    content = policies, sorted(state.closed), sorted(state.access.items())
    # Plain maps: the header of a struct depends on the fields that it might have.
    plain = to_builtins(content, builtin_types=(bytes,))
    return hashlib.sha256(encode(plain)).digest()


def check_retired(state: State, request: Request) -> None:
    """Check that a request may be sent to a log that has ended (LOG_RETIRED)."""
    retired = state.retired[()]
    if not isinstance(request, Retire) or request.successor != retired.successor:
        detail = f"this log has ended: the log {retired.successor.hex()} continues it"
        raise Rejection(Reason.LOG_RETIRED, detail)


def retire(state: State, place: Place, request: Retire, head: bytes) -> LogRetired:
    """End all runs and the log; ``head`` is that of the hash chain before the record.

    Raises:
        Rejection: LOG_CHANGED, if the datasets are not those that the request expects.
    """
    if not state.retired:
        if agreement(state) != request.agreement:
            detail = "the datasets of this partition are not those that the request expects"
            raise Rejection(Reason.LOG_CHANGED, detail)
        end_runs(state)
        state.retired[()] = Retirement(request.successor, request.partitions, place.offset, head)
    return answer(LogRetired, request, place, successor=request.successor)


def begin_import(chain: HashChain, request: Import) -> None:
    """Refuse to apply an ``import``: its state is in the snapshot.

    Raises:
        ImportPending: it is the first record.
        Rejection: LOG_CHANGED, if it is not.
    """
    if chain.last < 0:
        raise ImportPending(request.origin)
    raise Rejection(Reason.LOG_CHANGED, "an import can only be the first record of a partition")
