"""Which policies a dataset can have, and who may create it."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from tests.audit.auditor_accounts import Dataset
from tests.audit.auditor_collecting import Collecting
from tests.audit.auditor_requests import NOT_GIVEN, Rejection


class Suspended(Exception):
    """The log is of another number of partitions: nothing more is applied."""


class Policies(Collecting):
    """Checks the policies of new datasets."""

    def _check_policy(self, partition: int, request: dict[str, Any]) -> list[Dataset]:
        """Check a policy by itself, and what those allow that it is within: these."""
        policy = request["policy"]
        orders, count = policy["orders"], 1
        parents = [] if policy["parents"] is NOT_GIVEN else policy["parents"]
        clips = policy["on_exhaustion"] == "clip"
        if policy["measure"] == "renyi":
            count = len(orders)
        wrong = (
            bool(orders) != (policy["measure"] == "renyi")
            or (policy["per_user_order"] is True and policy["measure"] != "renyi")
            or (policy["measure"] in ("pure-dp", "steps") and clips)
            or any(
                (policy[name] is NOT_GIVEN) != (policy["measure"] != "steps")
                for name in ("sampling_rate", "noise_multiplier")
            )
            or policy["dataset"] in (*parents, policy["share_of"])
            or any(low >= high for low, high in pairwise(parents))
            or NOT_GIVEN not in (policy["parents"], policy["share_of"])
            or NOT_GIVEN not in (policy["parents"], policy["assume_independent_timing"])
            or not all(1 < order <= 2**40 for order in orders)
            or any(low >= high for low, high in pairwise(orders))
            or len(policy["budget"]) != count
            or len(policy["odometer_step"]) != count
        )
        if wrong:
            raise Rejection("invalid-policy")
        known = [name for name in parents if name in self.datasets[partition]]
        around = [bool(self._lists(partition, name)) for name in known]
        self.access[partition].check_new(request, around)
        chain = []
        if parents and known == parents:
            chain = self._chain(partition, *parents)
            kinds = {outer.policy["user_ids"] for outer in chain}
            if (
                len(chain) >= 8
                or (clips and any(outer.measure in ("pure-dp", "steps") for outer in chain))
                or len(kinds) > 1
                or policy["user_ids"] not in (NOT_GIVEN, *kinds)
                or any(policy["pseudonyms"] != outer.policy["pseudonyms"] for outer in chain)
            ):
                raise Rejection("invalid-policy")
        if policy["partitions"] != self.partitions:
            if not self._has_had_datasets[partition]:
                raise Suspended
            raise Rejection("invalid-policy")
        return chain

    def _check_creation(self, partition: int, request: dict[str, Any]) -> None:
        """Check that the signer may create a dataset inside these, or as a share."""
        policy = request["policy"]
        parents = [] if policy["parents"] is NOT_GIVEN else policy["parents"]
        for name in (*parents, policy["share_of"]):
            self.access[partition].check(self._lists(partition, name), "manage", request["sender"])

    def _check_families(self, partition: int, parents: list[str]) -> None:
        """Check that at most one of the families that a dataset joins was ever charged."""
        used = set()
        for name in parents:
            family = [dataset.policy["dataset"] for dataset in self._family(partition, name)]
            if any(dataset in family for dataset, _ in self.runs[partition]):
                used.add(tuple(family))
        if len(used) > 1:
            raise Rejection("invalid-policy")
