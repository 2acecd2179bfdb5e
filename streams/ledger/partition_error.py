"""The error that suspends a partition.

It would occur again at the next try, because the installation is wrong. (A wrong record is
rejected.) Nothing has changed when it is raised.
"""

from __future__ import annotations


class PartitionError(Exception):
    """A partition cannot decide anything.

    Attributes:
        reason: for programs, a value of ``streams.store.port.SuspensionReason``.
        problem: for people.
        remedy: what the operator can do.
    """

    reason = ""

    def __init__(self, problem: str, remedy: str) -> None:
        self.problem, self.remedy = problem, remedy
        super().__init__(f"{problem}. {remedy}")
