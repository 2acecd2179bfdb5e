"""The error that suspends a partition.

It would occur again at the next try: the installation is wrong, not a record, which would be
rejected. Nothing has changed when it is raised.
"""

from __future__ import annotations


class PartitionError(Exception):
    """A partition cannot decide anything.

    Attributes:
        kind: for programs: a value of ``streams.store.vital_signs.SuspensionReason``.
        reason: what is wrong, for the operator.
        remedy: what the operator can do about it.
    """

    kind = ""

    def __init__(self, reason: str, remedy: str) -> None:
        self.reason, self.remedy = reason, remedy
        super().__init__(f"{reason}. {remedy}")
