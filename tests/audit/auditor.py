"""The log applied once more, in rational arithmetic, and what the service must agree with.

It shares no code with the worker: records are decoded to plain dictionaries, costs are fractions,
users stand in dictionaries. ``Auditor`` applies `norms`; ``tests.audit.comparison`` holds what the
workers wrote against it.

One thing is taken from the decisions: the norm that budget-aware clipping granted, a square root
for which the documents give a range. The auditor checks the range and charges by the norm.
"""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import pairwise
from typing import Any

from kafka.partitioner.default import murmur2

from tests.audit.auditor_accounts import Account, Dataset, exact_cost
from tests.audit.auditor_forgotten import Names, outermost_of, renamed, spend_the_rest
from tests.audit.auditor_moved import (
    Arrival,
    accounts_of,
    arrival_of,
    is_the_same,
    keys_of,
    with_part,
)
from tests.audit.auditor_requests import (
    NOT_GIVEN,
    Rejection,
    User,
    digest_of,
    is_uneven,
    numbers_of,
    policy_in,
    read,
)
from tests.audit.auditor_rosters import (
    Cost,
    Roster,
    check_grid,
    content_of,
    digest_of_roster,
    highest_that_fits,
    parts_of_halted,
    said_of_budgets,
)
from tests.audit.log import Log
from tests.audit.published import frozen, granted_norms

Place = tuple[int, int]
"""Partition and offset."""

LARGEST_RECORD = 8 * 1024 * 1024
_MOST_USERS = 2**19
_MOST_WRITTEN = 2**28
_MOST_WRITTEN_BY_ROSTERS = 5 * 2**27
_LARGEST_VALUE = 2**29 - 1
_SHORTFALL = Fraction(1, 2**49)


def home(user: User, partitions: int) -> int:
    """The partition of a user, as the Java client's default partitioner would place its key."""
    key = user.encode() if isinstance(user, str) else user.to_bytes(8, "big", signed=True)
    return (murmur2(key) & 0x7FFFFFFF) % partitions


class Stopped(Exception):
    """The log is of another number of partitions: nothing more is applied."""


@dataclass
class RunState:
    attempt: int
    request: str
    step: int = -1
    content: tuple[Any, ...] = ()
    decision: dict[str, Any] = field(default_factory=dict)
    closed: bool = False
    roster: Roster | None = None
    separation: int | None = None  # steps from a participation of a user to the next, at least
    took_part: dict[User, int] = field(default_factory=dict)  # the last step of each

    def has_to_wait(self, user: User) -> bool:
        """Whether a user cannot take part in the next step."""
        if self.separation is None or user not in self.took_part:
            return False
        return self.step + 1 < self.took_part[user] + self.separation

    def end(self) -> None:
        self.closed, self.content, self.decision, self.roster = True, (), {}, None
        self.separation, self.took_part = None, {}

    def rename(self, user: User, name: User) -> None:
        """Somebody was forgotten."""
        self.took_part = renamed(self.took_part, user, name)
        if self.roster is not None:
            members = self.roster.members
            self.roster.members = [name if member == user else member for member in members]

    def check_version(self, request: Mapping[str, Any]) -> None:
        if self.separation is not None and request["v"] < 3:
            raise Rejection("unsupported-version")


