"""Counts each user's participations in one partition, by mechanism and norm.

A history is a histogram. Gaussian steps without sampling add up: n steps with norm over noise r
equal one with r sqrt(n), so the sum of r^2 is kept, rounded up to a multiple of 2^-30. All other
steps are counted by mechanism and level. Roster steps have their own levels. Other norms are
rounded up to levels of norm over noise.

Roster steps are counted as they are charged: a step without a moved level increases one counter,
and the participations of a member are counted when its level moves.

A report needs levels and participations that follow from released outputs and each user's own data.
If they followed the user's sampling coins, as with ``Roster.observe``, only the budget is a
guarantee (docs/guarantees.md). The log shows when levels moved, but not why. A doubt is the first
time that they moved after a coin. Levels that would have moved after other coins raise no doubt, so
the absence of a doubt proves nothing beyond the budget.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from msgspec import UNSET
from numpy.typing import NDArray

from accounting import Gaussian, Laplace, Mechanism, NormGrid, PoissonGaussian
from accounting.costs.mechanisms import noise_scale, simplified
from accounting.costs.norm_levels import grid_norms
from streams.ledger.budgets import Budgets
from streams.ledger.ledger import Ledger
from streams.ledger.tracked import Address
from streams.ledger.validation import mechanism_of
from streams.records import (
    Charge,
    ChargeRoster,
    CloseDataset,
    CloseRun,
    DatasetClosed,
    Decision,
    Enrol,
    RosterDecision,
    decode_answer,
)
from streams.records.packing import unpack_bits, unpack_norms, unpack_positions
from streams.records.users import UserIds
from streams.replay.log_replay import Applied

Counts = NDArray[np.int64]

_LEVELS = 200
"""The levels of steps that are not roster steps."""
_UNIT_BITS = 30
_COARSE_BITS = 20
"""A sum has two columns, multiples of 2^20 units and the rest, so that counts stay small."""
_ROUNDING = 1.0 + 2.0**-50
_LARGEST = 2.0**62
MOST_COLUMNS = 4096
"""The maximum for a dataset in one partition; a column takes 8 bytes per user."""


class TooManyMechanisms(Exception):
    """A dataset was charged by more kinds of steps than a report can distinguish."""


class StepKind(NamedTuple):
    """One kind of step."""

    mechanism: Mechanism
    norm: float


class _Rows:
    """A growing table with a row for each user, by slot."""

    def __init__(self, columns: int) -> None:
        self._numbers = np.zeros((0, columns), dtype=np.int64)

    def of(self, users: int) -> Counts:
        """Return a writable view of the rows of this many users."""
        if users > len(self._numbers):
            room = max(users, 2 * len(self._numbers))
            more = np.zeros((room - len(self._numbers), self._numbers.shape[1]), dtype=np.int64)
            self._numbers = np.concatenate([self._numbers, more])
        return self._numbers[:users]


class DatasetHistory:
    """The steps that are charged to the budget of one dataset, also by datasets inside it."""

    def __init__(self) -> None:
        self._gaussian = _Rows(1)
        self._steps = _Rows(1)
        self._blocks: dict[tuple[Mechanism, float, int], _Rows] = {}
        self.doubt = ""  # the first step whose levels or participants may have followed coins
        self.has_sampled = False

    def steps(self, users: int) -> Counts:
        """Return the number of steps in which each user took part, (n,)."""
        return self._steps.of(users)[:, 0]

    def columns(self, users: int) -> tuple[list[StepKind], Counts]:
        """Return the kinds of steps with participants, and the counts of each user, (n, kinds)."""
        columns: list[StepKind] = []
        counts: list[Counts] = []
        units = self._gaussian.of(users)[:, 0]
        for bits, part in (
            (_UNIT_BITS - _COARSE_BITS, units >> _COARSE_BITS),
            (_UNIT_BITS, units & ((1 << _COARSE_BITS) - 1)),
        ):
            columns.append(StepKind(Gaussian(1.0), math.sqrt(2.0**-bits)))
            counts.append(part)
        for (mechanism, clip_norm, levels), rows in self._blocks.items():
            norms = grid_norms(clip_norm, levels)[1:].tolist()
            columns += [StepKind(mechanism, norm) for norm in norms]
            counts += list(rows.of(users).T)
        used = [number for number, column in enumerate(counts) if column.any()]
        kept = np.array([counts[number] for number in used], dtype=np.int64)
        return [columns[number] for number in used], kept.reshape(len(used), users).T

    def add_gaussian(self, slots: Counts, ratios: NDArray[np.float64], times: Counts | int) -> None:
        """Count Gaussian steps: the norm over noise of each user, and how many times."""
        units = np.ceil(np.minimum(np.square(ratios) * 2.0**_UNIT_BITS * _ROUNDING, _LARGEST))
        total = np.minimum(units * np.asarray(times), _LARGEST).astype(np.int64)
        rows = self._gaussian.of(_above(slots))
        rows[slots, 0] = np.minimum(rows[slots, 0] + total, np.int64(_LARGEST))
        self._count(slots, ratios > 0.0, times)

    def add(
        self,
        mechanism: Mechanism,
        clip_norm: float,
        levels: int,
        slots: Counts,
        at: Counts,
        times: Counts | int,
    ) -> None:
        """Count steps of a mechanism: the level of each user (0: none), and how many times."""
        key = (mechanism, clip_norm, levels)
        if key not in self._blocks:
            if sum(block[2] for block in self._blocks) + levels > MOST_COLUMNS:
                raise TooManyMechanisms(
                    f"{len(self._blocks) + 1} kinds of steps with their own levels: a report "
                    f"distinguishes at most {MOST_COLUMNS} levels"
                )
            self._blocks[key] = _Rows(levels)
        rows = self._blocks[key].of(_above(slots))
        took = np.flatnonzero(at > 0)
        counted = times if isinstance(times, int) else times[took]
        rows[slots[took], at[took] - 1] += counted
        self._count(slots, at > 0, times)

    def _count(self, slots: Counts, took: NDArray[np.bool_], times: Counts | int) -> None:
        self._steps.of(_above(slots))[slots, 0] += took * np.asarray(times)


@dataclass
class _Roster:
    """The granted level of each member, and the step since which it is granted."""

    clip_norm: float
    levels: int
    slots: list[Counts]  # in each budget
    mechanism: Mechanism | None = None
    steps: int = 0
    granted: Counts = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    since: Counts = field(default_factory=lambda: np.zeros(0, dtype=np.int64))


class Histories:
    """The histories of all charged datasets of one partition, by name."""

    def __init__(self, ledger: Ledger) -> None:
        self.datasets: dict[str, DatasetHistory] = {}
        self._ledger = ledger
        self._rosters: dict[Address, _Roster] = {}

    def take(self, applied: Applied) -> None:
        """Count the charges of a record.

        Raises:
            TooManyMechanisms: the record is of one kind of steps too many.
        """
        match applied.request:
            case Charge() as charge if applied.is_first:
                self._doubt(applied, charge, "the step named its own users")
                self._charged(charge, applied.decision)
            case ChargeRoster() as charge if applied.is_first:
                if charge.levels:
                    self._doubt(applied, charge, "levels of a roster moved")
                self._charged_by_level(charge, applied.roster_decision)
            case Enrol() as enrol:
                self._enrolled(enrol)
            case CloseRun() as close:
                self._end(close.address)
            case CloseDataset() as close:
                answer = decode_answer(applied.outputs[0].value)
                assert isinstance(answer, DatasetClosed)
                for address in [one for one in self._rosters if one[0] in answer.datasets]:
                    self._end(address)

    def _end(self, address: Address) -> None:
        if (roster := self._rosters.pop(address, None)) is not None:
            self._settle(address[0], roster, np.arange(len(roster.granted)))

    def end(self) -> Mapping[str, DatasetHistory]:
        """Count the accrued steps, and return the histories."""
        for address in list(self._rosters):
            self._end(address)
        return self.datasets

    def _of(self, budgets: Budgets) -> list[DatasetHistory]:
        return [self.datasets.setdefault(name, DatasetHistory()) for name in budgets.names]

    def _doubt(self, applied: Applied, charge: Charge | ChargeRoster, what: str) -> None:
        """Note a doubt if a step that shares a budget was sampled before this one."""
        budgets = self._ledger.state.policies.budgets(charge.dataset)
        histories = self._of(budgets)
        if not histories[-1].has_sampled:
            return
        doubt = (
            f"{what} in step {charge.step} of run {charge.run!r} of {charge.dataset!r} "
            f"(partition {applied.partition}, offset {applied.record.offset})"
        )
        for history in histories:
            history.doubt = history.doubt or doubt

    def _charged(self, charge: Charge, decision: Decision) -> None:
        budgets = self._ledger.state.policies.budgets(charge.dataset)
        if decision.collected is not UNSET and decision.norms is not UNSET:
            users, granted = UserIds.unpack(decision.collected), unpack_norms(decision.norms)
            took = np.flatnonzero(granted > 0.0)
        else:
            users = budgets.known_as(UserIds.unpack(charge.users))
            granted = unpack_norms(charge.norms).copy()
            granted[np.frombuffer(decision.clipped, dtype="<u4")] = unpack_norms(decision.granted)
            took = np.flatnonzero(unpack_bits(decision.admitted, decision.users) & (granted > 0.0))
        if not len(users):
            return
        mechanism = mechanism_of(charge)
        for history, accounts in zip(self._of(budgets), budgets.accounts, strict=True):
            slots = accounts.seek(users).slots[took]
            if isinstance(mechanism, Gaussian):
                history.add_gaussian(slots, granted[took] / mechanism.noise_stddev, 1)
            elif len(took):
                alike, ratios = _scaled(mechanism, granted[took])
                top = max(charge.clip_norm or 0.0, float(granted.max())) / noise_scale(mechanism)
                highest = math.ldexp(1.0, math.ceil(math.log2(top) + 1e-9))
                at = NormGrid(highest, _LEVELS).levels_of(ratios) + 1
                history.add(alike, highest, _LEVELS, slots, at, 1)

    def _enrolled(self, enrol: Enrol) -> None:
        members = self._ledger.state.rosters.members[enrol.address]
        terms = self._ledger.state.rosters[enrol.address]
        roster = self._rosters.setdefault(enrol.address, _Roster(terms.clip_norm, terms.levels, []))
        roster.slots = members.slots_of(np.arange(len(members)))
        more = len(members) - len(roster.granted)
        roster.granted = np.append(roster.granted, np.zeros(more, dtype=np.int64))
        roster.since = np.append(roster.since, np.full(more, roster.steps))

    def _charged_by_level(self, charge: ChargeRoster, decision: RosterDecision) -> None:
        roster = self._rosters[charge.address]
        mechanism = simplified(mechanism_of(charge))
        every = np.arange(len(roster.granted))
        if mechanism != roster.mechanism:
            self._settle(charge.dataset, roster, every)
            roster.since[:] = roster.steps
            roster.mechanism = mechanism
        listed = np.frombuffer(charge.positions, dtype="<u4").astype(np.int64)
        if (charge.levels and not len(listed)) or roster.steps == 0:
            moved = every
        else:
            fresh = every[roster.granted == 0]  # some of them may be new
            packed = (decision.halted, decision.readmitted, decision.regranted)
            changed = [unpack_positions(positions, decision.members) for positions in packed]
            moved = np.unique(np.concatenate([listed, fresh, *changed]))
        now = self._ledger.state.rosters.members[charge.address].numbers(moved)["granted"]
        moved, now = moved[(change := now != roster.granted[moved])], now[change]
        self._settle(charge.dataset, roster, moved)
        roster.granted[moved], roster.since[moved] = now, roster.steps
        roster.steps += 1
        if isinstance(mechanism, PoissonGaussian):
            budgets = self._ledger.state.policies.budgets(charge.dataset)
            self._of(budgets)[-1].has_sampled = True

    def _settle(self, dataset: str, roster: _Roster, rows: Counts) -> None:
        """Count the steps of these members since they were last counted."""
        mechanism = roster.mechanism
        if mechanism is None or not len(rows):
            return
        rows = rows[(roster.granted[rows] > 0) & (roster.since[rows] < roster.steps)]
        if not len(rows):
            return
        times, at = roster.steps - roster.since[rows], roster.granted[rows]
        budgets = self._ledger.state.policies.budgets(dataset)
        for history, slots in zip(self._of(budgets), roster.slots, strict=True):
            if isinstance(mechanism, Gaussian):
                norms = grid_norms(roster.clip_norm, roster.levels)[at]
                history.add_gaussian(slots[rows], norms / mechanism.noise_stddev, times)
            else:
                history.add(mechanism, roster.clip_norm, roster.levels, slots[rows], at, times)


def _scaled(
    mechanism: Mechanism, norms: NDArray[np.float64]
) -> tuple[Mechanism, NDArray[np.float64]]:
    """Return the same steps with noise of scale 1, so that all scales are counted together."""
    if isinstance(mechanism, Laplace):
        return Laplace(1.0), np.nextafter(norms / mechanism.scale, np.inf)
    return mechanism, norms


def _above(slots: Counts) -> int:
    return int(slots.max()) + 1 if len(slots) else 0
