"""Rosters: users who are enrolled in a run once and charged by level, a byte for each that moves.

    run.enrol(users) --> roster --charge--> RosterStep --sample--> positions
                           ^                                |
                           +------- observe, set_norms <----+     levels of the steps to come

What is charged at a level is the same for everybody, so it is computed here once, as whole units (a
tariff), and travels with the first step that has this mechanism. Between steps nothing is sent
about a user whose level stays.

A step that an earlier attempt has left behind is handed back as it was decided: what a trainer has
seen since, and would send as levels, belongs to the steps after it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from msgspec.structs import replace
from numpy.typing import ArrayLike, NDArray

from accounting import Gaussian, InvalidInput, Laplace, Mechanism, PoissonGaussian, PureDP
from accounting.costs.mechanisms import noise_scale
from accounting.costs.tariffs import grid_norms, levels_of
from accounting.measures import tariff
from streams.schemas import (
    Answer,
    ChargeRoster,
    Enrolled,
    Policy,
    Reason,
    RosterDecision,
    RosterMechanism,
    decode_answer,
    encode,
)
from streams.sdk.arguments import read_event, read_numbers
from streams.sdk.errors import (
    ConflictingDecisions,
    InvalidRequest,
    StepContentChanged,
    Unusable,
)
from streams.sdk.sampling import poisson_sample
from streams.sdk.steps import Layout
from streams.wire.packing import (
    roster_digest,
    tariff_digest,
    unpack_positions,
)

Levels = NDArray[np.uint8]

_NAMES: Mapping[type[Mechanism], RosterMechanism] = {
    Gaussian: "gaussian",
    PoissonGaussian: "poisson-gaussian",
    Laplace: "laplace",
    PureDP: "pure-dp",
}


class _Current:
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

    All but ``step`` is as secret as the data. ``admitted``, ``exhausted`` and ``clip_norms`` are
    copied when they are first asked for, which has to be before the next step is charged.

    Attributes:
        step: the step that was charged.
        halted: int64, positions of those who left with this step.
        readmitted: int64, positions of those who came back with it.
        sampling_rate: with which each of the admitted is drawn.
    """

    def __init__(
        self,
        current: _Current,
        halted: NDArray[np.int64],
        readmitted: NDArray[np.int64],
        sampling_rate: float,
    ) -> None:
        self.step = current.step
        self.halted, self.readmitted = halted, readmitted
        self.sampling_rate = sampling_rate
        self._current = current

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

    def sample(self) -> NDArray[np.int64]:
        """Draw among the admitted, each by a fresh coin of its own: positions, increasing.

        A step may be drawn once: two samples of one step would be two releases for one charge.
        """
        return poisson_sample(self._as_of_now().admitted, self.sampling_rate)

    def _as_of_now(self) -> _Current:
        if self._current.step != self.step:
            raise Unusable(
                f"the roster has charged step {self._current.step} since step {self.step}: ask a "
                "step for what is needed of it before the next one is charged"
            )
        return self._current


class Priced(NamedTuple):
    """A mechanism, and what it charges at every level."""

    name: RosterMechanism
    scale: float
    sampling_rate: float
    units: bytes
    digest: bytes


class RosterPart(NamedTuple):
    """What one partition is asked to charge in a step of a roster.

    Attributes:
        record: the request.
        digest: of its content, by which the decision about it is recognised.
        members: of the roster in this partition.
        levels: that it is to charge, of all users of the roster.
        positions: of the members among these.
    """

    record: bytes
    digest: bytes
    members: int
    levels: Levels
    positions: NDArray[np.int64]

    def decided(self, answer: Answer) -> RosterDecision:
        """The decision, if it is one of this step of this roster.

        Raises:
            ConflictingDecisions: no worker can have decided this.
        """
        if isinstance(answer, RosterDecision) and answer.digest == self.digest:
            return checked_decision(answer, self.members, self.levels, self.positions)
        raise _not_of_a_worker(answer, "is about another step, or about other content")


