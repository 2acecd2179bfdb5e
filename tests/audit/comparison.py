"""What the workers wrote to Redis, `halts`, `rejects` and `odometer`, held against the audit."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from fractions import Fraction
from functools import cache
from typing import Any

import msgspec

from streams.ledger.ledger import Ledger
from streams.records.json_outputs import to_json
from tests.audit.auditor import Auditor
from tests.audit.auditor_access import AccessLists
from tests.audit.auditor_accounts import UNIT
from tests.audit.auditor_requests import NOT_GIVEN, User
from tests.audit.log import Log
from tests.audit.published import answers_of, frozen
from tests.audit.stored import collected_of, participations_of, roster_of, state_of

LARGEST_RECORD = 1_000_000
"""The maximum size of what workers publish in either form."""
_MOST_QUOTED = 700_000
"""A reject has so many bytes of its request."""


def _same(what: str, expected: Iterable[Any], found: Iterable[Any]) -> None:
    expected, found = dict.fromkeys(expected), dict.fromkeys(found)
    missing = [item for item in expected if item not in found]
    surplus = [item for item in found if item not in expected]
    assert not missing, f"{what}: {len(missing)} missing, the first is {missing[0]!r:.2000}"
    assert not surplus, f"{what}: {len(surplus)} too many, the first is {surplus[0]!r:.2000}"


def compare(
    auditor: Auditor,
    log: Log,
    ledgers: Mapping[int, Ledger],
    known: Mapping[User, User] | None = None,
) -> None:
    """Assert that state, decisions, rejects and odometer records are those of the audit.

    Args:
        auditor: which has applied the log.
        log: everything that was published.
        ledgers: by partition.
        known: the auditor's names of erased users, where the ledgers had other keys.
    """
    for topic in ("halts", "rejects", "odometer"):
        for *_, value in log.records[topic]:
            _check_size(value or b"")
    _compare_answers(auditor, log)
    _compare_rejects(auditor, log)
    _compare_odometers(auditor, log)
    for partition, ledger in ledgers.items():
        _compare_state(auditor, partition, ledger, known or {})


def compare_chain(auditor: Auditor, partition: int, chain: tuple[bytes, bytes, int]) -> None:
    """Assert that a worker has applied these records of this log, in this order, and no others."""
    assert tuple(chain) == auditor.chains[partition], f"another log in partition {partition}"


def _compare_answers(auditor: Auditor, log: Log) -> None:
    answers = []
    contents: dict[tuple[Any, ...], set[Any]] = defaultdict(set)
    for partition, answer in answers_of(log.records["halts"]):
        assert answer["partition"] == partition
        whole = frozen(answer)
        answers.append(whole)
        if answer["type"].endswith("decision"):
            key = answer["dataset"], answer["run"], answer["step"], partition
            contents[key].add(tuple(field for field in whole if field[0] != "attempt"))
    for key, ways in contents.items():
        assert len(ways) == 1, f"{key} was decided in {len(ways)} ways: {ways!r:.2000}"
    _same("answers", auditor.answers, answers)


@cache
def _check_size(value: bytes) -> None:
    """Check that brokers take a record by default."""
    if 6 * len(value) > LARGEST_RECORD:
        assert max(len(value), len(to_json(value))) <= LARGEST_RECORD, f"too large: {value!r:.200}"


def _compare_rejects(auditor: Auditor, log: Log) -> None:
    rejects = []
    for partition, _, value in log.records["rejects"]:
        reject = msgspec.msgpack.decode(value)
        assert reject["partition"] == partition
        assert reject["detail"]
        assert reject["type"] == "rejected"
        place = partition, reject["offset"]
        if place in auditor.rejects:
            assert reject["record"] == auditor.rejects[place][1][:_MOST_QUOTED]
        address = auditor.addresses.get(place, {})
        assert {name: reject.get(name) for name in address} == address, (
            f"the reject of {place} names {reject}, not {address}"
        )
        event = None
        if place in auditor.event_rejects:
            event = frozen(msgspec.msgpack.decode(reject["record"])) if reject["record"] else None
            event = event, reject.get("user")
        rejects.append((place, reject["reason"], event))
    expected = [(place, reason, None) for place, (reason, _) in auditor.rejects.items()]
    for place, events in auditor.event_rejects.items():
        expected += [(place, reason, (frozen(event), user)) for reason, event, user in events]
    _same("rejects", expected, rejects)


def _compare_odometers(auditor: Auditor, log: Log) -> None:
    expected = {odometer[:4]: odometer[4] for odometer in auditor.odometers}
    found = {}
    for partition, _, value in log.records["odometer"]:
        if not value or value[:1] == b"\0":
            continue  # a tombstone
        odometer = msgspec.msgpack.decode(value)
        place = odometer["partition"], odometer["offset"]
        assert place[0] == partition
        assert odometer["v"] == 1
        key = odometer["dataset"], odometer["user"], *place
        found[key] = odometer["bound"]
        assert odometer.get("order") == auditor.bound_orders.get(key)
    _same("odometer records", _due(auditor, expected, found), found)
    for key, bound in found.items():
        measure = auditor.datasets[key[2]][key[0]].measure
        for number, units in zip(bound, expected[key], strict=True):
            _check_bound(measure, number, Fraction(units, UNIT))


def _due(
    auditor: Auditor,
    expected: Mapping[tuple[Any, ...], tuple[int, ...]],
    found: Mapping[tuple[Any, ...], list[float]],
) -> list[tuple[Any, ...]]:
    """Return the expected records without those that float64 cannot tell from the record before.

    A bound of whole units can rise by less than the next float64. The number published before is
    then still not below it, and no record is due.
    """
    due, published = [], {}
    for key, units in sorted(expected.items(), key=lambda item: item[0][2:]):  # by offset
        name, user, partition, _ = key
        measure = auditor.datasets[partition][name].measure
        before = published.get((name, user))
        if key in found or before is None or not _covers(measure, before, units):
            due.append(key)
        if key in found:
            published[name, user] = found[key]
    return due


def _covers(measure: str, bound: Iterable[float], units: Iterable[int]) -> bool:
    """Return whether a published bound is nowhere below the exact one."""
    power = 2 if measure == "gdp" else 1
    pairs = zip(bound, units, strict=True)
    return all(Fraction(number) ** power >= Fraction(exact, UNIT) for number, exact in pairs)


def _check_bound(measure: str, bound: float, exact: Fraction) -> None:
    """Never below the exact number, and at most two floats above it."""
    power = 2 if measure == "gdp" else 1
    below = math.nextafter(math.nextafter(bound, 0.0), 0.0)
    assert Fraction(below) ** power < exact <= Fraction(bound) ** power


def _compare_access(access: AccessLists, ledger: Ledger) -> None:
    """The own lists of all datasets, and the numbers of those that were withdrawn."""
    held = {name: own for (name,), own in ledger.state.access.items()}
    lists = {
        name: (own.log, {entry.key: entry.rights for entry in own.allow})
        for name, own in held.items()
        if own.allow
    }
    assert lists == {name: (each.log, each.rights) for name, each in access.lists.items()}
    assert {name: own.number for name, own in held.items() if own.number} == access.numbers


def _compare_state(
    auditor: Auditor, partition: int, ledger: Ledger, known: Mapping[User, User]
) -> None:
    runs = auditor.runs[partition]
    _same(
        f"runs of partition {partition}",
        [(k, run.attempt, run.request, run.step, run.closed) for k, run in runs.items()],
        [
            (k, run.attempt, run.request, run.step, run.closed)
            for k, run in ledger.state.runs.items()
        ],
    )
    for key, run in ledger.state.runs.items():
        kept = bool(run.digest), bool(run.decision)
        assert kept == ((not run.closed and run.step >= 0),) * 2, f"{key} keeps {kept}"
    rosters = {key: run.roster for key, run in runs.items() if run.roster is not None}
    _same(f"rosters of partition {partition}", rosters, ledger.state.rosters)
    for key, roster in rosters.items():
        found = roster_of(ledger, key, known)
        assert roster == found, f"the roster of {key} is {roster!r:.2000}, not {found!r:.2000}"
    separated = {key: run for key, run in runs.items() if run.separation is not None}
    _same(f"runs of partition {partition} with a separation", separated, ledger.state.separations)
    kept = {address[:2] for address in ledger.state.participants}
    _same(f"runs of which participants are kept in {partition}", separated.keys() & kept, kept)
    for key, run in separated.items():
        counting = {u: s for u, s in run.took_part.items() if s + run.separation > run.step + 1}
        expected, found = (run.separation, counting), participations_of(ledger, key, known)
        assert found == expected, f"{key} has {found!r:.2000}, not {expected!r:.2000}"
    collecting = {
        key: (run.collect, {n: each.state() for n, each in run.collected.items() if each.events})
        for key, run in runs.items()
        if run.collect
    }
    found = collected_of(ledger)
    assert found == collecting, f"collected are {found!r:.2000}, not {collecting!r:.2000}"
    _same(f"datasets of partition {partition}", auditor.datasets[partition], ledger.state.datasets)
    summary = ledger.summary()
    _compare_access(auditor.access[partition], ledger)
    holders = {(name,): (h.dataset, h.run) for (name,), h in ledger.state.holds.items()}
    assert holders == {(name,): run for name, run in auditor.holders[partition].items()}
    closed = sum(run.closed for run in runs.values())
    assert (summary.open_runs, summary.closed_runs) == (len(runs) - closed, closed)
    for name, dataset in auditor.datasets[partition].items():
        policy = msgspec.to_builtins(ledger.state.datasets[name].policy, builtin_types=(bytes,))
        later = "per_user_order", "parents", "pseudonyms", "allow"
        later += "share_of", "assume_independent_timing", "sampled_levels"
        later += "sampling_rate", "noise_multiplier"
        unsaid = dict.fromkeys(later, NOT_GIVEN)
        assert {**unsaid, **policy} == dataset.policy
        exhausted = sum(not all(dataset.left(account)) for account in dataset.accounts.values())
        counts = summary.datasets[name]
        assert (counts.users, counts.exhausted) == (len(dataset.accounts), exhausted)
        assert counts.closed == dataset.is_closed
        lists = [listed.rights for listed in auditor._lists(partition, name)]
        shown = counts.allow and {(e.key, right) for e in counts.allow for right in e.rights}
        given = [{(key, right) for key in one for right in one[key]} for one in lists]
        assert (shown or set()) == (set.intersection(*given) if given else set())
        assert (shown is None) == (not lists)
        state = state_of(ledger, name, known)
        for user, (spent, *_) in state.items():
            budget = dataset.at_orders(dataset.accounts[user], dataset.budget)
            assert all(s <= b for s, b in zip(spent, budget, strict=True)), (
                f"user {user!r} of {name} is above the budget: {spent} of {dataset.budget}"
            )
        _same(
            f"accounts of {name} in partition {partition}",
            [(u, a.spent, a.used, a.ticks, a.order) for u, a in dataset.accounts.items()],
            [(u, *row) for u, row in state.items()],
        )