class Auditor:
    """What comes of the log; ``answers``, ``rejects`` and ``checkpoints`` must be published."""

    def __init__(self, partitions: int, topic: bytes = bytes(16)) -> None:
        self.partitions = partitions
        self.datasets: list[dict[str, Dataset]] = [{} for _ in range(partitions)]
        self.runs: list[dict[tuple[str, str], RunState]] = [{} for _ in range(partitions)]
        self.answers: dict[tuple[Any, ...], None] = {}
        self.rejects: dict[Place, tuple[str, bytes]] = {}
        self.addresses: dict[Place, dict[str, Any]] = {}  # what a reject says of its sender
        self.checkpoints: set[tuple[Any, ...]] = set()
        self.bound_orders: dict[tuple[Any, ...], float] = {}  # of those checkpoints that say one
        self.charged: dict[Place, dict[str, Any]] = {}  # the decision that a record led to
        # (dataset, run, step, partition) -> the level that each member of a roster was granted
        self.members: dict[tuple[Any, ...], dict[User, int | None]] = {}
        self.stopped: dict[int, int] = {}  # partition -> the offset that is not applied
        self.chains = [first_link(topic, p, partitions) for p in range(partitions)]
        self.names = [Names(topic) for _ in range(partitions)]
        self.tombstones: dict[tuple[str, User], Place] = {}  # the last of each
        self.arrivals: list[dict[str, Arrival]] = [{} for _ in range(partitions)]
        self.moves: list[dict[str, str]] = [{} for _ in range(partitions)]  # dataset -> log
        self._topic = topic.hex()
        self._has_had_datasets = [False] * partitions
        self._applied = 0

    def apply_all(self, log: Log) -> None:
        """Go on to the end of what has been read."""
        witnesses = granted_norms(log.records["halts"])
        fresh = log.records["norms"][self._applied :]
        self._applied += len(fresh)
        for partition, offset, value in sorted(fresh, key=lambda record: record[:2]):
            self.apply(partition, offset, value, witnesses)

    def apply(
        self,
        partition: int,
        offset: int,
        value: bytes | None,
        witnesses: Mapping[tuple[Any, ...], Mapping[int, float]],
    ) -> None:
        if partition in self.stopped:
            return
        place, request = (partition, offset), None
        try:
            request = read(value)
            match request["type"]:
                case "create-dataset":
                    answer = self._create(place, request)
                case "withdraw-dataset":
                    answer = self._withdraw(place, request)
                case "open-run":
                    answer = self._open(place, request)
                case "close-run":
                    answer = self._close(place, request)
                case "enrol":
                    answer = self._enrol(place, request)
                case "charge-roster":
                    answer = self._charge_roster(place, request)
                case "close-dataset":
                    answer = self._close_dataset(place, request)
                case "forget":
                    answer = self._forget(place, request)
                case "receive-dataset":
                    answer = self._receive(place, request)
                case "balances":
                    answer = self._take(place, request)
                case _:
                    answer = self._charge(place, request, witnesses)
            self.answers[frozen(answer)] = None
        except Rejection as rejection:
            self.rejects[place] = str(rejection), value or b""
            self.addresses[place] = self._address(partition, request or rejection.request or {})
        except Stopped:
            self.stopped[partition] = offset
            return
        self.chains[partition] = next_link(self.chains[partition][0], offset, value)

    def _address(self, partition: int, request: dict[str, Any]) -> dict[str, Any]:
        names = "dataset", "run", "attempt", "step", "request"
        given = {name: value for name, value in request.items() if value is not NOT_GIVEN}
        address = {name: given.get(name) for name in names}
        if "policy" in request:
            address["dataset"] = request["policy"]["dataset"]
        run = self.runs[partition].get((address["dataset"], address["run"]))
        return {**address, "v": request.get("v", 1), "current_attempt": run and run.attempt}

    def _create(self, place: Place, request: dict[str, Any]) -> dict[str, Any]:
        partition, offset = place
        policy, version = request["policy"], request["v"]
        chain = self._check_policy(partition, policy)
        known = self.datasets[partition].get(policy["dataset"])
        unsaid = version >= 2 and policy["user_ids"] is NOT_GIVEN
        if known is None and chain and chain[0].is_closed:
            raise Rejection("dataset-closed")
        if known is None and chain:
            self._check_arrived(partition, chain[0].policy["dataset"])
        if known is None and policy["within"] is not NOT_GIVEN and not chain:
            raise Rejection("unknown-dataset")
        self._has_had_datasets[partition] = True
        if known is None:
            kinds = chain[0].policy["user_ids"] if chain else "one-kind"
            stored = {**policy, "user_ids": kinds} if unsaid else policy
            known = self.datasets[partition][policy["dataset"]] = Dataset(stored)
        elif {**known.policy, "user_ids": 0} != {**policy, "user_ids": 0} or (
            not unsaid and known.kinds != Dataset(policy).kinds
        ):
            raise Rejection("policy-changed")
        if known.is_closed:
            raise Rejection("dataset-closed")
        return {
            "type": "dataset-created",
            "v": version,
            "request": request["request"],
            "partition": partition,
            "offset": offset,
            "policy": policy_in(version, known.policy),
        }

    def _check_policy(self, partition: int, policy: dict[str, Any]) -> list[Dataset]:
        """Check a policy by itself, and what those allow that it is within: these."""
        orders, count = policy["orders"], 1
        if policy["measure"] == "renyi":
            count = len(orders)
        wrong = (
            bool(orders) != (policy["measure"] == "renyi")
            or (policy["own_order"] is True and policy["measure"] != "renyi")
            or (policy["measure"] == "pure-dp" and policy["on_exhaustion"] == "clip")
            or (policy["within"] is not NOT_GIVEN and policy["on_exhaustion"] == "clip")
            or policy["within"] == policy["dataset"]
            or not all(1 < order <= 2**40 for order in orders)
            or any(low >= high for low, high in pairwise(orders))
            or len(policy["budget"]) != count
            or len(policy["odometer_step"]) != count
        )
        if wrong:
            raise Rejection("invalid-policy")
        chain = []
        if policy["within"] in self.datasets[partition]:
            chain = self._chain(partition, policy["within"])
            kinds = chain[0].policy["user_ids"]
            if (
                len(chain) >= 8
                or chain[0].policy["on_exhaustion"] == "clip"
                or kinds is NOT_GIVEN
                or policy["user_ids"] not in (NOT_GIVEN, kinds)
                or policy["pseudonyms"] != chain[0].policy["pseudonyms"]
            ):
                raise Rejection("invalid-policy")
        if policy["partitions"] != self.partitions:
            if not self._has_had_datasets[partition]:
                raise Stopped
            raise Rejection("invalid-policy")
        return chain

    def _receive(self, place: Place, request: dict[str, Any]) -> dict[str, Any]:
        partition, _ = place
        policy, arrivals = request["policy"], self.arrivals[partition]
        name = policy["dataset"]
        chain = self._check_policy(partition, policy)
        if name not in self.datasets[partition]:
            if policy["within"] is not NOT_GIVEN and not chain:
                raise Rejection("unknown-dataset")
            around = arrivals.get(policy["within"]) if chain else None
            if chain and (
                around is None
                or around.said["origin"] != request["origin"]
                or self._has_arrived(partition, policy["within"])
            ):
                raise Rejection("dataset-moving")
            arrivals[name] = arrival_of(request, partition)
            self._has_had_datasets[partition] = True
            self.datasets[partition][name] = Dataset(policy, is_closed=request["closed"])
            self.names[partition].other_keys += keys_of(request)
        elif name not in arrivals or not is_the_same(arrivals[name], request):
            raise Rejection("dataset-moving")
        return self._received(place, request, name)

    def _take(self, place: Place, request: dict[str, Any]) -> dict[str, Any]:
        partition, _ = place
        name, arrivals = request["dataset"], self.arrivals[partition]
        dataset, *outer = self._chain(partition, name)
        if name not in arrivals:
            raise Rejection("dataset-moving")
        after = with_part(arrivals[name], request)
        users = numbers_of(request["users"], "q")
        if len(users) > _MOST_USERS:
            raise Rejection("too-large")
        accounts = accounts_of(request, dataset)
        if (
            request["forgotten"]
            and not outer
            and any(any(dataset.left(account)) for account in accounts.values())
        ):
            raise Rejection("invalid-balances")
        if any(accounts.keys() - other.accounts.keys() for other in outer):
            raise Rejection("invalid-balances")
        after.check_digest()
        if accounts.keys() & dataset.accounts.keys() or len(accounts) < len(users):
            raise Rejection("duplicate-user")
        if not request["forgotten"]:
            self._check_homes(partition, [dataset], list(accounts))
        dataset.accounts |= accounts
        arrivals[name] = after
        answer = self.charged[place] = self._received(place, request, name)
        if request["forgotten"]:
            self.names[partition].of((outer or [dataset])[-1]).update(accounts)
            return answer
        for user, account in accounts.items():
            first = Account(account.spent, account.used, 1, account.order).bound(dataset)
            if (bound := account.bound(dataset)) != first:
                self.checkpoints.add((name, user, *place, bound))
                if dataset.binds:
                    self.bound_orders[name, user, *place] = dataset.orders[account.order or 0]
        return answer

    def _received(self, place: Place, request: dict[str, Any], name: str) -> dict[str, Any]:
        arrival = self.arrivals[place[0]][name]
        return {
            "type": "dataset-received",
            "v": request["v"],
            "dataset": name,
            "request": request["request"],
            "partition": place[0],
            "offset": place[1],
            "received": arrival.received,
            "parts": arrival.said["parts"],
            "digest": arrival.reached,
        }

    def _check_arrived(self, partition: int, name: str) -> None:
        if not self._has_arrived(partition, name):
            raise Rejection("dataset-moving")

    def _has_arrived(self, partition: int, name: str) -> bool:
        """Whether everything is there that comes with a dataset and all around and within it."""
        datasets, arrivals = self.datasets[partition], self.arrivals[partition]
        outermost = outermost_of(datasets, name)
        if outermost not in arrivals:
            return True
        coming = [arrivals[n] for n in arrivals if outermost_of(datasets, n) == outermost]
        brings = arrivals[outermost].said["brings"]
        return len(coming) == brings + 1 and all(one.is_complete for one in coming)

    def _withdraw(self, place: Place, request: dict[str, Any]) -> dict[str, Any]:
        partition, offset = place
        name = request["dataset"]
        if name in self.datasets[partition] and self.datasets[partition][name].is_closed:
            raise Rejection("dataset-closed")
        if name in self.arrivals[partition]:
            raise Rejection("dataset-in-use")
        if any(dataset == name for dataset, _ in self.runs[partition]):
            raise Rejection("dataset-in-use")
        if any(other.policy["within"] == name for other in self.datasets[partition].values()):
            raise Rejection("dataset-in-use")
        self.datasets[partition].pop(name, None)
        return {
            "type": "dataset-withdrawn",
            "v": request["v"],
            "dataset": name,
            "request": request["request"],
            "partition": partition,
            "offset": offset,
        }

    def _dataset(self, partition: int, name: str) -> Dataset:
        if name not in self.datasets[partition]:
            raise Rejection("unknown-dataset")
        return self.datasets[partition][name]

    def _chain(self, partition: int, name: str, version: int = 3) -> list[Dataset]:
        """A dataset and those it is within, all of whose budgets count, the nearest first."""
        chain = [self._dataset(partition, name)]
        while (outer := chain[-1].policy["within"]) is not NOT_GIVEN:
            chain.append(self.datasets[partition][outer])
        if len(chain) > 1 and version < 3:
            raise Rejection("unsupported-version")
        return chain

    def _open_chain(self, partition: int, name: str, version: int) -> list[Dataset]:
        chain = self._chain(partition, name, version)
        if chain[0].is_closed:
            raise Rejection("dataset-closed")
        self._check_arrived(partition, chain[0].policy["dataset"])
        return chain

    def _open(self, place: Place, request: dict[str, Any]) -> dict[str, Any]:
        partition, _ = place
        dataset, *outer = self._open_chain(partition, request["dataset"], request["v"])
        attempt, token = request["attempt"], request["request"]
        run = self.runs[partition].get((request["dataset"], request["run"]))
        if run is None:
            run = self.runs[partition][request["dataset"], request["run"]] = RunState(0, "")
        if run.closed:
            raise Rejection("run-closed")
        if attempt == 0:
            attempt = run.attempt + (token != run.request)
        if attempt < run.attempt or (attempt == run.attempt and token != run.request):
            raise Rejection("older-attempt")
        run.check_version(request)
        asked = request.get("min_separation", NOT_GIVEN)
        if asked not in (NOT_GIVEN, run.separation):
            if attempt == run.attempt or run.step >= 0 or run.roster is not None:
                raise Rejection("separation-changed")
            run.separation = asked
        run.attempt, run.request = attempt, token
        return {
            **self._about_run(place, request, run),
            "type": "run-opened",
            "policy": policy_in(request["v"], dataset.policy),
            **({"outer": [dataset.policy for dataset in outer]} if outer else {}),
            **({"min_separation": run.separation} if run.separation else {}),
        }

    def _close(self, place: Place, request: dict[str, Any]) -> dict[str, Any]:
        self._dataset(place[0], request["dataset"])
        run = self._run(place[0], request)
        if request["attempt"] < run.attempt:
            raise Rejection("older-attempt")
        run.end()
        return {**self._about_run(place, request, run), "type": "run-closed"}

    def _close_dataset(self, place: Place, request: dict[str, Any]) -> dict[str, Any]:
        partition, offset = place
        name = request["dataset"]
        self._dataset(partition, name)
        datasets = self.datasets[partition]
        closed = sorted(
            inner
            for inner in datasets
            if name in [dataset.policy["dataset"] for dataset in self._chain(partition, inner)]
        )
        if (to := request["moves_to"]) is not NOT_GIVEN:
            moves = self.moves[partition]
            if len(self._chain(partition, name)) > 1 or to == self._topic:
                raise Rejection("dataset-moving")
            if moves.get(name, to) != to:
                raise Rejection("dataset-moving")
            self._check_arrived(partition, name)
            moves |= dict.fromkeys(closed, to)
        for inner in closed:
            datasets[inner].is_closed = True
        for (dataset, _), run in self.runs[partition].items():
            if dataset in closed:
                run.end()
        return {
            "type": "dataset-closed",
            "v": request["v"],
            "dataset": name,
            "request": request["request"],
            "partition": partition,
            "offset": offset,
            "datasets": closed,
            **({"moves_to": self.moves[partition][name]} if name in self.moves[partition] else {}),
        }

    def _forget(self, place: Place, request: dict[str, Any]) -> dict[str, Any]:
        partition, offset = place
        user, datasets = request["user"], self.datasets[partition]
        keys = {name: d.policy["pseudonyms"] for name, d in datasets.items()}
        if request["dataset"] is not NOT_GIVEN:
            self._dataset(partition, request["dataset"])
            outer = outermost_of(datasets, request["dataset"])
            if outer in self.moves[partition]:
                raise Rejection("dataset-moving")
            self._check_arrived(partition, outer)
            if keys[request["dataset"]] != request["pseudonyms"]:
                raise Rejection("mixed-users")
            outermost = [outer]
        else:
            names = {outermost_of(datasets, name) for name in datasets} - {*self.moves[partition]}
            outermost = [name for name in names if keys[name] == request["pseudonyms"]]
        for outer in outermost:
            self._check_arrived(partition, outer)
        if home(user, self.partitions) != partition:
            raise Rejection("wrong-partition")
        forgotten = []
        for outer in outermost:
            family = [d for name, d in datasets.items() if outermost_of(datasets, name) == outer]
            forgotten += self._forget_in(place, family, datasets[outer], user)
        return {
            "type": "forgotten",
            "v": request["v"],
            "request": request["request"],
            "partition": partition,
            "offset": offset,
            "datasets": sorted(forgotten),
        }

    def _forget_in(
        self, place: Place, family: list[Dataset], outermost: Dataset, user: User
    ) -> list[str]:
        names = self.names[place[0]]
        (known,) = names.known_as([user], outermost)
        there = [dataset for dataset in family if known in dataset.accounts]
        if known == user and user not in names.of(outermost) and there:
            spend_the_rest(outermost, outermost.accounts[user])
            name = names.new(user, family)
            names.of(outermost).add(name)
            names.ids[name] = user
            for dataset in there:
                dataset.accounts = renamed(dataset.accounts, user, name)
                self.tombstones[dataset.policy["dataset"], user] = place
            inside = {dataset.policy["dataset"] for dataset in family}
            for (dataset_name, _), run in self.runs[place[0]].items():
                if dataset_name in inside:
                    run.rename(user, name)
        return [dataset.policy["dataset"] for dataset in there]

    def _run(self, partition: int, request: dict[str, Any]) -> RunState:
        run = self.runs[partition].get((request["dataset"], request["run"]))
        if run is None or request["attempt"] > run.attempt:
            raise Rejection("unknown-run")
        return run

    def _about_run(self, place: Place, request: dict[str, Any], run: RunState) -> dict[str, Any]:
        return {
            "v": request["v"],
            "dataset": request["dataset"],
            "run": request["run"],
            "attempt": run.attempt,
            "request": request["request"],
            "partition": place[0],
            "offset": place[1],
            "last_step": run.step,
        }

    def _charge(
        self,
        place: Place,
        charge: dict[str, Any],
        witnesses: Mapping[tuple[Any, ...], Mapping[int, float]],
    ) -> dict[str, Any]:
        partition, _ = place
        chain, run = self._open_to(partition, charge)
        run.check_version(charge)
        if is_uneven(charge):
            raise Rejection("malformed")
        users, norms = numbers_of(charge["users"], "q"), numbers_of(charge["norms"], "d")
        content = (
            charge["mechanism"],
            struct.pack("<d", charge["scale"]),
            charge["clip_norm"] is None or struct.pack("<d", charge["clip_norm"]),
            tuple(users),
            struct.pack(f"<{len(norms)}d", *norms),
        )
        if again := _decided_before(run, charge, content, digest_of(charge, users, norms)):
            return again
        asked, users = users, self.names[partition].known_as(users, chain[-1])
        self._validate(partition, chain, charge, asked, users, norms)
        self._check_writes_of_1(chain[0], charge, users, norms)
        key = charge["dataset"], charge["run"], charge["step"], partition
        too_soon = [
            norm > 0 and run.has_to_wait(user) for user, norm in zip(users, norms, strict=True)
        ]
        forgotten = [user in self.names[partition].of(chain[-1]) for user in users]
        left_out = [soon or gone for soon, gone in zip(too_soon, forgotten, strict=True)]
        granted, refused = self._settle(
            place, chain, charge, users, norms, left_out, witnesses.get(key, {})
        )
        admitted = [grant is not None for grant in granted]
        taking_part = [user for user, grant in zip(users, granted, strict=True) if grant]
        run.took_part |= dict.fromkeys(taking_part, charge["step"])
        clipped = [
            (position, grant)
            for position, (grant, norm) in enumerate(zip(granted, norms, strict=True))
            if grant is not None and grant < norm
        ]
        decision = {
            **_about_step(place, charge),
            "type": "forgetting-decision"
            if any(forgotten) and charge["v"] >= 3
            else "separated-decision"
            if run.separation
            else "nested-decision"
            if len(chain) > 1
            else "decision",
            "digest": digest_of(charge, asked, norms),
            "users": len(users),
            "admitted": admitted,
            "exhausted": [_is_exhausted(chain, user) for user in users],
            "halted": [u for u, is_in in zip(users, admitted, strict=True) if not is_in],
            "clipped": [position for position, _ in clipped],
            "granted": [grant for _, grant in clipped],
            **said_of_budgets(_names(chain), refused),
            **({"too_soon": too_soon} if run.separation else {}),
            **({"forgotten": forgotten} if any(forgotten) and charge["v"] >= 3 else {}),
        }
        run.step, run.content, run.decision = charge["step"], content, decision
        self.charged[place] = decision
        return decision

    def _open_to(self, partition: int, request: dict[str, Any]) -> tuple[list[Dataset], RunState]:
        """What a request wants to charge under the current attempt of a run."""
        chain = self._open_chain(partition, request["dataset"], request["v"])
        run = self._run(partition, request)
        if run.closed:
            raise Rejection("run-closed")
        if request["attempt"] < run.attempt:
            raise Rejection("older-attempt")
        return chain, run

    def _enrol(self, place: Place, request: dict[str, Any]) -> dict[str, Any]:
        partition, _ = place
        chain, run = self._open_to(partition, request)
        if run.separation:
            raise Rejection("no-rosters")
        clip_norm, users = float(request["clip_norm"]), numbers_of(request["users"], "q")
        users = self.names[partition].known_as(users, chain[-1])
        roster = run.roster or Roster(clip_norm, request["levels"])
        added = roster.check_follows(request, users)
        written = _may_write(chain, roster.members + added)
        said = len(roster.members + added)
        said = said * (30 if chain[0].policy["on_exhaustion"] == "clip" else 21) // 8 + said // 256
        too_much = written > _MOST_WRITTEN_BY_ROSTERS or said + 4096 > LARGEST_RECORD
        if len(users) > _MOST_USERS or too_much:
            raise Rejection("too-large")
        check_grid(clip_norm, request["levels"])
        if not all(dataset.has_room_for(added, request["v"]) for dataset in chain):
            raise Rejection("mixed-users")
        if len({*roster.members, *added}) < len(roster.members) + len(added):
            raise Rejection("duplicate-user")
        self._check_homes(partition, chain, added)
        run.roster = roster
        roster.enrol(added)
        for dataset in chain:
            for user in added:
                dataset.accounts.setdefault(user, dataset.account(user))
        is_of_roster = run.decision.get("type") == "roster-decision"
        return {
            **self._about_run(place, request, run),
            **roster.said(self.names[partition].of(chain[-1])),
            "type": "enrolled",
            "decision": dict(run.decision) if is_of_roster else {},
        }

    def _charge_roster(self, place: Place, charge: dict[str, Any]) -> dict[str, Any]:
        partition, _ = place
        chain, run = self._open_to(partition, charge)
        content, digest = content_of(charge), digest_of_roster(charge)
        if again := _decided_before(run, charge, content, digest):
            return again
        roster = run.roster
        if run.separation:
            raise Rejection("no-rosters")
        if roster is None:
            raise Rejection("unknown-roster")
        if charge["members"] != len(roster.members):
            raise Rejection("roster-changed")
        for dataset in chain:
            _check_roster_mechanism(dataset, charge)
        prices = roster.prices_of(charge, [len(dataset.budget) for dataset in chain])
        moved = roster.levels_of(charge)
        roster.tariff, roster.prices = charge["tariff"], prices
        roster.set_levels(moved)
        settled = [
            self._settle_level(place, chain, user, level, prices)
            for user, level in zip(roster.members, roster.levels, strict=True)
        ]
        granted = [level for level, _ in settled]
        exhausted = [_is_exhausted(chain, user) for user in roster.members]
        clips = chain[0].policy["on_exhaustion"] == "clip"
        decision = {
            **_about_step(place, charge),
            **roster.tell(moved, granted, exhausted, clips),
            "type": "roster-decision",
            "digest": digest,
        }
        refused = dict(enumerate(first for _, first in settled))
        gone = self.names[partition].of(chain[-1])
        for halted in parts_of_halted(decision, roster, _names(chain), refused, gone):
            self.answers[frozen(halted)] = None
        run.step, run.content, run.decision = charge["step"], content, decision
        self.charged[place] = decision
        address = charge["dataset"], charge["run"], charge["step"], partition
        self.members[address] = dict(zip(roster.members, granted, strict=True))
        return decision

    def _settle_level(
        self,
        place: Place,
        chain: list[Dataset],
        user: User,
        level: int,
        tables: list[list[Cost]],
    ) -> tuple[int | None, int]:
        """Charge a member of a roster; the level that is granted, None if the user is left out, and
        then the first budget that refused.
        """
        own, refusing = [], []
        for number, (dataset, prices) in enumerate(zip(chain, tables, strict=True)):
            account = dataset.accounts[user]
            dataset.bind(account, prices[level])
            own.append([dataset.at_orders(account, cost) for cost in prices])
            left = dataset.left(account)
            if any(units > rest for units, rest in zip(own[-1][level], left, strict=True)):
                refusing.append(number)
        granted = None if refusing else level
        if refusing and chain[0].policy["on_exhaustion"] == "clip":
            granted = highest_that_fits(own[0], level, left)
        for dataset, prices in zip(chain, own, strict=True):
            self._book(place, dataset, user, prices[granted or 0])
        return granted, min(refusing, default=0)

    def _validate(
        self,
        partition: int,
        chain: list[Dataset],
        charge: Mapping[str, Any],
        asked: list[User],
        users: list[User],
        norms: list[float],
    ) -> None:
        """In the documented order of the reasons."""
        if len(users) > _MOST_USERS:
            raise Rejection("too-large")
        if charge["v"] >= 2 and _may_write(chain, asked) > _MOST_WRITTEN:
            raise Rejection("too-large")
        if len(users) != len(norms):
            raise Rejection("length-mismatch")
        for dataset in chain:
            _check_mechanism(dataset, charge)
        if not all(dataset.has_room_for(asked, charge["v"]) for dataset in chain):
            raise Rejection("mixed-users")
        clip_norm = charge["clip_norm"]
        if clip_norm is not None and not 0 <= clip_norm < math.inf:
            raise Rejection("invalid-norm")
        if not all(0 <= norm < math.inf for norm in norms):
            raise Rejection("invalid-norm")
        if clip_norm is not None and any(norm > clip_norm for norm in norms):
            raise Rejection("norm-above-clip")
        if len(set(users)) != len(users):
            raise Rejection("duplicate-user")
        self._check_homes(partition, chain, users)

    def _check_homes(self, partition: int, chain: list[Dataset], users: list[User]) -> None:
        """Whether all users live here; those who have an account do, and those with a name."""
        known = {*chain[0].accounts, *self.names[partition].of(chain[-1])}
        strangers = (user for user in users if user not in known)
        if any(home(user, self.partitions) != partition for user in strangers):
            raise Rejection("wrong-partition")

    def _check_writes_of_1(
        self,
        dataset: Dataset,
        charge: Mapping[str, Any],
        users: list[User],
        norms: list[float],
    ) -> None:
        """What version 1 writes is limited by Redis alone, and so counted and not estimated."""
        if charge["v"] >= 2 or _may_write([dataset], users) <= _LARGEST_VALUE:
            return
        assert dataset.policy["on_exhaustion"] == "halt", "what clipping grants is not known here"
        charged = raised = 0
        for user, norm in zip(users, norms, strict=True):
            before = dataset.account(user)
            after = deepcopy(before)
            _, cost = _granted(dataset, after, charge, norm, None)
            after.pay(cost, dataset.at_orders(after, dataset.steps))
            charged += after.spent != before.spent
            raised += after.rungs != before.rungs
        orders, name, ids = len(dataset.budget), len(charge["dataset"]), _string_bytes(users)
        decision = 22 * len(users) + ids
        changes = charged * (4 + 8 * orders) + raised * (12 + 8 * orders) + 9 * len(users) + ids
        answers = raised * (139 + 2 * name + 9 * orders) + 7 * ids
        if 4096 + decision + max(changes, answers) > _LARGEST_VALUE:
            raise Rejection("too-large")

    def _settle(
        self,
        place: Place,
        chain: list[Dataset],
        charge: Mapping[str, Any],
        users: list[User],
        norms: list[float],
        left_out: list[bool],
        witness: Mapping[int, float],
    ) -> tuple[list[float | None], list[int]]:
        """Charge every user; the granted norm of each, None for those left out, and for these the
        first budget that refused, or 0 for who came too soon or was forgotten.
        """
        granted: list[float | None] = []
        refused = []
        for position, (user, norm) in enumerate(zip(users, norms, strict=True)):
            accounts = [d.accounts.setdefault(user, d.account(user)) for d in chain]
            if left_out[position]:
                granted.append(None)
                refused.append(0)
                continue
            offers = [
                _granted(dataset, account, charge, norm, witness.get(position))
                for dataset, account in zip(chain, accounts, strict=True)
            ]
            refusing = [number for number, (grant, _) in enumerate(offers) if grant is None]
            granted.append(None if refusing else offers[0][0])
            refused += refusing[:1]
            for dataset, (_, cost) in zip(chain, offers, strict=True):
                is_free = refusing and len(chain) > 1
                self._book(place, dataset, user, (0,) * len(cost) if is_free else cost)
        return granted, refused

    def _book(self, place: Place, dataset: Dataset, user: User, cost: Cost) -> None:
        """Charge what was granted to a user who has an account; a checkpoint if the bound rises."""
        account = dataset.accounts[user]
        before = account.bound(dataset)
        account.pay(cost, dataset.at_orders(account, dataset.steps))
        bound = account.bound(dataset)
        if bound != before:
            self.checkpoints.add((dataset.policy["dataset"], user, *place, bound))
            if account.order is not None:
                key = dataset.policy["dataset"], user, *place
                self.bound_orders[key] = dataset.orders[account.order]


