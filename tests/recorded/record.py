"""Record logs and what the ledger made of them.

    python -m tests.recorded.record [NAME ...]

A ledger that applies a recorded log differently charges users differently when a partition is
rebuilt. The texts of rejects, which are for people, are not recorded.

    measures    measures, mechanisms, clipping and halting, integer and string ids
    lifecycle   kinds of ids, normal form, attempts that the partition numbers, closed runs and
                withdrawn datasets
    rosters     rosters, cost tables, sampled steps, per-user orders, pure DP; two runs over the
                same users, by roster and by norms
    nested      nested datasets, charged by rosters and by norms
    clipped     the same, where some clip
    separated   runs with a minimum separation, and without
    erased   users erased between the steps of rosters, nested datasets and separated runs
    closed      datasets that are closed and charged all the same
    signed      signed requests, allowed and refused, while access lists change
"""

import sys
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from msgspec import UNSET

from accounting import Gaussian, Laplace, Mechanism, PoissonGaussian, PureDP
from accounting.measures import MEASURES
from streams.ledger.ledger import Channel, Output
from streams.records import (
    CloseDataset,
    Decision,
    Erase,
    Rejected,
    encode,
)
from streams.records.users import partitions_of
from tests.keys import allowing
from tests.unit.ledger.audited import AuditedLog
from tests.unit.ledger.ledgers import Log
from tests.unit.ledger.roster_logs import CLIP, LEVELS, RosterLog, prices
from tests.unit.ledger.signed_logs import SignedLog

HERE = Path(__file__).parent


class StoredState(msgspec.Struct):
    """The stored state of a partition in the middle of a log: merged pages, and later deltas."""

    next: int  # the offset to apply next
    pages: dict[str, bytes]
    deltas: list[bytes]


class Recording(msgspec.Struct):
    """One partition's records, and the outputs, spent units, head and state they led to."""

    partition: int
    partitions: int
    records: list[bytes | None]
    outputs: list[list[Output]]
    spent: dict[str, list]
    head: bytes  # of the chain
    stored: StoredState


def make_measures(seed: int) -> Log:
    """All measures, mechanisms, behaviours and kinds of ids, good and bad records."""
    rng = np.random.default_rng(seed)
    log = Log(partitions=3, partition=1)
    mine = [u for u, p in enumerate(partitions_of(np.arange(600), 3)) if p == 1]
    names = [f"é{i}" for i in range(300)]
    mine += [u for u, p in zip(names, partitions_of(names, 3), strict=True) if p == 1]
    datasets = {
        "zcdp": {"budget": 0.7},
        "clip": {"budget": 0.3, "on_exhaustion": "clip"},
        "gdp": {"budget": 1.1, "measure": "gdp"},
        "renyi": {"budget": [1.3, 3.0, 9.0], "measure": "renyi", "orders": [1.5, 4.0, 32.0]},
        "renyi-clip": {
            "budget": [1.3, 3.0],
            "measure": "renyi",
            "orders": [1.5, 4.1],
            "on_exhaustion": "clip",
        },
        "pure": {"budget": 0.2},
        "steps": {
            "budget": 4.0,
            "measure": "steps",
            "sampling_rate": 1.0,
            "noise_multiplier": 3.3,
        },
    }
    steps = dict.fromkeys(datasets, 0)
    for name, policy in datasets.items():
        log.create(name, user_ids="mixed", **policy)
        log.open(dataset=name)
    for _ in range(70):
        name = str(rng.choice(list(datasets)))
        users = [mine[i] for i in rng.choice(len(mine), rng.integers(0, 80), replace=False)]
        norms = rng.choice([0.0, 0.1, 0.5, 1.0, np.pi / 4, 2.0], len(users)) * rng.choice([1, 0.37])
        mechanism, scale = "gaussian", float(rng.choice([2.0, 3.3, 10.0]))
        if name == "pure":
            mechanism = str(rng.choice(["laplace", "pure-dp"]))
            norms, scale = norms / 10, 2.0
        step = steps[name] - int(rng.random() < 0.1 and steps[name] > 0)
        answer = log.charge(step, users, norms, scale, dataset=name, mechanism=mechanism)
        if isinstance(answer, Decision) and answer.step == steps[name]:
            steps[name] += 1
        if rng.random() < 0.05:
            log.send([b"", b"\xc1", b'{"type":"charge"}', None][rng.integers(4)])
    return log