class Roster:
    """The users of one run, by position: their places in the list that was enrolled.

    Made by ``Run.enrol``; not to be shared between threads.

    Attributes:
        clip_norm: the norm of the highest level.
        levels: how many levels there are above 0.
    """

    def __init__(
        self,
        layout: Layout,
        policies: Sequence[Policy],
        clip_norm: float,
        levels: int,
        charge: Callable[..., RosterStep],
    ) -> None:
        self.clip_norm, self.levels = clip_norm, levels
        self._layout, self._policies, self._charge = layout, policies, charge
        self._norms = grid_norms(clip_norm, levels)
        count = len(layout.ids)
        self._current = _Current(count, self._norms)
        self._level = np.full(count, levels, dtype=np.uint8)  # asked for, by the next step
        self._sent = self._level.copy()  # in force, at the service
        self._moved: list[NDArray[np.int64]] | None = []  # where they may differ; None: anywhere
        self._listed: dict[int, NDArray[np.int64]] = {}  # whose levels the step brings
        self._home, self._place = _places(layout)
        self._tariffs: dict[Mechanism, Priced] = {}
        self._known: dict[int, bytes] = {}  # by partition, the digest of the tariff that it has
        self.there: dict[int, Enrolled] = {}

    def __len__(self) -> int:
        return len(self._layout.ids)

    def charge(
        self,
        *,
        noise_stddev: float | None = None,
        sampling_rate: float = 1.0,
        norms: ArrayLike | None = None,
        mechanism: Any = None,
        timeout: float | None = None,
    ) -> RosterStep:
        """Charge one step to everybody, sampled or not, and wait until it is decided everywhere.

        Only after this returns may coins fall, among the admitted; each sampled contribution is
        clipped to its ``clip_norms``, and the noise that was charged is added once to the sum.
        Neighbouring datasets differ by adding or removing one user.

        Args:
            noise_stddev: standard deviation of Gaussian noise, in the units of the norms; not
                multiplied by the clip norm.
            sampling_rate: with which each user is drawn by Poisson sampling, from public numbers
                and released outputs alone. 1: everybody takes part.
            norms: the same as ``set_norms`` before this call: every level anew.
            mechanism: instead of noise_stddev, an ``accounting`` mechanism, or a DpEvent of
                dp_accounting for one step, whose noise is a multiple of the roster's clip norm.
            timeout: seconds to wait; the Turnstile's own by default.

        Raises:
            InvalidRequest: these arguments cannot be charged; nothing was published.
            DecisionTimeout: call again with the same arguments.
            StepContentChanged: the step that was handed back had another mechanism; nothing was
                charged.
            Fenced, RequestRejected, ConflictingDecisions: as ``Run.charge``.
        """
        priced = self._priced(_chosen(noise_stddev, sampling_rate, mechanism, self.clip_norm))
        before = None
        if norms is not None:
            before = self._level.copy()
            self.set_norms(norms)
        try:
            return self._charge(self, priced, timeout)
        except InvalidRequest:
            if before is not None:
                self._level = before
            raise

    def set_norms(self, norms: ArrayLike, positions: ArrayLike | None = None) -> None:
        """Set the levels of steps to come from what each user's contribution may be.

        A level may follow released outputs, the user's own data and the user's own coins of steps
        before (docs/guarantees.md); never another user's data.

        Args:
            norms: L2 norms from 0 on, rounded up to the grid; above ``clip_norm`` the highest
                level is meant, since contributions are clipped.
            positions: whose; None: everybody's, in the order of the enrolled users.

        Raises:
            InvalidRequest: no norm for each position, or a norm that is none.
        """
        rows = self._rows(positions)
        values, _ = read_numbers("norms", norms)
        count = len(self) if rows is None else len(rows)
        if values.shape != (count,):
            raise InvalidRequest(f"norms has shape {values.shape}; here it must be ({count},)")
        if not bool((values >= 0).all()):  # False for NaN, too
            position = int(np.flatnonzero(~(values >= 0))[0])
            raise InvalidRequest(f"norm {values[position]} at place {position}; it must be >= 0")
        levels = levels_of(np.minimum(values, self.clip_norm), self.clip_norm, self.levels)
        if rows is None:
            self._level[:] = levels
            self._moved = None
        else:
            self._level[rows] = levels
            if self._moved is not None:
                self._moved.append(rows)

    def observe(self, positions: ArrayLike, norms: ArrayLike) -> None:
        """Set levels from norms of users who were drawn, as they were before clipping.

        Reports on realised histories do not hold for a run whose levels followed coins; its budget
        does (docs/guarantees.md).
        """
        self.set_norms(norms, positions)

    def take(self, there: Mapping[int, Enrolled]) -> None:
        """Go on from what the partitions have."""
        now = self._current
        for partition, answer in there.items():
            mine = self._layout.positions[partition][: answer.members]
            levels = np.frombuffer(answer.levels, dtype=np.uint8)
            self._sent[mine] = self._level[mine] = levels
            now.granted[mine] = np.frombuffer(answer.granted, dtype=np.uint8)
            now.admitted[mine[unpack_positions(answer.halted, len(mine))]] = False
            now.exhausted[mine[unpack_positions(answer.exhausted, len(mine))]] = True
            self._known[partition] = answer.tariff
            self.there[partition] = answer

    def parts(
        self, blank: ChargeRoster, priced: Priced, partitions: Iterable[int]
    ) -> dict[int, RosterPart]:
        """What each of these partitions is asked in the next step."""
        moved = self._moved_by_partition()
        result = {}
        self._listed = {}
        for partition in partitions:
            mine = self._layout.positions[partition]
            rows = moved[partition]
            places = self._place[rows]
            if 5 * len(rows) >= len(mine) > 0 and len(rows):
                places, rows = places[:0], mine
            self._listed[partition] = rows
            knows = self._known.get(partition) == priced.digest
            record = replace(
                blank,
                members=len(mine),
                mechanism=priced.name,
                scale=priced.scale,
                sampling_rate=priced.sampling_rate,
                tariff=priced.digest,
                units=b"" if knows else priced.units,
                positions=places.astype("<u4").tobytes(),
                levels=self._level[rows].tobytes(),
            )
            result[partition] = RosterPart(
                encode(record), roster_digest(record), len(mine), self._level, mine
            )
        return result

    def decided_before(self, partition: int, step: int, priced: Priced) -> RosterDecision:
        """What an earlier attempt was told of a step that was handed back.

        Raises:
            StepContentChanged: it was charged another mechanism, or not to the roster.
        """
        there = self.there[partition]
        decision = decode_answer(there.decision) if there.decision else None
        if not isinstance(decision, RosterDecision) or decision.step != step:
            raise StepContentChanged(
                Reason.STEP_CONTENT_CHANGED,
                f"step {step} was charged by Run.charge and not to the roster: charge it so again, "
                "or give it up with abandon",
                partition,
            )
        if there.tariff != priced.digest:
            raise StepContentChanged(
                Reason.STEP_CONTENT_CHANGED,
                f"step {step} was charged at another noise or sampling rate: charge it with those "
                "again, or give it up with abandon",
                partition,
            )
        levels = np.frombuffer(there.levels, dtype=np.uint8)
        return checked_decision(decision, there.members, levels, np.arange(len(levels)))

    def put_together(
        self,
        step: int,
        priced: Priced,
        decisions: Mapping[int, RosterDecision],
        again: Collection[int],
    ) -> RosterStep:
        """What all partitions decided; those in ``again`` had done so before this attempt."""
        now = self._current
        now.step = step
        halted, readmitted, kept = [], [], []
        moved = self._moved_by_partition() if again else []
        for partition, decision in decisions.items():
            mine, count = self._layout.positions[partition], decision.members
            left, back, spent, regranted = (
                mine[unpack_positions(packed, count)]
                for packed in (
                    decision.halted,
                    decision.readmitted,
                    decision.exhausted,
                    decision.regranted,
                )
            )
            now.admitted[left], now.admitted[back] = False, True
            now.exhausted[spent] = True
            if partition in again:  # what was granted is known; levels set since go with the next
                kept.append(moved[partition])
            else:
                afresh = np.concatenate([self._listed[partition], back])
                now.granted[afresh] = self._sent[afresh] = self._level[afresh]
                now.granted[regranted] = np.frombuffer(decision.granted, dtype=np.uint8)
                self._known[partition] = priced.digest
            halted.append(left)
            readmitted.append(back)
        self._moved, self.there = kept, {}
        return RosterStep(
            now,
            halted=np.sort(np.concatenate(halted)),
            readmitted=np.sort(np.concatenate(readmitted)),
            sampling_rate=priced.sampling_rate,
        )

    def _moved_by_partition(self) -> list[NDArray[np.int64]]:
        """Positions whose level is not the one in force, increasing."""
        everybody = self._layout.positions
        if self._moved is None:
            moved = self._level != self._sent
            return [mine[moved[mine]] for mine in everybody]
        if not self._moved:
            return [mine[:0] for mine in everybody]
        rows = np.unique(np.concatenate(self._moved))
        rows = rows[self._level[rows] != self._sent[rows]]
        homes = self._home[rows]
        return [rows[homes == partition] for partition in range(len(everybody))]

    def _rows(self, positions: ArrayLike | None) -> NDArray[np.int64] | None:
        if positions is None:
            return None
        rows = np.asarray(positions)
        if rows.ndim != 1 or (rows.dtype.kind not in "iu" and len(rows)):
            raise InvalidRequest("positions must be a list of whole numbers")
        rows = rows.astype(np.int64)
        if len(rows) and not 0 <= int(rows.min()) <= int(rows.max()) < len(self):
            raise InvalidRequest(f"positions go from 0 to {len(self) - 1}, the users enrolled")
        return rows

    def _priced(self, mechanism: Mechanism) -> Priced:
        if mechanism not in self._tariffs:
            packed = b"".join(self._tariff(policy, mechanism) for policy in self._policies)
            self._tariffs[mechanism] = Priced(
                name=_NAMES[type(mechanism)],
                scale=_scale_of(mechanism),
                sampling_rate=getattr(mechanism, "sampling_rate", 1.0),
                units=packed,
                digest=tariff_digest(packed),
            )
        return self._tariffs[mechanism]

    def _tariff(self, policy: Policy, mechanism: Mechanism) -> bytes:
        """What each level costs under a policy, as the wire has it."""
        orders = policy.orders or None
        try:
            units = tariff(policy.measure, mechanism, self.clip_norm, self.levels, orders)
        except InvalidInput as error:
            raise InvalidRequest(str(error)) from error
        return units.astype("<i8").tobytes()


