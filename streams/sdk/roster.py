"""Rosters: users who are enrolled in a run once and charged by level, one byte per changed level.

    run.enrol(users) --> roster --charge--> RosterStep --sample--> positions
                           ^                                |
                           +------- observe, set_norms <----+     levels of later steps

The cost table of a mechanism travels with the first step that has it (``pricing``). A step sends
nothing about users whose level stays the same.

A step charges the levels that were sent with it. Levels that are set later, while the step is under
way or is sent again, belong to the steps after it. The same holds for levels that follow from what
a trainer saw after an earlier attempt left a step behind: that step is handed back as it was
decided.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import numpy as np
from msgspec.structs import replace
from numpy.typing import ArrayLike, NDArray

from accounting import Mechanism
from accounting.costs.norm_levels import grid_norms, levels_of
from accounting.exact.argument_checks import whole_array
from accounting.filters.due_steps import distinct
from streams.ledger.erasure import blanked
from streams.ledger.validation import check_norms
from streams.records import (
    MAX_UNSIGNED_BYTES,
    ChargeRoster,
    Enrol,
    Enrolled,
    Policy,
    Reason,
    RosterDecision,
    decode_answer,
    encode,
)
from streams.records.decision_ids import ids_of_step
from streams.records.digests import ROSTER_PAGE, page_digests, roster_digest
from streams.records.packing import unpack_positions
from streams.records.users import UserIds
from streams.sdk.arguments import Priced, price, read_mechanism, read_numbers
from streams.sdk.attempt import Ahead, AskedStep, Attempt, Call
from streams.sdk.connection import Connection, Deadline
from streams.sdk.decisions import RosterChanges
from streams.sdk.errors import (
    ConflictingDecisions,
    InvalidRequest,
    StepContentChanged,
    Unusable,
    invalid_requests,
    not_of_a_worker,
)
from streams.sdk.roster_steps import (
    AskedLevels,
    Current,
    RosterPart,
    RosterStep,
    checked_changes,
)
from streams.sdk.step_layout import Layout

NO_POSITIONS: Final = np.empty(0, dtype=np.int64)


class Roster:
    """The users of one run, addressed by position: their indices in the list that was enrolled.

    ``Run.enrol`` makes it, and a later call of ``Run.enrol`` replaces it. Only one thread may
    charge it; any thread may set levels.

    Attributes:
        clip_norm: the norm of the highest level.
        levels: how many levels there are above 0.
    """

    def __init__(
        self,
        attempt: Attempt,
        layout: Layout,
        policies: Sequence[Policy],
        clip_norm: float,
        levels: int,
        enrolled: Mapping[int, Enrolled],
    ) -> None:
        self.clip_norm, self.levels = clip_norm, levels
        self._attempt, self._layout, self._policies = attempt, layout, policies
        self._norms = grid_norms(clip_norm, levels)
        count = len(layout.ids)
        self._current = Current(count, self._norms)
        self._level = np.full(count, levels, dtype=np.uint8)  # for the next step
        self._sent = self._level.copy()  # in force at the service
        self._moved: list[NDArray[np.int64]] | None = []  # where they may differ; None: anywhere
        # Guards the three above. Reentrant, for a caller that is interrupted while it holds it.
        self._setting = threading.RLock()
        self._newcomers = NO_POSITIONS  # enrolled, but not yet when the last step was decided
        self._home, self._place = _places(layout)
        self._cost_tables: dict[Mechanism, Priced] = {}
        self._known: dict[int, bytes] = {}  # by partition, the digest of the cost table it has
        self._enrolled: dict[int, Enrolled] = {}  # until the first step is decided
        self._adopt(enrolled)
        attempt.roster = self

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
        """Charge one step to all users, sampled or not, and wait until it is decided everywhere.

        Coins may be drawn only after this method returns, for the admitted users. Clip each sampled
        contribution to its ``clip_norms``, and add the charged noise once to the sum. Neighbouring
        datasets differ by adding or removing one user.

        Args:
            noise_stddev: standard deviation of Gaussian noise, in the units of the norms; not
                multiplied by the clip norm.
            sampling_rate: probability with which each user is drawn by Poisson sampling; it may
                depend on public numbers and released outputs only. 1: every user takes part.
            norms: sets every user's level, as ``set_norms`` before this call.
            mechanism: instead of noise_stddev, an ``accounting`` mechanism, or a DpEvent of
                dp_accounting for one step, whose noise is a multiple of the roster's clip norm.

        Raises:
            InvalidRequest: the arguments cannot be charged, or more levels are set in a partition
                than a record has: over Kafka 1,000,000 bytes, of one byte for all users or five
                for each level that changes. Nothing was published.
            DecisionTimeout: call again with the same arguments.
            StepContentChanged: the step that was handed back had another mechanism; nothing was
                charged.
            Fenced, RequestRejected, ConflictingDecisions: as ``Run.charge``.
        """
        priced = self._priced(noise_stddev, mechanism, sampling_rate)
        with self._levels_for(norms), self._attempt.use(Call.CHARGE, timeout) as deadline:
            asked = self._asked(priced, sets_norms=norms is not None)
            return self._attempt.decide(asked, deadline)

    def charge_ahead(
        self,
        *,
        noise_stddev: float | None = None,
        sampling_rate: float = 1.0,
        norms: ArrayLike | None = None,
        mechanism: Any = None,
    ) -> Ahead[RosterStep]:
        """Send the next step to be charged, as ``charge`` does, without waiting for the decision.

        The service can then decide the next step while the trainer computes the current one.
        Levels that are set before ``decision()`` of the returned object was called apply from the
        step after it. Open the run with ``charges_ahead``.

        Raises:
            InvalidRequest: the arguments cannot be charged; nothing was published.
            StepContentChanged: as ``charge``.
        """
        priced = self._priced(noise_stddev, mechanism, sampling_rate)
        with self._levels_for(norms), self._attempt.use(Call.CHARGE) as deadline:
            return self._attempt.send_ahead(self._asked(priced, sets_norms=False), deadline)

    def _asked(self, priced: Priced, *, sets_norms: bool) -> AskedStep[RosterChanges, RosterStep]:
        """Return the parts of a step: new ones, or those that were published and not decided yet.

        Args:
            sets_norms: whether the caller gave norms for this very step.
        """
        attempt = self._attempt
        if attempt.roster is not self:
            raise Unusable(
                f"run {attempt.run!r} has enrolled another roster since, and this one no longer "
                "follows its halts and levels: charge the newest one"
            )
        step = attempt.step
        again = {p: self._decided_before(p, step, priced) for p in attempt.handed_back}
        if sets_norms and attempt.is_shared:
            self._check_repeated_levels(again.keys())
        published = {
            partition: part
            for partition, part in attempt.published.items()
            if isinstance(part, RosterPart) and part.cost_table_digest == priced.digest
        }
        if sets_norms and published and not self._is_asked(published):
            raise attempt.still_published()
        others = [p for p in range(len(self._layout.positions)) if p not in again]
        parts = published or self._new_parts(priced, others)
        return AskedStep(
            parts,
            lambda decided: self.put_together(step, priced, parts, again | decided, again.keys()),
        )

    def _check_repeated_levels(self, partitions: Iterable[int]) -> None:
        """Check that the levels set for a repeated step are those that it was charged with.

        Raises:
            StepContentChanged: they are not, in one of these partitions that decided it.
        """
        for partition in partitions:
            mine = self._layout.positions[partition]
            if not np.array_equal(self._level[mine], self._sent[mine]):
                raise StepContentChanged(
                    Reason.STEP_CONTENT_CHANGED,
                    f"step {self._attempt.step} was charged with other norms",
                    partition,
                )

    @contextmanager
    def _levels_for(self, norms: ArrayLike | None) -> Iterator[None]:
        """Set every level for one step; restore the levels if the step cannot be charged."""
        if norms is None:
            yield
            return
        before = self._level.copy()
        self.set_norms(norms)
        try:
            yield
        except InvalidRequest:
            self._set_levels(None, before)
            raise

    def set_norms(self, norms: ArrayLike, positions: ArrayLike | None = None) -> None:
        """Set the levels of later steps from bounds on the users' contributions.

        The next step that is sent carries them; a step that is under way is charged as it was
        sent.

        A level may follow released outputs, the user's own data and the user's own sampling coins
        of earlier steps (docs/guarantees.md), but never another user's data.

        Args:
            norms: L2 norms, at least 0, rounded up to the norm grid. A norm above ``clip_norm``
                sets the highest level, since contributions are clipped.
            positions: the positions of the users; None: all users, in the order of enrolment.

        Raises:
            InvalidRequest: the number of norms differs from that of positions, or a norm is
                negative or NaN.
        """
        rows = self._rows(positions)
        values, _ = read_numbers("norms", norms)
        count = len(self) if rows is None else len(rows)
        if values.shape != (count,):
            raise InvalidRequest(f"norms has shape {values.shape}; it must be ({count},)")
        bounds = np.minimum(values, self.clip_norm)
        with invalid_requests():
            check_norms(bounds, None)
        levels = levels_of(bounds, self.clip_norm, self.levels)
        self._set_levels(rows, levels)

    def _set_levels(self, rows: NDArray[np.int64] | None, levels: NDArray[np.uint8]) -> None:
        with self._setting:
            if rows is None:
                self._level[:] = levels
                self._moved = None
            else:
                self._level[rows] = levels
                if self._moved is not None:
                    self._moved.append(rows)

    def observe(self, positions: ArrayLike, norms: ArrayLike) -> None:
        """Set levels from the unclipped norms of the users who were drawn.

        Reports on realised histories do not hold for a run whose levels followed sampling coins;
        its budget does (docs/guarantees.md).

        Raises:
            InvalidRequest: as ``set_norms``, or the policy of the dataset or of a parent states
                that no level follows sampling coins (``sampled_levels=False``).
        """
        for policy in self._policies:
            if policy.sampled_levels is False:
                raise InvalidRequest(
                    f"dataset {policy.dataset!r} has sampled_levels=False, so levels must not "
                    "follow the norms of users who were drawn: use set_norms"
                )
        self.set_norms(norms, positions)

    def _adopt(self, enrolled: Mapping[int, Enrolled]) -> None:
        """Adopt the state of the roster that the partitions returned."""
        now = self._current
        for partition, answer in enrolled.items():
            mine = self._layout.positions[partition][: answer.members]
            levels = np.frombuffer(answer.levels, dtype=np.uint8)
            self._sent[mine] = self._level[mine] = levels
            now.granted[mine] = np.frombuffer(answer.granted, dtype=np.uint8)
            now.admitted[mine[unpack_positions(answer.halted, len(mine))]] = False
            now.exhausted[mine[unpack_positions(answer.exhausted, len(mine))]] = True
            self._known[partition] = answer.cost_table_digest
            self._enrolled[partition] = answer

    def _new_parts(self, priced: Priced, partitions: Iterable[int]) -> dict[int, RosterPart]:
        """Return the request of the next step for each of these partitions."""
        with self._setting:
            moved = self._moved_by_partition()
            return {p: self._part(p, moved[p], priced) for p in partitions}

    def _part(self, partition: int, rows: NDArray[np.int64], priced: Priced) -> RosterPart:
        mine, places = self._layout.positions[partition], self._place[rows]
        if 5 * len(rows) >= len(mine) > 0 and len(rows):
            places, rows = places[:0], mine
        knows = self._known.get(partition) == priced.digest
        levels = self._level[rows]
        record = ChargeRoster(
            dataset=self._attempt.dataset,
            run=self._attempt.run,
            attempt=self._attempt.number,
            step=self._attempt.step,
            members=len(mine),
            mechanism=priced.name,
            scale=priced.scale,
            sampling_rate=priced.sampling_rate,
            cost_table_digest=priced.digest,
            units=b"" if knows else priced.units,
            positions=places.astype("<u4").tobytes(),
            levels=levels.tobytes(),
        )
        asked = AskedLevels(self._sent, rows, levels)
        return RosterPart(encode(record), roster_digest(record), priced.digest, mine, asked)

    def _is_asked(self, parts: Mapping[int, RosterPart]) -> bool:
        """Return whether the current levels are those that were sent."""
        return all(
            np.array_equal(part.asked.at(part.positions), self._level[part.positions])
            for part in parts.values()
        )

    def _decided_before(self, partition: int, step: int, priced: Priced) -> RosterChanges:
        """Return the decision that an earlier attempt received for the step that was handed back.

        Raises:
            StepContentChanged: the step had another mechanism, or was not charged to the roster.
        """
        there = self._enrolled[partition]
        decision = decode_answer(there.decision) if there.decision else None
        if not isinstance(decision, RosterDecision) or decision.step != step:
            raise StepContentChanged(
                Reason.STEP_CONTENT_CHANGED,
                f"step {step} was charged by Run.charge, not by the roster: charge it with "
                "Run.charge again, or give it up with abandon",
                partition,
            )
        if there.cost_table_digest != priced.digest:
            raise StepContentChanged(
                Reason.STEP_CONTENT_CHANGED,
                f"step {step} was charged with another noise or sampling rate: charge it with "
                "those again, or give it up with abandon",
                partition,
            )
        levels = np.frombuffer(there.levels, dtype=np.uint8)
        if decision.members > len(levels):  # may be fewer: users were enrolled since
            raise not_of_a_worker(partition, f"is about more than {len(levels)} members")
        return checked_changes(decision, levels.__getitem__)

    def put_together(
        self,
        step: int,
        priced: Priced,
        parts: Mapping[int, RosterPart],
        decisions: Mapping[int, RosterChanges],
        again: Collection[int],
    ) -> RosterStep:
        """Return the step's result from the decisions of all partitions, and update the roster.

        This is idempotent: a caller that is interrupted may call it again.

        Args:
            again: the partitions that decided the step before this attempt. Their granted levels
                are known, and levels that were set since go with the next step.
        """
        now = self._current
        now.admitted[self._newcomers] = True
        halted: list[NDArray[np.int64]] = []
        readmitted: list[NDArray[np.int64]] = []
        newcomers: list[NDArray[np.int64]] = []
        for partition, decision in decisions.items():
            mine, count = self._layout.positions[partition], decision.members
            left, back = mine[decision.halted], mine[decision.readmitted]
            now.admitted[left], now.admitted[back] = False, True
            now.exhausted[mine[decision.exhausted]] = True
            if partition in again:
                newcomers.append(mine[count:])
            else:
                _, rows, levels = parts[partition].asked
                self._sent[rows] = now.granted[rows] = levels
                now.granted[back] = self._sent[back]
                now.granted[mine[decision.regranted]] = decision.granted
                self._known[partition] = priced.digest
            halted.append(left)
            readmitted.append(back)
        self._newcomers = _ascending(newcomers)
        now.admitted[self._newcomers] = False
        self._drop_sent()
        now.step, self._enrolled = step, {}
        offsets = {partition: decision.offset for partition, decision in decisions.items()}
        return RosterStep(
            now,
            ids_of_step(self._attempt.log, offsets),
            halted=_ascending(halted),
            readmitted=_ascending(readmitted),
            sampling_rate=priced.sampling_rate,
            decided_before=len(again) == len(decisions),
        )

    def _drop_sent(self) -> None:
        """Drop the positions whose level is in force by now."""
        with self._setting:
            if self._moved is None or self._moved:
                moved = _ascending(self._moved_by_partition())
                self._moved = [moved] if len(moved) else []

    def _moved_by_partition(self) -> list[NDArray[np.int64]]:
        """Return, by partition, the increasing positions whose level is not the one in force."""
        positions = self._layout.positions
        if self._moved is None:
            moved = self._level != self._sent
            return [mine[moved[mine]] for mine in positions]
        if not self._moved:
            return [mine[:0] for mine in positions]
        rows = np.concatenate(self._moved)
        rows = distinct(rows[self._level[rows] != self._sent[rows]])
        homes = self._home[rows]
        return [rows[homes == partition] for partition in range(len(positions))]

    def _rows(self, positions: ArrayLike | None) -> NDArray[np.int64] | None:
        if positions is None:
            return None
        with invalid_requests():
            rows = whole_array("positions", positions).astype(np.int64)
        if rows.ndim != 1:
            raise InvalidRequest(f"positions has shape {rows.shape}; it must be one-dimensional")
        if len(rows) and not 0 <= int(rows.min()) <= int(rows.max()) < len(self):
            raise InvalidRequest(
                f"positions go from {rows.min()} to {rows.max()}; they must be between 0 and "
                f"{len(self) - 1}"
            )
        return rows

    def _priced(self, noise_stddev: float | None, mechanism: Any, sampling_rate: float) -> Priced:
        chosen = read_mechanism(noise_stddev, mechanism, self.clip_norm, sampling_rate)
        if chosen not in self._cost_tables:
            priced = price(chosen, self._policies, self.clip_norm, self.levels)
            self._cost_tables[chosen] = priced
        return self._cost_tables[chosen]


def _ascending(positions: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    found = [each for each in positions if len(each)]
    return np.sort(np.concatenate(found)) if found else NO_POSITIONS


def _places(layout: Layout) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Return, for every position, the user's partition and the user's place in it."""
    count = len(layout.ids)
    homes, places = np.empty(count, dtype=np.int32), np.empty(count, dtype=np.int32)
    for partition, mine in enumerate(layout.positions):
        homes[mine] = partition
        places[mine] = np.arange(len(mine), dtype=np.int32)
    return homes, places


