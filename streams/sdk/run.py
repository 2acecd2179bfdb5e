"""A run: one trainer or query answerer that charges a dataset, step by step.

The states of a step:

    next --charge--> published --all partitions answer--> decided; the following step is next
    published --DecisionTimeout--> published              only the same content may be charged
    published --the process ends--> handed back to the next attempt of the run, if the step was
        decided in some partitions, or in all and released= says that it was not released
    handed back --charge, same content--> decided         charged once
    handed back --charge, other content--> handed back    rejected before anything is charged
    handed back --abandon--> abandoned; the following step is next; its charges stay
    next --charge_ahead--> published                      the run accepts only decision() until then

A step that was handed back is first repeated in the partitions that decided it. It is published to
the other partitions only if all of these return the decision that they have stored.
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
from streams.records import (
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
from streams.records.users import UserIds
from streams.sdk.arguments import Priced, UsersLike, chargeable, read_mechanism, read_norms
from streams.sdk.connection import Connection, Deadline, PendingRequest, step_key
from streams.sdk.decisions import StepDecision
from streams.sdk.errors import (
    ConflictingDecisions,
    InvalidRequest,
    RequestRejected,
    RunIsClosed,
    StepContentChanged,
    TurnstileError,
    Unusable,
)
from streams.sdk.layout import KnownUsers, Layout, lay_out
from streams.sdk.roster import Roster, enrol
from streams.sdk.roster_steps import RosterPart, RosterStep
from streams.sdk.steps import Ahead, AskedStep, StepPart

T = TypeVar("T")
D = TypeVar("D")


class Run:
    """Charge the steps of one attempt of a run.

    A run must not be shared between threads. It works the same over Kafka and in memory; only the
    connection differs.

    Attributes:
        step: the next step to charge. After a restart it follows the last step that was decided
            in every partition, or is the step that was handed back (see ``interrupted``).
        attempt: the number of this attempt; earlier attempts are fenced.
        interrupted: ``step`` was handed back: an earlier attempt ended before all partitions had
            decided it, or before it was released. Charging it again with the same users and norms
            completes it; ``abandon`` gives it up.
        policy: the policy of the dataset.
        outer: the policies of its parent datasets, the nearest first. Each step must fit their
            budgets as well, and is charged to all of them.
        min_separation: how many steps after a participation the same user may take part again;
            None: at the next step.
    """

    def __init__(self, connection: Connection, opened: Mapping[int, RunOpened], step: int) -> None:
        first = opened[0]
        self.dataset, self.name, self.attempt = first.dataset, first.run, first.attempt
        self.policy: Policy = first.policy
        self.outer: tuple[Policy, ...] = tuple(first.outer or ())
        self.min_separation: int | None = first.min_separation or None
        self.step = step
        self._token = first.request  # partition 0 knows this attempt by it
        self._connection = connection
        self._witness = connection.watch(self.dataset, self.name)
        self._lock = threading.Lock()
        # The partitions in which an earlier attempt has decided ``step``.
        self._decided = {p for p, answer in opened.items() if answer.last_step == step}
        # The digest of what this attempt has published of ``step`` in each other partition.
        self._published: dict[int, bytes] = {}
        # The digests of all that this attempt has sent of ``step``: answers may be late.
        self._asked: defaultdict[int, set[bytes]] = defaultdict(set)
        self._failed: TurnstileError | None = None
        self._closing: str | None = None
        self._closed = False
        self._ahead: AskedStep[Any, Any] | None = None
        self._users = KnownUsers()
        self._layout: Layout | None = None
        self._roster: Roster | None = None  # the one that was enrolled last
        # The parts last sent for the current step, by the digest of the cost table.
        self._roster_parts: dict[bytes, dict[int, RosterPart]] = {}

    def __repr__(self) -> str:
        state = ", closed" if self._closed else ", interrupted" if self.interrupted else ""
        where = f"attempt {self.attempt}, step {self.step}"
        return f"<Run {self.name!r} of dataset {self.dataset!r}: {where}{state}>"

    @property
    def interrupted(self) -> bool:
        """Return whether ``step`` was handed back by an earlier attempt."""
        return bool(self._decided)

    def charge(
        self,
        users: UsersLike,
        norms: ArrayLike,
        *,
        noise_stddev: float | None = None,
        mechanism: Any = None,
        clip_norm: float | None = None,
        timeout: float | None = None,
    ) -> StepDecision:
        """Charge one step and wait until every partition has decided it.

        The step may be released only after this method returns: over the admitted users, each
        contribution clipped to its granted norm, with the noise that was charged. Neighbouring
        datasets differ by adding or removing one user.

        Whether user j is among ``users`` may depend on released outputs, public facts, j's own data
        and j's own sampling coins, and on nothing else. It must not depend on which users, or how
        many, were admitted, halted or drawn before (Feldman and Zrnic 2021, Theorem 4.5;
        ``streams.trainers.cohorts``).

        Lists, arrays and the columns of pandas and polars are read by position: the first norm
        belongs to the first user, whatever the labels. Norms must not be rounded down: a
        contribution may be shorter than its norm, never longer.

        In a run with a ``min_separation``, each step belongs to a banded matrix mechanism. Its
        mechanism is the one that ``accounting.banded_steps`` returns, and the norms are those of
        the contributions. A user who takes part too soon is halted and charged nothing; a norm of
        0 is no participation.

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
            InvalidRequest: the arguments cannot be charged; nothing was published.
            DecisionTimeout: call again with the same arguments.
            StepContentChanged: the step that was handed back had other content; nothing was
                charged.
            Fenced: a newer attempt of this run exists.
            RequestRejected: a worker rejected the step; open the run again.
            ConflictingDecisions: a decision was not written by a worker; stop the run.
        """
        with self._in_use():
            deadline = self._connection.deadline(timeout)
            asked = self._asked_of_users(users, norms, noise_stddev, mechanism, clip_norm)
            return self._decided_step(asked, deadline)

    def charge_ahead(
        self,
        users: UsersLike,
        norms: ArrayLike,
        *,
        noise_stddev: float | None = None,
        mechanism: Any = None,
        clip_norm: float | None = None,
    ) -> Ahead[StepDecision]:
        """Send the next step to be charged, as ``charge`` does, without waiting for the decision.

        The run accepts no other call until ``decision()`` of the returned object has succeeded. A
        step that was handed back is sent only then. If the previous step may not have been
        released yet, open the run with ``charges_ahead``.

        Raises:
            InvalidRequest: the arguments cannot be charged; nothing was published.
        """
        with self._in_use():
            self._connection.check_usable()
            asked = self._asked_of_users(users, norms, noise_stddev, mechanism, clip_norm)
            return self._send_ahead(asked)

    def _asked_of_users(
        self,
        users: UsersLike,
        norms: ArrayLike,
        noise_stddev: float | None,
        mechanism: Any,
        clip_norm: float | None,
    ) -> AskedStep[Any, StepDecision]:
        ids = self._users.read(users)
        values, limit = read_norms(norms, len(ids), clip_norm)
        name, scale = read_mechanism(noise_stddev, mechanism, clip_norm, self._policies)
        layout, step = self._layout_of(ids), self.step
        parts = layout.parts(self._empty_charge(name, scale, limit), values)
        return AskedStep(parts, lambda decisions: layout.put_together(step, decisions))

    def enrol(
        self,
        users: UsersLike,
        *,
        clip_norm: float,
        levels: int = 100,
        timeout: float | None = None,
    ) -> Roster:
        """Enrol users on the roster of this run, so that each step charges all of them by level.

        Enrol all users who may be drawn. A roster of the users who were drawn is no Poisson
        sample: they would be charged the amplified cost only when drawn.

        After a restart, enrol the same users in the same order; new users may follow at the end.
        Users who are already on the roster are checked and not sent again. A run has one roster:
        one that was returned earlier cannot be charged any more.

        Args:
            users: n distinct ids, integers (signed 64-bit) or strings. Their indices are the
                positions on the roster.
            clip_norm: the largest norm of a contribution; it never changes in a run.
            levels: number of norm levels above 0, 1 to 255. Norms are rounded up to a level.
            timeout: seconds to wait for each round of answers.

        Raises:
            InvalidRequest: the roster has other users, the arguments are invalid, or the run has a
                ``min_separation``, which rosters do not support.
            DecisionTimeout: call again.
            Fenced, RequestRejected: as ``charge``.
        """
        with self._in_use():
            deadline = self._connection.deadline(timeout)
            if self.min_separation is not None:
                raise InvalidRequest(
                    f"run {self.name!r} has min_separation={self.min_separation}, but a roster "
                    "charges every user at every step: charge the run with Run.charge"
                )
            try:
                limit = positive_finite("clip_norm", clip_norm)
                count = whole_number("levels", levels, 1, MAX_LEVELS)
                grid_norms(limit, count)
            except InvalidInput as error:
                raise InvalidRequest(str(error)) from error
            if self.policy.user_ids is UNSET:
                raise InvalidRequest(
                    f"dataset {self.dataset!r} has no kind of user ids, so it has no rosters: "
                    "charge its users with Run.charge"
                )
            layout = self._layout_of(self._users.read(users))
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
        self, roster: Roster, priced: Priced, timeout: float | None, *, sets_norms: bool
    ) -> RosterStep:
        with self._in_use():
            deadline = self._connection.deadline(timeout)
            asked = self._asked_of_roster(roster, priced, sets_norms=sets_norms)
            return self._decided_step(asked, deadline)

    def _charge_roster_ahead(self, roster: Roster, priced: Priced) -> Ahead[RosterStep]:
        with self._in_use():
            self._connection.check_usable()
            return self._send_ahead(self._asked_of_roster(roster, priced))

    def _asked_of_roster(
        self, roster: Roster, priced: Priced, *, sets_norms: bool = False
    ) -> AskedStep[Any, RosterStep]:
        """Return the parts of a roster step: new ones, or those that were published and not decided
        yet.

        Args:
            roster: the roster to charge.
            priced: the mechanism of the step.
            sets_norms: whether the caller gave norms for this very step.
        """
        if roster is not self._roster:
            raise Unusable(
                f"run {self.name!r} has enrolled another roster since, and this one no longer "
                "follows its halts and levels: charge the newest one"
            )
        blank = ChargeRoster(
            dataset=self.dataset,
            run=self.name,
            attempt=self.attempt,
            step=self.step,
            members=0,
            cost_table_digest=priced.digest,
        )
        again = {p: roster.decided_before(p, self.step, priced) for p in self._decided}
        others = [p for p in range(self.policy.partitions) if p not in self._decided]
        step, parts = self.step, self._roster_parts.get(priced.digest)
        if parts is None or not self._are_published(parts):
            parts = roster.parts(blank, priced, others)
            self._roster_parts = {priced.digest: parts}
        elif sets_norms and not roster.is_asked(parts):
            raise InvalidRequest(self._still_published(" with other norms,", "those"))
        return AskedStep(
            parts,
            lambda decided: roster.put_together(step, priced, parts, again | decided, again.keys()),
        )

    def abandon(self, timeout: float | None = None) -> None:
        """Give up the step that was handed back, if there is one.

        The users who were charged for it stay charged. It must not be released, and counts as
        released for ``Turnstile.run``.

        Raises:
            InvalidRequest: this attempt has published the step itself.
            DecisionTimeout: call again.
            RequestRejected: as ``charge``.
        """
        with self._in_use():
            deadline = self._connection.deadline(timeout)
            if self._decided:
                no_users = lay_out(UserIds([]), self.policy)
                charge = self._empty_charge(chargeable(self._policies), 1.0, None)
                parts = no_users.parts(charge, np.empty(0)).items()
                others = {p: part for p, part in parts if p not in self._decided}
                self._decided_step(AskedStep(others, lambda decided: None), deadline)
            elif self._published:
                raise InvalidRequest(self._still_published("", "the same"))

    def close(self, timeout: float | None = None) -> None:
        """Close the run permanently: it can never be charged or opened again. Closing is
        idempotent.

        The workers keep the last step's decision of every run that is not closed, so close runs
        that are done.

        Raises:
            DecisionTimeout: not all partitions answered; call again.
            Fenced: a newer attempt of this run exists.
            RequestRejected: a worker rejected the request.
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
        """Ask the service whether this attempt is still the newest, right before a release.

        A trainer that was paused after its charge may have a successor, to which the same step was
        handed back. This call narrows that race but cannot close it: a trainer can also be paused
        after the answer. It costs one small record to one partition, and one answer.

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
        self, *, to_close: bool = False, ahead: AskedStep[Any, Any] | None = None
    ) -> Iterator[None]:
        """Hold the run for one call, and fail the attempt if the call proves it unusable.

        Args:
            to_close: the call closes the run, which is allowed while a closing is incomplete.
            ahead: the step that was charged ahead and that this call may complete.

        Raises:
            Unusable: the run is in use by another thread, has failed, or has a step charged ahead.
            RunIsClosed: the run was closed.
        """
        if not self._lock.acquire(blocking=False):
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
                why = "charge it again" if self._ahead is None else "call its decision() first"
                raise Unusable(f"step {self.step} of run {self.name!r} was charged ahead: {why}")
            try:
                self._witness.check()
                yield
            except (RequestRejected, ConflictingDecisions) as error:
                # The step that was handed back can still be charged with its own content.
                if not (self._decided and isinstance(error, StepContentChanged)):
                    self._failed = error
                raise
        finally:
            self._lock.release()

    def _empty_charge(
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

    def _layout_of(self, ids: UserIds) -> Layout:
        """Return the layout of these users, reusing the previous one where it fits."""
        if self._layout is None or not self._layout.is_of(ids):
            self._layout = lay_out(ids, self.policy, self._layout, self._connection.pseudonyms)
        return self._layout

    def _decided_step(self, asked: AskedStep[Any, D], deadline: Deadline) -> D:
        """Have a step decided: first where it was decided before, then by the other partitions."""
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
        self._advance()
        return decided

    def _send_ahead(self, asked: AskedStep[Any, D]) -> Ahead[D]:
        """Send a step without waiting.

        A step that was handed back is sent by ``decision`` only, in the order of
        ``_decided_step``.
        """
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

    def _are_published(self, parts: Mapping[int, StepPart[Any]]) -> bool:
        return all(self._published.get(p) == part.digest for p, part in parts.items())

    def _check_published(self, asked: AskedStep[Any, Any]) -> None:
        parts = asked.parts.items()
        if any(self._published.get(p, part.digest) != part.digest for p, part in parts):
            other = " with other users or norms, or another mechanism,"
            raise InvalidRequest(self._still_published(other, "exactly those"))

    def _publish(self, parts: Mapping[int, StepPart[Any]]) -> PendingRequest:
        """Send a step to the partitions that have not decided it. Its content is fixed from here
        on.
        """
        before, self._published = self._published, {p: part.digest for p, part in parts.items()}
        try:
            return self._send(parts)
        except InvalidRequest:  # the step cannot be signed, so nothing was published
            self._published = before
            raise

    @property
    def _step_key(self) -> Hashable:
        return step_key(self.dataset, self.name, self.attempt, self.step)

    def _send(self, parts: Mapping[int, StepPart[Any]]) -> PendingRequest:
        for partition, part in parts.items():
            self._asked[partition].add(part.digest)
        records = {partition: part.record for partition, part in parts.items()}
        return self._connection.send(self._step_key, PendingRequest(records))

    def _hear(
        self, parts: Mapping[int, StepPart[T]], sent: PendingRequest, deadline: Deadline
    ) -> dict[int, T]:
        answers = self._connection.receive(self._step_key, sent, deadline)
        for partition, part in parts.items():
            self._check_asked(answers[partition], part.digest)
        return {partition: part.decided(answers[partition]) for partition, part in parts.items()}

    def _check_asked(self, answer: Answer, digest: bytes) -> None:
        """Reject a late answer to other content that this attempt has sent for the step.

        Raises:
            StepContentChanged: the step was decided with that content.
        """
        other = answer.digest if isinstance(answer, Decision | RosterDecision) else digest
        if other != digest and other in self._asked[answer.partition]:
            raise StepContentChanged(
                Reason.STEP_CONTENT_CHANGED,
                f"step {self.step} was decided with other content, which was charged before",
                answer.partition,
            )

    def _advance(self) -> None:
        self.step += 1
        self._decided = set()
        self._published, self._roster_parts = {}, {}
        self._asked.clear()

    def _still_published(self, how: str, again: str) -> str:
        return (
            f"step {self.step} was published{how} and may still be decided: charge {again} again, "
            "or open the run again, which hands the step back if a partition has decided it"
        )