def _names(chain: Sequence[Dataset]) -> list[str]:
    return [dataset.policy["dataset"] for dataset in chain]


def _is_exhausted(chain: Sequence[Dataset], user: User) -> bool:
    """Whether nothing is left of some budget."""
    return any(not all(dataset.left(dataset.accounts[user])) for dataset in chain)


def _about_step(place: Place, charge: Mapping[str, Any]) -> dict[str, Any]:
    names = "v", "dataset", "run", "attempt", "step"
    return {**{name: charge[name] for name in names}, "partition": place[0], "offset": place[1]}


def _decided_before(
    run: RunState, charge: Mapping[str, Any], content: tuple[Any, ...], digest: bytes
) -> dict[str, Any] | None:
    """The decision about the last step, if this is it again; None if it is the next one."""
    if charge["step"] == run.step:
        if content != run.content:
            raise Rejection("step-content-changed")
        return {**run.decision, "v": charge["v"], "attempt": charge["attempt"], "digest": digest}
    if charge["step"] != run.step + 1:
        raise Rejection("step-out-of-order")
    return None


def _check_mechanism(dataset: Dataset, charge: Mapping[str, Any]) -> None:
    """Whether the measure charges it; sampled steps are charged by tariffs alone."""
    if dataset.measure == "gdp" and charge["mechanism"] != "gaussian":
        raise Rejection("invalid-mechanism")
    _check_unsampled(dataset, charge)


