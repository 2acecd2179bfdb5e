"""New datasets, and what comes of those that come from another log with what was spent there."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from tests.audit.auditor_accounts import Account, Dataset
from tests.audit.auditor_charges import Charges
from tests.audit.auditor_forgotten import fingerprint_of, public_key
from tests.audit.auditor_moved import accounts_of, arrival_of, is_the_same, keys_of, with_part
from tests.audit.auditor_requests import NOT_GIVEN, Rejection, numbers_of
from tests.audit.auditor_state import Place


class Stopped(Exception):
    """The log is of another number of partitions: nothing more is applied."""


class Arrivals(Charges):
    """Has new datasets, and takes in what comes with them."""

    def _check_policy(self, partition: int, request: dict[str, Any]) -> list[Dataset]:
        """Check a policy by itself, and what those allow that it is within: these."""
        policy = request["policy"]
        orders, count = policy["orders"], 1
        clips, says_so = policy["on_exhaustion"] == "clip", policy["own_exhaustion"] is True
        if policy["measure"] == "renyi":
            count = len(orders)
        wrong = (
            bool(orders) != (policy["measure"] == "renyi")
            or (policy["own_order"] is True and policy["measure"] != "renyi")
            or (policy["measure"] == "pure-dp" and policy["on_exhaustion"] == "clip")
            or (policy["within"] is not NOT_GIVEN and clips and not says_so)
            or (policy["within"] is NOT_GIVEN and says_so)
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
                or (any(outer.policy["on_exhaustion"] == "clip" for outer in chain) and not says_so)
                or (clips and any(outer.measure == "pure-dp" for outer in chain))
                or kinds is NOT_GIVEN
                or policy["user_ids"] not in (NOT_GIVEN, kinds)
                or policy["pseudonyms"] != chain[0].policy["pseudonyms"]
                or (
                    policy["allow"] is not NOT_GIVEN
                    and all(outer.policy["allow"] is NOT_GIVEN for outer in chain)
                )
            ):
                raise Rejection("invalid-policy")
        if policy["partitions"] != self.partitions:
            if not self._has_had_datasets[partition]:
                self._check_creation(partition, chain, request)
                raise Stopped
            raise Rejection("invalid-policy")
        return chain

    def _check_creation(
        self, partition: int, chain: list[Dataset], request: dict[str, Any]
    ) -> None:
        """Whether who asks may create a dataset within these."""
        outer = [dataset.policy for dataset in chain]
        self.known[partition].check_creation(outer, request["sender"])

    def _receive(self, place: Place, request: dict[str, Any]) -> dict[str, Any]:
        partition, _ = place
        policy, arrivals = request["policy"], self.arrivals[partition]
        name = policy["dataset"]
        chain = self._check_policy(partition, request)
        if name not in self.datasets[partition]:
            if policy["within"] is not NOT_GIVEN and not chain:
                raise Rejection("unknown-dataset")
            self._check_creation(partition, chain, request)
            around = arrivals.get(policy["within"]) if chain else None
            if chain and (
                around is None
                or around.said["origin"] != request["origin"]
                or self._has_arrived(partition, policy["within"])
            ):
                raise Rejection("dataset-moving")
            arrival = arrival_of(request, partition)
            self._check_keys(partition, request["erasure"])
            arrivals[name] = arrival
            self._has_had_datasets[partition] = True
            self.datasets[partition][name] = Dataset(policy, is_closed=request["closed"])
            self.names[partition].other_keys += keys_of(request)
            return self._received(place, request, name)
        policies = [dataset.policy for dataset in self._chain(partition, name)]
        self.known[partition].check_request(policies, request)
        if name not in arrivals or not is_the_same(arrivals[name], request):
            raise Rejection("dataset-moving")
        return self._received(place, request, name)

    def _check_keys(self, partition: int, keys: list[dict[str, Any]]) -> None:
        """Whether keys are what they are said to be, and names by them few enough to look at."""
        names = self.names[partition]
        highest = dict(names.highest)
        for key in keys:
            topic = key.get("topic", "")
            if topic and fingerprint_of(public_key(bytes.fromhex(topic))) != key["fingerprint"]:
                raise Rejection("invalid-balances")
            at = key["fingerprint"], topic
            highest[at] = max(key["highest"], highest.get(at, 0))
        if sum(number + 1 for number in highest.values()) > 4096:
            raise Rejection("invalid-balances")
        names.highest = highest

    def _take(self, place: Place, request: dict[str, Any]) -> dict[str, Any]:
        partition, _ = place
        name, arrivals = request["dataset"], self.arrivals[partition]
        dataset, *outer = self._chain(partition, name)
        if name not in arrivals:
            raise Rejection("dataset-moving")
        after = with_part(arrivals[name], request)
        users = numbers_of(request["users"], "q")
        self._check_number(users)
        accounts = accounts_of(request, dataset)
        if (
            request["forgotten"]
            and not outer
            and any(any(dataset.left(account)) for account in accounts.values())
        ):
            raise Rejection("invalid-balances")
        if any(accounts.keys() - other.accounts.keys() for other in outer):
            raise Rejection("invalid-balances")
        for user in accounts if outer else []:
            if (user in self.names[partition].of(outer[-1])) != request["forgotten"]:
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
