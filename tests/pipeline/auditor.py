"""An independent fold of the log, in rational arithmetic, and what the service must agree with it.

It shares no code with the worker: records are decoded to plain dictionaries, costs are fractions,
users stand in dictionaries. ``Auditor`` folds `norms`; ``compare`` holds what the workers wrote to
Redis, `halts`, `rejects` and `odometer` against it.

One thing is taken from the decisions: the norm that budget-aware clipping granted, a square root
for which the documents give a range. The auditor checks the range and charges by the norm.
"""

from __future__ import annotations

import base64
import math
import re
import struct
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cache, lru_cache
from itertools import pairwise
from typing import Any

import msgspec
from kafka import KafkaConsumer, TopicPartition
from kafka.partitioner.default import murmur2

from streams.config import Config
from streams.ledger import Ledger

User = int | str
Place = tuple[int, int]
"""Partition and offset."""

TOPICS = ("norms", "halts", "rejects", "odometer")
_UNIT = 2**44
_LARGEST_COST = 2**62
_LARGEST_BUDGET = 2**61
_LARGEST_RECORD = 8 * 1024 * 1024
_MOST_USERS = 2**19
_SHORTFALL = Fraction(1, 2**49)


class Log:
    """All records of the topics of one prefix, read so far."""

    def __init__(self, config: Config) -> None:
        self.records: dict[str, list[tuple[int, int, bytes | None]]] = {t: [] for t in TOPICS}
        self._names = {config.topic(topic): topic for topic in TOPICS}
        self._consumer = KafkaConsumer(
            bootstrap_servers=config.kafka.split(","),
            group_id=None,
            enable_auto_commit=False,
            max_partition_fetch_bytes=16 * 1024 * 1024,
            fetch_max_bytes=64 * 1024 * 1024,
        )
        self._places = [
            TopicPartition(name, partition)
            for name in self._names
            for partition in sorted(self._consumer.partitions_for_topic(name))
        ]
        self._consumer.assign(self._places)
        self._consumer.seek_to_beginning(*self._places)

    def refresh(self) -> None:
        """Read up to the ends that the topics have now."""
        ends = self.ends()
        while any(self._consumer.position(place) < end for place, end in ends.items()):
            for place, records in self._consumer.poll(timeout_ms=200).items():
                topic = self._names[place.topic]
                self.records[topic] += [(place.partition, r.offset, r.value) for r in records]

    def ends(self) -> dict[TopicPartition, int]:
        """The offset after the last record, of every partition."""
        return self._consumer.end_offsets(self._places)

    def norms_ends(self) -> dict[int, int]:
        """The same of `norms`, by partition."""
        ends = self.ends().items()
        return {place.partition: end for place, end in ends if self._names[place.topic] == "norms"}

    def close(self) -> None:
        self._consumer.close()


def home(user: User, partitions: int) -> int:
    """The partition of a user, as the Java client's default partitioner would place its key."""
    key = user.encode() if isinstance(user, str) else user.to_bytes(8, "big", signed=True)
    return (murmur2(key) & 0x7FFFFFFF) % partitions


# --- what a record says -------------------------------------------------------------------------


class Rejection(Exception):
    """Why the worker must refuse a record."""


def _is_integer(least: int, most: int) -> Any:
    return lambda value: type(value) is int and least <= value <= most


def _is_number(value: Any) -> bool:
    return type(value) in (int, float)


def _is_name(value: Any) -> bool:
    return type(value) is str and bool(re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}", value))


def _is_token(value: Any) -> bool:
    return type(value) is str and 1 <= len(value) <= 64


def _is_list(member: Any, least: int = 0, most: int = 2**31) -> Any:
    return lambda value: (
        type(value) is list and least <= len(value) <= most and all(map(member, value))
    )


def _is_user(value: Any) -> bool:
    return _is_integer(-(2**63), 2**63 - 1)(value) or (
        type(value) is str and 1 <= len(value) <= 256
    )


def _is_packed_or(other: Any) -> Any:
    return lambda value: len(value) % 8 == 0 if type(value) is bytes else other(value)


