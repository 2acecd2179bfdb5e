"""The log applied once more, in rational arithmetic, and what the service must agree with.

It shares no code with the worker: records are decoded to plain dictionaries, costs are fractions,
users stand in dictionaries. ``Auditor`` applies `norms`; ``tests.audit.comparison`` holds what the
workers wrote against it. What a charge comes to is in ``tests.audit.auditor_charges``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import msgspec

from tests.audit.auditor_access import check_list
from tests.audit.auditor_accounts import Dataset
from tests.audit.auditor_collecting import check_collect
from tests.audit.auditor_erasure import keyed_hash, renamed, spend_the_rest
from tests.audit.auditor_policies import Policies, Suspended
from tests.audit.auditor_requests import NOT_GIVEN, POLICY, Rejection, User, read
from tests.audit.auditor_state import Place, RunState, home, next_link, outermost_of
from tests.audit.log import Log
from tests.audit.published import frozen, granted_norms

_MOST_DATASETS = 2**16
_MOST_OF_NAMES = 990_000
"""The maximum size of their names, with 3 bytes more for each."""


class Auditor(Policies):
    """Applies all requests."""

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
        if partition in self.suspended:
            return
        place, request, answer = (partition, offset), None, None
        try:
            request = read(value)
            self._check_live(partition, request)
            self._check_allowed(partition, request)
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
                case "erase":
                    answer = self._erase(place, request)
                case "set-access":
                    answer = self._set_access(place, request)
                case "retire":
                    answer = self._retire(place, request)
                case "import":
                    if self.chains[partition][2] < 0:
                        raise Suspended
                    raise Rejection("log-changed")
                case "norm" | "norms":
                    self.event_rejects[place] = self._collect(partition, request)
                    self.addresses[place] = self._address(partition, request)
                case _:
                    answer = self._charge(place, request, witnesses)
            if answer is not None:
                self.answers[frozen(answer)] = None
        except Rejection as rejection:
            request = request or rejection.request or {}
            is_hidden = self._names_erased(partition, request)
            address = self._address(partition, request)
            self.rejects[place] = str(rejection), b"" if is_hidden else value or b""
            user = request.get("user") if request.get("type") == "norm" and not is_hidden else None
            self.addresses[place] = {**address, "user": user}
            if str(rejection) == "budget-held":
                self.addresses[place]["holder"] = self._holder(partition, address)
        except Suspended:
            self.suspended[partition] = offset
            return
        self.chains[partition] = next_link(self.chains[partition][0], offset, value)

    def _address(self, partition: int, request: dict[str, Any]) -> dict[str, Any]:
        names = "dataset", "run", "attempt", "step", "request"
        given = {name: value for name, value in request.items() if value is not NOT_GIVEN}
        address = {name: given.get(name) for name in names}
        if "policy" in request:
            address["dataset"] = request["policy"]["dataset"]
        run = self.runs[partition].get((address["dataset"], address["run"]))
        return {**address, "current_attempt": run and run.attempt, "holder": None}

    def _check_allowed(self, partition: int, request: dict[str, Any]) -> None:
        """Whether who asks may; not of datasets that are not there, nor of creating one."""
        if request["type"] in ("set-access", "import"):
            return
        datasets, name = self.datasets[partition], request.get("dataset", NOT_GIVEN)
        about = [] if name is NOT_GIVEN else [name]
        if request["type"] == "retire":
            about = sorted(datasets)
        elif request["type"] == "erase":
            families = self._families_of(partition, request)
            about = sorted({each for family in families for each in family})
            if name is NOT_GIVEN and about:
                if not any(self._may_erase(partition, each, request) for each in families):
                    raise Rejection("not-allowed")
                return
        for each in about:
            if each in datasets:
                self.access[partition].check_request(self._lists(partition, each), request)

    def _may_erase(self, partition: int, family: list[str], request: dict[str, Any]) -> bool:
        """Return whether the sender may manage all outermost datasets of a family."""
        try:
            for name in family:
                self.access[partition].check_request(self._lists(partition, name), request)
        except Rejection:
            return False
        return True

    def _families_of(self, partition: int, request: dict[str, Any]) -> list[list[str]]:
        """Return the outermost datasets of each family in which a user is to be erased."""
        datasets, name = self.datasets[partition], request["dataset"]
        names = [name] if name in datasets else []
        if name is NOT_GIVEN:
            key = request["pseudonyms"]
            names = [n for n, dataset in datasets.items() if dataset.policy["pseudonyms"] == key]
        found: list[list[str]] = []
        for each in names:  # which grows by the shares
            family = outermost_of(self._family(partition, each))
            outermost = [dataset.policy["dataset"] for dataset in family]
            if each == name:
                names += [share for one in outermost for share in self._shares(partition, one)]
            found += [outermost] if outermost not in found else []
        return found

    def _check_live(self, partition: int, request: dict[str, Any]) -> None:
        retired = self.retired.get(partition)
        if retired not in (None, request.get("successor")):
            raise Rejection("log-retired")

    def _retire(self, place: Place, request: dict[str, Any]) -> dict[str, Any]:
        partition, offset = place
        if partition not in self.retired and request["agreement"] != self._agreement(partition):
            raise Rejection("log-changed")
        for run in self.runs[partition].values():
            run.end()
        self._release(partition, list(self.runs[partition]))
        self.retired[partition] = request["successor"]
        return {
            "type": "log-retired",
            "v": request["v"],
            "request": request["request"],
            "partition": partition,
            "offset": offset,
            "successor": request["successor"],
        }

    def _agreement(self, partition: int) -> bytes:
        """The digest of what has to be the same in all partitions."""
        datasets, access = sorted(self.datasets[partition].items()), self.access[partition]
        policies = [
            [
                [name],
                {field: value for field in POLICY if (value := d.policy[field]) is not NOT_GIVEN},
            ]
            for name, d in datasets
        ]
        closed = [[name] for name, dataset in datasets if dataset.is_closed]
        lists = [
            [[name], [one.log, access.numbers.get(name, 0), _allow(one.rights)]]
            for name, one in sorted(access.lists.items())
        ]
        return hashlib.sha256(msgspec.msgpack.encode([policies, closed, lists])).digest()

    def _set_access(self, place: Place, request: dict[str, Any]) -> dict[str, Any]:
        partition, offset = place
        check_list(request["allow"])
        self._dataset(partition, request["dataset"])
        self.access[partition].change(self._lists(partition, request["dataset"]), request)
        return {
            "type": "access-set",
            "v": request["v"],
            "dataset": request["dataset"],
            "request": request["request"],
            "partition": partition,
            "offset": offset,
            "number": request["number"],
        }

    def _create(self, place: Place, request: dict[str, Any]) -> dict[str, Any]:
        partition, offset = place
        policy = request["policy"]
        chain = self._check_policy(partition, request)
        known = self.datasets[partition].get(policy["dataset"])
        unsaid = policy["user_ids"] is NOT_GIVEN
        whole = self.datasets[partition].get(policy["share_of"]) if known is None else None
        parents = [] if policy["parents"] is NOT_GIVEN else policy["parents"]
        if known is None and parents and not chain:
            raise Rejection("unknown-dataset")
        if known is None and policy["share_of"] is not NOT_GIVEN and whole is None:
            raise Rejection("unknown-dataset")
        if whole is not None:
            chain = [whole]
        if known is None:
            self._check_creation(partition, request)
        if known is None and any(one.is_closed for one in chain[: len(parents) or 1]):
            raise Rejection("dataset-closed")
        names = self.datasets[partition].keys() | self.access[partition].numbers.keys()
        is_new = policy["dataset"] not in names
        if known is None and is_new and len(names) >= _MOST_DATASETS:
            raise Rejection("too-large")
        if known is None and sum(len(n) + 3 for n in names | {policy["dataset"]}) > _MOST_OF_NAMES:
            raise Rejection("too-large")
        if known is None and any(self._shares(partition, parent) for parent in parents):
            raise Rejection("dataset-shared")
        if whole is not None:
            self._check_share(partition, policy, whole)
        if known is None:
            self._check_families(partition, parents)
        self._has_had_datasets[partition] = True
        if known is None:
            kinds = chain[0].policy["user_ids"] if chain else "one-kind"
            stored = {**policy, "user_ids": kinds} if unsaid else policy
            known = self.datasets[partition][policy["dataset"]] = Dataset(stored)
            self.access[partition].create(request)
        elif known.policy != ({**policy, "user_ids": known.kinds} if unsaid else policy):
            raise Rejection("policy-changed")
        self.access[partition].check_known(request)
        if known.is_closed:
            raise Rejection("dataset-closed")
        return {
            "type": "dataset-created",
            "v": 1,
            "request": request["request"],
            "partition": partition,
            "offset": offset,
            "policy": known.policy,
        }

    def _withdraw(self, place: Place, request: dict[str, Any]) -> dict[str, Any]:
        partition, offset = place
        name = request["dataset"]
        dataset = self.datasets[partition].get(name)
        if dataset is not None and dataset.is_closed:
            raise Rejection("dataset-closed")
        if any(dataset == name for dataset, _ in self.runs[partition]):
            raise Rejection("dataset-in-use")
        if any(name in self._parents(partition, other) for other in self.datasets[partition]):
            raise Rejection("dataset-in-use")
        if self._shares(partition, name):
            raise Rejection("dataset-in-use")
        self.datasets[partition].pop(name, None)
        self.access[partition].withdraw(name)
        return {
            "type": "dataset-withdrawn",
            "v": request["v"],
            "dataset": name,
            "request": request["request"],
            "partition": partition,
            "offset": offset,
        }

    def _open(self, place: Place, request: dict[str, Any]) -> dict[str, Any]:
        partition, _ = place
        dataset, *outer = self._open_chain(partition, request["dataset"])
        attempt, token = request["attempt"], request["request"]
        if self._shares(partition, request["dataset"]):
            raise Rejection("dataset-shared")
        known = (request["dataset"], request["run"]) in self.runs[partition]
        run = self.runs[partition].get((request["dataset"], request["run"])) or RunState(0, "")
        confirms = request.get("confirms", NOT_GIVEN)
        if confirms is not NOT_GIVEN and (not known or request["attempt"] > run.attempt):
            raise Rejection("unknown-run")
        if run.closed:
            raise Rejection("run-closed")
        if attempt == 0:
            attempt = run.attempt + (token != run.request)
        if confirms is not NOT_GIVEN:
            token, attempt = confirms, request["attempt"]
        if attempt < run.attempt or (attempt == run.attempt and token != run.request):
            raise Rejection("older-attempt")
        asked = request.get("min_separation", NOT_GIVEN)
        is_charged = attempt == run.attempt or run.step >= 0 or run.roster is not None
        if asked not in (NOT_GIVEN, run.separation) and is_charged:
            raise Rejection("separation-changed")
        chain, name = [dataset, *outer], (request["dataset"], request["run"])
        lacking = self._not_held(partition, chain, name)
        is_new = not known or attempt > run.attempt
        takes_over = request.get("take_over") is True
        if lacking and (not is_new or (any(lacking.values()) and not takes_over)):
            raise Rejection("budget-held")
        collect = check_collect(chain, request["collect"], run.collect, is_charged)
        if collect != run.collect:
            run.collected = {}
        self.holders[partition] |= dict.fromkeys(lacking, name)
        if asked is not NOT_GIVEN:
            run.separation = asked
        run.attempt, run.request, run.collect = attempt, token, collect
        self.runs[partition][name] = run
        return {
            **self._about_run(place, request, run),
            "type": "run-opened",
            "policy": dataset.policy,
            **({"outer": [dataset.policy for dataset in outer]} if outer else {}),
            **({"min_separation": run.separation} if run.separation else {}),
            **({"collect": collect} if collect else {}),
        }

    def _close(self, place: Place, request: dict[str, Any]) -> dict[str, Any]:
        self._dataset(place[0], request["dataset"])
        run = self._run(place[0], request)
        if request["attempt"] < run.attempt:
            raise Rejection("older-attempt")
        run.end()
        self._release(place[0], [(request["dataset"], request["run"])])
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
        shares = self._shares(partition, name)
        if not all(datasets[share].is_closed for share in shares):
            raise Rejection("dataset-shared")
        for inner in closed:
            datasets[inner].is_closed = True
        ended = [name for name in self.runs[partition] if name[0] in closed]
        for address in ended:
            self.runs[partition][address].end()
        self._release(partition, ended)
        return {
            "type": "dataset-closed",
            "v": request["v"],
            "dataset": name,
            "request": request["request"],
            "partition": partition,
            "offset": offset,
            "datasets": closed,
        }

    def _erase(self, place: Place, request: dict[str, Any]) -> dict[str, Any]:
        partition, offset = place
        user = request["user"]
        if request["dataset"] is not NOT_GIVEN:
            named = self._dataset(partition, request["dataset"])
            if named.policy["pseudonyms"] != request["pseudonyms"]:
                raise Rejection("mixed-users")
        families = self._families_of(partition, request)
        if home(user, self.partitions) != partition:
            raise Rejection("wrong-partition")
        erased = []
        allowed = [each for each in families if self._may_erase(partition, each, request)]
        for outermost in allowed:
            family = self._family(partition, outermost[0])
            erased += self._erase_in(place, family, user, request["hidden"])
        return {
            "type": "erased",
            "v": request["v"],
            "request": request["request"],
            "partition": partition,
            "offset": offset,
            "datasets": sorted(erased),
            "not_allowed": sorted(n for each in families if each not in allowed for n in each),
        }

    def _erase_in(self, place: Place, family: list[Dataset], user: User, hidden: bool) -> list[str]:
        names = self.names[place[0]]
        inside = {dataset.policy["dataset"] for dataset in family}
        for (name, _), run in self.runs[place[0]].items():
            for collection in run.collected.values() if name in inside else ():
                collection.erase(user)
        (known,) = names.known_as([user], family)
        there = [dataset for dataset in family if known in dataset.accounts]
        if known == user and there:
            for dataset in outermost_of(there):
                spend_the_rest(dataset, dataset.accounts[user])
            name = keyed_hash(user, hidden)
            names.ids[name] = user
            for dataset in there:
                dataset.accounts = renamed(dataset.accounts, user, name)
                self.tombstones[dataset.policy["dataset"], user] = place
            for (dataset_name, _), run in self.runs[place[0]].items():
                if dataset_name in inside:
                    run.rename(user, name)
        return [dataset.policy["dataset"] for dataset in there]


def _allow(rights: Mapping[bytes, Any]) -> list[dict[str, Any]]:
    return [{"key": key, "rights": given} for key, given in rights.items()]