def _check_unsampled(dataset: Dataset, charge: Mapping[str, Any]) -> None:
    if charge["mechanism"] != "pure-dp" and not 0 < charge["scale"] < math.inf:
        raise Rejection("invalid-mechanism")
    if dataset.policy["on_exhaustion"] == "clip" and charge["mechanism"] != "gaussian":
        raise Rejection("invalid-mechanism")
    if dataset.measure == "pure-dp" and charge["mechanism"] == "gaussian":
        raise Rejection("invalid-mechanism")


def _check_roster_mechanism(dataset: Dataset, charge: Mapping[str, Any]) -> None:
    if charge["mechanism"] != "poisson-gaussian":
        if charge["sampling_rate"] != 1:
            raise Rejection("invalid-mechanism")
        _check_unsampled(dataset, charge)
    elif charge["sampling_rate"] == 1:  # everybody is drawn
        _check_unsampled(dataset, {**charge, "mechanism": "gaussian"})
    elif dataset.measure != "renyi" or not 0 < charge["scale"] < math.inf:
        raise Rejection("invalid-mechanism")


def _granted(
    dataset: Dataset,
    account: Account,
    charge: Mapping[str, Any],
    norm: float,
    witness: float | None,
) -> tuple[float | None, Cost]:
    """The norm that a user is granted, None for who is left out, and what is charged for it."""
    cost = dataset.cost(charge, norm)
    dataset.bind(account, cost)
    left, cost = dataset.left(account), dataset.at_orders(account, cost)
    grant: float | None = norm
    if any(units > rest for units, rest in zip(cost, left, strict=True)):
        grant, cost = None, (0,) * len(left)
        if dataset.policy["on_exhaustion"] == "clip" and all(left):
            grant, cost = _clip(dataset, account, charge, witness)
    return grant, cost