def make_lifecycle(seed: int) -> Log:
    """Kinds of ids, attempts, runs that are closed and datasets that are withdrawn."""
    rng = np.random.default_rng(100 + seed)
    log = AuditedLog(partitions=3, partition=1)
    numbers = [u for u, p in enumerate(partitions_of(np.arange(600), 3)) if p == 1]
    written = [
        f"{first}{last}" for first in ("Zoë-", "ﬁ-", "\U0001f9ee-", "u") for last in range(60)
    ]
    names = [u for u, p in zip(written, partitions_of(written, 3), strict=True) if p == 1]
    ids = {
        "numbers": (numbers, {}),
        "names": (names, {"user_ids": "string", "on_exhaustion": "clip"}),
        "mixed": (numbers[:40] + names[:40], {"user_ids": "mixed", "measure": "gdp"}),
        "renyi": (
            numbers,
            {"measure": "renyi", "orders": [1.25, 8.0, 30.5], "budget": [0.9, 5.5, 17.0]},
        ),
    }
    for name, (_, policy) in ids.items():
        log.create("taken-back", budget=8.0)
        log.withdraw("taken-back")
        log.create(name, **{"budget": 0.6, **policy})
        log.open(dataset=name, attempt=0, request="first")
    for number in range(160):
        name = str(rng.choice(list(ids)))
        run = log.ledger.state.runs[name, "r"]
        users = [ids[name][0][i] for i in rng.choice(len(ids[name][0]), rng.integers(0, 30), False)]
        strange = rng.choice(["", "", "", "", "", "", "7", "e\u0308", "\U00011131\U00011127"])
        users += [7 if strange == "7" else str(strange)] if strange else []
        norms = rng.choice([0.0, 0.2, 0.5, 1.0, np.e / 3], len(users))
        step = run.step + int(rng.choice([0, 1, 1, 1, 1, 1]))
        charge = {"scale": 1.3, "dataset": name, "attempt": run.attempt}
        log.charge(max(step, 0), users, norms, **charge)
        if rng.random() < 0.3:  # sent again, or with other content
            log.charge(max(step, 0), users, norms + int(rng.integers(2)), **charge)
        match int(rng.integers(40)):
            case 0:
                log.open(dataset=name, attempt=0, request=f"later-{number}")
            case 1:
                log.open(dataset=name, attempt=run.attempt + 5, request=run.request)
            case 2:
                log.open(dataset=name, attempt=run.attempt, request="somebody-else")
            case 3:
                log.withdraw(name)
            case 4:
                other = f"side-{number}"
                log.open(dataset=name, run=other, attempt=2**53)
                log.open(dataset=name, run=other, attempt=0, request="next")
                log.charge(0, users[:3], [0.1] * len(users[:3]), run=other, **charge)
                log.close(dataset=name, run=other, attempt=2**53)
                log.close(dataset=name, run=other, attempt=2**53 + 1)
                log.open(dataset=name, run=other, attempt=0)
            case 5:
                log.send([b"{", None, b"\x81\xa1v\x07"][rng.integers(3)])
    log.close(dataset="names", attempt=log.ledger.state.runs["names", "r"].attempt)
    log.charge(0, [], [], dataset="names")
    log.audit()
    return log