_BUDGETS = _is_list(_is_integer(1, _LARGEST_BUDGET), 1, 256)
_POLICY = {
    "dataset": _is_name,
    "partitions": _is_integer(1, 100_000),
    "measure": lambda value: value in ("renyi", "zcdp", "gdp", "approx-dp"),
    "budget": _BUDGETS,
    "odometer_step": _BUDGETS,
    "orders": _is_list(lambda value: _is_number(value) and value > 1, 0, 256),
    "on_exhaustion": lambda value: value in ("halt", "clip"),
}
_VERSION = {"v": lambda value: type(value) is int}
_OPEN = {
    "dataset": _is_name,
    "run": _is_name,
    "attempt": _is_integer(1, 2**53),
}
_RECORDS = {
    "create-dataset": {
        **_VERSION,
        "request": _is_token,
        "policy": lambda value: type(value) is dict and _fits(value, _POLICY),
    },
    "open-run": {**_VERSION, **_OPEN, "request": _is_token},
    "charge": {
        **_VERSION,
        **_OPEN,
        "step": _is_integer(0, 2**53),
        "users": _is_packed_or(_is_list(_is_user)),
        "norms": _is_packed_or(_is_list(_is_number)),
        "mechanism": lambda value: value in ("gaussian", "laplace", "pure-dp"),
        "scale": _is_number,
        "clip_norm": lambda value: value is None or _is_number(value),
    },
}
_DEFAULTS = {
    "v": 1,
    "orders": [],
    "on_exhaustion": "halt",
    "mechanism": "gaussian",
    "scale": 1.0,
    "clip_norm": None,
}


def _fits(fields: dict[str, Any], rules: Mapping[str, Any]) -> bool:
    for name in rules.keys() & _DEFAULTS.keys():
        fields.setdefault(name, _DEFAULTS[name])
    return fields.keys() == rules.keys() and all(rules[n](value) for n, value in fields.items())


def read(value: bytes | None) -> dict[str, Any]:
    """A request as a dictionary without gaps; raises ``Rejection``."""
    if value is None:
        raise Rejection("malformed")
    if len(value) > _LARGEST_RECORD:
        raise Rejection("too-large")
    is_json = value[:1] == b"{"
    try:
        request = (msgspec.json if is_json else msgspec.msgpack).decode(value)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Rejection("malformed") from error
    if type(request) is not dict:
        raise Rejection("malformed")
    rules = _RECORDS.get(request.pop("type", None))
    if is_json:
        for name in ("users", "norms"):
            if type(request.get(name)) is str:
                request[name] = base64.b64decode(request[name], validate=True)
    if rules is None or not _fits(request, rules):
        raise Rejection("malformed")
    if request["v"] != 1:
        raise Rejection("unsupported-version")
    return {**request, "type": _type_of(rules)}


def _type_of(rules: Mapping[str, Any]) -> str:
    return next(name for name, known in _RECORDS.items() if known is rules)


def _numbers(values: list[Any] | bytes, code: str) -> list[Any]:
    if isinstance(values, bytes):
        return list(struct.unpack(f"<{len(values) // 8}{code}", values))
    return [float(value) for value in values] if code == "d" else list(values)


# --- the rule -----------------------------------------------------------------------------------


@lru_cache(maxsize=1 << 18)
def _exact_cost(measure: str, mechanism: str, scale: float, norm: float) -> Fraction:
    """What a norm costs, in units, before rounding; of renyi at the order 1."""
    divisor = Fraction(1) if mechanism == "pure-dp" else Fraction(scale)
    ratio = (Fraction(norm) / divisor) ** 2
    return (ratio if measure == "gdp" else ratio / 2) * _UNIT


@lru_cache(maxsize=1 << 18)
def _cost(
    measure: str, orders: tuple[float, ...], mechanism: str, scale: float, norm: float
) -> tuple[int, ...]:
    units = min(math.ceil(_exact_cost(measure, mechanism, scale, norm)), _LARGEST_COST)
    if measure != "renyi":
        return (units,)
    return tuple(min(math.ceil(Fraction(order) * units), _LARGEST_COST) for order in orders)