ENROLLED_AT_ONCE = 2**16
"""The maximum number of users of one partition per request; fewer with long ids."""
_OTHER_BYTES = 2_000
"""The maximum size of a step without its levels and its cost table, with a signature."""


def enrol(
    connection: Connection,
    empty: Enrol,
    layout: Layout,
    deadline: Deadline,
) -> dict[int, Enrolled]:
    """Enrol the users in all partitions, and return each partition's roster.

    Args:
        deadline: the deadline of each round of answers.

    Raises:
        InvalidRequest: the roster of the run has other users than these.
        DecisionTimeout: not all partitions answered; call again to continue.
        RequestRejected: a partition rejected the request.
    """
    users = [layout.users_of(partition) for partition in range(len(layout.positions))]
    # Step 1.
    answers = connection.ask(dict.fromkeys(range(len(users)), empty), Enrolled, deadline)
    # Step 2.
    for partition, answer in answers.items():
        _check_same(answer, users[partition])
    # Step 3.
    while True:
        missing: dict[int, Enrol] = {}
        for partition, answer in answers.items():
            first = answer.members
            if first < len(users[partition]):
                missing[partition] = _next(replace(empty, first=first), users[partition][first:])
        if not missing:
            return answers
        answers |= connection.ask(missing, Enrolled, deadline)