ROSTERS: dict[str, tuple[dict[str, Any], list[Mechanism]]] = {
    # dataset: its policy, and the mechanisms of its steps
    "zcdp": ({"budget": 0.4}, [Gaussian(2.7), Gaussian(9.0), Laplace(11.0)]),
    "gdp-clip": (
        {"measure": "gdp", "budget": 0.7, "on_exhaustion": "clip"},
        [Gaussian(3.0), Gaussian(7.7)],
    ),
    "renyi": (
        {"measure": "renyi", "orders": [1.25, 8.0, 30.5], "budget": [0.3, 1.5, 6.0]},
        [PoissonGaussian(1.3, 0.1), PoissonGaussian(2.0, 0.4), Gaussian(5.0)],
    ),
    "own": (
        {
            "measure": "renyi",
            "orders": [1.5, 4.0, 64.0],
            "budget": [0.1, 0.4, 7.0],
            "per_user_order": True,
        },
        [PoissonGaussian(1.1, 0.05), PoissonGaussian(0.9, 0.3), Gaussian(8.0)],
    ),
    "own-clip": (
        {
            "measure": "renyi",
            "orders": [2.0, 32.0],
            "budget": [0.2, 2.5],
            "per_user_order": True,
            "on_exhaustion": "clip",
        },
        [PoissonGaussian(1.5, 0.2), Gaussian(4.0)],
    ),
    "pure": ({"measure": "pure-dp", "budget": 3.0}, [Laplace(3.0), PureDP(), Laplace(10.0)]),
}


def make_rosters(seed: int) -> Log:
    """Rosters, and runs by norms over the same users."""
    rng = np.random.default_rng(200 + seed)
    log = RosterLog(partitions=3, partition=1)
    users: dict[str, list] = {"zcdp": [f"Zoë-{i}" for i in range(150)]}
    for name, (policy, _) in ROSTERS.items():
        log.create(name, **policy)
        ids = users.setdefault(name, list(range(150)))
        users[name] = [u for u, p in zip(ids, partitions_of(ids, 3), strict=True) if p == 1]
        for run in (f"{name}-1", f"{name}-2"):
            log.open(dataset=name, run=run, attempt=0, request="first")
    for number in range(300):
        name = str(rng.choice(list(ROSTERS)))
        run = f"{name}-{rng.integers(1, 3)}"
        state, ids = log.ledger.state.runs[name, run], users[name]
        about = {"dataset": name, "run": run, "attempt": state.attempt}
        members = len(log.ledger.state.rosters.members.get((name, run), ()))
        policy, mechanisms = ROSTERS[name]
        mechanism = mechanisms[rng.integers(len(mechanisms))]
        noise = _as_said(mechanism)
        step = max(0, state.step + int(rng.choice([0, 1, 1, 1, 1, 1, 1, 1, 1, 2])))
        kind = int(rng.integers(12)) if members else 0
        if kind <= 1:
            first = max(0, members - int(rng.integers(0, 3)))
            log.enrol(ids[first : members + 9], first, **about)
        elif kind == 2 and not isinstance(mechanism, PoissonGaussian):
            some = [ids[i] for i in rng.choice(len(ids), rng.integers(0, 20), replace=False)]
            norms = rng.choice([0.0, 0.3, 0.5, 1.0, np.e / 3], len(some))
            log.charge(step, some, norms, **noise, **about)
        elif kind == 3:
            log.send(log.records[-int(rng.integers(1, 4))])
        elif kind == 4 and number % 3 == 0:
            log.open(dataset=name, run=run, attempt=0, request=f"later-{number}")
        elif kind == 5 and number > 200 and run.endswith("2"):
            log.close(dataset=name, run=run, attempt=state.attempt)
        elif kind == 6 and number % 2 == 0:
            log.send([None, b"{", b'{"v":9}', b'{"v":1,"type":"enrol"}'][rng.integers(4)])
        else:
            rows = np.flatnonzero(rng.random(members) < rng.choice([0.0, 0.1, 0.5]))
            if rng.random() < 0.15:
                rows = np.arange(members)
            levels = rng.integers(0, LEVELS + 1, len(rows)).astype(np.uint8)
            units = b""
            if rng.random() < 0.4 or run not in log.units:
                costs = MEASURES[policy.get("measure", "zcdp")].cost_table(
                    mechanism, CLIP, LEVELS, policy.get("orders")
                )
                units = costs.astype("<i8").tobytes()
            dense = len(rows) == members and bool(rng.integers(2))
            log.step(
                step,
                units,
                members=members + int(rng.random() < 0.03),
                positions=b"" if dense else rows.astype("<u4").tobytes(),
                levels=levels.tobytes(),
                **noise,
                **about,
            )
    log.audit()
    return log


