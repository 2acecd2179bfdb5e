"""What can be believed of decisions: whether they fit what was asked, and each other.

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
import numpy as np
from numpy.typing import NDArray

from streams.schemas import Answer, Decision, encode
from streams.sdk.errors import ConflictingDecisions
from streams.wire.packing import unpack_bits

logger = logging.getLogger("turnstile.sdk")

REMEMBERED_STEPS = 1024
"""Of each run and partition; what contradicts an older decision goes unseen."""


def check_decision(answer: Answer, digest: bytes, norms: NDArray[np.float64]) -> Decision:
    """The decision, if it is one of exactly this charge.

    Args:
        answer: what a partition answered.
        digest: of the charge.
        norms: of the charge, one for each of its users.

    Raises:
        ConflictingDecisions: no worker can have decided this.
    """
    if not isinstance(answer, Decision):
        raise ConflictingDecisions(f"partition {answer.partition} answered a charge with {answer}")
    complaint = None
    if answer.digest != digest:
        complaint = "is about other content"
    elif answer.users != len(norms) or not is_whole(answer):
        complaint = f"is not about {len(norms)} users"
    elif not _is_grant(answer, norms):
        complaint = "grants what was not asked for"
    if complaint:
        raise ConflictingDecisions(
            f"a decision of partition {answer.partition} on step {answer.step} {complaint}: it was "
            "not made by a worker. Release nothing of this step, and find out who writes to halts"
        )
    return answer


def is_whole(decision: Decision) -> bool:
    """Whether the arrays of a decision fit each other, as those of every worker's do."""
    octets = -(-decision.users // 8)
    if not len(decision.admitted) == len(decision.exhausted) == octets:
        return False
    halted = decision.users - int(unpack_bits(decision.admitted, decision.users).sum())
    packed = isinstance(decision.halted, bytes)
    return len(decision.halted) == (8 * halted if packed else halted)


def grants_of(decision: Decision) -> tuple[NDArray[np.uint32], NDArray[np.float64]]:
    """The positions at which another norm was granted than asked for, and these norms."""
    clipped = np.frombuffer(decision.clipped, dtype="<u4")
    return clipped, np.frombuffer(decision.granted, dtype="<f8")


def _is_grant(decision: Decision, norms: NDArray[np.float64]) -> bool:
    """Whether those who are granted another norm are admitted with a smaller one."""
    if len(decision.clipped) % 4 or 2 * len(decision.clipped) != len(decision.granted):
        return False
    clipped, granted = grants_of(decision)
    if len(clipped) and int(clipped.max()) >= len(norms):
        return False
    admitted = unpack_bits(decision.admitted, len(norms))[clipped]
    return bool(np.all(admitted & (granted >= 0) & (granted <= norms[clipped])))


class Witness:
    """Remembers what was decided of one run, and sees when two decisions contradict each other."""

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