def checked_decision(
    decision: RosterDecision, members: int, levels: Levels, positions: NDArray[np.int64]
) -> RosterDecision:
    """A decision whose arrays fit each other and what was asked: these levels, at these positions.

    Raises:
        ConflictingDecisions: no worker can have decided this.
    """
    if decision.members != members:
        raise _not_of_a_worker(decision, f"does not fit {members} members")
    try:
        for packed in (decision.halted, decision.readmitted, decision.exhausted):
            unpack_positions(packed, members)
        regranted = unpack_positions(decision.regranted, members)
    except ValueError as error:
        raise _not_of_a_worker(decision, f"has no positions: {error}") from error
    granted = np.frombuffer(decision.granted, dtype=np.uint8)
    if len(granted) != len(regranted) or bool((granted > levels[positions[regranted]]).any()):
        raise _not_of_a_worker(decision, "grants what was not asked for")
    return decision


def _chosen(
    noise_stddev: float | None, sampling_rate: float, mechanism: Any, clip_norm: float
) -> Mechanism:
    if (noise_stddev is None) == (mechanism is None):
        raise InvalidRequest("give either noise_stddev or mechanism")
    try:
        if mechanism is None:
            if sampling_rate == 1:
                return Gaussian(noise_stddev)  # type: ignore[arg-type]
            return PoissonGaussian(noise_stddev, sampling_rate)  # type: ignore[arg-type]
        mechanism = read_event(mechanism, clip_norm)
    except InvalidInput as error:
        raise InvalidRequest(str(error)) from error
    if sampling_rate != 1:
        raise InvalidRequest("give the sampling rate with the mechanism, PoissonGaussian")
    if type(mechanism) not in _NAMES:
        known = ", ".join(kind.__name__ for kind in _NAMES)
        raise InvalidRequest(f"mechanism is {mechanism!r}: steps of {known} can be charged")
    chosen: Mechanism = mechanism
    return chosen


def _places(layout: Layout) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Of every position, the partition where the user lives, and the position there."""
    count = len(layout.ids)
    homes, places = np.empty(count, dtype=np.int32), np.empty(count, dtype=np.int32)
    for partition, mine in enumerate(layout.positions):
        homes[mine] = partition
        places[mine] = np.arange(len(mine), dtype=np.int32)
    return homes, places


def _scale_of(mechanism: Mechanism) -> float:
    if isinstance(mechanism, PoissonGaussian):
        return mechanism.noise_stddev
    return noise_scale(mechanism)


def _not_of_a_worker(answer: Answer, complaint: str) -> ConflictingDecisions:
    return ConflictingDecisions(
        f"what partition {answer.partition} answered {complaint}: it was not made by a worker. "
        "Release nothing of this step, and find out who writes to halts"
    )
