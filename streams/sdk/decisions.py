"""From the decisions of all partitions to who takes part in a step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from streams.schemas import Answer, Charge, Decision
from streams.sdk.errors import ConflictingDecisions
from streams.wire.packing import unpack_bits


@dataclass(frozen=True, eq=False)
class StepDecision:
    """Who takes part in one step. All arrays are in the order of the users that were given.

    Attributes:
        step: the step that was charged.
        admitted: bool (n,), who may contribute to what is released.
        granted: float64 (n,), the norm to which each contribution must be clipped; 0 if halted.
            A narrower type must round it down: with ``g = granted.astype(np.float32)``, take
            ``np.where(g > granted, np.nextafter(g, np.float32(0)), g)``.
        exhausted: bool (n,), who has nothing left after this step.
    """

    step: int
    admitted: NDArray[np.bool_]
    granted: NDArray[np.float64]
    exhausted: NDArray[np.bool_]

    @property
    def halted(self) -> NDArray[np.bool_]:
        """Who must be left out of this step; they were charged nothing for it."""
        return ~self.admitted


@dataclass(frozen=True, eq=False)
class Part:
    """What one partition is charged in a step.

    Attributes:
        charge: the request.
        positions: where its users are among all users of the step.
        norms: of these users.
    """

    charge: Charge
    positions: NDArray[np.int64]
    norms: NDArray[np.float64]


def check_decision(part: Part, answer: Answer, digest: bytes) -> Decision:
    """The decision, if it is one of exactly this charge.

    Raises:
        ConflictingDecisions: no worker can have decided this.
    """
    if not isinstance(answer, Decision):
        raise ConflictingDecisions(f"partition {answer.partition} answered a charge with {answer}")
    complaint = None
    count = len(part.positions)
    if answer.digest != digest:
        complaint = "is about other content"
    elif answer.users != count or not is_whole(answer):
        complaint = f"is not about {count} users"
    elif not _is_grant(part, answer):
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


def step_decision(
    step: int, norms: NDArray[np.float64], parts: Mapping[int, Part], decisions: dict[int, Decision]
) -> StepDecision:
    """Put checked decisions together, in the order of the users that were given."""
    admitted = np.zeros(len(norms), dtype=np.bool_)
    exhausted = np.zeros(len(norms), dtype=np.bool_)
    granted = np.zeros(len(norms))
    for partition, part in parts.items():
        decision, mine = decisions[partition], part.positions
        admitted[mine] = unpack_bits(decision.admitted, len(mine))
        exhausted[mine] = unpack_bits(decision.exhausted, len(mine))
        granted[mine] = np.where(admitted[mine], part.norms, 0.0)
        clipped, norms_granted = _grants(decision)
        granted[mine[clipped]] = norms_granted
    return StepDecision(step, admitted, granted, exhausted)


def _grants(decision: Decision) -> tuple[NDArray[np.uint32], NDArray[np.float64]]:
    clipped = np.frombuffer(decision.clipped, dtype="<u4")
    return clipped, np.frombuffer(decision.granted, dtype="<f8")


def _is_grant(part: Part, decision: Decision) -> bool:
    """Whether those who are granted another norm are admitted with a smaller one."""
    if len(decision.clipped) % 4 or 2 * len(decision.clipped) != len(decision.granted):
        return False
    clipped, granted = _grants(decision)
    if len(clipped) and int(clipped.max()) >= len(part.norms):
        return False
    admitted = unpack_bits(decision.admitted, len(part.norms))[clipped]
    return bool(np.all(admitted & (granted >= 0) & (granted <= part.norms[clipped])))