def _next(empty: Enrol, users: UserIds) -> Enrol:
    """Return a request with the first of these users, so many that it is small enough."""
    count = min(len(users), ENROLLED_AT_ONCE)
    request = replace(empty, users=users[:count].pack())
    while len(encode(request)) > MAX_UNSIGNED_BYTES:
        count //= 2
        request = replace(empty, users=users[:count].pack())
    return request


def check_cost_table(connection: Connection, size: int) -> None:
    """Check that a cost table of so many bytes fits into a request.

    Raises:
        InvalidRequest: it does not.
    """
    if size + _OTHER_BYTES > connection.largest_request:
        raise InvalidRequest(
            f"the cost table of a step would take {size} bytes, and a request has at most "
            f"{connection.largest_request}: use fewer levels or fewer Rényi orders"
        )


def _as_known(answer: Enrolled, users: UserIds) -> UserIds:
    """Return the users with the ids of erased members blanked, as the roster has them."""
    if not isinstance(answer.erased, bytes):
        return users
    try:
        return blanked(users, unpack_positions(answer.erased, answer.members))
    except ValueError as error:
        raise ConflictingDecisions(
            f"partition {answer.partition} answered with an invalid roster of run "
            f"{answer.run!r}: {error}. It was not made by a worker"
        ) from error


def _check_same(answer: Enrolled, users: UserIds) -> None:
    """Check that these users begin with those of the roster."""
    if answer.members > len(users):
        raise InvalidRequest(
            f"partition {answer.partition} has {answer.members} users of run {answer.run!r} on its "
            f"roster, but only {len(users)} were given: enrol all of them, or charge under another "
            "run"
        )
    mine = page_digests(_as_known(answer, users[: answer.members]))
    if mine != answer.digests:
        page = next(
            i for i in range(0, len(mine), 16) if mine[i : i + 16] != answer.digests[i : i + 16]
        )
        raise InvalidRequest(
            f"the roster of run {answer.run!r} has other users, or in another order: those of "
            f"partition {answer.partition} differ from number {page // 16 * ROSTER_PAGE} on. Enrol "
            "the same users in the same order, with new ones at the end, or charge under another "
            "run"
        )
