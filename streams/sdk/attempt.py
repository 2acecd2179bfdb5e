"""One attempt of a run: its steps are published once and decided once, in order.

States of the next step, and the calls that change them:

    NEXT         charge is sent                  -> PUBLISHED
    NEXT         charge_ahead is sent            -> AHEAD
    PUBLISHED    all partitions decide           -> NEXT, of the following step
    PUBLISHED    DecisionTimeout                 -> PUBLISHED: only the same content may be charged
    HANDED_BACK  charge with the same content    -> NEXT, of the following step; charged once
    HANDED_BACK  charge with other content       -> HANDED_BACK; rejected before it is charged
    HANDED_BACK  abandon                         -> NEXT, of the following step; its charges stay
    HANDED_BACK  charge_ahead                    -> AHEAD
    AHEAD        decision, all partitions decide -> NEXT, of the following step
    AHEAD        DecisionTimeout                 -> AHEAD
    AHEAD        StepContentChanged              -> HANDED_BACK
    all but AHEAD and FAILED   close             -> CLOSING, then CLOSED when all have answered
    any          another rejection or a conflict -> FAILED

A step is handed back if an earlier attempt ended after some partitions had decided it, or before
it was released. It is first repeated in the partitions that decided it. It is published to the
others only if all of these return their stored decision.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from enum import Enum, auto
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeAlias, TypeVar

from streams.records import (
    CloseRun,
    Decision,
    OpenRun,
    Reason,
    RosterDecision,
    RunClosed,
    RunOpened,
)
from streams.sdk.connection import Connection, Deadline, PendingRequest, step_key
from streams.sdk.errors import (
    ConflictingDecisions,
    InvalidRequest,
    RequestRejected,
    RunIsClosed,
    StepContentChanged,
    TurnstileError,
    Unusable,
    not_of_a_worker,
)

T = TypeVar("T")
D = TypeVar("D")
D_co = TypeVar("D_co", covariant=True)
Part_co = TypeVar("Part_co", covariant=True)


StepAnswer: TypeAlias = Decision | RosterDecision


class StepState(Enum):
    """The state of the next step of an attempt."""

    NEXT = auto()
    HANDED_BACK = auto()
    PUBLISHED = auto()
    AHEAD = auto()
    CLOSING = auto()
    CLOSED = auto()
    FAILED = auto()


class Call(Enum):
    """The calls of a run, by what they need."""

    CHARGE = auto()  # also enrol and abandon
    DECISION = auto()
    CONFIRM = auto()
    CLOSE = auto()


_OPEN: Final = frozenset({Call.CHARGE, Call.CONFIRM, Call.CLOSE})
_ALLOWED: Final[Mapping[StepState, frozenset[Call]]] = {
    StepState.NEXT: _OPEN,
    StepState.HANDED_BACK: _OPEN,
    StepState.PUBLISHED: _OPEN,
    StepState.AHEAD: frozenset({Call.DECISION, Call.CONFIRM}),
    StepState.CLOSING: frozenset({Call.CLOSE}),
    StepState.CLOSED: frozenset({Call.CLOSE}),
    StepState.FAILED: frozenset(),
}


class StepPart(Protocol[Part_co]):
    """A partition's share of a step. ``decisions`` and ``roster_steps`` implement it."""

    @property
    def record(self) -> bytes:
        """Return the encoded request."""

    @property
    def digest(self) -> bytes:
        """Return the digest of the request's content, which its decision carries."""

    def decided(self, answer: StepAnswer) -> Part_co:
        """Return the decision, or raise ``ConflictingDecisions`` if no worker has made it."""


class AskedStep(NamedTuple, Generic[T, D_co]):
    """A step in the form that all partitions are asked to charge."""

    parts: Mapping[int, StepPart[T]]  # by partition
    put_together: Callable[[dict[int, T]], D_co]  # makes the result of all partitions' decisions


class Ahead(Generic[D_co]):
    """A step that was charged ahead. Its run accepts no other call until ``decision`` has
    succeeded.

    A trainer charges the next step ahead so that the service decides it while the trainer computes
    the current one. Nothing of a step may be released before its decision is read.
    """

    def __init__(self, decide: Callable[[float | None], D_co]) -> None:
        self._decide = decide
        self._decision: D_co | None = None

    def decision(self, timeout: float | None = None) -> D_co:
        """Wait until every partition has decided the step. Later calls return the same decision.

        Raises:
            DecisionTimeout: call again.
            TurnstileError: any error of ``charge`` that is raised while waiting.
        """
        if self._decision is None:
            self._decision = self._decide(timeout)
        return self._decision


