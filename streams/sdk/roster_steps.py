"""One step of a roster: what a partition is asked, what it may answer, and who takes part."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from streams.schemas import Answer, RosterDecision
from streams.sdk.errors import ConflictingDecisions, Unusable
from streams.sdk.sampling import poisson_sample
from streams.wire.packing import unpack_positions

Levels: TypeAlias = NDArray[np.uint8]


class Current:
    """The users of a roster as the last step left them."""

    def __init__(self, count: int, norms: NDArray[np.float64]) -> None:
        self.step = -1
        self.admitted = np.ones(count, dtype=np.bool_)
        self.exhausted = np.zeros(count, dtype=np.bool_)
        self.granted = np.full(count, len(norms) - 1, dtype=np.uint8)  # to those who were admitted
        self._norms = norms

    def clip_norms(self, where: NDArray[np.int64] | slice = slice(None)) -> NDArray[np.float64]:
        """What users at these positions are to be clipped to."""
        norms = self._norms.take(self.granted[where])
        norms[~self.admitted[where]] = 0.0
        return norms


class RosterStep:
    """Who takes part in one step of a roster. Arrays are in the order of the enrolled users.

    Everything but ``step`` is as secret as the data. ``admitted``, ``exhausted`` and ``clip_norms``
    are copied on first use, which must come before the next step is charged.

    Attributes:
        step: the step that was charged.
        halted: int64, positions of the users who left with this step.
        readmitted: int64, positions of the users who came back with it.
        sampling_rate: the rate at which each admitted user is drawn.
        may_be_drawn: an earlier attempt of the run could have had this decision, and drawn its
            users. False if ``sampling_rate`` is 1, since there are no coins then.
    """

    def __init__(
        self,
        current: Current,
        halted: NDArray[np.int64],
        readmitted: NDArray[np.int64],
        sampling_rate: float,
        *,
        decided_before: bool = False,
    ) -> None:
        self.step = current.step
        self.halted, self.readmitted = halted, readmitted
        self.sampling_rate = sampling_rate
        self.may_be_drawn = decided_before and sampling_rate < 1.0
        self._current = current
        self._drawn: NDArray[np.int64] | None = None

    @cached_property
    def admitted(self) -> NDArray[np.bool_]:
        """Bool (n,), who was charged, and may be drawn."""
        return self._as_of_now().admitted.copy()

    @cached_property
    def exhausted(self) -> NDArray[np.bool_]:
        """Bool (n,), who has nothing left for any step that costs."""
        return self._as_of_now().exhausted.copy()

    @cached_property
    def clip_norms(self) -> NDArray[np.float64]:
        """Float64 (n,), the norm to which each contribution must be clipped.

        It is that of the level that was charged; 0 for who is not admitted. With many users
        ``clip_norms_at`` is faster.
        """
        return self._as_of_now().clip_norms()

    def clip_norms_at(self, positions: NDArray[np.int64]) -> NDArray[np.float64]:
        """The clip norms of these users, as one who drew them needs them."""
        return self._as_of_now().clip_norms(positions)

    def sample(self, *, no_coin_drawn: bool = False) -> NDArray[np.int64]:
        """Draw each admitted user with an independent coin, once; return the positions, increasing.

        Later calls return the same positions. The charge covers one draw per decision: a second
        draw is a second release, and a draw that is repeated because of who was in it is no Poisson
        sample (docs/using.md).

        Args:
            no_coin_drawn: the caller states that no earlier attempt has drawn this step.

        Raises:
            Unusable: an earlier attempt may have drawn this step. It stays charged: release
                nothing of it and charge the next one.
        """
        if self._drawn is None:
            if self.may_be_drawn and not no_coin_drawn:
                raise Unusable(
                    f"step {self.step} was decided before this attempt, which may not draw it "
                    "again: release nothing of it and charge the next step. Runs that sample are "
                    "opened without released=, so that such steps are not handed back. If you know "
                    "that no coin was drawn, call sample(no_coin_drawn=True)"
                )
            self._drawn = poisson_sample(self._as_of_now().admitted, self.sampling_rate)
        return self._drawn.copy()

    def _as_of_now(self) -> Current:
        if self._current.step != self.step:
            raise Unusable(
                f"the roster has charged step {self._current.step} since step {self.step}: ask a "
                "step for what is needed of it before the next one is charged"
            )
        return self._current


class AskedLevels(NamedTuple):
    """The levels that a step charges, as one partition is told: nobody changes them any more.

    Attributes:
        in_force: of all users of the roster, by the step before; it moves with the decision.
        rows: whose levels this step brings, increasing.
        levels: theirs.
    """

    in_force: Levels
    rows: NDArray[np.int64]
    levels: Levels

    def at(self, rows: NDArray[np.int64]) -> Levels:
        """Those of these users."""
        asked = self.in_force[rows]
        if len(self.rows):
            places = np.minimum(np.searchsorted(self.rows, rows), len(self.rows) - 1)
            brought = self.rows[places] == rows
            asked[brought] = self.levels[places[brought]]
        return asked


class RosterPart(NamedTuple):
    """What one partition is asked to charge in a step of a roster.

    Attributes:
        record: the request.
        digest: of its content, by which the decision about it is recognised.
        positions: of the members of the roster who live in this partition.
        asked: at which levels.
    """

    record: bytes
    digest: bytes
    positions: NDArray[np.int64]
    asked: AskedLevels

    def decided(self, answer: Answer) -> RosterDecision:
        """The decision, if it is one of this step of this roster.

        Raises:
            ConflictingDecisions: no worker can have decided this.
        """
        if isinstance(answer, RosterDecision) and answer.digest == self.digest:
            if answer.members != len(self.positions):
                raise not_of_a_worker(answer, f"does not fit {len(self.positions)} members")
            return checked_decision(answer, lambda places: self.asked.at(self.positions[places]))
        raise not_of_a_worker(answer, "is about another step, or about other content")


def checked_decision(
    decision: RosterDecision, asked: Callable[[NDArray[np.int64]], Levels]
) -> RosterDecision:
    """A decision whose arrays fit each other and what was asked.

    Args:
        decision: of one partition.
        asked: the levels of the members at these places.

    Raises:
        ConflictingDecisions: no worker can have decided this.
    """
    try:
        for packed in (decision.halted, decision.readmitted, decision.exhausted):
            unpack_positions(packed, decision.members)
        regranted = unpack_positions(decision.regranted, decision.members)
    except ValueError as error:
        raise not_of_a_worker(decision, f"has no positions: {error}") from error
    granted = np.frombuffer(decision.granted, dtype=np.uint8)
    if len(granted) != len(regranted) or bool((granted > asked(regranted)).any()):
        raise not_of_a_worker(decision, "grants what was not asked for")
    return decision


def not_of_a_worker(answer: Answer, complaint: str) -> ConflictingDecisions:
    """What is raised of an answer that was forged."""
    return ConflictingDecisions(
        f"what partition {answer.partition} answered {complaint}: it was not made by a worker. "
        "Release nothing of this step, and find out who writes to halts"
    )