NESTED: dict[str, dict[str, Any]] = {
    "person": {"measure": "zcdp", "budget": 0.9, "user_ids": "mixed"},
    "ads": {"measure": "gdp", "budget": 1.1, "parents": ["person"]},
    "search": {
        "measure": "renyi",
        "orders": [1.5, 4.0, 64.0],
        "budget": [0.4, 0.9, 14.0],
        "per_user_order": True,
        "parents": ["person"],
    },
    "tuning": {
        "measure": "renyi",
        "orders": [2.0, 8.0],
        "budget": [0.5, 1.5],
        "parents": ["ads"],
    },
    "both": {"measure": "zcdp", "budget": 0.5, "parents": ["ads", "search"]},
}


def make_nested(seed: int) -> Log:
    """Nested datasets, a roster and a run by norms of each, and what cannot be."""
    rng = np.random.default_rng(300 + seed)
    log = RosterLog(partitions=3, partition=1)
    ids: list[Any] = [*range(60), *(f"user-{i}" for i in range(60))]
    users = [u for u, p in zip(ids, partitions_of(ids, 3), strict=True) if p == 1]
    log.create("ads", **NESTED["ads"])  # there is nothing yet that it could be within
    for name, policy in NESTED.items():
        log.create(name, **policy)
        for run in ("by-roster", "by-norms"):
            log.open(dataset=name, run=run, attempt=0, request="first")
        log.enrol(users[: 10 + int(rng.integers(20))], dataset=name, run="by-roster")
    log.withdraw("person")
    log.open(dataset="ads", run="by-norms")
    _charge_all(log, users, rng)
    log.audit()
    return log


def _charge_all(
    log: RosterLog, users: list[Any], rng: np.random.Generator, steps: int = 250
) -> None:
    """Steps of both runs of every dataset, in any order."""
    for _ in range(steps):
        name, by_roster = str(rng.choice(list(NESTED))), bool(rng.integers(2))
        run = "by-roster" if by_roster else "by-norms"
        state, scale = log.ledger.state.runs[name, run], float(rng.choice([2.7, 5.0, 11.0]))
        step = max(0, state.step + int(rng.choice([0, 1, 1, 1, 1, 1, 1, 1])))
        about = {"dataset": name, "run": run, "attempt": state.attempt}
        if rng.random() < 0.05:
            log.send(log.records[-int(rng.integers(1, 4))])
        elif not by_roster:
            some = [users[i] for i in rng.choice(len(users), rng.integers(0, 20), replace=False)]
            log.charge(step, some, rng.choice([0.0, 0.3, 1.0, np.e / 3], len(some)), scale, **about)
        else:
            members = len(log.ledger.state.rosters.members[name, run])
            rows = np.flatnonzero(rng.random(members) < rng.choice([0.0, 0.1, 0.5]))
            units = _chain_cost_table(name, scale) if rng.random() < 0.4 or step == 0 else b""
            levels = rng.integers(0, LEVELS + 1, len(rows))
            about |= {"scale": scale, "positions": rows, "levels": levels}
            log.units[run] = log.ledger.state.rosters[name, run].units
            log.step(step, units, members=members, **about)


CLIPPED: dict[str, dict[str, Any]] = {
    "person": {"on_exhaustion": "clip"},
    "ads": {},
    "search": {"on_exhaustion": "clip"},
    "tuning": {"on_exhaustion": "clip"},
    "both": {"on_exhaustion": "clip"},
}


def make_clipped(seed: int) -> Log:
    """The same datasets, most of which clip."""
    rng = np.random.default_rng(900 + seed)
    log = RosterLog(partitions=3, partition=1)
    ids: list[Any] = [*range(60), *(f"user-{i}" for i in range(60))]
    users = [u for u, p in zip(ids, partitions_of(ids, 3), strict=True) if p == 1]
    for name, policy in NESTED.items():
        log.create(name, **policy, **CLIPPED[name])
        for run in ("by-roster", "by-norms"):
            log.open(dataset=name, run=run, attempt=0, request="first")
        log.enrol(users[: 10 + int(rng.integers(20))], dataset=name, run="by-roster")
    log.charge(0, users[:3], [0.1] * 3, dataset="search", run="by-norms", mechanism="laplace")
    log.charge(0, users[:3], [0.1] * 3, dataset="ads", run="by-norms", mechanism="laplace")
    _charge_all(log, users, rng, 120)
    log.send(Erase(request="f", user=users[0], dataset="tuning"))
    _charge_all(log, users, rng, 120)
    log.audit()
    return log


