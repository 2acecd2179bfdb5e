"""A run: one trainer or query answerer that charges a dataset, step by step."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import numpy as np
from msgspec import UNSET
from msgspec.structs import replace
from numpy.typing import ArrayLike

from accounting.costs.norm_levels import MAX_LEVELS, grid_norms
from accounting.exact.argument_checks import positive_finite, whole_number
from accounting.exact.invalid_input import quoted
from streams.ledger.collecting import check_not_collecting
from streams.ledger.separation import check_roster
from streams.records import (
    Charge,
    CollectTerms,
    Enrol,
    MechanismName,
    Policy,
    RunOpened,
    encode,
)
from streams.records.digests import charge_digest
from streams.records.users import UserIds
from streams.sdk.arguments import UsersLike, charged_by_norms, read_mechanism, read_norms
from streams.sdk.attempt import Ahead, AskedStep, Attempt, Call, StepState
from streams.sdk.connection import Connection
from streams.sdk.decisions import (
    CollectedDecision,
    CollectedPart,
    DecisionArrays,
    StepDecision,
)
from streams.sdk.errors import InvalidRequest, invalid_requests
from streams.sdk.roster import Roster, check_cost_table, enrol
from streams.sdk.step_layout import LastLayout, collected_by, lay_out


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
        collect: the terms under which the run collects norms; None if it does not.
    """

    def __init__(
        self,
        connection: Connection,
        opened: Mapping[int, RunOpened],
        step: int,
        *,
        is_shared: bool = False,
    ) -> None:
        first = opened[0]
        self.dataset, self.name = first.dataset, first.run
        self.policy: Policy = first.policy
        self.outer: tuple[Policy, ...] = tuple(first.outer or ())
        self.min_separation: int | None = first.min_separation or None
        self.collect: CollectTerms | None = first.collect or None
        self._connection = connection
        self._attempt = Attempt(connection, opened, step, is_shared=is_shared)
        self._layouts = LastLayout(self.policy, connection.pseudonyms)

    def __repr__(self) -> str:
        is_closed = self._attempt.state is StepState.CLOSED
        state = ", closed" if is_closed else ", interrupted" if self.interrupted else ""
        where = f"attempt {self.attempt}, step {self.step}"
        return f"<Run {self.name!r} of dataset {self.dataset!r}: {where}{state}>"

    @property
    def step(self) -> int:
        """Return the next step to charge."""
        return self._attempt.step

    @property
    def attempt(self) -> int:
        """Return the number of this attempt."""
        return self._attempt.number

    @property
    def token(self) -> str:
        """Return the secret with which another process can continue this attempt.

        See ``Turnstile.resume``.
        """
        return self._attempt.token

    @property
    def interrupted(self) -> bool:
        """Return whether ``step`` was handed back by an earlier attempt."""
        return bool(self._attempt.handed_back)

    def charge(
        self,
        users: UsersLike,
        norms: ArrayLike,
        *,
        noise_stddev: float | None = None,
        mechanism: Any = None,
        clip_norm: float | None = None,
        reserve: float = 0.0,
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
            reserve: the share of each budget, at least 0 and below 1, that has to remain. A user
                for whom less would remain is halted, or granted less. Later steps that reserve less
                can use it.

        Raises:
            InvalidRequest: the arguments cannot be charged, or the run collects norms
                (``charge_collected``); nothing was published.
            DecisionTimeout: call again with the same arguments.
            StepContentChanged: the step that was handed back had other content; nothing was
                charged.
            Fenced: a newer attempt of this run exists.
            RequestRejected: a worker rejected the step; open the run again.
            ConflictingDecisions: a decision was not written by a worker; stop the run.
        """
        with self._attempt.use(Call.CHARGE, timeout) as deadline:
            asked = self._asked(users, norms, noise_stddev, mechanism, clip_norm, reserve)
            return self._attempt.decide(asked, deadline)

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
        with self._attempt.use(Call.CHARGE) as deadline:
            asked = self._asked(users, norms, noise_stddev, mechanism, clip_norm)
            return self._attempt.send_ahead(asked, deadline)

    def charge_collected(
        self,
        *,
        noise_stddev: float | None = None,
        mechanism: Any = None,
        reserve: float = 0.0,
        timeout: float | None = None,
    ) -> CollectedDecision:
        """Charge one step for the norms that the run has collected, and wait as ``charge`` does.

        Each partition charges the users whose norms it has when this charge reaches it; a norm that
        comes later is rejected. Release only these users, each contribution clipped to its granted
        norm, with the noise that was charged. A step that was handed back returns the decision
        that was made, if it is charged again with the same arguments.

        Neighbouring datasets differ by adding or removing one user. Whether a user's norm comes
        before the charge must not depend on other users' data. So charge on a public schedule, and
        not when enough norms have come (``Turnstile.send_norms``).

        Args:
            noise_stddev: as that of ``charge``.
            mechanism: as that of ``charge``, and of the kind that ``collect`` has. A DpEvent states
                its noise as a multiple of the clip norm of ``collect``.
            reserve: as that of ``charge``.

        Raises:
            InvalidRequest: the run collects no norms, or the arguments cannot be charged; nothing
                was published.
            RequestRejected: also if more norms were sent than a partition collects.
            DecisionTimeout, StepContentChanged, Fenced, ConflictingDecisions: as ``charge``.
        """
        with self._attempt.use(Call.CHARGE, timeout) as deadline:
            terms, pseudonyms = self.collect, self._connection.pseudonyms
            if terms is None:
                raise InvalidRequest(
                    f"run {self.name!r} collects no norms: open a run of another name with collect"
                )
            name, scale = self._charged(noise_stddev, mechanism, terms.clip_norm)
            if name != terms.mechanism:
                raise InvalidRequest(
                    f"mechanism is {name}, but run {self.name!r} collects norms for "
                    f"{terms.mechanism}, which never changes"
                )
            charge = self._empty_charge(name, scale, terms.clip_norm, reserve)
            charge = replace(charge, collected=True)
            part = CollectedPart(encode(charge), charge_digest(charge), terms.clip_norm)
            parts = dict.fromkeys(range(self.policy.partitions), part)
            step, log = self.step, self._connection.log
            asked = AskedStep(
                parts, lambda decisions: collected_by(step, log, decisions, pseudonyms)
            )
            return self._attempt.decide(asked, deadline)

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
            InvalidRequest: the roster has other users, the arguments are invalid, the cost table
                of a step would be too large for a record, or the run collects norms or has a
                ``min_separation``, which rosters do not support.
            DecisionTimeout: call again.
            Fenced, RequestRejected: as ``charge``.
        """
        with self._attempt.use(Call.CHARGE, timeout) as deadline:
            with invalid_requests():
                limit = positive_finite("clip_norm", clip_norm)
                count = whole_number("levels", levels, 1, MAX_LEVELS)
                grid_norms(limit, count)
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
            with invalid_requests():
                check_not_collecting(blank, self.collect)
                check_roster(blank, self.min_separation or UNSET)
            layout = self._layouts.of(users)
            columns = sum(len(policy.orders) or 1 for policy in self._policies)
            check_cost_table(self._connection, 8 * columns * (count + 1))
            enrolled = enrol(self._connection, blank, layout, deadline)
            return Roster(self._attempt, layout, self._policies, limit, count, enrolled)

    def abandon(self, timeout: float | None = None) -> None:
        """Give up the step that was handed back, if there is one.

        The users who were charged for it stay charged. It must not be released, and counts as
        released for ``Turnstile.run``.

        Raises:
            InvalidRequest: this attempt has published the step itself.
            DecisionTimeout: call again.
            RequestRejected: as ``charge``.
        """
        with self._attempt.use(Call.CHARGE, timeout) as deadline:
            if self._attempt.state is StepState.PUBLISHED:
                raise self._attempt.still_published()
            if self._attempt.state is StepState.HANDED_BACK:
                # No user is charged, so the smallest bound holds.
                charge = self._empty_charge("gaussian", 1.0, sys.float_info.min)
                parts = lay_out(UserIds([]), self.policy).parts(charge, np.empty(0))
                for partition in self._attempt.handed_back:
                    del parts[partition]
                self._attempt.decide(AskedStep(parts, lambda decisions: None), deadline)

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
        if self._attempt.state is not StepState.CLOSED:
            with self._attempt.use(Call.CLOSE, timeout) as deadline:
                self._attempt.close(deadline)

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
        with self._attempt.use(Call.CONFIRM, timeout) as deadline:
            self._attempt.confirm(deadline)

    @property
    def _policies(self) -> list[Policy]:
        return [self.policy, *self.outer]

    def _asked(
        self,
        users: UsersLike,
        norms: ArrayLike,
        noise_stddev: float | None,
        mechanism: Any,
        clip_norm: float | None,
        reserve: float = 0.0,
    ) -> AskedStep[DecisionArrays, StepDecision]:
        layout, step, log = self._layouts.of(users), self.step, self._connection.log
        values, limit = read_norms(norms, len(layout.ids), clip_norm)
        name, scale = self._charged(noise_stddev, mechanism, clip_norm)
        charge = self._empty_charge(name, scale, limit, reserve)
        with invalid_requests():
            check_not_collecting(charge, self.collect)
        parts = layout.parts(charge, values)
        return AskedStep(parts, lambda decisions: layout.put_together(step, log, parts, decisions))

    def _charged(
        self, noise_stddev: float | None, mechanism: Any, clip_norm: float | None
    ) -> tuple[MechanismName, float]:
        chosen = read_mechanism(noise_stddev, mechanism, clip_norm)
        return charged_by_norms(chosen, clip_norm, self._policies)

    def _empty_charge(
        self,
        mechanism: MechanismName,
        scale: float,
        clip_norm: float | None,
        reserve: float = 0.0,
    ) -> Charge:
        if not 0.0 <= reserve < 1.0:
            raise InvalidRequest(f"reserve is {quoted(reserve)}; it must be at least 0 and below 1")
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
            reserve=reserve or UNSET,
        )
