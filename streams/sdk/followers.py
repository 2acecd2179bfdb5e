"""Readers of what the workers publish: decisions, HALTs and odometer records, each once.

A worker decides a step once and may publish the decision again. Two different decisions for one
step and partition therefore mean that another program writes to `halts`. A reader cannot tell which
of the two is forged, nor notice a forgery if only the forged decision arrives: see
docs/operate/threats.md.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias, TypeVar, get_args

import msgspec

from accounting.exact.invalid_input import quoted
from streams.records import (
    BUDGET,
    Decision,
    Halted,
    OdometerRecord,
    Rejected,
    RosterDecision,
    User,
    halt_reason,
)
from streams.sdk.decisions import (
    UNREADABLE,
    Witness,
    left_out_by,
    refusing_budget,
    whole_answer,
)
from streams.sdk.errors import InvalidRequest

logger = logging.getLogger("turnstile.sdk")

T = TypeVar("T")
Since: TypeAlias = Literal["earliest", "latest"]


@dataclass(frozen=True)
class Halt:
    """A user was left out of a step, and charged nothing for it.

    Attributes:
        user: the id as the log has it; strings are in Unicode's normal form NFC.
        exhausted: nothing is left, so no later step can admit this user. If False, a cheaper step
            may.
        refused_by: the dataset whose budget the step does not fit: the one that was charged or one
            of its ancestors, the first of them if there are several. Where norms are clipped, its
            budget has room for no norm. None: the halt is not because of a budget.
        reason: "budget", or the name of a reason in ``streams.records.HALT_REASONS``: "too-soon" if
            the last participation is less than ``min_separation`` steps ago, whatever is left; or
            "erased", and ``user`` is then "erased:i:" in place of an integer id, or "erased:s:".
    """

    dataset: str
    run: str
    attempt: int
    step: int
    user: User
    exhausted: bool
    partition: int
    offset: int
    refused_by: str | None
    reason: str = BUDGET


class Followed(NamedTuple):
    """A published record."""

    partition: int
    value: bytes  # empty for a tombstone, which replaces the records of an erased user
    written: float  # seconds since 1970, by the clock of its writer


@dataclass(frozen=True)
class Reading:
    """Which records to read, and for how long.

    Attributes:
        since: where to begin; the position is fixed before the first record is read.
        follow: wait for more records after those that exist.
        idle_timeout: stop following after so many seconds without a record; None: never.
    """

    since: Since = "latest"
    follow: bool = True
    idle_timeout: float | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.since, str) or self.since not in get_args(Since):
            raise InvalidRequest(
                f"since is {quoted(self.since)}; it must be one of {get_args(Since)}"
            )
        if self.idle_timeout is not None and not self.idle_timeout >= 0:
            raise InvalidRequest(
                f"idle_timeout is {quoted(self.idle_timeout)}; it must be a number of seconds, at "
                "least 0"
            )


def _decoded(
    records: Iterator[Followed], decode: Callable[[bytes], T]
) -> Iterator[tuple[Followed, T]]:
    """Yield records with their content. A record that cannot be decoded is logged and skipped."""
    for record in records:
        try:
            yield record, decode(record.value)
        except UNREADABLE as error:
            logger.warning("skipped a record of partition %s: %s", record.partition, error)


def distinct_halts(
    records: Iterator[Followed], dataset: str | None, run: str | None
) -> Iterator[Halt]:
    """Yield every HALT event once. Workers that take over a partition publish some records again.

    Raises:
        ConflictingDecisions: two different records about one step and partition.
    """
    witnesses: dict[tuple[str, str], Witness] = {}
    for _, answer in _decoded(records, whole_answer):
        if not isinstance(answer, Decision | RosterDecision | Halted):
            continue
        if dataset not in (None, answer.dataset) or run not in (None, answer.run):
            continue
        name = answer.dataset, answer.run
        witness = witnesses.setdefault(name, Witness(*name))
        is_new = witness.see(answer)
        witness.check()
        if is_new and not isinstance(answer, RosterDecision):
            yield from _halts_of(answer)


def _halts_of(answer: Decision | Halted) -> Iterator[Halt]:
    """Yield the HALT events of one record."""
    left_out = left_out_by(answer)
    lists = left_out.exhausted.tolist(), left_out.reasons.tolist()
    for user, is_exhausted, reason in zip(left_out.users, *lists, strict=True):
        yield Halt(
            dataset=answer.dataset,
            run=answer.run,
            attempt=answer.attempt,
            step=answer.step,
            user=user,
            exhausted=is_exhausted,
            partition=answer.partition,
            offset=answer.offset,
            refused_by=refusing_budget(reason, left_out.budgets),
            reason=halt_reason(reason),
        )


def rising_odometers(records: Iterator[Followed]) -> Iterator[OdometerRecord]:
    """Yield every odometer record once and in rising order; ``records`` are of the topic
    odometer.
    """
    decoder = msgspec.msgpack.Decoder(OdometerRecord)
    records = (record for record in records if record.value)  # skip tombstones
    newest: dict[tuple[str, User], int] = {}
    for _, odometer in _decoded(records, decoder.decode):
        key = odometer.dataset, odometer.user
        if newest.get(key, -1) < odometer.offset:
            newest[key] = odometer.offset
            yield odometer


def distinct_rejects(records: Iterator[Followed]) -> Iterator[tuple[float, Rejected]]:
    """Yield each rejection once, with its time in seconds since 1970."""
    decoder = msgspec.msgpack.Decoder(Rejected)
    # By partition, the highest offset, and the rejections of its record that were seen: one for
    # each norm event. Workers publish in the order of the log.
    newest: dict[int, tuple[int, set[bytes]]] = {}
    for (_, value, written), rejected in _decoded(records, decoder.decode):
        reached, seen = newest.get(rejected.partition, (-1, set()))
        if rejected.offset > reached:
            newest[rejected.partition] = reached, seen = rejected.offset, set()
        content = hashlib.sha256(value).digest()
        if rejected.offset == reached and content not in seen:
            seen.add(content)
            yield written, rejected
