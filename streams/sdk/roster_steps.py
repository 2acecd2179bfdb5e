"""One step of a roster: each partition's request, the checks of its answer, and the result."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from accounting.exact.argument_checks import sampling_probability
from accounting.release.exact_coins import heads
from streams.records import Decision, RosterDecision
from streams.sdk.decisions import RosterChanges
from streams.sdk.errors import Unusable, not_of_a_worker

Levels: TypeAlias = NDArray[np.uint8]


class Current:
    """The state of a roster's users after its last step."""

    def __init__(self, count: int, norms: NDArray[np.float64]) -> None:
        self.step = -1
        self.admitted = np.ones(count, dtype=np.bool_)
        self.exhausted = np.zeros(count, dtype=np.bool_)
        self.granted = np.full(count, len(norms) - 1, dtype=np.uint8)  # 0 to len(norms) - 1
        self._norms = norms

    def clip_norms(self, where: NDArray[np.int64] | slice = slice(None)) -> NDArray[np.float64]:
        """Return the norms to which the users at these positions must be clipped; 0 if not
        admitted.
        """
        norms = self._norms.take(self.granted[where])
        norms[~self.admitted[where]] = 0.0
        return norms


class RosterStep:
    """The users who take part in one step of a roster, in the order of the enrolled users.

    Everything but ``step`` is as secret as the data. ``admitted``, ``exhausted`` and ``clip_norms``
    are copied on first use, which must come before the next step is charged.

    Attributes:
        step: the step that was charged.
        decision_ids: the id of each partition's decision, as in ``StepDecision``.
        halted: int64, positions of the users who are not admitted from this step on.
        readmitted: int64, positions of the users who are admitted again from this step on.
        sampling_rate: the probability with which each admitted user is drawn.
        may_be_drawn: an earlier attempt of the run may have received this decision and drawn its
            users. False if ``sampling_rate`` is 1, since no coin is flipped then.
    """

    def __init__(
        self,
        current: Current,
        decision_ids: tuple[str, ...],
        halted: NDArray[np.int64],
        readmitted: NDArray[np.int64],
        sampling_rate: float,
        *,
        decided_before: bool = False,
    ) -> None:
        self.step, self.decision_ids = current.step, decision_ids
        self.halted, self.readmitted = halted, readmitted
        self.sampling_rate = sampling_rate
        self.may_be_drawn = decided_before and sampling_rate < 1.0
        self._current = current
        self._drawn: NDArray[np.int64] | None = None

    @cached_property
    def admitted(self) -> NDArray[np.bool_]:
        """Return bool (n,), users who were charged and may be drawn."""
        return self._as_of_now().admitted.copy()

    @cached_property
    def exhausted(self) -> NDArray[np.bool_]:
        """Return bool (n,), users who have nothing left for any step with a cost."""
        return self._as_of_now().exhausted.copy()

    @cached_property
    def clip_norms(self) -> NDArray[np.float64]:
        """Return float64 (n,), the norm to which each contribution must be clipped.

        It is the norm of the charged level, and 0 for users who are not admitted. With many users
        ``clip_norms_at`` is faster.
        """
        return self._as_of_now().clip_norms()

    def clip_norms_at(self, positions: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the clip norms of the users at these positions, such as those who were drawn."""
        return self._as_of_now().clip_norms(positions)

    def sample(self, *, no_coin_drawn: bool = False) -> NDArray[np.int64]:
        """Draw each admitted user with an independent coin, once; return the positions, increasing.

        Later calls return the same positions. The charge covers one draw per decision: a second
        draw is a second release, and a draw that is repeated because of the users in it is no
        Poisson sample (docs/train/loop.md).

        Args:
            no_coin_drawn: the caller states that no earlier attempt has drawn this step.

        Raises:
            Unusable: an earlier attempt may have drawn this step. It stays charged: release
                nothing of it and charge the next one.
        """
        if self._drawn is None:
            if self.may_be_drawn and not no_coin_drawn:
                raise Unusable(
                    f"step {self.step} was decided before this attempt, which must not draw it "
                    "again: release nothing of it and charge the next step. Open runs that sample "
                    "without released=, so that such steps are not handed back. If no coin was "
                    "drawn, call sample(no_coin_drawn=True)"
                )
            self._drawn = poisson_sample(self._as_of_now().admitted, self.sampling_rate)
        return self._drawn.copy()

    def _as_of_now(self) -> Current:
        if self._current.step != self.step:
            raise Unusable(
                f"the roster has charged step {self._current.step} since step {self.step}: read "
                "a step before the next one is charged"
            )
        return self._current


class AskedLevels(NamedTuple):
    """The levels at which a step charges one partition, fixed when the request is made.

    Attributes:
        in_force: the levels of all users of the roster after the previous step; updated once this
            step is decided.
        rows: positions of the users whose levels this step sets, increasing.
        levels: the levels of these users.
    """

    in_force: Levels
    rows: NDArray[np.int64]
    levels: Levels

    def at(self, rows: NDArray[np.int64]) -> Levels:
        """Return the levels of the users at these positions."""
        asked = self.in_force[rows]
        if len(self.rows):
            places = np.minimum(np.searchsorted(self.rows, rows), len(self.rows) - 1)
            brought = self.rows[places] == rows
            asked[brought] = self.levels[places[brought]]
        return asked


class RosterPart(NamedTuple):
    """A partition's share of a roster step; see ``StepPart``.

    Attributes:
        cost_table_digest: the digest of the step's cost table.
        positions: the positions of the roster's members in this partition.
        asked: the levels to charge.
    """

    record: bytes
    digest: bytes
    cost_table_digest: bytes
    positions: NDArray[np.int64]
    asked: AskedLevels

    def decided(self, answer: Decision | RosterDecision) -> RosterChanges:
        """Return the decision about this step of this roster.

        Raises:
            ConflictingDecisions: a worker cannot have made this decision for this request.
        """
        if not isinstance(answer, RosterDecision) or answer.members != len(self.positions):
            raise not_of_a_worker(answer.partition, f"is not about {len(self.positions)} members")
        return checked_changes(answer, lambda places: self.asked.at(self.positions[places]))


def checked_changes(
    decision: RosterDecision, asked: Callable[[NDArray[np.int64]], Levels]
) -> RosterChanges:
    """Return what a decision changes, after checking that no level is above the one requested.

    Args:
        asked: returns the requested levels of the members at given places of the partition.

    Raises:
        ConflictingDecisions: a worker cannot have made this decision for this request.
    """
    try:
        changes = RosterChanges.of(decision)
    except ValueError as error:
        raise not_of_a_worker(decision.partition, str(error)) from error
    if len(changes.granted) and bool((changes.granted > asked(changes.regranted)).any()):
        raise not_of_a_worker(decision.partition, "grants what was not asked for")
    return changes


def poisson_sample(
    admitted: NDArray[np.bool_],
    sampling_rate: float,
    *,
    not_private_generator: np.random.Generator | None = None,
) -> NDArray[np.int64]:
    """Draw each admitted user with exactly this probability, independently.

    The random bits come from the operating system and from OpenSSL's generator, as those of the
    noise (`accounting.release.exact_coins`).

    Args:
        admitted: bool (n,).
        sampling_rate: from 0 to 1.
        not_private_generator: for tests and figures that must be repeated. A party that knows its
            seed knows which users were drawn, so a training with it is not private.

    Returns:
        Positions, increasing.

    Raises:
        InvalidInput: ``sampling_rate`` is no probability.
    """
    rate = sampling_probability("sampling_rate", sampling_rate)
    if rate == 1.0:
        return np.flatnonzero(admitted)
    # Users who are not admitted have a coin, too: no user's coin depends on who is admitted.
    drawn = heads(len(admitted), rate, not_private_generator)
    return drawn[admitted[drawn]]
