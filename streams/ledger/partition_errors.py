"""The errors that suspend a partition.

They would occur again at the next try, because the installation is wrong. (A wrong record is
rejected.) Nothing has changed when they are raised.
"""

from __future__ import annotations

from streams.failures import Failure
from streams.records.signatures import NoVerifier


class PartitionError(Failure):
    """A partition cannot decide anything.

    Attributes:
        reason: for programs, a value of ``streams.store.store_port.SuspensionReason``.
        problem: for people.
        remedy: what the operator can do.
    """

    reason = ""

    def __init__(self, problem: str, remedy: str) -> None:
        self.problem, self.remedy = problem, remedy
        super().__init__(f"{problem}. {remedy}")


class LayoutMismatch(PartitionError):
    """The log was written for another number of partitions."""

    reason = "other-partitions"

    def __init__(self, written_for: int, partitions: int) -> None:
        super().__init__(
            f"the log was written for {written_for} partitions, but its topic has {partitions}: "
            "users would live in other partitions, and have a second budget there",
            "If partitions were added to the topic, create it again from a copy of the log, with "
            f"{written_for} partitions. If the client that created the first dataset used a wrong "
            "number, nothing has been charged: delete the topic and the state of its partitions "
            "in Redis, and create the dataset again",
        )


class UnknownState(Exception):
    """The stored state has a kind or a field that this release does not know."""


class LostErasureKey(PartitionError):
    """The state has keyed hashes by a key that is not known here."""

    reason = "erasure-key"

    def __init__(self, fingerprint: str) -> None:
        super().__init__(
            f"users were erased under the erasure key {fingerprint}, which is not among "
            "erasure_keys here: they would not be recognised, and would begin again with nothing "
            "spent",
            "Add that key to erasure_keys, where the newest one is first. Keep a key as long as "
            "the state has hashes by it. If the key is lost, delete nothing before you read "
            "docs/operate/erasure.md: if the log was trimmed, what was spent is only in Redis and "
            "in the topic snapshots",
        )


class CannotVerify(PartitionError):
    """A signature has to be verified, and the package for it is not installed."""

    reason = "cannot-verify"

    def __init__(self, problem: NoVerifier) -> None:
        super().__init__(
            f"a signed request has to be verified, and the package for it is missing ({problem})",
            "Install dp-turnstile with its extra `secure` and start the worker again",
        )


class ImportPending(PartitionError):
    """The log begins with an imported state that is not there."""

    reason = "import-pending"

    def __init__(self, origin: bytes) -> None:
        super().__init__(
            f"this log begins with the state of the log {origin.hex()}, and no snapshot contains "
            "that state",
            "Restore Redis or the topic snapshots from a copy",
        )
