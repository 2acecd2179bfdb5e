"""Compares each user's last odometer record with the replayed state.

The topic is compacted, so older odometer records of a user may be missing. But a bound only rises,
so the last record of a user has the bound of the user's account. If the topic and the outbox lack
a record with this bound, the odometer shows less than was spent. An erased user may have no record:
a tombstone is the last one, until compaction removes it too.

That no record is foreign is checked as for every topic. But the outputs of trimmed records are
unknown: earlier records are compared with the bounds in the snapshot that covers them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

import msgspec
import numpy as np

from streams.ledger.ledger import Ledger
from streams.ledger.outputs import Channel, Output, Place, odometer_output
from streams.records import OdometerRecord, encode, tombstone_offset
from streams.records.users import UserIds
from streams.replay.archive import Archive, ArchivedRecord
from streams.replay.findings import Check, PartitionVerified
from streams.replay.output_comparison import Digests, Published, decode_odometer
from streams.sdk.decisions import UNREADABLE


class PublishedOdometers(Published):
    """The records of odometer in one partition."""

    def __init__(
        self, archive: Archive, outbox: Sequence[Output], result: PartitionVerified
    ) -> None:
        super().__init__(archive, Channel.ODOMETER, outbox, result)
        self._erased: dict[bytes | None, int] = {}  # where the log erased users, by key

    def expect(self, offset: int, output: Output, *, required: bool) -> None:
        """Look up an output of the log. It need not be there, because of compaction."""
        super().expect(offset, output, required=False)
        if required and tombstone_offset(output.value) is not None:
            self._erased[output.key] = offset

    def compare_before(self, began: int, ledger: Ledger) -> None:
        """Check that no record from before a snapshot has a larger bound than the snapshot.

        Args:
            began: the offset at which the snapshot continues.
        """
        bounds = {name: accounts.bounds() for name, accounts in ledger.state.datasets.items()}
        for _, odometer in self._decoded():
            if odometer is None or odometer.offset >= began:
                continue
            accounts = ledger.state.datasets.get(odometer.dataset)
            user, bound = UserIds([odometer.user]), None
            problem = "the snapshot has no user with this id"
            if accounts is not None and accounts.knows(user)[0]:
                problem = "the bound is larger than the one in the later snapshot"
                bound = np.atleast_1d(bounds[odometer.dataset][accounts.seek(user).slots[0]])
                if len(odometer.bound) == len(bound) and not (odometer.bound > bound).any():
                    continue
            elif accounts is not None:
                budgets = ledger.state.policies.budgets(odometer.dataset)
                if budgets.are_erased(budgets.known_as(user)) is not None:
                    continue  # a tombstone follows
            self._result.add(
                Check.ODOMETER,
                problem,
                offset=odometer.offset,
                about={"dataset": odometer.dataset, "user": odometer.user},
                expected=None if bound is None else {"bound": bound.tolist()},
                found={"bound": odometer.bound},
            )

    def compare_last(self, offset: int, ledger: Ledger) -> None:
        """Compare the last record of each user, and count the users with a record.

        The topic or the outbox has what the records before the offset led to.
        """
        newest = Digests((output.key, output.value) for output in _last_records(ledger))
        remains: dict[bytes | None, bool] = {}  # whether the last record of an erased user is one
        for key, found in self._decoded():
            if key in self._erased:
                remains[key] = found is not None
            if found is not None:
                # Of two records with one bound, any will do: `_last_records` has no offsets either.
                newest.mark((key, encode(msgspec.structs.replace(found, offset=0))))
        for key, at in self._erased.items():
            if remains.get(key):
                problem = (
                    "the odometer record of an erased user still exists: no tombstone follows it"
                )
                self._result.add(Check.ODOMETER, problem, offset=at)
        late = {
            output.key: decode_odometer(output.value)
            for output in (_last_records(ledger) if 0 in newest.marks else ())
            if not newest.mark_of((output.key, output.value))
        }
        reached: dict[bytes | None, OdometerRecord] = {}
        for key, found in self._decoded() if late else ():
            if found and key in late and (key not in reached or found.offset > reached[key].offset):
                reached[key] = found
        # Compaction may have removed a record in favour of one from after the state was read.
        late = {
            k: user for k, user in late.items() if k not in reached or reached[k].offset < offset
        }
        for key, wanted in late.items():
            last = reached.get(key)
            problem = "the topic lacks the odometer records of this user"
            if last is not None:
                problem = "the user's last odometer record is older than the last one of the log"
            self._result.add(
                Check.ODOMETER,
                f"{problem}: the odometer shows less than was spent",
                about={"dataset": wanted.dataset, "user": wanted.user},
                expected={"bound": wanted.bound},
                found=last and {"offset": last.offset, "bound": last.bound},
            )
        self._result.odometers = len(newest.marks)

    def _decoded(self) -> Iterator[tuple[bytes | None, OdometerRecord | None]]:
        """Yield keys and contents of all records; None for tombstones and what is unreadable."""
        every: Iterable[ArchivedRecord | Output] = chain(self.records(), self.outbox)
        for each in every:
            try:
                yield each.key, None if each.value is None else decode_odometer(each.value)
            except UNREADABLE:  # a tombstone in the outbox, or a foreign record
                yield each.key, None


def _last_records(ledger: Ledger) -> Iterator[Output]:
    """Yield an odometer record for each living user whose bound is above the first tick."""
    state = ledger.state
    place = Place(state.partition, 0)
    for name, accounts in state.datasets.items():
        slots = np.arange(len(accounts))
        erased = [int(slot) for dataset, slot in state.erased if dataset == name]
        living = np.delete(slots, erased)
        for raised in accounts.bounds_raised(living, np.ones_like(living)):
            yield odometer_output(accounts.policy, raised, place)
