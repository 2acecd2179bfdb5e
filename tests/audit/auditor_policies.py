"""Which policies a dataset can have, and who may create it."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from tests.audit.auditor_accounts import Dataset
from tests.audit.auditor_charges import Charges
from tests.audit.auditor_requests import NOT_GIVEN, Rejection


class Suspended(Exception):
    """The log is of another number of partitions: nothing more is applied."""


class Policies(Charges):
    """Checks the policies of new datasets."""

    def _check_policy(self, partition: int, request: dict[str, Any]) -> list[Dataset]:
        """Check a policy by itself, and what those allow that it is within: these."""
        policy = request["policy"]
        orders, count = policy["orders"], 1
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
            or policy["dataset"] in (policy["parent"], policy["share_of"])
            or NOT_GIVEN not in (policy["parent"], policy["share_of"])
            or NOT_GIVEN not in (policy["parent"], policy["assume_independent_timing"])
            or not all(1 < order <= 2**40 for order in orders)
            or any(low >= high for low, high in pairwise(orders))
            or len(policy["budget"]) != count
            or len(policy["odometer_step"]) != count
        )
        if wrong:
            raise Rejection("invalid-policy")
        around = self._lineage(partition, policy["parent"])
        self.access[partition].check_new(request, around)
        chain = []
        if policy["parent"] in self.datasets[partition]:
            chain = self._chain(partition, policy["parent"])
            kinds = chain[0].policy["user_ids"]
            if (
                len(chain) >= 8
                or (clips and any(outer.measure in ("pure-dp", "steps") for outer in chain))
                or policy["user_ids"] not in (NOT_GIVEN, kinds)
                or policy["pseudonyms"] != chain[0].policy["pseudonyms"]
            ):
                raise Rejection("invalid-policy")
        if policy["partitions"] != self.partitions:
            if not self._has_had_datasets[partition]:
                raise Suspended
            raise Rejection("invalid-policy")
        return chain

    def _check_creation(self, partition: int, request: dict[str, Any]) -> None:
        """Check that the signer may create a dataset inside these, or as a share."""
        for parent in (request["policy"]["parent"], request["policy"]["share_of"]):
            lineage = self._lineage(partition, parent)
            self.access[partition].check(lineage, "manage", request["sender"])