def _may_write(chain: Sequence[Dataset], users: list[User]) -> int:
    """The documented count of what a charge of these users may make a worker write."""
    total = 0
    for dataset in chain:
        orders = 1 if dataset.binds else len(dataset.budget)
        per_user = 200 + 2 * len(dataset.policy["dataset"]) + 25 * orders
        total += 4096 + len(users) * per_user + 8 * _string_bytes(users)
    return total


def _string_bytes(users: list[User]) -> int:
    return sum(len(user.encode()) for user in users if isinstance(user, str))


Link = tuple[bytes, bytes, int]
"""Head of the chain over a log, the head before, and the offset of the record between them."""


def first_link(topic: bytes, partition: int, partitions: int) -> Link:
    """Of a partition of which nothing has been read."""
    numbers = struct.pack(">qq", partition, partitions)
    return hashlib.sha256(b"dp-turnstile log 1" + topic + numbers).digest(), b"", -1


def next_link(head: bytes, offset: int, value: bytes | None) -> Link:
    """After one more record."""
    content = b"\0" if value is None else b"\1" + value
    return hashlib.sha256(head + struct.pack(">q", offset) + content).digest(), head, offset


def _clip(
    dataset: Dataset, account: Account, charge: Mapping[str, Any], grant: float | None
) -> tuple[float | None, Cost]:
    """What budget-aware clipping charges; checks that the granted norm is in the range."""
    left = dataset.left(account)
    orders = [Fraction(order) for order in dataset.at_orders(account, dataset.orders or (1,))]
    payable = [math.floor(rest / order) for rest, order in zip(left, orders, strict=True)]
    tightest = payable.index(min(payable))
    exact = exact_cost(dataset.measure, charge["mechanism"], float(charge["scale"]), grant or 0.0)
    assert exact <= payable[tightest], f"a granted norm of {grant} costs more than is left: {left}"
    assert exact >= payable[tightest] * (1 - _SHORTFALL) ** 2, (
        f"a granted norm of {grant} wastes more than documented of {left}"
    )
    cost = list(dataset.at_orders(account, dataset.cost(charge, grant or 0.0)))
    cost[tightest] = left[tightest]
    return grant, tuple(cost)