class Attempt:
    """The state of one attempt, and all that it sends to the service.

    Args:
        opened: the answers of all partitions to the opening.
        is_shared: other processes may charge this attempt as well.

    Attributes:
        token: partition 0 knows this attempt by it.
        state: the state of that step, or of the whole attempt.
        handed_back: the partitions in which an earlier attempt has decided ``step``; if the attempt
            is shared, an earlier call.
        is_shared: other processes may charge this attempt as well.
        roster: the one that was enrolled last; None if there is none.
        published: what this attempt has published of the step, by partition.
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
        self.dataset, self.run, self.number = first.dataset, first.run, first.attempt
        self.step = step
        self.handed_back = frozenset(p for p, answer in opened.items() if answer.last_step == step)
        self.state = self._undecided()
        self.token, self.is_shared = first.request, is_shared
        self.log = connection.log
        self.roster: object = None
        self._partitions = range(first.policy.partitions)
        self._connection = connection
        self._witness = connection.watch(self.dataset, self.run)
        self._lock = threading.Lock()
        self.published: Mapping[int, StepPart[Any]] = {}
        # The digests of all that this attempt has sent of the step: answers may be late.
        self._sent: defaultdict[int, set[bytes]] = defaultdict(set)
        self._ahead: AskedStep[Any, Any] | None = None
        self._closing = ""
        self._failure: TurnstileError | None = None

    @contextmanager
    def use(self, call: Call, timeout: float | None = None) -> Iterator[Deadline]:
        """Hold the attempt for one call, and fail it if the call proves it unusable.

        Raises:
            Unusable: another thread uses the run, or the state does not allow the call.
            RunIsClosed: the run was closed.
            InvalidRequest: the timeout is invalid.
        """
        if not self._lock.acquire(blocking=False):
            raise Unusable(
                f"run {self.run!r} is in use by another thread: give each thread a run of its own"
            )
        try:
            if call not in _ALLOWED[self.state]:
                raise self._not_allowed()
            try:
                self._witness.check()
                yield self._connection.deadline(timeout)
            except (RequestRejected, ConflictingDecisions) as error:
                # The step that was handed back can still be charged with its own content.
                if not (self.handed_back and isinstance(error, StepContentChanged)):
                    self.state, self._failure = StepState.FAILED, error
                raise
        finally:
            self._lock.release()

    def decide(
        self, asked: AskedStep[Any, D], deadline: Deadline, sent: PendingRequest | None = None
    ) -> D:
        """Charge a step: first where it was decided before, then by the other partitions."""
        if sent is not None:
            decisions = self._receive(asked.parts, sent, deadline)
        else:
            self._check_published(asked)
            again = {p: part for p, part in asked.parts.items() if p in self.handed_back}
            elsewhere = {p: part for p, part in asked.parts.items() if p not in self.handed_back}
            decisions = self._receive(again, self._send(again, deadline), deadline) if again else {}
            decisions |= self._receive(elsewhere, self._publish(elsewhere, deadline), deadline)
        self._witness.check()
        decided: D = asked.put_together(decisions)
        self.step += 1
        self.state, self.handed_back = StepState.NEXT, frozenset()
        self.published = {}
        self._sent.clear()
        return decided

    def send_ahead(self, asked: AskedStep[Any, D], deadline: Deadline) -> Ahead[D]:
        """Send a step without waiting. A step that was handed back is sent by ``decision`` only."""
        self._check_published(asked)
        sent = [] if self.handed_back else [self._publish(asked.parts, deadline)]
        self.state, self._ahead = StepState.AHEAD, asked

        def decide(timeout: float | None) -> D:
            with self.use(Call.DECISION, timeout) as deadline:
                if self._ahead is not asked:
                    raise Unusable("this step was rejected when it was charged: charge it again")
                try:
                    decided: D = self.decide(asked, deadline, sent.pop() if sent else None)
                    return decided
                except StepContentChanged:  # nothing was charged
                    self.state, self._ahead = self._undecided(), None
                    raise

        return Ahead(decide)

    def close(self, deadline: Deadline) -> None:
        """Close the run in all partitions; complete an earlier call that was interrupted."""
        if self.state is StepState.CLOSED:
            return
        self._closing = self._closing or self._connection.new_token()
        self.state = StepState.CLOSING
        request = CloseRun(
            dataset=self.dataset, run=self.run, attempt=self.number, request=self._closing
        )
        requests = dict.fromkeys(self._partitions, request)
        self._connection.ask(requests, RunClosed, deadline)
        self.state = StepState.CLOSED

    def confirm(self, deadline: Deadline) -> None:
        """Ask partition 0 whether this attempt is the newest: every opening reaches it."""
        # The question has a token of its own, so that no copy of an earlier answer answers it.
        question = OpenRun(
            dataset=self.dataset,
            run=self.run,
            attempt=self.number,
            request=self._connection.new_token(),
            confirms=self.token,
        )
        self._connection.ask({0: question}, RunOpened, deadline)

    def still_published(self) -> InvalidRequest:
        """Return the error for content other than what was published."""
        return InvalidRequest(
            f"step {self.step} was published with other content and may still be decided: charge "
            "exactly the same users, norms and mechanism again, or open the run again, which hands "
            "the step back if a partition has decided it"
        )

    def _undecided(self) -> StepState:
        return StepState.HANDED_BACK if self.handed_back else StepState.NEXT

    def _not_allowed(self) -> TurnstileError:
        match self.state:
            case StepState.FAILED:
                error = Unusable(
                    f"attempt {self.number} of run {self.run!r} has failed: {self._failure}"
                )
                error.__cause__ = self._failure
                return error
            case StepState.CLOSING | StepState.CLOSED:
                detail = f"run {self.run!r} of dataset {self.dataset!r} was closed"
                return RunIsClosed(Reason.RUN_CLOSED, detail, None)
            case StepState.AHEAD:
                return Unusable(
                    f"step {self.step} of run {self.run!r} was charged ahead: call its decision() "
                    "first"
                )
        return Unusable(f"step {self.step} of run {self.run!r} was not charged ahead: charge it")

    def _check_published(self, asked: AskedStep[Any, Any]) -> None:
        parts = asked.parts.items()
        if any(self.published.get(p, part).digest != part.digest for p, part in parts):
            raise self.still_published()

    def _publish(self, parts: Mapping[int, StepPart[Any]], deadline: Deadline) -> PendingRequest:
        """Send a step where it was not decided before. Its content is fixed from here on."""
        before = self.state, self.published
        self.published = parts
        if self.state is StepState.NEXT:
            self.state = StepState.PUBLISHED
        try:
            return self._send(parts, deadline)
        except InvalidRequest:  # the step is too large, so nothing was published
            self.state, self.published = before
            raise

    def _send(self, parts: Mapping[int, StepPart[Any]], deadline: Deadline) -> PendingRequest:
        for partition, part in parts.items():
            self._sent[partition].add(part.digest)
        records = {partition: part.record for partition, part in parts.items()}
        key = step_key(self.dataset, self.run, self.number, self.step)
        return self._connection.send(key, records, deadline)

    def _receive(
        self, parts: Mapping[int, StepPart[T]], sent: PendingRequest, deadline: Deadline
    ) -> dict[int, T]:
        replies = self._connection.receive(sent, deadline)
        return {p: part.decided(self._about(p, part, replies[p])) for p, part in parts.items()}

    def _about(self, partition: int, part: StepPart[Any], answer: object) -> StepAnswer:
        """Return the answer, if it is about the content of a part.

        A late answer to other content that was sent for the step means that the step was decided
        with that content. A shared attempt does not know what other processes have sent.

        Raises:
            StepContentChanged: the step was decided with other content that was sent.
            ConflictingDecisions: a worker cannot have made this answer to the request.
        """
        if not isinstance(answer, Decision | RosterDecision):
            raise not_of_a_worker(partition, "is no decision")
        other = answer.digest
        if other == part.digest:
            return answer
        if self.is_shared or other in self._sent[partition]:
            raise StepContentChanged(
                Reason.STEP_CONTENT_CHANGED,
                f"step {self.step} was decided with other content, which was charged before",
                partition,
            )
        raise not_of_a_worker(partition, "is about another step, or about other content")
