"""``Turnstile``, the client of the service for trainers and query answerers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from os import PathLike, fspath
from typing import Unpack

from msgspec import structs
from numpy.typing import ArrayLike

from accounting.exact.invalid_input import quoted
from streams.config import Config, lacking
from streams.ledger.outputs import Channel
from streams.records import (
    CollectTerms,
    OdometerRecord,
    Policy,
    Right,
    User,
)
from streams.records.terms import PolicyTerms, takes_terms
from streams.sdk.arguments import UsersLike
from streams.sdk.connection import Connection, Deadline, SignsRequests
from streams.sdk.dataset_requests import (
    access_list,
    close,
    create,
    erase,
    policy_from,
    set_access,
    signer_of,
    withdraw,
)
from streams.sdk.errors import InvalidRequest
from streams.sdk.followers import (
    Halt,
    Reading,
    Since,
    distinct_halts,
    rising_odometers,
)
from streams.sdk.norm_events import send_norms
from streams.sdk.observing import ClientTraces, Observer
from streams.sdk.opening import close_run, open_run, resume_run
from streams.sdk.run import Run
from streams.sdk.step_layout import Pseudonyms, known_as

_PARTITIONS = 4


class Turnstile:
    """A connection to the service: create datasets, charge runs, follow HALTs and odometers.

    It is blocking, needs no event loop, and may be used from any thread of the process that opened
    it. Settings come from the arguments, then ``TURNSTILE_*`` variables, then the TOML file
    ``config``. Methods with a ``timeout`` wait at most so many seconds for the partitions, by
    default as many as the Turnstile. Then they raise ``DecisionTimeout``, and the same call again
    completes what they began.

    Args:
        kafka: bootstrap servers, ``host:port``, comma separated. None: as the settings have it,
            or the file of the setting ``budgets``.
        config: a TOML file, or a ``Config``.
        timeout: seconds until a charge without all its decisions raises.
        prefix: the prefix of the names of the topics.
        pseudonym_key: 16 to 64 secret, random bytes. The log then contains pseudonyms of users,
            which only this key can make, and never their ids. Never change the key of a service:
            under another key every user would begin with nothing spent.
        request_key: the private key that signs requests, as ``turnstile keys new`` makes it.
            Datasets accept them whose access list contains its public key.
        signer: instead of ``request_key``, an object that signs requests, for a program that acts
            for several clients.
        connection: another connection to the service than Kafka; no settings are read then.

    Raises:
        InvalidRequest: ``pseudonym_key`` is too short or too long, or ``request_key`` is invalid.
        ServiceUnavailable: no broker answered, or no topics exist, within ``timeout``.
    """

    def __init__(
        self,
        kafka: str | None = None,
        *,
        config: Config | str | None = None,
        timeout: float | None = None,
        prefix: str | None = None,
        pseudonym_key: str | bytes | None = None,
        request_key: str | None = None,
        signer: SignsRequests | None = None,
        connection: Connection | None = None,
    ) -> None:
        if connection is None:
            if not isinstance(config, Config):
                config = Config.load(config, kafka=kafka, timeout=timeout, prefix=prefix)
            pseudonym_key = pseudonym_key or config.pseudonym_key
            pseudonyms = Pseudonyms(pseudonym_key) if pseudonym_key else None
            signer = signer or signer_of(request_key or config.request_key)
            connection = _connect(config)
        else:
            pseudonyms = Pseudonyms(pseudonym_key) if pseudonym_key else None
            signer = signer or signer_of(request_key)
        connection.pseudonyms = self._pseudonyms = pseudonyms
        connection.signer = signer
        self._connection = connection

    @classmethod
    def in_memory(
        cls,
        *,
        partitions: int = 1,
        pseudonym_key: str | bytes | None = None,
        request_key: str | None = None,
    ) -> Turnstile:
        """Run the service in this process, for tests and notebooks: no Kafka, no Redis, no thread.

        Every request is decided at once, exactly as the service decides it. State is lost when the
        process ends, and the same users could then be charged from zero again. So this protects no
        promise that outlives the process. A copy of the process (``fork``) cannot use it. Following
        HALTs or odometers waits for the charges of other threads.

        Args:
            partitions: how many partitions users are spread over; no decision depends on it, and
                each takes time in every step.
            pseudonym_key, request_key: as those of ``Turnstile``.
        """
        from streams.sdk.memory_connection import MemoryConnection

        connection = MemoryConnection(partitions, Config().timeout)
        return cls(connection=connection, pseudonym_key=pseudonym_key, request_key=request_key)

    @classmethod
    def open(
        cls,
        path: str | PathLike[str],
        *,
        partitions: int | None = None,
        pseudonym_key: str | bytes | None = None,
        request_key: str | None = None,
        timeout: float | None = None,
    ) -> Turnstile:
        """Keep budgets in a file on this machine: no Kafka, no Redis, no other process.

        Every request is decided at once, exactly as the service decides it, and is on the disk
        before this object returns its decision. Any number of processes and threads of this machine
        may open the file. A copy of the process (``fork``) has to open it again.

        The file contains the whole log, with the ids of users unless there is a ``pseudonym_key``.
        Only its owner can read it. It grows with every charge. ``turnstile import`` moves it into a
        service.

        You are responsible for the following:

        - Use one file. If it is copied and both copies are charged, on two machines or on one, each
          copy knows half of what was spent. This cannot be detected.
        - Restore no older copy: it would admit users to what they have already paid for.
        - Keep it on a local disk. Network file systems often have no reliable locks.

        Args:
            path: the file. If it does not exist, it is created, with nothing spent.
            partitions: how many partitions users are spread over; no decision depends on it. A
                service into which the file is imported needs the same number. None: as the file
                has it, 4 for a new one.
            pseudonym_key, request_key: as those of ``Turnstile``.
            timeout: seconds to wait for other processes that are charging; by default 30.

        Raises:
            InvalidRequest: ``partitions`` is out of range or not that of the file, or a key is
                invalid.
            UnusableFile: the file cannot be used; ``problem`` says why. It was not changed.
        """
        from streams.sdk.budget_file import create_file
        from streams.sdk.file_connection import FileConnection

        name = fspath(path)
        seconds = Deadline.after(Config().timeout if timeout is None else timeout).seconds
        if pseudonym_key:
            Pseudonyms(pseudonym_key)  # reject an invalid key before a file is created
        signer_of(request_key)
        create_file(name, _PARTITIONS if partitions is None else partitions)
        connection = FileConnection(name, seconds)
        if partitions not in (None, connection.partitions):
            connection.close()
            raise InvalidRequest(
                f"partitions is {quoted(partitions)}, and {name} has {connection.partitions}, "
                "which never changes: leave it out"
            )
        return cls(connection=connection, pseudonym_key=pseudonym_key, request_key=request_key)

    @property
    def partitions(self) -> int:
        """Return P, the number of partitions that users are spread over."""
        return self._connection.partitions

    @property
    def log(self) -> str:
        """Return the id of the log, the first part of the ids of its decisions (``DecisionId``).

        ``f"{t.log}/{halt.partition}/{halt.offset}"`` is the id of the decision that halted a user.
        """
        return self._connection.log.hex()

    @property
    def is_broken(self) -> bool:
        """Return whether answers can no longer be received: open another Turnstile."""
        return self._connection.is_broken

    @property
    def log_name(self) -> str:
        """Return the log's name in metrics: the topic of requests and a part of its id."""
        return self._connection.log_name

    def observe(self, observer: Observer) -> None:
        """Register an observer that wraps every request; see ``streams.sdk.observing``."""
        self._connection.observe(observer)

    def __repr__(self) -> str:
        """Return the address of the service; it contains no password."""
        return f"<Turnstile {self._connection.where}, {self.partitions} partitions>"

    def __enter__(self) -> Turnstile:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Disconnect. Charges stay charged; iterators over HALTs and odometer records raise
        ``Unusable``.
        """
        self._connection.close()

    @takes_terms
    def create_dataset(
        self,
        name: str,
        *,
        timeout: float | None = None,
        **terms: Unpack[PolicyTerms],
    ) -> Policy:
        """Create a dataset with a policy, which never changes.

        Creation is idempotent: the same call again also completes a dataset that another client
        created in some partitions only.

        Args:
            name: letters, digits, dots, dashes and underscores.
            measure: how losses add up: "gdp", "zcdp", "renyi", "pure-dp" or "steps". The default,
                "gdp", is exact for Gaussian steps without sampling. Sampled steps need "renyi" or
                "steps"; Laplace and PureDP steps need another measure, or a roster. For a sequence
                of pure DP or Gaussian steps with an (epsilon, delta) budget, use "zcdp".
                "steps" counts the steps of a training whose sampling rate and noise are
                public: with epsilon and delta, as many as the tightest accountant of loss
                distributions allows for users at the clip norm.
            epsilon: with delta, the guarantee of every user; the budget follows from it, for renyi
                at each of the orders.
            delta: see epsilon. For pure-dp epsilon alone is enough, and a delta changes nothing.
            budget: alternatively, the budget itself: mu for gdp, rho for zcdp, one number per order
                for renyi.
            orders: Rényi orders above 1, for renyi: the budget at each of them must hold. With
                epsilon and delta and no orders, each user is charged at one Rényi order: the
                candidate order that admits most steps like the user's first charge, which fixes it.
            sampling_rate: for steps: the largest sampling rate of a step, in (0, 1]; 1 by default.
            noise_multiplier: for steps: the smallest noise, as a multiple of the clip norm.
            odometer_step: the resolution of the odometer, in the unit of the budget; an eighth of
                the budget by default.
            on_exhaustion: "halt", the default, leaves a user out of a step that does not fit.
                "clip" grants the largest norm that still fits this budget and all its parent
                budgets (budget-aware clipping, Feldman and Zrnic, Algorithm 7).
            user_ids: "integer", "string", "one-kind" (the kind of the first charged ids) or
                "mixed". 1 and "1" are two users with a budget each, so mixed ids must be asked for.
                None: as the dataset has it, or "one-kind" for a new one.
            parents: one parent dataset or several, of the same users. Every step must fit their
                budgets and those of their own parents as well, and is charged to all of them or to
                none: for example one budget per person over all datasets. A step draws on up to 8
                budgets. The ``on_exhaustion`` of the charged dataset applies. Only the budgets that
                all of a person's datasets share are a guarantee for that person
                (docs/guarantees.md, A3).
            share_of: the policy of another dataset of the same users, as this method returned it.
                The new dataset has a fixed share of its budget, and the same measure and orders.
                The shares of a dataset add up to at most its budget, so runs of different shares
                may charge side by side; the dataset itself is charged through its shares only.
            share: that share, above 0 and at most 1, of rho, of mu squared, of epsilon (pure-dp),
                or of the budget at each order. Under gdp a share of 0.25 has half of mu.
                Under steps it is a whole number of steps, rounded down.
            assume_independent_timing: several runs may charge the budget side by side, in no fixed
                order. You state that their timing does not depend on any user's data; the
                guarantee does not hold otherwise (docs/guarantees.md). Outermost datasets only.
            sampled_levels: whether norm levels may follow the users' own sampling coins. If they
                may, only the whole budget is a guarantee, and no epsilon below it is shown. None:
                True for renyi and steps, False otherwise. Pass True for any measure if levels
                follow the coins of another dataset's steps.
            allow: the access list: public keys, as ``turnstile keys new`` prints them, and their
                rights. "charge": open, charge and close runs, and enrol users. "manage": withdraw
                and close the dataset, erase users, create nested datasets, and change the list
                (``set_access``). At least one key must be a manager. None: as the parent datasets,
                or no restriction. A nested dataset can have a list only if all of its parents have.

        Returns:
            The policy as the partitions hold it.

        Raises:
            InvalidRequest: the arguments make no policy.
            PolicyChanged: the dataset exists under another policy.
            RequestRejected: a parent dataset does not exist, or this client may not create the
                dataset.
        """
        deadline = self._connection.deadline(timeout)
        pseudonyms = None if self._pseudonyms is None else self._pseudonyms.fingerprint
        policy = policy_from(name, partitions=self.partitions, pseudonyms=pseudonyms, **terms)
        self._connection.check_partitions()
        return create(self._connection, policy, deadline, terms.get("delta"))

    def set_access(
        self,
        name: str,
        allow: Mapping[str, Sequence[Right]],
        *,
        copied_from: str | None = None,
        timeout: float | None = None,
    ) -> None:
        """Replace the access list of a dataset. This client's key must be one of its managers.

        Requests signed by keys that are not in the new list are rejected from then on. To replace
        a manager's key, add the new key first and remove the old one by a call with the new key:
        then each call can be repeated if it was interrupted.

        Args:
            allow: the whole new list, as in ``create_dataset``.
            copied_from: if the log was copied to another topic, the id of the log in which the
                dataset was created, or in which its list was set last. From this call on, requests
                are signed for the new log.

        Raises:
            InvalidRequest: this client has no request_key, or an argument is invalid.
            RequestRejected: the dataset does not exist or has no list, this client may not manage
                it, or a later change was made.
        """
        deadline = self._connection.deadline(timeout)
        self._connection.check_partitions()
        set_access(self._connection, name, access_list(allow), deadline, copied_from)

    def withdraw_dataset(self, name: str, *, timeout: float | None = None) -> None:
        """Withdraw a dataset of which no run was ever opened. This does nothing if it does not
        exist.

        Raises:
            InvalidRequest: the name is invalid.
            DatasetInUse: a run of it was opened.
        """
        withdraw(self._connection, name, self._connection.deadline(timeout))

    def close_dataset(self, name: str, *, timeout: float | None = None) -> list[str]:
        """Close a dataset permanently, with all datasets nested in it and all their runs.

        They cannot be charged any more, and their names cannot be used again. Charges stay
        charged, also to the parent datasets, which stay open. Closing is idempotent.

        Returns:
            The names of all datasets that are closed by this call.

        Raises:
            InvalidRequest: the name is invalid.
            RequestRejected: the dataset does not exist.
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
        collect: CollectTerms | None = None,
        charges_ahead: bool = False,
        take_over: bool = False,
        timeout: float | None = None,
    ) -> Run:
        """Open a run, new or resumed: a new attempt, which fences all earlier ones.

        One run at a time charges a budget, until it is closed. If two runs drew on it at once, the
        order of their charges would depend on running times, and these can depend on the data.
        Runs side by side need a share of the budget each (``create_dataset(share_of=)``), or a
        dataset with ``assume_independent_timing``.

        A trainer that resumes passes the last step that it has ``released``, and loads its own
        checkpoint after this call. A step that was charged and not released is handed back:
        ``run.step`` is that step, and charging it with the same users and norms returns the
        decision that was made, charged once. So record what is released before it leaves, or in
        one file with the model that it changed. A step that was released and not recorded would be
        released twice for one charge.

        Args:
            released: the last step that was released or given up, -1 for none. None: every step
                that all partitions have decided counts as done, released or not. Runs that sample
                leave it out, since a step whose users may have been drawn must not be drawn again.
            min_separation: b, 2 to 16384, for steps of a banded matrix mechanism (DP-FTRL) with at
                most b bands: a user who takes part in step t, with a norm above 0, is not admitted
                again before step t + b of this run. It is fixed with the first step. None: as the
                run has it; a new run has no minimum separation.
            collect: ``CollectTerms(clip_norm=..., mechanism="gaussian")``, for a run that collects
                the norms that users send, with the clip norm and the mechanism of all its steps
                ("gaussian", "laplace" or "pure-dp"). The dataset and its parents have ``user_ids``
                of a fixed kind, not "one-kind". It is fixed with the first step; norms that were
                collected under other terms are dropped. None: as the run has it; a new run
                collects no norms.
            charges_ahead: the trainer charges the next step before the current one is released
                (``charge_ahead``), so that it may end with both charged and neither released. Then
                the last one is handed back, and the one before it is given up: it stays charged,
                and must not be released. Record ``run.step - 1`` as released before the next step
                is charged ahead, so that a second such crash is not mistaken for lost records.
            take_over: take the budget from the run that holds it, which cannot charge any more.

        Raises:
            InvalidRequest: a name, ``min_separation`` or ``collect`` is invalid, or not all
                partitions have decided the step ``released``.
            ReleaseUnknown: more steps were charged after ``released`` than can be handed back: one,
                or two with ``charges_ahead``.
            PartitionsDisagree: the dataset exists in some partitions only or under two policies,
                partitions were added, or the run has different minimum separations or terms of
                collecting in its partitions. Nothing can be charged.
            RunIsClosed: the run was closed.
            SeparationChanged: the run has been charged with another ``min_separation``.
            BudgetHeld: another run holds the budget.
            RequestRejected: the dataset does not exist, or the run has been charged under other
                terms of collecting.
        """
        deadline = self._connection.deadline(timeout)
        self._connection.check_partitions()
        return open_run(
            self._connection,
            dataset,
            name,
            released=released,
            min_separation=min_separation,
            collect=collect,
            charges_ahead=charges_ahead,
            take_over=take_over,
            deadline=deadline,
        )

    def resume(
        self,
        dataset: str,
        name: str,
        attempt: int,
        token: str,
        *,
        step: int | None = None,
        timeout: float | None = None,
    ) -> Run:
        """Continue an attempt that this or another process has opened, without fencing it.

        This is for programs that keep no run between two calls, such as several servers behind one
        address. A step that was charged before, by any of them, is handed back: charging it with
        the same users and norms returns the decision that was made, charged once. With other
        content ``charge`` raises StepContentChanged.

        The caller is responsible for releasing each step once: a step that is handed back may have
        been released by the process that charged it.

        Args:
            attempt: the ``attempt`` of the run that ``Turnstile.run`` returned.
            token: its ``token``.
            step: the step to charge or charge again: the next one, or the last one that was
                charged. None: the next one, or the one that only some partitions have decided.

        Raises:
            InvalidRequest: a name, the attempt or the step is invalid.
            Fenced: a newer attempt exists, or the token belongs to another one.
            RequestRejected: the dataset or the run does not exist, the step is not the next or the
                last one (STEP_OUT_OF_ORDER), or another run holds the budget.
        """
        deadline = self._connection.deadline(timeout)
        return resume_run(
            self._connection, dataset, name, attempt, token, step=step, deadline=deadline
        )

    def close_run(self, dataset: str, name: str, *, timeout: float | None = None) -> bool:
        """Close a run permanently, as ``Run.close`` does, without opening it.

        This completes a closing that reached only some partitions, and fences a trainer that uses
        the run.

        Returns:
            Whether the run existed; if not, nothing was closed, and no run was made.

        Raises:
            InvalidRequest: a name is invalid.
            Fenced: a trainer opened the run meanwhile; try again.
            RequestRejected: the dataset does not exist.
        """
        return close_run(self._connection, dataset, name, self._connection.deadline(timeout))

    def send_norms(
        self,
        dataset: str,
        run: str,
        step: int,
        users: UsersLike,
        norms: ArrayLike,
        *,
        attempt: int | None = None,
        timeout: float | None = None,
    ) -> None:
        """Send the norms of users' contributions to a step of a run that collects them.

        ``Run.charge_collected`` charges them. This method returns when the log has all norms. It
        returns nothing: the service publishes each rejected norm on the topic ``rejects``
        (``turnstile rejects``), with the reason, and its user takes no part in the step. In memory
        rejects are not kept. Sending the same norms again is safe: each counts once.

        Neighbouring datasets differ by adding or removing one user. Let one sender send a user's
        norm for a step, since the first of two norms counts. A user's norm, and the time at which
        it is sent, may depend on released outputs, public facts and the user's own data, and on
        nothing else. In particular they must not depend on other users' norms, or on who was
        admitted before. Otherwise they would tell which norms come before the charge.

        Args:
            step: the next step of the run, or the one after it.
            users: n distinct ids, integers (signed 64-bit) or strings.
            norms: (n,) the norm of each user's contribution, as in ``Run.charge``. One above the
                clip norm of the run is rejected: clip contributions in float32 to the clip norm
                rounded down.
            attempt: the newest attempt of the run: its number. None: norms count in any attempt.

        Raises:
            InvalidRequest: an argument is invalid; nothing was published.
        """
        deadline = self._connection.deadline(timeout)
        send_norms(
            self._connection, dataset, run, step, users, norms, attempt=attempt, deadline=deadline
        )

    def erase(
        self, user: User, dataset: str | None = None, *, timeout: float | None = None
    ) -> list[str]:
        """Erase a user's id from the service. Erasing is idempotent.

        Spending stays spent, and the rest of the user's budget is spent with it: a later charge of
        the id halts the user, with ``StepDecision.erased``. Nested datasets erase a user
        together. Older records of the log keep the id until the log is trimmed
        (docs/operate/erasure.md).

        Args:
            dataset: erase the user in this dataset and in those that share a budget with it; None:
                in all datasets that exist now.

        Returns:
            The datasets in which the user is erased; empty if the user was never charged.

        Raises:
            InvalidRequest: the id or the name is invalid.
            RequestRejected: the dataset does not exist, or has users by other pseudonyms.
        """
        deadline = self._connection.deadline(timeout)
        self._connection.check_partitions()
        return erase(self._connection, user, dataset, deadline)

    def halts(
        self,
        dataset: str | None = None,
        *,
        run: str | None = None,
        since: Since | None = None,
        follow: bool = True,
        idle_timeout: float | None = None,
    ) -> Iterator[Halt]:
        """Iterate over HALT events: without end, or with ``follow=False`` those that exist.

        With a ``pseudonym_key``, users that this client has charged, enrolled or sent norms of have
        their ids; others have their pseudonyms.

        Args:
            dataset: only records of this dataset.
            run: only records of runs with this name.
            since: "earliest", from the first that Kafka still has, or "latest", from now on. The
                default is "latest" when following, else "earliest".
            follow: wait for more. Otherwise the iteration ends with what was published before this
                call.
            idle_timeout: end after this many seconds without an event.

        Raises:
            ServiceUnavailable: no broker answered, or no topics exist.
            ConflictingDecisions: another program than the workers writes decisions.
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
    ) -> Iterator[OdometerRecord]:
        """Iterate over odometer records: without end, or with ``follow=False`` those that exist.

        With a ``pseudonym_key``, users that this client has charged, enrolled, sent norms of or
        asked for have their ids; others have their pseudonyms.

        A user's spend is at most ``bound``, and at most one tick of the odometer without a record.
        A later record of a user replaces the earlier ones. Show a record to its own user only.

        Args:
            dataset: only records of this dataset.
            user: only records of this user.
            since: "earliest", from the first that Kafka still has, or "latest", from now on.
            follow: wait for more. Otherwise the iteration ends with what was published before this
                call.
            idle_timeout: end after this many seconds without a record.

        Raises:
            ServiceUnavailable: no broker answered, or no topics exist.
            Unusable: the Turnstile was closed.
        """
        known = self._pseudonyms
        if user is not None:
            user = known_as(user, known)
        records = self._connection.read(Channel.ODOMETER, Reading(since, follow, idle_timeout))
        return (
            odometer
            if known is None
            else structs.replace(odometer, user=known.user_of(odometer.user))
            for odometer in rising_odometers(records)
            if dataset in (None, odometer.dataset) and user in (None, odometer.user)
        )


def _connect(config: Config) -> Connection:
    """Connect to the service or the file in the settings; import only what this one needs."""
    connection: Connection
    if config.budgets:
        from streams.sdk.file_connection import FileConnection

        connection = FileConnection(config.budgets, config.timeout)
    else:
        from streams.sdk.kafka_connection import KafkaConnection

        connection = KafkaConnection(config)
    if config.traces:
        try:
            connection.observe(ClientTraces())
        except ImportError as error:
            raise lacking("traces", "otel", error) from error
    return connection
