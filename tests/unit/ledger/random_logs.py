"""Random logs with every kind of record, most of which are applied."""

import copy
from itertools import accumulate
from random import Random
from struct import pack
from typing import Any

from msgspec import UNSET, json

from streams.ledger import columns
from streams.ledger.ledger import Ledger
from streams.records import CloseDataset, CollectTerms, Erase, NormEvent, NormEvents, encode
from streams.records.users import partitions_of
from tests.keys import allowing
from tests.unit.ledger.ledgers import rebuilt
from tests.unit.ledger.roster_logs import LEVELS
from tests.unit.ledger.signed_logs import ALLOW, SignedLog

RENYI = {"measure": "renyi", "orders": [1.5, 4.0, 32.0]}
STEPS = {"measure": "steps", "budget": 4.0, "sampling_rate": 1.0, "noise_multiplier": 3.3}
ONE_RUN = {"assume_independent_timing": UNSET}
DATASETS: dict[str, dict[str, Any]] = {
    "plain": {"user_ids": "mixed"},
    "guarded": {"user_ids": "mixed", "allow": ALLOW},
    "clip": {"on_exhaustion": "clip", "user_ids": "one-kind"},
    "pure": {"measure": "pure-dp", "user_ids": "string"},
    "steps": {**STEPS, "user_ids": "integer"},
    "gdp": {"measure": "gdp", "user_ids": "mixed"},
    "own": {**RENYI, "per_user_order": True, "on_exhaustion": "clip", "user_ids": "mixed"},
    "outer": {**RENYI, "user_ids": "mixed"},
    "inner": {"parents": ["outer"], "on_exhaustion": "clip"},
    "sibling": {**RENYI, "per_user_order": True, "parents": ["outer"]},
    # Its charges come to the budget of "outer" in two ways.
    "joint": {"parents": ["gdp", "inner", "sibling"], "on_exhaustion": "clip"},
    "held": ONE_RUN,
    "within": {"parents": ["held"]},
    "parts": ONE_RUN,
    "part": {"share_of": "parts", **ONE_RUN},
    "rest": {"share_of": "parts", **ONE_RUN},
}
OFTEN = [*DATASETS, *(2 * list(DATASETS)[:11])]
"""The last five have one run at a time: most of what is asked of them is rejected."""
RUNS = {"roster": UNSET, "norms": UNSET, "apart": 3}
"""Every run of every dataset, with its minimum separation."""
USERS = [*range(20), 2**63 - 1, -3, *"5xyzuvw", "Zoë", "\U0001f9ee", "\U00011131\U00011127"]
LISTS = [ALLOW, allowing(anna="charge", mary="charge manage"), allowing(alice="charge manage")]
OPERATIONS = {
    "charge": 10.0,
    "step": 10.0,
    "enrol": 3.0,
    "open": 1.0,
    "repeat": 2.0,
    "erase": 0.5,
    "close": 0.3,
    "recreate": 0.3,
    "close_dataset": 0.05,
    "set_access": 0.3,
    "spoil": 0.5,
    "change_owner": 1.0,
}
OF_EVENTS = {"norm": 20.0, "norms": 4.0, "collected": 4.0}
"""Further operations of a log whose runs collect norms, in few datasets."""
COLLECTING = ["plain", "guarded", "own", "outer"]


