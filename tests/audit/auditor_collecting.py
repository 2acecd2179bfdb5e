"""Norm events: which of them count for a step, and which runs collect them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tests.audit.auditor_accounts import Dataset
from tests.audit.auditor_charges import Charges, check_clipped, check_mechanism, check_number
from tests.audit.auditor_requests import (
    NOT_GIVEN,
    Rejection,
    User,
    is_normal,
    is_reserved,
    normalised,
    numbers_of,
)
from tests.audit.auditor_state import Collection, RunState, home

_STEPS_AHEAD = 2
"""Norms are collected for so many steps after the last one."""
_MOST_EVENTS = 2**16
"""The maximum number of norms in one record."""


class Collecting(Charges):
    """Collects the norm events of all partitions."""

    def _collect(
        self, partition: int, request: dict[str, Any]
    ) -> list[tuple[str, dict[str, Any] | None, User | None]]:
        """Collect norms; return the reason, the event and the user of each that does not count.

        A record with one event is rejected as a whole.
        """
        chain = self._open_chain(partition, request["dataset"])
        attempt = request["attempt"]
        run = self._run(partition, {**request, "attempt": 1 if attempt is NOT_GIVEN else attempt})
        if run.closed:
            raise Rejection("run-closed")
        if attempt is not NOT_GIVEN and attempt < run.attempt:
            raise Rejection("older-attempt")
        if request["step"] > run.step + _STEPS_AHEAD:
            raise Rejection("step-out-of-order")
        if run.collect is None:
            raise Rejection("not-collecting")
        if request["step"] <= run.step:
            raise Rejection("step-decided")
        if request["type"] == "norm":
            self._count(partition, chain, run, request, request["user"], request["norm"])
            return []
        users, norms = numbers_of(request["users"], "q"), numbers_of(request["norms"], "d")
        if len(users) > _MOST_EVENTS:
            raise Rejection("too-large")
        if len(users) != len(norms):
            raise Rejection("length-mismatch")
        rejects: list[tuple[str, dict[str, Any] | None, User | None]] = []
        names = "v", "dataset", "run", "step", "attempt", "pseudonyms"
        about = {name: request[name] for name in names if request[name] is not NOT_GIVEN}
        for user, norm in zip(users, norms, strict=True):
            try:
                self._count(partition, chain, run, request, user, norm)
            except Rejection as rejection:
                event = {**about, "type": "norm", "user": user, "norm": norm}
                is_hidden = self._names_erased(partition, event)
                rejects.append((str(rejection), *((None, None) if is_hidden else (event, user))))
        return rejects

    def _names_erased(self, partition: int, request: dict[str, Any]) -> bool:
        """Return whether a norm event names an erased user, whom no output names."""
        is_event = request.get("type") in ("norm", "norms")
        if not is_event or request["dataset"] not in self.datasets[partition]:
            return False
        if request["type"] == "norm":
            users = [request["user"]]
        elif isinstance(packed := request["users"], bytes):
            users = numbers_of(packed[: len(packed) // 8 * 8], "q")
        else:
            users = packed
        names = list(map(normalised, users))
        chain = self._chain(partition, request["dataset"])
        return self._known_as(partition, names, chain) != names

    def _count(
        self,
        partition: int,
        chain: list[Dataset],
        run: RunState,
        request: dict[str, Any],
        user: User,
        norm: float,
    ) -> None:
        """Collect one norm, in the documented order of the reasons."""
        assert run.collect is not None
        if is_reserved(user) or not is_normal(user):
            raise Rejection("malformed")
        if chain[0].policy["pseudonyms"] != request["pseudonyms"]:
            raise Rejection("mixed-users")
        if not all(dataset.has_room_for([user]) for dataset in chain):
            raise Rejection("mixed-users")
        if not 0 <= norm < math.inf:
            raise Rejection("invalid-norm")
        if norm > run.collect["clip_norm"]:
            raise Rejection("norm-above-clip")
        if home(user, self.partitions) != partition:
            raise Rejection("wrong-partition")
        if self._known_as(partition, [user], chain)[0] in self.names[partition].ids:
            raise Rejection("user-erased")
        collection = run.collected.setdefault(request["step"], Collection())
        before = collection.norms.get(user)
        if before not in (None, norm):
            raise Rejection("norm-changed")
        if before is None:
            check_number(chain, collection)
            collection.add(user, float(norm))  # also the first one above the maximum
            check_number(chain, collection)


def check_collect(
    chain: Sequence[Dataset], asked: Any, before: dict[str, Any] | None, fixed: bool
) -> dict[str, Any] | None:
    """Return the terms under which a run that is opened collects norms, None if it does not.

    Args:
        chain: the datasets that it charges.
        asked: the terms of the opening, if it has any.
        before: the terms that the run has, if it has any.
        fixed: whether its terms do not change any more.
    """
    if asked is NOT_GIVEN:
        return before
    asked = {**asked, "clip_norm": float(asked["clip_norm"])}
    if asked == before:
        return before
    if fixed:
        raise Rejection("collect-changed")
    if asked["mechanism"] == "poisson-gaussian":
        raise Rejection("invalid-mechanism")
    for dataset in chain:
        check_mechanism(dataset, {**asked, "scale": 1.0})
    check_clipped(chain, asked)
    if any(dataset.kinds == "one-kind" for dataset in chain):
        raise Rejection("mixed-users")
    return asked
