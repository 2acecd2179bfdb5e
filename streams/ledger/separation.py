"""Minimum separation: how many steps a run keeps two participations of a user apart.

A user who was admitted to step t of such a run, with a norm above 0, took part in it, and is not
admitted again before step t + b, where b is the ``min_separation`` of the run. The theorem is in
``accounting.costs.banded``.

The state has b, and the participants of each of the last b - 1 steps:

    separation:DATASET/RUN          b
    participants:DATASET/RUN/N      of the last step that is N modulo b - 1, as slots

A step replaces the oldest of these. No user took part in two of them. So all of them together take
4 bytes per user; participants of older steps are not stored.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
from msgspec import UNSET, UnsetType
from numpy.typing import NDArray

from streams.ledger.columns import Numbers
from streams.ledger.tracked import Address, Tracked
from streams.records import ChargeRoster, Enrol, OpenRun, Reason, Rejection


class Participants(Tracked[bytes]):
    """(dataset, run, place) -> the participants of a step that still counts: uint32 slots."""

    def __init__(self) -> None:
        super().__init__("participants", bytes)
        # (dataset, run) -> the number of steps in which each slot took part. At most one, except
        # while a partition is being restored from pages and deltas.
        self._times: dict[Address, NDArray[np.int16]] = {}
        self._steps: Counter[Address] = Counter()

    def must_wait(self, run: Address, slots: Numbers) -> NDArray[np.bool_]:
        """Return which of these users, (n,), took part in a step of the run that still counts."""
        times = self._times.get(run)
        waiting = np.zeros(len(slots), dtype=np.bool_)
        if times is not None:
            known = slots < len(times)
            waiting[known] = times[slots[known]] > 0
        return waiting

    def take_part(self, run: Address, step: int, separation: int, slots: Numbers) -> None:
        """Store the participants of the next step of a run."""
        address = (*run, str(step % (separation - 1)))
        if len(slots):
            self[address] = slots.astype("<u4").tobytes()
        elif address in self:
            del self[address]

    def drop(self, run: Address, separation: int) -> None:
        """Delete the participants of a run."""
        for place in range(separation - 1):
            if (address := (*run, str(place))) in self:
                del self[address]

    def _moves(self, address: Address, before: bytes | None, after: bytes | None) -> None:
        run = address[:2]
        self._steps[run] += (after is not None) - (before is not None)
        if not self._steps[run]:
            del self._steps[run], self._times[run]
            return
        for packed, more in ((before, -1), (after, 1)):
            slots = np.frombuffer(packed or b"", dtype="<u4")
            times = self._times.get(run, np.zeros(0, dtype=np.int16))
            if len(slots) and slots.max() >= len(times):
                room = max(int(slots.max()) + 1, len(times) + len(times) // 8)
                times = np.pad(times, (0, room - len(times)))
            times[slots] += more
            self._times[run] = times


def separation_of(
    request: OpenRun, separation: int | UnsetType, *, is_fresh: bool
) -> int | UnsetType:
    """Return the minimum separation of a run that this request opens (SEPARATION_CHANGED).

    ``separation`` is the one before; it changes if the run is fresh (``run_states.takes_terms``).
    """
    asked = request.min_separation
    if asked is UNSET or asked == separation:
        return separation
    if is_fresh:
        return asked
    kept = "no participations" if separation is UNSET else f"participations {separation} steps"
    detail = (
        f"min_separation is {asked}, but run {request.run!r} keeps {kept} apart, which does not "
        "change once it has been charged or has a roster: open it without min_separation, as it "
        "is, or open a run of another name"
    )
    raise Rejection(Reason.SEPARATION_CHANGED, detail)


def check_roster(request: Enrol | ChargeRoster, separation: int | UnsetType) -> None:
    """Check that a run may have a roster (NO_ROSTERS)."""
    if separation is not UNSET:
        detail = (
            f"run {request.run!r} keeps participations {separation} steps apart, and a roster "
            "charges all its members at every step: charge it by norms, or enrol in a run without "
            "min_separation"
        )
        raise Rejection(Reason.NO_ROSTERS, detail)