class RandomLog:
    """A log that grows by records most of which are applied, under one owner after the other.

    If it ``collects``, the run events of each dataset, if ids are of a fixed kind, collects norms.
    """

    def __init__(
        self, seed: int, partitions: int = 1, partition: int = 0, kind=SignedLog, collects=False
    ) -> None:
        self.rng = Random(seed)
        self.runs = {**RUNS, "events": UNSET} if collects else RUNS
        self.operations = OPERATIONS | OF_EVENTS if collects else OPERATIONS
        self.delayed: list[NormEvent | NormEvents] = []
        self.log: SignedLog = kind(partitions, partition)
        homes = partitions_of(USERS, partitions).tolist()
        self.users = [user for user, home in zip(USERS, homes, strict=True) if home == partition]
        self.others = [user for user in USERS if user not in self.users]
        # A third of the logs has budgets that a sum of charges meets to the unit.
        self.is_tiny = seed % 3 == 0
        self.tables: dict[str, bytes] = {}
        for dataset in DATASETS:
            self._create(dataset)
        for dataset in DATASETS:
            with self.log.signing("alice" if dataset == "guarded" else None):
                self._open_all(dataset)

    def grow(self, records: int) -> SignedLog:
        """Append records until there are so many."""
        while len(self.log.records) < records:
            (kind,) = self.rng.choices(list(self.operations), list(self.operations.values()))
            dataset, key = self.rng.choice(COLLECTING if kind in OF_EVENTS else OFTEN), None
            if dataset == "guarded":
                manages = kind in ("erase", "recreate", "close_dataset")
                key = self.rng.choice([*["mary" if manages else "alice"] * 18, "eve", None])
            with self.log.signing(key):
                getattr(self, f"_{kind}")(dataset)
        return self.log

    def _create(self, dataset: str) -> None:
        policy = DATASETS[dataset]
        units = self.rng.randint(1, 50) if self.is_tiny else self.rng.randint(2**38, 2**42)
        if "share_of" in policy:
            units = units // 4 + 1
        budget = [order * units / 2**44 for order in policy.get("orders", [1.0])]
        self.log.create(dataset, **{"budget": budget, **policy})

    def _open_all(self, dataset: str) -> None:
        for run, separation in self.runs.items():
            fields = {"min_separation": separation, "take_over": True}
            if run == "events":
                mechanism = "laplace" if dataset == "pure" else "gaussian"
                fields["collect"] = CollectTerms(clip_norm=1.0, mechanism=mechanism)
            self.log.open(dataset, run, **fields)
        self._enrol(dataset)

    def _about(self, dataset: str, run: str) -> dict[str, Any]:
        state = self.log.ledger.state.runs.get((dataset, run))
        return {"dataset": dataset, "run": run, "attempt": state.attempt if state else 1}

    def _next_step(self, dataset: str, run: str) -> int:
        state = self.log.ledger.state.runs.get((dataset, run))
        return max(0, (state.step if state else -1) + self.rng.choice([1] * 15 + [0, 2]))

    def _mechanism(self, dataset: str) -> dict[str, Any]:
        usual = "laplace" if dataset == "pure" else "gaussian"
        name = self.rng.choice([usual] * 18 + ["laplace", "pure-dp"])
        return {"scale": self.rng.choice([0.7, 4.0, 4.0, 300.0]), "mechanism": name}

    def _size(self) -> float:
        # With noise of 4, a norm of 2**-18 costs 8 units of zCDP.
        sizes = (0.0, 2**-19.5, 2**-18, 2**-16) if self.is_tiny else (0.0, 0.1, 0.25, 1.0)
        return self.rng.choice(sizes) * self.rng.choice([1.0, 1.0, self.rng.random()])

    def _charge(self, dataset: str) -> None:
        run = self.rng.choice(["norms", "norms", "apart"])
        users = self.rng.sample(self.users, min(len(self.users), self.rng.choice([0, 1, 3, 6])))
        if self.rng.random() < 0.05:
            users += self.rng.choice([users[:1], ["e\u0308"]])  # twice, or not in normal form
        fields = {**self._mechanism(dataset), "reserve": self.rng.choice([0.0, 0.0, 0.3])}
        fields["clip_norm"] = (None, 1.0)[len(self.log.records) % 2]
        norms = [self._size() for _ in users]
        about = self._about(dataset, run)
        self.log.charge(self._next_step(dataset, run), users, norms, **fields, **about)

    def _event(self, dataset: str) -> dict[str, Any]:
        """Return what most norm events of a dataset have, for a step that may be decided."""
        about = self._about(dataset, "events")
        attempt = self.rng.choice([UNSET] * 8 + [about["attempt"]] * 4 + [1, 2, 3])
        step = self._next_step(dataset, "events") + self.rng.choice([0, 0, 0, 1])
        return {**about, "attempt": attempt, "step": step}

    def _any_user(self) -> Any:
        is_here = not self.others or self.rng.random() < 0.95
        return self.rng.choice(self.users if is_here else self.others)

    def _arrive(self, event: NormEvent | NormEvents) -> None:
        """Send an event once or twice, or later and after others."""
        times = self.rng.choice([0, 1, 1, 1, 1, 2])
        if not times:
            self.delayed.append(event)
        if self.delayed and self.rng.random() < 0.1:
            self.delayed.append(event)
            event = self.delayed.pop(self.rng.randrange(len(self.delayed)))
        encoded = self.rng.choice([encode, json.encode])
        for _ in range(times):
            self.log.send(encoded(event))

    def _norm(self, dataset: str) -> None:
        event = self._event(dataset)
        self._arrive(NormEvent(**event, user=self._any_user(), norm=self._size()))

    def _norms(self, dataset: str) -> None:
        users = [self._any_user() for _ in range(self.rng.choice([0, 1, 3, 6]))]
        if self.rng.random() < 0.1:
            users.append("e\u0308")
        norms = [self._size() for _ in users]
        self._arrive(NormEvents(**self._event(dataset), users=users, norms=norms))

    def _collected(self, dataset: str) -> None:
        fields = {**self._mechanism(dataset), "reserve": self.rng.choice([0.0, 0.0, 0.3])}
        if self.rng.random() < 0.9:  # else the step is given up
            fields["collected"] = True
        users = self.users[:1] if self.rng.random() < 0.05 else []
        about = self._about(dataset, "events")
        step = self._next_step(dataset, "events")
        self.log.charge(step, users, [0.1] * len(users), **fields, **about)

    def _members(self, dataset: str) -> int:
        return len(self.log.ledger.state.rosters.members.get((dataset, "roster"), ()))

    def _enrol(self, dataset: str) -> None:
        members = self._members(dataset)
        kind = {"pure": str, "steps": int, "held": int, "parts": int}.get(dataset, int | str)
        users = [user for user in self.users if isinstance(user, kind)]
        first = self.rng.choice([members, members, 0])
        last = members + self.rng.choice([0, 1, 3])
        others = 2 if self.rng.random() < 0.1 else 0  # of whom some are enrolled elsewhere
        run = self.rng.choice(["roster"] * 19 + ["apart"])
        self.log.enrol(users[first + others : last], first, **self._about(dataset, run))

    def _step(self, dataset: str) -> None:
        members, table = self._members(dataset), self.tables.get(dataset, b"")
        is_dense = self.rng.random() < 0.2
        rows = sorted(self.rng.sample(range(members), self.rng.randint(0, members)))
        levels = [self.rng.randint(0, LEVELS) for _ in (range(members) if is_dense else rows)]
        units = b"" if table and self.rng.random() < 0.6 else self._cost_table(dataset)
        self.log.units["roster"] = self.tables[dataset] = units or table
        positions = [] if is_dense else rows
        step = self._next_step(dataset, "roster")
        fields = self._mechanism(dataset) | self._about(dataset, "roster")
        self.log.step(step, units, members, positions, levels, **fields)

    def _cost_table(self, dataset: str) -> bytes:
        """Return rising prices of every level under every budget that counts."""
        state, table = self.log.ledger.state, list[int]()
        policies = state.policies.budgets(dataset).policies if dataset in state.datasets else []
        for policy in policies:
            rises = [
                [0, *(self.rng.choice([0, 0, 1, budget // 40]) for _ in range(LEVELS))]
                for budget in policy.budget
            ]
            prices = zip(*map(accumulate, rises), strict=True)
            table += [price for level in prices for price in level]
        return pack(f"<{len(table)}q", *table)

    def _open(self, dataset: str) -> None:
        run = self.rng.choice(list(self.runs))
        fields = {"take_over": True} if self.rng.random() < 0.7 else {}
        separation = self.rng.choice([*[self.runs[run]] * 3, 2])
        attempt = self._about(dataset, run)["attempt"]
        attempt = self.rng.choice([0, 0, 0, attempt, attempt + 5, attempt - 1])
        request = self.rng.choice("tuv")
        self.log.open(dataset, run, attempt, request, min_separation=separation, **fields)

    def _repeat(self, _: str) -> None:
        self.log.send(self.log.records[-self.rng.randint(1, 5)])

    def _erase(self, dataset: str) -> None:
        where = self.rng.choice([dataset, UNSET])
        self.log.send(Erase(request="e", user=self.rng.choice(self.users), dataset=where))

    def _close(self, dataset: str) -> None:
        self.log.close(**self._about(dataset, self.rng.choice(list(self.runs))))

    def _recreate(self, dataset: str) -> None:
        for name in (dataset, "spare"):  # the first is in use
            self.log.withdraw(name)
        self._create(dataset)
        self.log.create("spare", self.rng.random())
        if self.rng.random() < 0.1:
            self.log.open("spare")

    def _close_dataset(self, dataset: str) -> None:
        self.log.send(CloseDataset(dataset=dataset, request="c"))

    def _set_access(self, _: str) -> None:
        key = self.rng.choice(["mary", "mary", "mary", "alice"])
        number = max(0, len(self.log.records) - self.rng.choice([0, 0, 200]))
        self.log.set(number, self.rng.choice(LISTS), "guarded", key=key)

    def _spoil(self, _: str) -> None:
        self.log.send(self.rng.choice([None, b"{", b"\xc1", b'{"v":9}', b'{"type":"enrol"}']))

    def _change_owner(self, _: str) -> None:
        state, ledger = self.log.ledger.state, self.log.ledger
        again = rebuilt(self.log.changes, state.partitions, state.partition)
        assert stored(again) == stored(ledger)
        self.log.hand_over(again)


def stored(ledger: Ledger) -> dict[str, list[bytes | None]]:
    """Return the pages of accounts and of members; the ledger still counts them as changed."""
    state = copy.deepcopy(ledger.state)
    holders = {**state.datasets, **state.rosters.rows}
    return {
        name: [held.take_page(number) for number in range(-(-len(held) // columns.PAGE_ROWS))]
        for name, held in holders.items()
    }