def _chain_cost_table(name: str, scale: float) -> bytes:
    """What each level costs in every budget that counts for a dataset."""
    names, tables = [name], []
    for each in names:  # which grows
        policy = NESTED[each]
        names += [outer for outer in policy.get("parents", ()) if outer not in names]
        units = MEASURES[policy["measure"]].cost_table(
            Gaussian(scale), CLIP, LEVELS, policy.get("orders")
        )
        tables.append(units.astype("<i8").tobytes())
    return b"".join(tables)


def _as_said(mechanism: Mechanism) -> dict[str, Any]:
    """A mechanism in the fields of a request."""
    match mechanism:
        case Gaussian(scale):
            return {"mechanism": "gaussian", "scale": scale}
        case Laplace(scale):
            return {"mechanism": "laplace", "scale": scale}
        case PoissonGaussian(scale, rate):
            return {"mechanism": "poisson-gaussian", "scale": scale, "sampling_rate": rate}
        case PureDP():
            return {"mechanism": "pure-dp"}


SEPARATED: dict[str, dict[str, Any]] = {
    "zcdp": {"budget": 0.4},
    "gdp-clip": {"measure": "gdp", "budget": 0.7, "on_exhaustion": "clip"},
    "own-clip": {
        "measure": "renyi",
        "orders": [2.0, 32.0],
        "budget": [0.2, 2.5],
        "per_user_order": True,
        "on_exhaustion": "clip",
    },
    "person": {"budget": 0.9},
    "ads": {"measure": "gdp", "budget": 1.1, "parents": ["person"]},
}


def make_separated(seed: int) -> Log:
    """Runs with a separation and without over the same users, and what such runs cannot do."""
    rng = np.random.default_rng(400 + seed)
    log = RosterLog(partitions=3, partition=1)
    users = [u for u, p in enumerate(partitions_of(np.arange(120), 3)) if p == 1]
    kept = {"near": 2, "far": 7, "plain": UNSET}
    for name, policy in SEPARATED.items():
        log.create(name, **policy)
        for run, separation in kept.items():
            log.open(dataset=name, run=run, attempt=0, request="first", min_separation=separation)
    for number in range(320):
        name, run = str(rng.choice(list(SEPARATED))), str(rng.choice(list(kept)))
        state, scale = log.ledger.state.runs[name, run], float(rng.choice([2.7, 5.0, 11.0]))
        step = max(0, state.step + int(rng.choice([0, 1, 1, 1, 1, 1, 1, 1])))
        about = {"dataset": name, "run": run, "attempt": state.attempt}
        kind = int(rng.integers(24))
        if kind == 0:
            log.send(log.records[-int(rng.integers(1, 4))])
        elif kind == 1:
            asked = [UNSET, 2, 3, 7][rng.integers(4)]
            log.open(
                dataset=name, run=run, attempt=0, request=f"later-{number}", min_separation=asked
            )
        elif kind == 2 and run != "plain":
            log.enrol(users[:3], **about)
            log.step(step, prices(), members=3, **about)
        elif kind == 3:
            log.charge(step, users[:3], [0.1] * 3, scale, **about)
        elif kind == 4 and number > 250:
            log.close(**about)
        else:
            some = [users[i] for i in rng.choice(len(users), rng.integers(0, 20), replace=False)]
            log.charge(step, some, rng.choice([0.0, 0.3, 1.0, np.e / 3], len(some)), scale, **about)
    log.audit()
    return log


ERASING = {
    "person": {"budget": 0.4, "user_ids": "mixed"},
    "ads": {"measure": "gdp", "budget": 0.9, "parents": ["person"]},
    "own": {
        "measure": "renyi",
        "orders": [1.5, 4.0, 32.0],
        "budget": [0.1, 0.2, 1.5],
        "per_user_order": True,
        "user_ids": "mixed",
    },
    "clip": {"budget": 0.3, "on_exhaustion": "clip", "user_ids": "mixed"},
}


