"""Where a ledger cannot go on: a stop, and nothing has changed.

It would be the same next time. What is wrong is with the installation, and not with a record, which
would be refused.
"""

from __future__ import annotations


class Impasse(Exception):
    """Why a partition can decide nothing.

    Attributes:
        kind: in a word, for programs: one of ``streams.worker.stops``.
        reason: what is wrong.
        remedy: what an operator can do about it.
    """

    kind = ""

    def __init__(self, reason: str, remedy: str) -> None:
        self.reason, self.remedy = reason, remedy
        super().__init__(f"{reason}. {remedy}")
