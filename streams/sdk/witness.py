"""One who remembers what was decided of a run, and sees when two decisions contradict each other.

The workers decide a step once; sent again, it is the same decision. So two different ones for one
step and partition mean that somebody else writes to `halts`. Which of the two is forged cannot be
told from here, nor can it be when only the forged one ever arrives: see SECURITY.md.
"""

from __future__ import annotations

import hashlib
import logging
from collections import OrderedDict, defaultdict
from typing import NamedTuple

import msgspec

from streams.schemas import Decision, encode
from streams.sdk.errors import ConflictingDecisions

logger = logging.getLogger("turnstile.sdk")

REMEMBERED_STEPS = 1024
"""Of each run and partition; what contradicts an older decision goes unseen."""


class Witness:
    """Sees the decisions of one run, from when it was opened here."""

    def __init__(self, dataset: str, run: str) -> None:
        self._name = f"run {run!r} of dataset {dataset!r}"
        self._seen: defaultdict[int, OrderedDict[int, _Content]] = defaultdict(OrderedDict)
        self._conflict: str | None = None

    def see(self, decision: Decision) -> bool:
        """Take a decision, under whichever attempt it was published; whether it is a new one."""
        steps = self._seen[decision.partition]
        content = _Content.of(decision)
        is_new = decision.step not in steps
        before = steps.setdefault(decision.step, content)
        if before.contradicts(content) and self._conflict is None:
            self._conflict = (
                f"partition {decision.partition} decided step {decision.step} of {self._name} in "
                "two ways, so somebody else than the workers writes to the topic halts. Release "
                "nothing more from this run, and find out who before it is opened again"
            )
            logger.critical("%s", self._conflict)
        if len(steps) > REMEMBERED_STEPS:
            steps.popitem(last=False)
        return is_new

    def check(self) -> None:
        """Raise if decisions contradict each other.

        Raises:
            ConflictingDecisions: from the first contradiction on, for ever.
        """
        if self._conflict is not None:
            raise ConflictingDecisions(self._conflict)


class _Content(NamedTuple):
    """What a decision says, whoever asked: a repeated step is answered to the attempt that repeats
    it, in the version in which it is repeated."""

    said: bytes
    version: int
    digest: bytes  # of the charge, by this version

    @classmethod
    def of(cls, decision: Decision) -> _Content:
        said = encode(msgspec.structs.replace(decision, attempt=0, v=0, digest=b""))
        return cls(hashlib.sha256(said).digest(), decision.v, decision.digest)

    def contradicts(self, other: _Content) -> bool:
        if self.said != other.said:
            return True
        return self.version == other.version and self.digest != other.digest