@dataclass
class Account:
    """One user of one dataset; one number per order, else one."""

    spent: tuple[int, ...]
    used: tuple[int, ...]  # since the odometer restarted last
    rungs: int = 1

    def pay(self, cost: tuple[int, ...], steps: tuple[int, ...]) -> None:
        """Charge a cost that was granted; the odometer may rise (Alg. 5, with restarts)."""
        self.spent = tuple(map(sum, zip(self.spent, cost, strict=True)))
        total = tuple(map(sum, zip(self.used, cost, strict=True)))
        if all(units <= step for units, step in zip(total, steps, strict=True)):
            self.used = total
            return
        climb = max(-(-units // step) for units, step in zip(cost, steps, strict=True))
        self.rungs += climb if any(self.used) else climb - 1
        self.used = tuple(
            max(units - (climb - 1) * step, 0) for units, step in zip(cost, steps, strict=True)
        )

    def bound(self, dataset: Dataset) -> tuple[int, ...]:
        """What the odometer says: never above the budget, which the filter keeps."""
        return tuple(
            min(self.rungs * step, budget)
            for step, budget in zip(dataset.steps, dataset.budget, strict=True)
        )


@dataclass
class Dataset:
    """A policy and its users, in one partition."""

    policy: dict[str, Any]
    accounts: dict[User, Account] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.budget = tuple(self.policy["budget"])
        self.steps = tuple(self.policy["odometer_step"])
        self.orders = tuple(map(float, self.policy["orders"]))
        self.measure = self.policy["measure"]

    def account(self, user: User) -> Account:
        nothing = (0,) * len(self.budget)
        return self.accounts.get(user) or Account(nothing, nothing)

    def cost(self, charge: Mapping[str, Any], norm: float) -> tuple[int, ...]:
        return _cost(
            self.measure, self.orders, charge["mechanism"], float(charge["scale"]), float(norm)
        )

    def left(self, account: Account) -> tuple[int, ...]:
        return tuple(b - s for b, s in zip(self.budget, account.spent, strict=True))


@dataclass
class RunState:
    attempt: int
    request: str
    step: int = -1
    content: tuple[Any, ...] = ()
    decision: dict[str, Any] = field(default_factory=dict)


class Auditor:
    """The fold. ``answers``, ``rejects`` and ``checkpoints`` are all that must be published."""

    def __init__(self, partitions: int) -> None:
        self.partitions = partitions
        self.datasets: list[dict[str, Dataset]] = [{} for _ in range(partitions)]
        self.runs: list[dict[tuple[str, str], RunState]] = [{} for _ in range(partitions)]
        self.answers: dict[tuple[Any, ...], None] = {}
        self.rejects: dict[Place, tuple[str, bytes]] = {}
        self.checkpoints: set[tuple[Any, ...]] = set()
        self.charged: dict[Place, dict[str, Any]] = {}  # the decision that a record led to
        self._folded = 0

    def fold(self, log: Log) -> None:
        """Go on to the end of what has been read."""
        witnesses = granted_norms(log.records["halts"])
        fresh = log.records["norms"][self._folded :]
        self._folded += len(fresh)
        for partition, offset, value in sorted(fresh, key=lambda record: record[:2]):
            self.apply(partition, offset, value, witnesses)

    def apply(
        self,
        partition: int,
        offset: int,
        value: bytes | None,
        witnesses: Mapping[tuple[Any, ...], Mapping[int, float]],
    ) -> None:
        place = partition, offset
        try:
            request = read(value)
            if request["type"] == "create-dataset":
                answer = self._create(place, request)
            elif request["type"] == "open-run":
                answer = self._open(place, request)
            else:
                answer = self._charge(place, request, witnesses)
            self.answers[_frozen(answer)] = None
        except Rejection as rejection:
            self.rejects[place] = str(rejection), value or b""

    def _create(self, place: Place, request: dict[str, Any]) -> dict[str, Any]:
        partition, offset = place
        policy = request["policy"]
        orders, count = policy["orders"], 1
        if policy["measure"] == "renyi":
            count = len(orders)
        wrong = (
            bool(orders) != (policy["measure"] == "renyi")
            or not all(map(math.isfinite, orders))
            or any(low >= high for low, high in pairwise(orders))
            or len(policy["budget"]) != count
            or len(policy["odometer_step"]) != count
            or policy["partitions"] != self.partitions
        )
        if wrong:
            raise Rejection("invalid-policy")
        known = self.datasets[partition].setdefault(policy["dataset"], Dataset(policy))
        if known.policy != policy:
            raise Rejection("policy-changed")
        return {
            "type": "dataset-created",
            "request": request["request"],
            "partition": partition,
            "offset": offset,
            "policy": policy,
        }

    def _dataset(self, partition: int, name: str) -> Dataset:
        if name not in self.datasets[partition]:
            raise Rejection("unknown-dataset")
        return self.datasets[partition][name]

    def _open(self, place: Place, request: dict[str, Any]) -> dict[str, Any]:
        partition, offset = place
        dataset = self._dataset(partition, request["dataset"])
        attempt, token = request["attempt"], request["request"]
        run = self.runs[partition].setdefault(
            (request["dataset"], request["run"]), RunState(attempt, token)
        )
        if attempt < run.attempt or (attempt == run.attempt and token != run.request):
            raise Rejection("older-attempt")
        run.attempt, run.request = attempt, token
        return {
            "type": "run-opened",
            "dataset": request["dataset"],
            "run": request["run"],
            "attempt": attempt,
            "request": token,
            "partition": partition,
            "offset": offset,
            "last_step": run.step,
            "policy": dataset.policy,
        }

    def _charge(
        self,
        place: Place,
        charge: dict[str, Any],
        witnesses: Mapping[tuple[Any, ...], Mapping[int, float]],
    ) -> dict[str, Any]:
        partition, offset = place
        dataset = self._dataset(partition, charge["dataset"])
        run = self.runs[partition].get((charge["dataset"], charge["run"]))
        if run is None or charge["attempt"] > run.attempt:
            raise Rejection("unknown-run")
        if charge["attempt"] < run.attempt:
            raise Rejection("older-attempt")
        users, norms = _numbers(charge["users"], "q"), _numbers(charge["norms"], "d")
        content = (
            charge["mechanism"],
            struct.pack("<d", charge["scale"]),
            charge["clip_norm"] is None or struct.pack("<d", charge["clip_norm"]),
            tuple(users),
            struct.pack(f"<{len(norms)}d", *norms),
        )
        if charge["step"] == run.step:
            if content != run.content:
                raise Rejection("step-content-changed")
            run.decision = {**run.decision, "attempt": charge["attempt"]}
            return run.decision
        if charge["step"] != run.step + 1:
            raise Rejection("step-out-of-order")
        self._validate(partition, dataset, charge, users, norms)
        key = charge["dataset"], charge["run"], charge["step"], partition
        granted = self._settle(place, dataset, charge, users, norms, witnesses.get(key, {}))
        admitted = [grant is not None for grant in granted]
        clipped = [
            (position, grant)
            for position, (grant, norm) in enumerate(zip(granted, norms, strict=True))
            if grant is not None and grant < norm
        ]
        decision = {
            "type": "decision",
            "dataset": charge["dataset"],
            "run": charge["run"],
            "attempt": charge["attempt"],
            "step": charge["step"],
            "partition": partition,
            "offset": offset,
            "users": len(users),
            "admitted": admitted,
            "exhausted": [not all(dataset.left(dataset.accounts[user])) for user in users],
            "halted": [u for u, is_in in zip(users, admitted, strict=True) if not is_in],
            "clipped": [position for position, _ in clipped],
            "granted": [grant for _, grant in clipped],
        }
        run.step, run.content, run.decision = charge["step"], content, decision
        self.charged[place] = decision
        return decision

    def _validate(
        self,
        partition: int,
        dataset: Dataset,
        charge: Mapping[str, Any],
        users: list[User],
        norms: list[float],
    ) -> None:
        """In the documented order of the reasons."""
        if len(users) > _MOST_USERS:
            raise Rejection("too-large")
        if len(users) != len(norms):
            raise Rejection("length-mismatch")
        gaussian_only = dataset.measure == "gdp" or dataset.policy["on_exhaustion"] == "clip"
        if charge["mechanism"] != "pure-dp" and not 0 < charge["scale"] < math.inf:
            raise Rejection("invalid-mechanism")
        if gaussian_only and charge["mechanism"] != "gaussian":
            raise Rejection("invalid-mechanism")
        clip_norm = charge["clip_norm"]
        if clip_norm is not None and not 0 <= clip_norm < math.inf:
            raise Rejection("invalid-norm")
        if not all(0 <= norm < math.inf for norm in norms):
            raise Rejection("invalid-norm")
        if clip_norm is not None and any(norm > clip_norm for norm in norms):
            raise Rejection("norm-above-clip")
        if len(set(users)) != len(users):
            raise Rejection("duplicate-user")
        strangers = (user for user in users if user not in dataset.accounts)
        if any(home(user, self.partitions) != partition for user in strangers):
            raise Rejection("wrong-partition")

    def _settle(
        self,
        place: Place,
        dataset: Dataset,
        charge: Mapping[str, Any],
        users: list[User],
        norms: list[float],
        witness: Mapping[int, float],
    ) -> list[float | None]:
        """Charge every user; the granted norm of each, None for those left out."""
        clips = dataset.policy["on_exhaustion"] == "clip"
        granted: list[float | None] = []
        for position, (user, norm) in enumerate(zip(users, norms, strict=True)):
            account = dataset.accounts.setdefault(user, dataset.account(user))
            left, cost = dataset.left(account), dataset.cost(charge, norm)
            grant: float | None = norm
            if any(units > rest for units, rest in zip(cost, left, strict=True)):
                grant, cost = None, (0,) * len(left)
                if clips and all(left):
                    grant, cost = _clip(dataset, charge, left, witness.get(position))
            granted.append(grant)
            before = account.bound(dataset)
            account.pay(cost, dataset.steps)
            bound = account.bound(dataset)
            if bound != before:
                self.checkpoints.add((charge["dataset"], user, *place, bound))
        return granted


def _clip(
    dataset: Dataset, charge: Mapping[str, Any], left: tuple[int, ...], grant: float | None
) -> tuple[float | None, tuple[int, ...]]:
    """What budget-aware clipping charges; checks that the granted norm is in the range."""
    orders = [Fraction(order) for order in dataset.orders] or [Fraction(1)]
    payable = [math.floor(rest / order) for rest, order in zip(left, orders, strict=True)]
    tightest = payable.index(min(payable))
    exact = _exact_cost(dataset.measure, charge["mechanism"], float(charge["scale"]), grant or 0.0)
    assert exact <= payable[tightest], f"a granted norm of {grant} costs more than is left: {left}"
    assert exact >= payable[tightest] * (1 - _SHORTFALL) ** 2, (
        f"a granted norm of {grant} wastes more than documented of {left}"
    )
    cost = list(dataset.cost(charge, grant or 0.0))
    cost[tightest] = left[tightest]
    return grant, tuple(cost)


# --- what was published -------------------------------------------------------------------------


def _bits(packed: bytes, count: int) -> list[bool]:
    assert len(packed) == -(-count // 8)
    return [bool(packed[i // 8] >> (i % 8) & 1) for i in range(count)]


@cache
def published_answer(value: bytes) -> tuple[dict[str, Any], bytes]:
    """A record of `halts` in the auditor's terms, and the digest of a decision."""
    answer = msgspec.msgpack.decode(value)
    assert answer.pop("v", 1) == 1
    digest = answer.pop("digest", b"")
    if answer["type"] == "decision":
        assert len(digest) == 16
        count = answer["users"]
        answer["admitted"] = _bits(answer["admitted"], count)
        answer["exhausted"] = _bits(answer["exhausted"], count)
        answer["halted"] = _numbers(answer["halted"], "q")
        clipped, granted = answer.get("clipped", b""), answer.get("granted", b"")
        answer["clipped"] = list(struct.unpack(f"<{len(clipped) // 4}I", clipped))
        answer["granted"] = _numbers(granted, "d")
    else:
        _fits(answer["policy"], _POLICY)
    return answer, digest


def granted_norms(
    halts: Iterable[tuple[int, int, bytes | None]],
) -> dict[tuple[Any, ...], dict[int, float]]:
    """(dataset, run, step, partition) -> position -> the norm that clipping granted."""
    granted = {}
    for partition, _, value in halts:
        answer, _ = published_answer(value or b"")
        if answer["type"] == "decision" and answer["clipped"]:
            key = answer["dataset"], answer["run"], answer["step"], partition
            granted[key] = dict(zip(answer["clipped"], answer["granted"], strict=True))
    return granted


def _frozen(value: Any) -> Any:
    if isinstance(value, dict):
        return tuple((name, _frozen(value[name])) for name in sorted(value))
    if isinstance(value, list | tuple):
        return tuple(map(_frozen, value))
    return value


def _same(what: str, expected: Iterable[Any], found: Iterable[Any]) -> None:
    expected, found = dict.fromkeys(expected), dict.fromkeys(found)
    missing = [item for item in expected if item not in found]
    surplus = [item for item in found if item not in expected]
    assert not missing, f"{what}: {len(missing)} missing, the first is {missing[0]!r:.2000}"
    assert not surplus, f"{what}: {len(surplus)} too many, the first is {surplus[0]!r:.2000}"


def compare(auditor: Auditor, log: Log, ledgers: Mapping[int, Ledger]) -> None:
    """Assert that state, decisions, rejects and odometer checkpoints are those of the audit."""
    _compare_answers(auditor, log)
    _compare_rejects(auditor, log)
    _compare_checkpoints(auditor, log)
    for partition, ledger in ledgers.items():
        _compare_state(auditor, partition, ledger)


def _compare_answers(auditor: Auditor, log: Log) -> None:
    answers = []
    contents: dict[tuple[Any, ...], set[Any]] = defaultdict(set)
    for partition, _, value in log.records["halts"]:
        answer, digest = published_answer(value or b"")
        assert answer["partition"] == partition
        answers.append(_frozen(answer))
        if answer["type"] == "decision":
            key = answer["dataset"], answer["run"], answer["step"], partition
            contents[key].add((digest, _frozen({**answer, "attempt": 0})))
    for key, ways in contents.items():
        assert len(ways) == 1, f"{key} was decided in {len(ways)} ways: {ways!r:.2000}"
    _same("answers", auditor.answers, answers)


def _compare_rejects(auditor: Auditor, log: Log) -> None:
    rejects = []
    for partition, _, value in log.records["rejects"]:
        reject = msgspec.msgpack.decode(value)
        assert reject["partition"] == partition
        assert reject["detail"]
        assert reject["type"] == "rejected"
        place = partition, reject["offset"]
        original = auditor.rejects[place][1] if place in auditor.rejects else None
        if original is not None:
            assert reject["record"] == original[:_LARGEST_RECORD]
        rejects.append((place, reject["reason"]))
    _same("rejects", [(p, reason) for p, (reason, _) in auditor.rejects.items()], rejects)


def _compare_checkpoints(auditor: Auditor, log: Log) -> None:
    expected = {checkpoint[:4]: checkpoint[4] for checkpoint in auditor.checkpoints}
    found = {}
    for partition, _, value in log.records["odometer"]:
        checkpoint = msgspec.msgpack.decode(value)
        assert checkpoint["partition"] == partition
        found[checkpoint["dataset"], checkpoint["user"], partition, checkpoint["offset"]] = (
            checkpoint["bound"]
        )
    _same("odometer checkpoints", expected, found)
    for key, bound in found.items():
        measure = auditor.datasets[key[2]][key[0]].measure
        for number, units in zip(bound, expected[key], strict=True):
            _check_bound(measure, number, Fraction(units, _UNIT))


def _check_bound(measure: str, bound: float, exact: Fraction) -> None:
    """Never below the exact number, and at most two floats above it."""
    power = 2 if measure == "gdp" else 1
    below = math.nextafter(math.nextafter(bound, 0.0), 0.0)
    assert Fraction(below) ** power < exact <= Fraction(bound) ** power


def _compare_state(auditor: Auditor, partition: int, ledger: Ledger) -> None:
    runs = auditor.runs[partition]
    _same(
        f"runs of partition {partition}",
        [(key, run.attempt, run.step) for key, run in runs.items()],
        [(key, run.attempt, run.step) for key, run in ledger.runs.items()],
    )
    _same(f"datasets of partition {partition}", auditor.datasets[partition], ledger.datasets)
    for name, dataset in auditor.datasets[partition].items():
        state = state_of(ledger, name)
        for user, (spent, _, _) in state.items():
            assert all(s <= b for s, b in zip(spent, dataset.budget, strict=True)), (
                f"user {user!r} of {name} is above the budget: {spent} of {dataset.budget}"
            )
        _same(
            f"accounts of {name} in partition {partition}",
            [(u, a.spent, a.used, a.rungs) for u, a in dataset.accounts.items()],
            [(u, *row) for u, row in state.items()],
        )


Rows = dict[User, tuple[tuple[int, ...], tuple[int, ...], int]]


def state_of(ledger: Ledger, name: str) -> Rows:
    """user -> (spent, used on the current rung, rungs), as Redis has it."""
    accounts = ledger.datasets[name]
    width = max(1, len(accounts.policy.orders))
    rows: Rows = {}
    number = 0
    while len(rows) < len(accounts):
        page = accounts.take_page(number)
        number += 1
        users = _numbers(page.users, "q")
        spent, base = _numbers(page.spent, "q"), _numbers(page.base, "q")
        rungs = _numbers(page.rungs, "q")
        for i, user in enumerate(users):
            row = slice(i * width, (i + 1) * width)
            used = tuple(s - b for s, b in zip(spent[row], base[row], strict=True))
            rows[user] = tuple(spent[row]), used, rungs[i]
    return rows