def make_erased(seed: int) -> Log:
    """Users are erased one after the other, and charged and enrolled all the same."""
    rng = np.random.default_rng(500 + seed)
    log = RosterLog(partitions=3, partition=1)
    written = [*range(40), *(f"Zoë-{number}" for number in range(40))]
    users = [u for u, p in zip(written, partitions_of(written, 3), strict=True) if p == 1]
    for name, policy in ERASING.items():
        log.create(name, **policy)
        for run, separation in (("r", UNSET), ("s", UNSET), ("separated", 3)):
            log.open(dataset=name, run=run, min_separation=separation)
    for number in range(240):
        name, run = str(rng.choice(list(ERASING))), str(rng.choice(["r", "s", "separated"]))
        state, scale = log.ledger.state.runs[name, run], float(rng.choice([2.7, 5.0, 11.0]))
        about = {"dataset": name, "run": run}
        some = [users[i] for i in rng.choice(len(users), rng.integers(1, 15), replace=False)]
        kind = int(rng.integers(12))
        if kind == 0:
            dataset = [name, UNSET][rng.integers(2)]
            log.send(Erase(request=f"f{number}", user=some[0], dataset=dataset))
        elif kind == 1:
            log.send(log.records[-int(rng.integers(1, 4))])
        elif kind < 7 and run == "s":
            policies = log.ledger.state.policies.budgets(name).policies
            units = b"".join(prices(scale, p.measure, p.orders or None) for p in policies)
            log.enrol(users[: 5 + number // 20], **about)
            members = len(log.ledger.state.rosters.members[name, run])
            log.step(state.step + 1, units, members=members, **about)
        else:
            norms = rng.choice([0.0, 0.3, 1.0, np.e / 3], len(some))
            log.charge(state.step + 1, some, norms, scale, **about)
    log.audit()
    return log


def make_closed(seed: int) -> Log:
    """Datasets end in the midst of steps of their rosters, and of those within them."""
    rng = np.random.default_rng(600 + seed)
    log = RosterLog(partitions=3, partition=1)
    users = [u for u, p in enumerate(partitions_of(np.arange(60), 3)) if p == 1]
    for name, policy in NESTED.items():
        log.create(name, **policy)
        for run, separation in (("r", UNSET), ("separated", 3)):
            log.open(dataset=name, run=run, min_separation=separation)
    ends = {int(at): name for at, name in zip([40, 80, 100], [*NESTED][::-1], strict=False)}
    for number in range(120):
        name, run = str(rng.choice(list(NESTED))), str(rng.choice(["r", "separated"]))
        state, about = log.ledger.state.runs[name, run], {"dataset": name, "run": run}
        if number in ends:
            log.send(CloseDataset(dataset=ends[number], request=f"c{number}"))
        elif number % 20 == 19:
            log.create(name, **NESTED[name])
            log.open(dataset=name, run=run, attempt=0, request=f"o{number}")
            log.withdraw(name)
        elif run == "r" and rng.integers(2):
            log.enrol(users[:9], **about)
            log.step(state.step + 1, _chain_cost_table(name, 5.0), members=9, **about)
        else:
            norms = rng.choice([0.0, 0.3, 1.0], len(users))
            log.charge(state.step + 1, users, norms, 5.0, **about)
    log.audit()
    return log


ALLOWING = {
    "person": {"budget": 0.6, "allow": allowing(alice="charge", mary="manage")},
    "ads": {
        "measure": "gdp",
        "budget": 0.9,
        "parents": ["person"],
        "allow": allowing(anna="charge", mary="manage"),
    },
    "news": {"budget": 0.5, "parents": ["person"]},
    "open": {"budget": 0.4},
}


def make_signed(seed: int) -> Log:
    """Listed datasets, with keys that change; now and then a request is signed by a wrong key."""
    rng = np.random.default_rng(700 + seed)
    log = SignedLog(partitions=3, partition=1)
    users = [u for u, p in enumerate(partitions_of(np.arange(60), 3)) if p == 1]
    # dataset -> the keys that may charge and manage it
    keys = {"person": ("alice", "mary"), "ads": ("anna", "mary")}
    keys["news"] = keys["open"] = keys["person"]
    changes: list[bytes] = []
    for name, policy in ALLOWING.items():
        for key in ("alice", "mary"):
            with log.signing(key):
                log.create(name, **policy)
    for number in range(10, 190):
        name, kind = str(rng.choice(list(ALLOWING))), int(rng.integers(14))
        about, (charges, manages) = {"dataset": name}, keys[name]
        if kind == 0:
            charges = f"charges {number}"
            if rng.random() < 0.2:
                manages = f"manages {number}"
            allow = allowing(**{charges: "charge", manages: "manage"})
            if log.set(10 * number, allow, name, key=keys[name][1]) is None:
                changes.append(log.records[-1])
                keys[name] = charges, manages
                if name == "person" and ("news",) not in log.ledger.state.access:
                    keys["news"] = keys[name]
        elif kind == 1 and number % 2 and changes:
            log.send(changes[int(rng.integers(len(changes)))])
        elif kind == 1:
            log.send(log.records[-int(rng.integers(1, min(60, len(log.records))))])
        else:
            wrong = [{"key": "thief"}, {"partition": 0}, {"log": bytes(15) + b"1"}]
            how = wrong[int(rng.integers(3))] if kind == 3 else {}
            if rng.random() < 0.1:
                charges, manages = manages, charges
            with log.signing(**{"key": manages if kind in (5, 6) else charges, **how}):
                state = log.ledger.state.runs.get((name, "r"))
                if state is None or kind == 4:
                    log.open(attempt=0, request=f"o{number}", **about)
                elif kind == 5:
                    log.send(Erase(request=f"f{number}", user=users[number % 7], dataset=name))
                elif kind == 6 and number > 150:
                    log.send(CloseDataset(dataset=name, request=f"c{number}"))
                else:
                    norms = rng.choice([0.0, 0.3, 1.0], len(users))
                    last = state.step + 1, users, norms, 6.0
                    log.charge(*last, attempt=state.attempt, **about)
    log.audit()
    return log


MAKERS = {
    "measures": make_measures,
    "lifecycle": make_lifecycle,
    "rosters": make_rosters,
    "nested": make_nested,
    "clipped": make_clipped,
    "separated": make_separated,
    "erased": make_erased,
    "closed": make_closed,
    "signed": make_signed,
}


def recording_of(log: Log) -> Recording:
    """What is kept of a log."""
    spent = {
        name: [list(pair) for pair in log.spent(name).items()] for name in log.ledger.state.datasets
    }
    ledger = log.ledger
    outputs = [[_without_text(output) for output in published] for published in log.outputs]
    return Recording(
        ledger.state.partition,
        ledger.state.partitions,
        log.records,
        outputs,
        spent,
        ledger.chain.head,
        _state_in_the_middle(log),
    )


def _state_in_the_middle(log: Log) -> StoredState:
    """Return the state after three quarters of a log, merged after the first half."""
    again = Log(log.ledger.state.partitions, log.ledger.state.partition)
    half, quarters = len(log.records) // 2, 3 * len(log.records) // 4
    for record in log.records[:half]:
        again.send(record)
    state = again.ledger.state
    merged = {name: state.take_page(name) for name in state.unmerged()}
    for record in log.records[half:quarters]:
        again.send(record)
    pages = {name: page for name, page in merged.items() if page is not None}
    return StoredState(quarters, pages, again.changes[half:])


def _without_text(output: Output) -> Output:
    """Return an output without the text of a reject, which may be worded otherwise."""
    if output.channel is not Channel.REJECTS:
        return output
    rejected = msgspec.msgpack.decode(output.value, type=Rejected)
    value = encode(msgspec.structs.replace(rejected, detail=""))
    return msgspec.structs.replace(output, value=value)


if __name__ == "__main__":
    for name in sys.argv[1:] or MAKERS:
        recorded = recording_of(MAKERS[name](0))
        (HERE / f"{name}.msgpack").write_bytes(msgspec.msgpack.encode(recorded))
