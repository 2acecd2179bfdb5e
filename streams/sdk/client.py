"""Turnstile: what a trainer or a query answerer talks to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from types import TracebackType

from msgspec import structs

from streams.config import Config, lacking
from streams.ledger.outputs import Channel
from streams.normal_form import normal_form
from streams.schemas import Measure, OdometerCheckpoint, OnExhaustion, Policy, User, UserIds
from streams.sdk.connection import Connection
from streams.sdk.datasets import close, create, policy_from, withdraw
from streams.sdk.erasing import forget
from streams.sdk.followers import (
    Halt,
    Reading,
    Since,
    distinct_halts,
    rising_checkpoints,
)
from streams.sdk.observing import Observer
from streams.sdk.opening import close_run, open_run
from streams.sdk.principals import allow_from, bind_operator, operator_of, register, signer_of
from streams.sdk.pseudonyms import Pseudonyms
from streams.sdk.run import Run


class Turnstile:
    """A connection to the service: create datasets, charge runs, follow HALTs and odometers.

    Blocking, usable from any thread of the process that opened it; needs no event loop. Settings
    come from the arguments, then ``TURNSTILE_*`` variables, then the TOML file ``config``.

    Args:
        kafka: bootstrap servers, ``host:port``, comma separated.
        config: a TOML file, or a ``Config``.
        timeout: seconds until a charge without all its decisions raises.
        prefix: of the names of the topics.
        pseudonym_key: 16 to 64 bytes that nobody guesses: the log then has pseudonyms of users,
            which only this key makes, and never their ids. One key for a service, for ever: under
            another one everybody would begin with nothing spent.
        principal: the name under which the operator has registered the public key of
            ``request_key``: requests are signed, and a dataset that names this principal takes
            them.
        request_key: the private key, as ``turnstile keys new`` makes it.
        connection: another way to the service than Kafka; then no setting is looked at.

    Raises:
        InvalidRequest: a ``pseudonym_key`` that is too short or too long, or a ``request_key``
            that is none.
        ServiceUnavailable: no broker, or no topics within ``timeout``.
    """

    def __init__(
        self,
        kafka: str | None = None,
        *,
        config: Config | str | None = None,
        timeout: float | None = None,
        prefix: str | None = None,
        pseudonym_key: str | bytes | None = None,
        principal: str | None = None,
        request_key: str | None = None,
        connection: Connection | None = None,
    ) -> None:
        self._operator_key: str | None = None
        if connection is None:
            # The client of Kafka is not needed in memory, and takes its time.
            from streams.sdk.kafka_connection import KafkaConnection

            if not isinstance(config, Config):
                config = Config.load(config, kafka=kafka, timeout=timeout, prefix=prefix)
            pseudonym_key = pseudonym_key or config.pseudonym_key
            pseudonyms = Pseudonyms(pseudonym_key) if pseudonym_key else None
            signer = signer_of(principal or config.principal, request_key or config.request_key)
            self._operator_key = config.operator_key
            connection = KafkaConnection(config)
            if config.traces:
                connection.observe(_traces())
        else:
            pseudonyms = Pseudonyms(pseudonym_key) if pseudonym_key else None
            signer = signer_of(principal, request_key)
        connection.pseudonyms = self._pseudonyms = pseudonyms
        connection.signer = signer
        self._connection = connection

    @classmethod
    def in_memory(
        cls,
        *,
        partitions: int = 4,
        pseudonym_key: str | bytes | None = None,
        principal: str | None = None,
        request_key: str | None = None,
    ) -> Turnstile:
        """The service in this process, for tests and notebooks: no Kafka, no Redis, no thread.

        Everything is decided as the service decides it, at once. Nothing is kept when the process
        ends: whoever charges the same people again then begins with nothing spent, so this guards
        no promise that outlives the process. A copy of the process (``fork``) cannot use it.
        Following HALTs or odometers waits for what other threads charge.

        Args:
            partitions: over which users are spread; nothing that is decided depends on it.
            pseudonym_key: as that of ``Turnstile``.
            principal: the same.
            request_key: the same.
        """
        from streams.sdk.memory_connection import MemoryConnection

        connection = MemoryConnection(partitions, Config().timeout)
        return cls(
            connection=connection,
            pseudonym_key=pseudonym_key,
            principal=principal,
            request_key=request_key,
        )

    @property
    def partitions(self) -> int:
        """P, over how many partitions users are spread."""
        return self._connection.partitions

    @property
    def log_name(self) -> str:
        """The name of the log in metrics: the topic of the requests, and some of its id."""
        return self._connection.log_name

    def observe(self, observer: Observer) -> None:
        """Let somebody stand around every request from now on: see ``streams.sdk.observing``."""
        self._connection.observe(observer)

    def __repr__(self) -> str:
        """Where the service is; no password is in it."""
        return f"<Turnstile {self._connection.where}, {self.partitions} partitions>"

    def __enter__(self) -> Turnstile:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Disconnect. What was charged stays charged; who follows HALTs or odometers is told."""
        self._connection.close()

    def create_dataset(
        self,
        name: str,
        *,
        measure: Measure = "zcdp",
        epsilon: float | None = None,
        delta: float | None = None,
        budget: float | Sequence[float] | None = None,
        orders: Sequence[float] | None = None,
        odometer_step: float | Sequence[float] | None = None,
        on_exhaustion: OnExhaustion = "halt",
        user_ids: UserIds | None = None,
        within: str | None = None,
        share_of: Policy | None = None,
        share: float | None = None,
        assume_independent_timing: bool = False,
        sampled_levels: bool | None = None,
        allow: Mapping[str, Sequence[str]] | None = None,
        timeout: float | None = None,
    ) -> Policy:
        """Fix the policy of a dataset. Doing it again with the same policy is fine, and completes
        what somebody else has left half-made.

        Args:
            name: letters, digits, dots, dashes and underscores.
            measure: how losses add up: "zcdp", "gdp", "renyi", "approx-dp" or "pure-dp".
            epsilon: with delta, the guarantee of every user; the budget follows from it, for renyi
                at each of the orders.
            delta: see epsilon. For pure-dp epsilon alone is enough, and a delta changes nothing.
            budget: or the budget itself: rho for zcdp, mu for gdp, one number per order for
                renyi.
            orders: Rényi orders above 1, for renyi: all of them have to hold. With epsilon and
                delta and no orders, each user is charged at one order of its own: the one of a
                ladder that admits most steps of the first charge, fixed by it.
            odometer_step: how finely the odometer counts, in the unit of the budget; an eighth
                of the budget by default.
            on_exhaustion: "halt" leaves a user out of a step that does not fit; "clip" grants the
                norm that still fits (budget-aware clipping, Feldman and Zrnic, Algorithm 7), and
                every budget that it is within.
            user_ids: "integer", "string", "one-kind" (whichever comes first) or "mixed". 1 and
                "1" are two users with a budget each, so mixed ids must be wanted. None: what the
                dataset has, or "one-kind" for a new one.
            within: another dataset of the same users, whose budget every step has to fit as well,
                and is charged to: a person's, over all datasets. Up to 8, one within the other.
                What becomes of who cannot pay this dataset says, whatever they do.
            share_of: the policy of another dataset of the same users, as this method returned it.
                The new dataset has a fixed part of its budget, and the same measure and orders. The
                parts of a dataset add up to at most its budget, so runs of different parts may
                charge side by side; the dataset itself is charged through its parts only.
            share: that part, above 0 and at most 1, of rho, of mu squared, of epsilon (pure-dp), or
                of the budget at each order. Under gdp a share of 0.25 has half of mu.
            assume_independent_timing: several runs may charge the budget side by side, in no fixed
                order. You state that their timing does not depend on any user's data; the
                guarantee does not hold otherwise (docs/guarantees.md). Outermost datasets only.
            sampled_levels: whether norm levels may follow the users' own sampling coins. If they
                may, only the whole budget is a guarantee, and no epsilon below it is shown. None:
                True for renyi, False otherwise. Say True for any measure if levels follow the coins
                of another dataset's steps.
            allow: principals that may "charge" the dataset (open, charge and close runs, enrol
                users) and that may "manage" it (withdraw and close it, forget users, create
                datasets within it), whose requests have to be signed. None: those of the dataset
                that it is within, or everybody. A right that it does not name is nobody's. It never
                changes; the key of a principal does.
            timeout: seconds to wait for all partitions.

        Returns:
            The policy as the partitions hold it.

        Raises:
            InvalidRequest: arguments that make no policy.
            PolicyChanged: the dataset exists under another policy.
            RequestRejected: the dataset that it is to be within does not exist, or this client
                may not create it.
            DecisionTimeout: not all partitions answered; try again.
        """
        deadline = self._connection.deadline(timeout)
        policy = policy_from(
            name,
            partitions=self.partitions,
            measure=measure,
            share_of=share_of,
            share=share,
            assume_independent_timing=assume_independent_timing,
            sampled_levels=sampled_levels,
            epsilon=epsilon,
            delta=delta,
            budget=budget,
            orders=orders,
            odometer_step=odometer_step,
            on_exhaustion=on_exhaustion,
            user_ids=user_ids,
            within=within,
            allow=allow_from(allow),
            pseudonyms=None if self._pseudonyms is None else self._pseudonyms.fingerprint,
        )
        self._connection.check_partitions()
        return create(self._connection, policy, deadline, delta)

    def withdraw_dataset(self, name: str, *, timeout: float | None = None) -> None:
        """Take back a dataset that nobody has used, half-made or not; fine if there is none.

        Raises:
            InvalidRequest: a name that no dataset can have.
            DatasetInUse: a run of it was opened.
            DecisionTimeout: not all partitions answered; try again.
        """
        withdraw(self._connection, name, self._connection.deadline(timeout))

    def close_dataset(self, name: str, *, timeout: float | None = None) -> list[str]:
        """End a dataset for good, all that are within it, and all their runs; again is fine.

        Nothing is charged to them any more, and none of their names is used again. What was charged
        stays charged, to the datasets that they are within, too, which go on.

        Args:
            name: of the dataset.
            timeout: seconds to wait for all partitions.

        Returns:
            All datasets that are closed by it.

        Raises:
            InvalidRequest: a name that no dataset can have.
            RequestRejected: the dataset does not exist.
            DecisionTimeout: not all partitions answered; try again, which completes it.
        """
        deadline = self._connection.deadline(timeout)
        self._connection.check_partitions()
        return close(self._connection, name, deadline)

    def run(
        self,
        dataset: str,
        name: str,
        *,
        released: int | None = None,
        min_separation: int | None = None,
        charges_ahead: bool = False,
        take_over: bool = False,
        timeout: float | None = None,
    ) -> Run:
        """Begin a run, or resume it: a new attempt, which fences every earlier one.

        One run at a time charges a budget, until it is closed. If two runs drew on it at once, the
        order of their charges would depend on running times, and these can depend on the data.
        Runs side by side need a share of the budget each (``create_dataset(share_of=)``), or a
        dataset with ``assume_independent_timing``.

        A trainer that resumes says which step it has ``released`` last, and loads its own
        checkpoint after this call. A step that was charged and did not go out is handed back:
        ``run.step`` is that step, and charging it with the same users and norms returns the
        decision that was made, charged once. So write down what is released before it leaves, or
        in one file with the model that it changed: a step that went out and is not written down
        would be released twice for one charge.

        Args:
            dataset: what the run charges.
            name: of the run.
            released: the last step that was released or given up, -1 for none. None: every step
                that all partitions have decided is behind, released or not. Runs that sample leave
                it out, since a step whose users may have been drawn must not be drawn again.
            min_separation: b, 2 to 16384, for steps of a banded matrix mechanism (DP-FTRL) of at
                most b bands: a user who takes part in step t, with a norm above 0, is not admitted
                again before step t + b of this run. It is fixed with the first step. None: as the
                run has it; a new one keeps nothing apart.
            charges_ahead: the trainer charges the next step before the one at hand is released
                (``charge_ahead``), so that it may end with both charged and neither released. Then
                the last one is handed back, and the one before it is given up: it stays charged,
                and must not be released. Write ``run.step - 1`` down as released before the next
                step is charged ahead, so that a second such end can be told from lost notes.
            take_over: take the budget from the run that holds it, which cannot charge any more.
            timeout: seconds to wait for all partitions.

        Raises:
            InvalidRequest: a name that no dataset or run can have, a ``min_separation`` that is
                none, or ``released`` is a step that not all partitions have decided.
            ReleaseUnknown: more steps were charged after ``released`` than can be handed back: one,
                or two with ``charges_ahead``.
            PartitionsDisagree: the dataset is half-made, has two policies, or partitions were
                added; or the run keeps participations apart in some partitions only. Nothing can
                be charged.
            RunIsClosed: the run was closed.
            SeparationChanged: the run has been charged with another ``min_separation``.
            BudgetHeld: another run holds the budget.
            RequestRejected: the dataset does not exist.
            DecisionTimeout: not all partitions answered; try again.
        """
        deadline = self._connection.deadline(timeout)
        self._connection.check_partitions()
        return open_run(
            self._connection,
            dataset,
            name,
            released=released,
            min_separation=min_separation,
            charges_ahead=charges_ahead,
            take_over=take_over,
            deadline=deadline,
        )

    def close_run(self, dataset: str, name: str, *, timeout: float | None = None) -> bool:
        """End a run for good, as ``Run.close`` does, without charging it again first.

        It completes a closing that reached only some partitions, and fences a trainer that is at
        work on the run.

        Returns:
            Whether there was such a run; if not, nothing was closed, and no run was made.

        Raises:
            InvalidRequest: a name that no dataset or run can have.
            Fenced: a trainer opened the run meanwhile; try again.
            RequestRejected: the dataset does not exist.
            DecisionTimeout: not all partitions answered; try again.
        """
        return close_run(self._connection, dataset, name, self._connection.deadline(timeout))

    def forget(
        self, user: User, dataset: str | None = None, *, timeout: float | None = None
    ) -> list[str]:
        """Have the service forget who a user is; doing it again is fine.

        What the user has spent stays spent, and all that is left is spent with it: whoever charges
        the id again is told that it is halted, and ``StepDecision.forgotten``. Datasets that are
        within one another forget a user together. What older records of the log say stays until
        the log is trimmed (docs/erasure.md).

        Args:
            user: the id.
            dataset: in this dataset, and in those that share a budget with it; None: in all that
                there are now.
            timeout: seconds to wait for the partition of the user.

        Returns:
            The datasets in which the user is forgotten; none if the user was never charged.

        Raises:
            InvalidRequest: an id that no user can have, or a name that no dataset can have.
            RequestRejected: there is no such dataset, or it knows users by other pseudonyms.
            DecisionTimeout: no answer; try again.
        """
        deadline = self._connection.deadline(timeout)
        self._connection.check_partitions()
        return forget(self._connection, user, dataset, deadline)

    def add_principal(
        self,
        name: str,
        public_key: str,
        *,
        creates: bool = False,
        operator_key: str | None = None,
        timeout: float | None = None,
    ) -> None:
        """Have requests count that a principal signs with this key, and no other one.

        The first time this binds the operator to the service: from then on nobody else says whose
        keys count, and who may create datasets.

        Args:
            name: of the principal, by which datasets name it.
            public_key: that of its ``request_key``.
            creates: whether it may create datasets that are within none that says who may.
            operator_key: the private key of the operator; the setting of that name if not given.
            timeout: seconds to wait for all partitions.

        Raises:
            InvalidRequest: a name that no principal can have, or a key that is none.
            RequestRejected: somebody else is the operator.
            DecisionTimeout: not all partitions answered; try again, which completes it.
        """
        operator = operator_of(operator_key or self._operator_key)
        deadline = self._connection.deadline(timeout)
        register(self._connection, operator, name, public_key, deadline, creates=creates)

    def remove_principal(
        self, name: str, *, operator_key: str | None = None, timeout: float | None = None
    ) -> None:
        """Have nothing count any more that a principal signs. It may be added again later.

        Raises:
            InvalidRequest: a name that no principal can have, or a key that is none.
            RequestRejected: somebody else is the operator.
            DecisionTimeout: not all partitions answered; try again, which completes it.
        """
        operator = operator_of(operator_key or self._operator_key)
        deadline = self._connection.deadline(timeout)
        register(self._connection, operator, name, None, deadline)

    def bind_operator(
        self,
        *,
        successor: str | None = None,
        also: Sequence[str] = (),
        operator_key: str | None = None,
        timeout: float | None = None,
    ) -> None:
        """Bind the operator to the service, or another one in its place.

        Args:
            successor: the public key by which the operator is known from now on. Workers have to
                name it in ``operator_keys`` before, or they stop.
            also: the ids of logs from which records are about to be copied to this one, before all
                else is written to it: signatures for them count here. Bind then by the key with
                which those logs began.
            operator_key: the private key of the operator; the setting of that name if not given.
            timeout: seconds to wait for all partitions.

        Raises:
            InvalidRequest: a key that is none, or no id of a log.
            RequestRejected: somebody else is the operator.
            DecisionTimeout: not all partitions answered; try again, which completes it.
        """
        operator = operator_of(operator_key or self._operator_key)
        deadline = self._connection.deadline(timeout)
        bind_operator(self._connection, operator, deadline, successor=successor, also=also)

    def halts(
        self,
        dataset: str | None = None,
        *,
        run: str | None = None,
        since: Since | None = None,
        follow: bool = True,
        idle_timeout: float | None = None,
    ) -> Iterator[Halt]:
        """HALT events as they come, for ever; with ``follow=False`` those that there are.

        With a ``pseudonym_key`` users that this client has charged or enrolled have their ids;
        others have their pseudonyms.

        Args:
            dataset: of this dataset only.
            run: of runs of this name only.
            since: "earliest", from the first that Kafka still has, or "latest", from now on, which
                is what following means if this is not given.
            follow: wait for more. Otherwise the loop ends with what was published before this
                call.
            idle_timeout: following ends when none came for so many seconds.

        Raises:
            ServiceUnavailable: no broker, or no topics.
            ConflictingDecisions: somebody else than the workers writes decisions.
            Unusable: the Turnstile was closed.
        """
        since = since or ("latest" if follow else "earliest")
        records = self._connection.read(Channel.HALTS, Reading(since, follow, idle_timeout))
        halts = distinct_halts(records, dataset, run)
        if (known := self._pseudonyms) is None:
            return halts
        return (replace(halt, user=known.user_of(halt.user)) for halt in halts)

    def odometer(
        self,
        dataset: str | None = None,
        *,
        user: User | None = None,
        since: Since = "earliest",
        follow: bool = True,
        idle_timeout: float | None = None,
    ) -> Iterator[OdometerCheckpoint]:
        """Odometer checkpoints as they come, for ever; with ``follow=False`` those that there are.

        With a ``pseudonym_key`` users that this client has charged, enrolled or asked for have
        their ids; others have their pseudonyms.

        A user's spend is at most ``bound``, and at most one increment of the odometer without a
        checkpoint. A later checkpoint of a user replaces the ones before. Each is for its own
        user's eyes alone.

        Args:
            dataset: of this dataset only.
            user: of this user only.
            since: "earliest", from the first that Kafka still has, or "latest", from now on.
            follow: wait for more. Otherwise the loop ends with what was published before this
                call.
            idle_timeout: following ends when none came for so many seconds.

        Raises:
            ServiceUnavailable: no broker, or no topics.
            Unusable: the Turnstile was closed.
        """
        known = self._pseudonyms
        if user is not None and known is not None:
            user = int(known.of([user])[0])
        elif isinstance(user, str):
            user = normal_form(user)
        records = self._connection.read(Channel.ODOMETER, Reading(since, follow, idle_timeout))
        return (
            checkpoint
            if known is None
            else structs.replace(checkpoint, user=known.user_of(checkpoint.user))
            for checkpoint in rising_checkpoints(records)
            if dataset in (None, checkpoint.dataset) and user in (None, checkpoint.user)
        )


def _traces() -> Observer:
    """Makes spans of requests.

    Raises:
        ConfigurationError: OpenTelemetry is not installed.
    """
    try:
        from streams.sdk.traces import ClientTraces
    except ImportError as error:
        raise lacking("traces", "otel", error) from error
    return ClientTraces()
