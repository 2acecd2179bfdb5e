"""Norm events: a run collects the norms that users send, until a charge decides over them.

    nothing --norm event of the next step, or of the one after it--> collected
    collected --the same event--> unchanged
    collected --an event of the user with another norm--> unchanged, and rejected
    collected --the user is erased--> nothing
    collected --charge with ``collected``, or close-run--> nothing
    collected --open-run with other terms, before the first step--> nothing

A collection belongs to a run and a step, so it outlives an attempt. The order of the log decides
which of two norms of a user counts, and nothing about other users: an event that exceeds the
maximum costs the step its decision, instead of leaving out one user because others came first.
For the same reason every check of a charge that depends on a user is made when the event arrives,
and rejects this event alone.

The state has blocks of 1,024 events, in the order of the log:

    collecting:DATASET/RUN              the terms
    collected:DATASET/RUN/STEP/N        events N * 1024 to (N + 1) * 1024

A block is encoded once per batch of records and not once per event, as ``Tracked`` would.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import msgspec
import numpy as np
from msgspec import UNSET
from numpy.typing import NDArray

from accounting import Measure
from streams.ledger.budgets import Budgets, Policies
from streams.ledger.erasure import check_key
from streams.ledger.run_states import RunState
from streams.ledger.tracked import ENTRY_BYTES, Address, Tracked
from streams.ledger.validation import (
    MECHANISMS,
    check_covered,
    check_homes,
    check_kinds,
    check_norms,
)
from streams.records import (
    MAX_ACCOUNTS,
    MAX_BALANCES,
    MAX_COLLECTED,
    MAX_COLLECTED_BYTES,
    MAX_EVENTS,
    Charge,
    CollectTerms,
    Enrol,
    NormEvent,
    NormEvents,
    OpenRun,
    Reason,
    Rejection,
    Request,
    User,
    check_names,
    encode,
)
from streams.records.packing import pack_norms, unpack_norms
from streams.records.users import UserIds, normal_form

BLOCK = 1024
"""Events per block: a batch of records writes at most one block of each step that is not full."""
_TOGETHER = 256
"""So many events are checked at once, if one of a record is rejected: a check of one event takes
about as long as a check of a hundred, and checks of thousands one by one take seconds."""
MAX_AHEAD = 2
"""Norms are collected for so many steps after the last one. A user can send the norm of a step
before the step before it is decided; more would let senders fill the memory of workers."""


class EventBlock(msgspec.Struct, array_like=True):
    """Some events of a collection, in the order of the log."""

    users: list[User]
    norms: list[float]  # NaN: the user was erased, and the id is empty, as no id is
    erased: int = 0  # the size of the ids of users who were erased

    @property
    def size(self) -> int:
        """The size of the ids and norms in bytes, with those of users who were erased."""
        return sum(map(_size_of, self.users)) + self.erased

    def rows(self) -> Iterator[tuple[User, float]]:
        """Yield the users who were not erased, with their norms."""
        rows = zip(self.users, self.norms, strict=True)
        return (row for row in rows if not math.isnan(row[1]))


class _Step:
    """The events of one step."""

    def __init__(self) -> None:
        # Without users who were erased; None: to be read from the blocks.
        self.norms: dict[User, float] | None = {}
        self.events = 0  # with those of users who were erased since
        self.size = 0  # of their ids and norms in bytes


class Collected(Tracked[EventBlock]):
    """(dataset, run, step, number) -> a block of collected events."""

    def __init__(self) -> None:
        super().__init__("collected", EventBlock)
        self._steps: dict[Address, _Step] = {}  # by (dataset, run, step)
        self._extended: set[Address] = set()  # blocks that are not encoded since their last event
        self._erased: set[str] = set()  # blocks whose stored deltas or pages may have erased ids
        self._merged: set[str] = set()  # of these, before the merge began

    @property
    def is_unmerged(self) -> bool:
        """Return whether stored deltas and pages may still have the id of an erased user."""
        return bool(self._erased)

    def norm_of(self, step: Address, user: User) -> float | None:
        """Return the collected norm of a user; None if there is none."""
        return self._norms(step).get(user) if step in self._steps else None

    def is_too_large(self, step: Address, most: int) -> bool:
        """Return whether a step has more than so many events, or too many bytes of them."""
        found = self._steps.get(step)
        return found is not None and (found.events > most or found.size > MAX_COLLECTED_BYTES)

    def add(self, step: Address, user: User, norm: float) -> None:
        """Collect the norm of a user of whom none was collected."""
        found = self._steps.setdefault(step, _Step())
        address = (*step, str(found.events // BLOCK))
        block = self._values.setdefault(address, EventBlock([], []))
        block.users.append(user)
        block.norms.append(norm)
        self._norms(step)[user] = norm
        found.events += 1
        found.size += _size_of(user)
        self._extend(address, _size_of(user))

    def of(self, step: Address) -> tuple[UserIds, NDArray[np.float64]]:
        """Return the collected users and norms of a step, in the order of the log."""
        rows = [row for address in self._blocks(step) for row in self[address].rows()]
        users = UserIds([user for user, _ in rows])
        return users, np.array([norm for _, norm in rows], dtype=np.float64)

    def erase(self, dataset: str, user: User) -> None:
        """Delete the norms of a user that runs of a dataset have collected."""
        for step in self._steps:
            if step[0] == dataset and self._norms(step).pop(user, None) is not None:
                address = next(each for each in self._blocks(step) if user in self[each].users)
                block = self[address]
                at = block.users.index(user)
                block.users[at], block.norms[at] = "", math.nan
                # The size stays: an erasure must not decide whether a step has too many norms.
                block.erased += _size_of(user) - _size_of("")
                self._extend(address, 0)
        # Also those of steps that were decided or given up since.
        names = {self._name(each) for each in self._changed_pages if each[0] == dataset}
        self._erased |= names
        self._merged -= names

    def drop(self, run: Address, up_to: int) -> None:
        """Delete the events of a run's steps, up to this one."""
        for step in [each for each in self._steps if each[:2] == run and int(each[2]) <= up_to]:
            for address in self._blocks(step):
                del self[address]

    def take_delta(self) -> dict[str, bytes]:
        """Return the blocks that changed since the last call, packed, by name."""
        for address in sorted(self._extended & self.keys()):
            self._note(address, encode(self[address]))
        self._extended.clear()
        return super().take_delta()

    def unmerged(self) -> list[str]:
        """Return the names of the blocks that changed since their page was taken."""
        # The deltas of an erasure after this stay behind the merge.
        self._merged = set(self._erased)
        return super().unmerged()

    def take_page(self, name: str) -> bytes | None:
        """Return a block, None if it is deleted; from here on it counts as written."""
        self._erased -= {name} & self._merged
        return super().take_page(name)

    def mark_all_written(self) -> None:
        """Count every block as written."""
        self._erased.clear()
        super().mark_all_written()

    def _moves(self, address: Address, before: EventBlock | None, after: EventBlock | None) -> None:
        step = self._steps.setdefault(address[:3], _Step())
        if before is not None:
            step.events -= len(before.users)
            step.size -= before.size
        if after is not None:
            step.events += len(after.users)
            step.size += after.size
            if after.erased:
                self._erased.add(self._name(address))
        # In a restore a user can be in two blocks: one page is older than the user's erasure, and
        # another one is newer than the user's next event. Deltas then change the older one.
        step.norms = None
        if not step.events:
            del self._steps[address[:3]]

    def _norms(self, step: Address) -> dict[User, float]:
        """Return the norms of a step that has events, by user."""
        found = self._steps[step]
        if found.norms is None:
            found.norms = dict(row for each in self._blocks(step) for row in self[each].rows())
        return found.norms

    def _blocks(self, step: Address) -> list[Address]:
        """Return the addresses of a step's blocks, in the order of the log."""
        events = self._steps[step].events if step in self._steps else 0
        return [(*step, str(number)) for number in range(-(-events // BLOCK))]

    def _extend(self, address: Address, size: int) -> None:
        # A batch writes the whole block.
        is_first = address not in self._extended
        self.changed_bytes += ENTRY_BYTES + self[address].size if is_first else size
        self._extended.add(address)
        self._changed_pages.add(address)


def _size_of(user: User) -> int:
    """Return the size of an id and a norm in bytes."""
    return 8 + (len(user.encode()) if isinstance(user, str) else 8)


def step_of(request: Charge | NormEvent | NormEvents) -> Address:
    """Return the address of the norms that are collected for the step of a request."""
    return (*request.address, str(request.step))


def most_events(budgets: Budgets) -> int:
    """Return the maximum number of events of a step, which depends on its budgets alone."""
    orders = budgets.orders
    return min(MAX_COLLECTED, MAX_ACCOUNTS // len(orders), MAX_BALANCES // sum(orders.values()))


def terms_of(
    request: OpenRun, terms: CollectTerms | None, budgets: Budgets, *, is_fresh: bool
) -> CollectTerms | None:
    """Return the terms under which a run that is opened collects, if it does.

    ``terms`` are those before; they change if the run is fresh (``run_states.takes_terms``).

    Raises:
        Rejection: COLLECT_CHANGED, INVALID_MECHANISM or MIXED_USERS.
    """
    asked = request.collect
    if asked is UNSET:
        return terms
    wanted = asked.clip_norm, asked.mechanism
    if terms is not None and wanted == (terms.clip_norm, terms.mechanism):
        return terms
    if not is_fresh:
        detail = (
            f"run {request.run!r} has other terms of collecting, or none, which do not change once "
            "it has been charged or has a roster: open it without collect, as it is, or open a run "
            "of another name"
        )
        raise Rejection(Reason.COLLECT_CHANGED, detail)
    if asked.mechanism == "poisson-gaussian":
        detail = (
            "a run that collects norms cannot sample: only users who were drawn would send one, "
            "and amplification holds only if every user is charged. Use gaussian, or a roster"
        )
        raise Rejection(Reason.INVALID_MECHANISM, detail)
    check_covered(MECHANISMS[asked.mechanism](1.0, 1.0), budgets.policies, Measure.covers)
    loose = next((each for each in budgets.policies if each.user_ids == "one-kind"), None)
    if loose is not None:
        detail = (
            f"dataset {loose.dataset!r} has the kind of ids that comes first, so one user's norm "
            "would decide about another's: create it with user_ids integer or string"
        )
        raise Rejection(Reason.MIXED_USERS, detail)
    return CollectTerms(clip_norm=asked.clip_norm, mechanism=asked.mechanism)


def check_not_collecting(request: Charge | Enrol, terms: CollectTerms | None) -> None:
    """Check that a run may have a roster, or name the users of a charge (NOT_COLLECTING)."""
    if terms is not None:
        detail = (
            f"run {request.run!r} collects norms: charge it with collected, or without users to "
            "give a step up. Open another run for users who are named, or for a roster"
        )
        raise Rejection(Reason.NOT_COLLECTING, detail)


def check_charged(charge: Charge, terms: CollectTerms | None) -> None:
    """Check that a run may be charged like this (NOT_COLLECTING or COLLECT_CHANGED).

    ``terms`` are those under which the run collects; None if it does not.
    """
    if charge.collected is UNSET:
        if charge.users:
            check_not_collecting(charge, terms)
        return
    if terms is None:
        raise _not_collecting(charge)
    if charge.mechanism != terms.mechanism or charge.clip_norm not in (None, terms.clip_norm):
        detail = (
            f"run {charge.run!r} collects norms for mechanism {terms.mechanism} and clip_norm "
            f"{terms.clip_norm}; the charge has {charge.mechanism} and {charge.clip_norm or 'none'}"
        )
        raise Rejection(Reason.COLLECT_CHANGED, detail)


def with_collected(charge: Charge, terms: CollectTerms, collected: Collected) -> Charge:
    """Return a charge of collected norms with its users and their norms (LENGTH_MISMATCH)."""
    if charge.users or charge.norms:
        detail = "a charge of collected norms names no users and no norms"
        raise Rejection(Reason.LENGTH_MISMATCH, detail)
    users, norms = collected.of(step_of(charge))
    return msgspec.structs.replace(
        charge, users=users.pack(), norms=pack_norms(norms), clip_norm=terms.clip_norm
    )


def check_number(step: Address, collected: Collected, most: int) -> None:
    """Check that a step has not too many collected norms, or bytes of ids (TOO_MANY_NORMS)."""
    if collected.is_too_large(step, most):
        detail = (
            f"step {step[-1]} has more than the {most} norms or {MAX_COLLECTED_BYTES} bytes that a "
            "partition collects, so it gets no decision: close the run, and use more partitions or "
            "several runs with fewer users"
        )
        raise Rejection(Reason.TOO_MANY_NORMS, detail)


def collect(
    request: NormEvent | NormEvents,
    run: RunState,
    terms: CollectTerms | None,
    collected: Collected,
    budgets: Budgets,
    home: tuple[int, int],
) -> Iterator[tuple[NormEvent, Rejection]]:
    """Collect the norms of a record, and yield the events that are rejected.

    The run is open; ``terms`` are None if it does not collect. Each event is added to what was
    collected, or rejected alone. After a ``Rejection`` of the whole record nothing has changed.
    """
    if request.step > run.step + MAX_AHEAD:
        detail = (
            f"step {request.step} is more than {MAX_AHEAD} steps after step {run.step}, the last "
            "one decided"
        )
        raise Rejection(Reason.STEP_OUT_OF_ORDER, detail)
    if terms is None:
        raise _not_collecting(request)
    if request.step <= run.step:
        detail = f"step {request.step} was decided, and the norm came too late for it"
        raise Rejection(Reason.STEP_DECIDED, detail)
    if isinstance(request, NormEvent):
        users, norms = UserIds([request.user]), np.array([request.norm])
    else:
        users, norms = UserIds.unpack(request.users), unpack_norms(request.norms)
    if len(users) > MAX_EVENTS:
        detail = f"the record has {len(users)} norm events; it may have {MAX_EVENTS}: send several"
        raise Rejection(Reason.TOO_LARGE, detail)
    if len(users) != len(norms):
        raise Rejection(Reason.LENGTH_MISMATCH, f"{len(users)} users, but {len(norms)} norms")
    step, most = step_of(request), most_events(budgets)

    def problem(some: slice) -> Rejection | None:
        try:
            _check(request, users[some], norms[some], terms, budgets, home)
        except Rejection as rejection:
            return rejection
        return None

    are_all_sound = are_sound = problem(slice(None)) is None
    for at, (user, norm) in enumerate(zip(users, norms.tolist(), strict=True)):
        if not are_all_sound and at % _TOGETHER == 0:
            are_sound = problem(slice(at, at + _TOGETHER)) is None
        if not are_sound and (rejection := problem(slice(at, at + 1))) is not None:
            yield _alone(request, user, norm), rejection
            continue
        try:
            before = collected.norm_of(step, user)
            if before is not None and before != norm:
                detail = f"norm {before} was collected for this user and step, and it counts"
                raise Rejection(Reason.NORM_CHANGED, detail)
            if before is None:
                # The first event above the maximum is stored, so that the charge is rejected.
                if not collected.is_too_large(step, most):
                    collected.add(step, user, norm)
                check_number(step, collected, most)
        except Rejection as rejection:
            yield _alone(request, user, norm), rejection


def _check(
    request: NormEvent | NormEvents,
    users: UserIds,
    norms: NDArray[np.float64],
    terms: CollectTerms,
    budgets: Budgets,
    home: tuple[int, int],
) -> None:
    """Check all that a charge would check of these users (MALFORMED to USER_ERASED)."""
    if not users.are_integers:
        check_names(users.tolist())
    check_key(budgets.own.policy, request)
    for accounts in budgets.accounts:
        check_kinds(accounts.policy, accounts.first_user, users)
    check_norms(norms, terms.clip_norm)
    check_homes(users, *home)
    if budgets.are_erased(budgets.known_as(users)) is not None:
        raise Rejection(Reason.USER_ERASED, "the user of this norm was erased")


def names_erased(request: Request, policies: Policies) -> bool:
    """Return whether a norm event, or one of several in a record, names an erased user.

    An id counts as its normal form. A packed id that is cut off does not count.
    """
    if not isinstance(request, NormEvent | NormEvents) or (request.dataset,) not in policies:
        return False
    if isinstance(request, NormEvent):
        users = UserIds([request.user])
    elif isinstance(request.users, bytes):
        users = UserIds.unpack(request.users[: len(request.users) // 8 * 8])
    else:
        users = UserIds(request.users)
    if not users.are_integers:
        users = UserIds([normal_form(user) if isinstance(user, str) else user for user in users])
    budgets = policies.budgets(request.dataset)
    return budgets.known_as(users) != users


def _alone(request: NormEvent | NormEvents, user: User, norm: float) -> NormEvent:
    """Return the event of one user as if it had been sent alone."""
    if isinstance(request, NormEvent):
        return request
    names = "dataset", "run", "step", "attempt", "pseudonyms"
    repeated = {name: getattr(request, name) for name in names}
    return NormEvent(**repeated, user=user, norm=norm)


def _not_collecting(request: Charge | NormEvent | NormEvents) -> Rejection:
    detail = f"run {request.run!r} collects no norms: open a run with collect"
    return Rejection(Reason.NOT_COLLECTING, detail)
