"""A run: one trainer or query answerer that charges a dataset, step by step.

A step, as a run sees it:

    next --charge--> published --all partitions answer--> decided, the next step is next
    published --DecisionTimeout--> published              only the same content may be charged
    published --the process ends--> handed back to the next attempt of the run:
        decided in some partitions, or in all and released= says it did not go out
    handed back --charge, the same content--> decided     charged once
    handed back --charge, other content--> handed back    refused before anything is charged
    handed back --abandon--> given up, the next step is next; who was charged stays charged
    next --charge_ahead--> published                      until decision(), nothing else

A step that was handed back is first repeated where it was decided. Only if all of these partitions
return the decision that they have stored is it published to the others.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np
from msgspec import UNSET
from numpy.typing import ArrayLike

from accounting import InvalidInput
from accounting.costs.norm_levels import MAX_LEVELS, grid_norms
from accounting.exact.validation import positive_finite, whole_number
from streams.schemas import (
    Answer,
    Charge,
    ChargeRoster,
    CloseRun,
    Decision,
    Enrol,
    MechanismName,
    OpenRun,
    Policy,
    Reason,
    RosterDecision,
    RunOpened,
    encode,
)
from streams.sdk.ahead import Ahead, Asked, Part
from streams.sdk.arguments import Ids, chargeable, read_mechanism, read_norms
from streams.sdk.connection import Connection, Deadline, Waiting, step_key
from streams.sdk.enrolment import enrol
from streams.sdk.errors import (
    ConflictingDecisions,
    InvalidRequest,
    RequestRejected,
    RunIsClosed,
    StepContentChanged,
    TurnstileError,
    Unusable,
)
from streams.sdk.known_users import KnownUsers
from streams.sdk.pricing import Priced
from streams.sdk.roster_steps import RosterPart, RosterStep
from streams.sdk.rosters import Roster
from streams.sdk.steps import Layout, StepDecision, lay_out

T = TypeVar("T")
D = TypeVar("D")


class Run:
    """One attempt of a run: what a trainer or a query answerer needs of the service.

    Not to be shared between threads. Over Kafka and in memory it is the same run: only the
    connection differs.

    Attributes:
        step: the next step to charge. After a restart it follows the last step that was decided
            in every partition, or is the step that was handed back (see ``interrupted``).
        attempt: which incarnation of the run this is; lower ones are fenced.
        interrupted: ``step`` was handed back: an earlier attempt ended before all partitions had
            decided it, or before it was released. Charging it again with the same users and norms
            completes it; ``abandon`` gives it up.
        policy: the policy of the dataset.
        outer: those of the datasets that it is within, the nearest first: a step fits their
            budgets as well, and is charged to all of them.
        min_separation: how many steps after a participation the next one of the same user may be;
            None: the next step.
    """

    def __init__(self, connection: Connection, opened: Mapping[int, RunOpened], step: int) -> None:
        first = opened[0]
        self.dataset, self.name, self.attempt = first.dataset, first.run, first.attempt
        self.policy: Policy = first.policy
        self.outer: tuple[Policy, ...] = tuple(first.outer or ())
        self.min_separation: int | None = first.min_separation or None
        self.step = step
        self._token = first.request  # of the attempt, in partition 0
        self._connection = connection
        self._witness = connection.watch(self.dataset, self.name)
        self._alone = threading.Lock()
        # Where an earlier attempt has decided ``step``.
        self._decided = {p for p, answer in opened.items() if answer.last_step == step}
        # What this attempt has published of ``step`` elsewhere, by its digest.
        self._published: dict[int, bytes] = {}
        # All that this attempt has asked about ``step``, by digest: answers may come late.
        self._asked: defaultdict[int, set[bytes]] = defaultdict(set)
        self._failed: TurnstileError | None = None
        self._closing: str | None = None
        self._closed = False
        self._ahead: Asked[Any, Any] | None = None
        self._users = KnownUsers()
        self._layout: Layout | None = None
        self._roster: Roster | None = None  # the newest one
        # What it was asked last, by the digest of the tariff, until that is decided.
        self._roster_parts: dict[bytes, dict[int, RosterPart]] = {}

    def __repr__(self) -> str:
        """Which run it is, and how far."""
        state = ", closed" if self._closed else ", interrupted" if self.interrupted else ""
        where = f"attempt {self.attempt}, step {self.step}"
        return f"<Run {self.name!r} of dataset {self.dataset!r}: {where}{state}>"

    @property
    def interrupted(self) -> bool:
        """Whether ``step`` was handed back by an earlier attempt."""
        return bool(self._decided)

    def charge(
        self,
        users: ArrayLike,
        norms: ArrayLike,
        *,
        noise_stddev: float | None = None,
        mechanism: Any = None,
        clip_norm: float | None = None,
        timeout: float | None = None,
    ) -> StepDecision:
        """Charge one step and wait until every partition has decided it.

        Only after this returns may the step be released: over the admitted users, each
        contribution clipped to its granted norm, with the noise that was charged. Neighbouring
        datasets differ by adding or removing one user.

        Whether user j is among ``users`` may depend on released outputs, public facts, j's own data
        and j's own coins, and on nothing else: never on which users were admitted, halted or drawn
        before, or on how many (Feldman and Zrnic 2021, Theorem 4.5; ``streams.trainers.cohorts``).

        Lists, arrays and the columns of pandas and polars are taken by position: the first norm is
        that of the first user, whatever their labels say. Norms must not be rounded down: what is
        added to the sum may be shorter than its norm, never longer.

        In a run with a ``min_separation`` a step is one of a banded matrix mechanism: its mechanism
        is what ``accounting.banded_steps`` gives for it, and norms are those of contributions. Whom
        it asks too soon after the last time is left out and charged nothing; a norm of 0 takes no
        part.

        Args:
            users: n distinct ids, integers (signed 64-bit) or strings.
            norms: (n,) the norm of each user's contribution before release: L2 for Gaussian
                noise, L1 for Laplace noise, the step's eps for PureDP.
            noise_stddev: standard deviation of Gaussian noise, in the units of the norms.
            mechanism: instead of noise_stddev, an ``accounting`` mechanism, or a DpEvent of
                dp_accounting for one step, whose noise is a multiple of ``clip_norm``.
            clip_norm: no norm may exceed it. For norms in float32 or float16 it is rounded up to
                their type, so that contributions clipped in that type are within it.
            timeout: seconds to wait; the Turnstile's own by default.

        Raises:
            InvalidRequest: these arguments cannot be charged; nothing was published.
            DecisionTimeout: call again with the same arguments.
            StepContentChanged: the step that was handed back had other content; nothing was
                charged.
            Fenced: a newer attempt of this run is at work.
            RequestRejected: a worker refused; open the run again.
            ConflictingDecisions: somebody else writes to `halts`; nothing may go on.
        """
        with self._in_use():
            deadline = self._connection.deadline(timeout)
            asked = self._asked_of_users(users, norms, noise_stddev, mechanism, clip_norm)
            return self._decided_step(asked, deadline)

    def charge_ahead(
        self,
        users: ArrayLike,
        norms: ArrayLike,
        *,
        noise_stddev: float | None = None,
        mechanism: Any = None,
        clip_norm: float | None = None,
    ) -> Ahead[StepDecision]:
        """Send the next step to be charged, as ``charge`` does, and do not wait.

        The run does nothing else until ``decision()`` of what is returned was taken. A step that
        was handed back is only sent then. If the step before may not be released yet, open the
        run with ``charges_ahead``.

        Raises:
            InvalidRequest: these arguments cannot be charged; nothing was published.
        """
        with self._in_use():
            self._connection.check_usable()
            asked = self._asked_of_users(users, norms, noise_stddev, mechanism, clip_norm)
            return self._sent_ahead(asked)

    def _asked_of_users(
        self,
        users: ArrayLike,
        norms: ArrayLike,
        noise_stddev: float | None,
        mechanism: Any,
        clip_norm: float | None,
    ) -> Asked[Any, StepDecision]:
        ids = self._users.read(users)
        values, limit = read_norms(norms, len(ids), clip_norm)
        name, scale = read_mechanism(noise_stddev, mechanism, clip_norm, self._policies)
        layout, step = self._laid_out(ids), self.step
        parts = layout.parts(self._charge_of_nobody(name, scale, limit), values)
        return Asked(parts, lambda decisions: layout.put_together(step, decisions))

    def enrol(
        self,
        users: ArrayLike,
        *,
        clip_norm: float,
        levels: int = 100,
        timeout: float | None = None,
    ) -> Roster:
        """Put users on the roster of this run, so that a step charges all of them by level.

        Enrol all users who may be drawn. A roster of the users who were drawn is no Poisson sample:
        they would be charged the amplified cost only when drawn.

        After a restart enrol the same users in the same order, and more at the end if there are:
        what is on the roster is checked and not sent again. A run has one roster: one that was
        given out before cannot be charged any more.

        Args:
            users: n distinct ids, integers (signed 64-bit) or strings. Their places in it are the
                positions of the roster.
            clip_norm: the largest norm of a contribution; it never changes in a run.
            levels: of norms between 0 and ``clip_norm``, 1 to 255. Norms are rounded up to one.
            timeout: seconds to wait for each round of answers.

        Raises:
            InvalidRequest: the roster has other users, arguments that make no roster, or the run
                has a ``min_separation`` and no rosters.
            DecisionTimeout: call again.
            Fenced, RequestRejected: as ``charge``.
        """
        with self._in_use():
            deadline = self._connection.deadline(timeout)
            if self.min_separation is not None:
                raise InvalidRequest(
                    f"run {self.name!r} keeps participations {self.min_separation} steps apart, "
                    "and a roster charges everybody at every step: charge it with Run.charge"
                )
            try:
                limit = positive_finite("clip_norm", clip_norm)
                count = whole_number("levels", levels, 1, MAX_LEVELS)
                grid_norms(limit, count)
            except InvalidInput as error:
                raise InvalidRequest(str(error)) from error
            if self.policy.user_ids is UNSET:
                raise InvalidRequest(
                    f"dataset {self.dataset!r} was created by the first release, which knows no "
                    "rosters: charge its users with Run.charge"
                )
            layout = self._laid_out(self._users.read(users))
            blank = Enrol(
                dataset=self.dataset,
                run=self.name,
                attempt=self.attempt,
                request=self._connection.new_token(),
                first=0,
                users=b"",
                clip_norm=limit,
                levels=count,
            )
            there = enrol(self._connection, blank, layout, deadline)
            roster = Roster(
                layout, self._policies, limit, count, self._charge_roster, self._charge_roster_ahead
            )
            roster.take(there)
            self._roster, self._roster_parts = roster, {}
            return roster

    def _charge_roster(
        self, roster: Roster, priced: Priced, timeout: float | None, *, anew: bool
    ) -> RosterStep:
        with self._in_use():
            deadline = self._connection.deadline(timeout)
            asked = self._asked_of_roster(roster, priced, anew=anew)
            return self._decided_step(asked, deadline)

    def _charge_roster_ahead(self, roster: Roster, priced: Priced) -> Ahead[RosterStep]:
        with self._in_use():
            self._connection.check_usable()
            return self._sent_ahead(self._asked_of_roster(roster, priced))

    def _asked_of_roster(
        self, roster: Roster, priced: Priced, *, anew: bool = False
    ) -> Asked[Any, RosterStep]:
        """What a roster asks, or what it has asked already of a step that is not decided.

        Args:
            roster: of this run.
            priced: the mechanism of the step.
            anew: whether levels were given for this very step.
        """
        if roster is not self._roster:
            raise Unusable(
                f"run {self.name!r} has enrolled another roster since, and what that hears of who "
                "is halted, and at which level, this one does not: charge the newest one"
            )
        blank = ChargeRoster(
            dataset=self.dataset,
            run=self.name,
            attempt=self.attempt,
            step=self.step,
            members=0,
            tariff=priced.digest,
        )
        again = {p: roster.decided_before(p, self.step, priced) for p in self._decided}
        others = [p for p in range(self.policy.partitions) if p not in self._decided]
        step, parts = self.step, self._roster_parts.get(priced.digest)
        if parts is None or not self._are_published(parts):
            parts = roster.parts(blank, priced, others)
            self._roster_parts = {priced.digest: parts}
        elif anew and not roster.is_asked(parts):
            raise InvalidRequest(self._still_published(" with other norms,", "those"))
        return Asked(
            parts,
            lambda decided: roster.put_together(step, priced, parts, again | decided, again.keys()),
        )

    def abandon(self, timeout: float | None = None) -> None:
        """Give up the step that was handed back, if one was. Who was charged for it stays charged;
        it must not be released, and counts as released for ``Turnstile.run``.

        Raises:
            InvalidRequest: this attempt has published the step itself.
            DecisionTimeout: call again.
            RequestRejected: as ``charge``.
        """
        with self._in_use():
            deadline = self._connection.deadline(timeout)
            if self._decided:
                nobody = lay_out(np.empty(0, dtype=np.int64), self.policy)
                charge = self._charge_of_nobody(chargeable(self._policies), 1.0, None)
                parts = nobody.parts(charge, np.empty(0)).items()
                others = {p: part for p, part in parts if p not in self._decided}
                self._decided_step(Asked(others, lambda decided: None), deadline)
            elif self._published:
                raise InvalidRequest(self._still_published("", "the same"))

    def close(self, timeout: float | None = None) -> None:
        """End the run for good: it can never be charged or opened again. Doing it again is fine.

        The workers keep the decision of the last step of every run that is not closed.

        Raises:
            DecisionTimeout: not all partitions answered; call again.
            Fenced: a newer attempt of this run is at work.
            RequestRejected: a worker refused.
        """
        with self._in_use(to_close=True):
            if self._closed:
                return
            deadline = self._connection.deadline(timeout)
            self._closing = self._closing or self._connection.new_token()
            request = CloseRun(
                dataset=self.dataset,
                run=self.name,
                attempt=self.attempt,
                request=self._closing,
            )
            everywhere = range(self.policy.partitions)
            self._connection.ask(
                self._closing, dict.fromkeys(everywhere, encode(request)), deadline
            )
            self._closed = True

    def check_attempt(self, timeout: float | None = None) -> None:
        """Ask the service whether this attempt still holds, right before a release leaves.

        A trainer that was paused after its charge may have a successor, to which the same step was
        handed back. This call narrows that race and cannot close it: a trainer can also be paused
        after the answer. It costs one small record and one answer, of one partition.

        Raises:
            Fenced: a newer attempt was opened. Release nothing.
            RunIsClosed: the run was closed. Release nothing.
            DecisionTimeout: no answer. Release nothing yet; call again.
        """
        with self._in_use(ahead=self._ahead):
            deadline = self._connection.deadline(timeout)
            # One partition is enough, since every opening reaches all of them. The question has a
            # token of its own, so that no copy of an earlier answer can be taken for its answer.
            token = self._connection.new_token()
            question = OpenRun(
                dataset=self.dataset,
                run=self.name,
                attempt=self.attempt,
                request=token,
                confirms=self._token,
            )
            self._connection.ask(token, {0: encode(question)}, deadline)

    @property
    def _policies(self) -> list[Policy]:
        return [self.policy, *self.outer]

    @contextmanager
    def _in_use(
        self, *, to_close: bool = False, ahead: Asked[Any, Any] | None = None
    ) -> Iterator[None]:
        """Refuse whoever may not use this run, or not now."""
        if not self._alone.acquire(blocking=False):
            raise Unusable(
                f"run {self.name!r} is in use by another thread: give each thread a run of its own"
            )
        try:
            if self._failed is not None:
                raise Unusable(
                    f"attempt {self.attempt} of run {self.name!r} has failed: {self._failed}"
                ) from self._failed
            if self._closing is not None and not to_close:
                detail = f"run {self.name!r} of dataset {self.dataset!r} was closed"
                raise RunIsClosed(Reason.RUN_CLOSED, detail, None)
            if self._ahead is not ahead:
                why = "charge it anew" if self._ahead is None else "take its decision first"
                raise Unusable(f"step {self.step} of run {self.name!r} was charged ahead: {why}")
            try:
                self._witness.check()
                yield
            except (RequestRejected, ConflictingDecisions) as error:
                # Other content for a step that was handed back changes nothing.
                if not (self._decided and isinstance(error, StepContentChanged)):
                    self._failed = error
                raise
        finally:
            self._alone.release()

    def _charge_of_nobody(
        self, mechanism: MechanismName, scale: float, clip_norm: float | None
    ) -> Charge:
        return Charge(
            dataset=self.dataset,
            run=self.name,
            attempt=self.attempt,
            step=self.step,
            users=b"",
            norms=b"",
            mechanism=mechanism,
            scale=scale,
            clip_norm=clip_norm,
        )

    def _laid_out(self, ids: Ids) -> Layout:
        """These users by partition; what is known of the last ones is not found out again."""
        if self._layout is None or not self._layout.is_of(ids):
            self._layout = lay_out(ids, self.policy, self._layout, self._connection.pseudonyms)
        return self._layout

    def _decided_step(self, asked: Asked[Any, D], deadline: Deadline) -> D:
        """Have a step decided: first where it was decided before, then elsewhere."""
        sent, asked.sent = asked.sent, None
        if sent is not None:
            decisions = self._hear(asked.parts, sent, deadline)
        else:
            self._check_published(asked)
            again = {p: part for p, part in asked.parts.items() if p in self._decided}
            elsewhere = {p: part for p, part in asked.parts.items() if p not in self._decided}
            decisions = self._hear(again, self._send(again), deadline)
            decisions |= self._hear(elsewhere, self._publish(elsewhere), deadline)
        self._witness.check()
        decided = asked.put_together(decisions)
        self._go_on()
        return decided

    def _sent_ahead(self, asked: Asked[Any, D]) -> Ahead[D]:
        """Send a step, unless it was handed back: then it is asked first where it was decided."""
        self._check_published(asked)
        if not self._decided:
            asked.sent = self._publish(asked.parts)
        self._ahead = asked

        def take(timeout: float | None) -> D:
            with self._in_use(ahead=asked):
                deadline = self._connection.deadline(timeout)
                try:
                    decided = self._decided_step(asked, deadline)
                except StepContentChanged:
                    self._ahead = None  # nothing was charged
                    raise
                self._ahead = None
                return decided

        return Ahead(take)

    def _are_published(self, parts: Mapping[int, Part[Any]]) -> bool:
        return all(self._published.get(p) == part.digest for p, part in parts.items())

    def _check_published(self, asked: Asked[Any, Any]) -> None:
        parts = asked.parts.items()
        if any(self._published.get(p, part.digest) != part.digest for p, part in parts):
            other = " with other users or norms, or another mechanism,"
            raise InvalidRequest(self._still_published(other, "exactly those"))

    def _publish(self, parts: Mapping[int, Part[Any]]) -> Waiting:
        """Send what was decided nowhere yet: from here on only the same may be charged."""
        before, self._published = self._published, {p: part.digest for p, part in parts.items()}
        try:
            return self._send(parts)
        except InvalidRequest:  # it cannot be signed, and nothing was published
            self._published = before
            raise

    @property
    def _step_key(self) -> Hashable:
        return step_key(self.dataset, self.name, self.attempt, self.step)

    def _send(self, parts: Mapping[int, Part[Any]]) -> Waiting:
        for partition, part in parts.items():
            self._asked[partition].add(part.digest)
        records = {partition: part.record for partition, part in parts.items()}
        return self._connection.send(self._step_key, Waiting(records))

    def _hear(
        self, parts: Mapping[int, Part[T]], sent: Waiting, deadline: Deadline
    ) -> dict[int, T]:
        answers = self._connection.receive(self._step_key, sent, deadline)
        for partition, part in parts.items():
            self._check_asked(answers[partition], part.digest)
        return {partition: part.decided(answers[partition]) for partition, part in parts.items()}

    def _check_asked(self, answer: Answer, digest: bytes) -> None:
        """Take a late answer to other content for what it says: the step was decided with that.

        Raises:
            StepContentChanged: it is one.
        """
        other = answer.digest if isinstance(answer, Decision | RosterDecision) else digest
        if other != digest and other in self._asked[answer.partition]:
            raise StepContentChanged(
                Reason.STEP_CONTENT_CHANGED,
                f"step {self.step} was decided with other content, which was charged before",
                answer.partition,
            )

    def _go_on(self) -> None:
        self.step += 1
        self._decided = set()
        self._published, self._roster_parts = {}, {}
        self._asked.clear()

    def _still_published(self, how: str, again: str) -> str:
        return (
            f"step {self.step} was published{how} and may be decided yet: charge {again} again, or "
            "open the run again, which hands the step back if a part of it was decided"
        )
