"""What a charge comes to, by norms or of a roster: who is admitted, and what is charged."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from typing import Any

from tests.audit.auditor_accounts import Dataset
from tests.audit.auditor_erasure import published, spend_the_rest
from tests.audit.auditor_grants import granted_norm
from tests.audit.auditor_requests import NOT_GIVEN, Rejection, User, digest_of, numbers_of
from tests.audit.auditor_rosters import (
    ERASED,
    TOO_SOON,
    Cost,
    Roster,
    check_grid,
    content_of,
    digest_of_roster,
    halted_in,
    highest_that_fits,
)
from tests.audit.auditor_state import Collection, Held, Place, RunState, home, outermost_of
from tests.audit.published import frozen

LARGEST_DECISION = 16 * 1024 * 1024
_MOST_USERS = 2**19
_MOST_ACCOUNTS = 3 * 2**20
_MOST_BALANCES = 2**24
_MOST_ROSTERS = 16
_MOST_COLLECTED = 2**20
_MOST_OCTETS = 2**25
"""The maxima of the norm events of a step."""


class Charges(Held):
    """Charges and enrolments of all partitions."""

    def _charge(
        self,
        place: Place,
        charge: dict[str, Any],
        witnesses: Mapping[tuple[Any, ...], Mapping[int, float]],
    ) -> dict[str, Any]:
        partition, _ = place
        chain, run = self._open_to(partition, charge)
        users, norms = numbers_of(charge["users"], "q"), numbers_of(charge["norms"], "d")
        content = (
            charge["mechanism"],
            struct.pack("<d", charge["scale"]),
            charge["clip_norm"] is None or struct.pack("<d", charge["clip_norm"]),
            struct.pack("<d", charge["reserve"] or 0.0),  # -0.0 reserves nothing, too
            tuple(users),
            struct.pack(f"<{len(norms)}d", *norms),
            charge["collected"],
        )
        digest = digest_of(charge, users, norms)
        if again := _decided_before(run, charge, content, digest):
            return again
        _check_collected(run, charge, users)
        self._check_number(chain, len(users), len(users))
        collection = None
        if charge["collected"] is True:
            if users or norms:
                raise Rejection("length-mismatch")
            collection = run.collected.get(charge["step"]) or Collection()
            users, norms = list(collection.norms), list(collection.norms.values())
            charge = {**charge, "clip_norm": run.collect["clip_norm"]}
        asked, users = users, self._known_as(partition, users, chain)
        self._validate(partition, chain, charge, asked, users, norms)
        if collection is not None:
            check_number(chain, collection)
        elif _may_say(users, chain[0].policy["on_exhaustion"]) > LARGEST_DECISION:
            raise Rejection("too-large")
        key = charge["dataset"], charge["run"], charge["step"], partition
        too_soon = [
            norm > 0 and run.has_to_wait(user) for user, norm in zip(users, norms, strict=True)
        ]
        names = self.names[partition].ids
        erased = [user in names for user in users]
        left_out = [
            ERASED if gone else TOO_SOON if soon else None
            for soon, gone in zip(too_soon, erased, strict=True)
        ]
        granted, reasons = self._settle(
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
        halted = [user for user, is_in in zip(users, admitted, strict=True) if not is_in]
        decision = {
            **_about_step(place, charge),
            "type": "decision",
            "digest": digest,
            "users": len(users),
            "admitted": admitted,
            "exhausted": [_is_exhausted(chain, user) for user in users],
            "halted": published(halted),
            "clipped": [position for position, _ in clipped],
            "granted": [grant for _, grant in clipped],
            "reasons": reasons,
            "budgets": _names(chain),
        }
        if collection is not None:
            decision["collected"] = [u for u, is_in in zip(users, admitted, strict=True) if is_in]
            decision["norms"] = [grant for grant in granted if grant is not None]
        run.collected = {step: c for step, c in run.collected.items() if step > charge["step"]}
        run.step, run.content, run.decision = charge["step"], content, decision
        self.charged[place] = {**decision, "halted": halted}
        return decision

    def _open_to(self, partition: int, request: dict[str, Any]) -> tuple[list[Dataset], RunState]:
        """What a request wants to charge under the current attempt of a run."""
        chain = self._open_chain(partition, request["dataset"])
        run = self._run(partition, request)
        if run.closed:
            raise Rejection("run-closed")
        if request["attempt"] < run.attempt:
            raise Rejection("older-attempt")
        self._check_held(partition, chain, (request["dataset"], request["run"]))
        return chain, run

    def _enrol(self, place: Place, request: dict[str, Any]) -> dict[str, Any]:
        partition, _ = place
        chain, run = self._open_to(partition, request)
        if run.collect:
            raise Rejection("not-collecting")
        if run.separation:
            raise Rejection("no-rosters")
        clip_norm, users = float(request["clip_norm"]), numbers_of(request["users"], "q")
        users = self._known_as(partition, users, chain)
        roster = run.roster or Roster(clip_norm, request["levels"])
        added = roster.check_follows(request, users)
        self._check_number(chain, len(users), len(roster.members + added))
        if run.roster is None and self._rosters(partition, chain) >= _MOST_ROSTERS:
            raise Rejection("too-large")
        check_grid(clip_norm, request["levels"])
        if not all(dataset.has_room_for(added) for dataset in chain):
            raise Rejection("mixed-users")
        if len({*roster.members, *added}) < len(roster.members) + len(added):
            raise Rejection("duplicate-user")
        self._check_homes(partition, chain, added)
        run.roster = roster
        roster.enrol(added)
        for dataset in chain:
            for user in added:
                dataset.accounts.setdefault(user, dataset.account(user))
        names = self.names[partition].ids
        for user in added:
            if user in names:  # of an outermost budget nothing is left
                first, *_ = outermost_of(chain)
                spend_the_rest(first, first.accounts[user])
        is_of_roster = run.decision.get("type") == "roster-decision"
        return {
            **self._about_run(place, request, run),
            **roster.said({*names}),
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
        check_clipped(chain, charge)
        _check_noise(chain, charge, roster.clip_norm)
        prices = roster.prices_of(charge, [len(dataset.budget) for dataset in chain])
        moved = roster.levels_of(charge)
        roster.cost_table_digest, roster.prices = charge["cost_table_digest"], prices
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
        gone = {*self.names[partition].ids}
        if decision["halted"]:
            halted = halted_in(decision, roster, _names(chain), refused, gone)
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
        own, offers = [], []
        for dataset, prices in zip(chain, tables, strict=True):
            account = dataset.accounts[user]
            dataset.bind(account, prices[level])
            own.append([dataset.at_orders(account, cost) for cost in prices])
            offer = highest_that_fits(own[-1], level, dataset.left(account))
            clips = chain[0].policy["on_exhaustion"] == "clip"
            offers.append(offer if clips or offer == level else None)
        refusing = [number for number, offer in enumerate(offers) if offer is None]
        granted = None if refusing else min(offer for offer in offers if offer is not None)
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
        if len(users) != len(norms):
            raise Rejection("length-mismatch")
        counted = chain if users else []  # a step without users costs nothing
        if charge["mechanism"] != "pure-dp" and not 0 < charge["scale"] < math.inf:
            raise Rejection("invalid-mechanism")
        for dataset in counted:
            check_mechanism(dataset, charge)
        if users:
            check_clipped(chain, charge)
        _check_noise(counted, charge, charge["clip_norm"])
        if not all(dataset.has_room_for(asked) for dataset in chain):
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

    def _check_number(self, chain: list[Dataset], sent: int, charged: int) -> None:
        """Check the documented maxima of a charge or, with all its members, of an enrolment."""
        balances = charged * sum(map(_orders, chain))
        if sent > _MOST_USERS or charged * len(chain) > _MOST_ACCOUNTS or balances > _MOST_BALANCES:
            raise Rejection("too-large")

    def _rosters(self, partition: int, chain: list[Dataset]) -> int:
        """Return the number of rosters that have a budget in common with this chain."""
        budgets = {*_names(chain)}
        return sum(
            not budgets.isdisjoint(_names(self._chain(partition, name)))
            for (name, _), run in self.runs[partition].items()
            if run.roster is not None
        )

    def _known_as(self, partition: int, users: list[User], chain: list[Dataset]) -> list[User]:
        names = self.names[partition]
        return (
            names.known_as(users, self._family(partition, _names(chain)[0])) if names.ids else users
        )

    def _check_homes(self, partition: int, chain: list[Dataset], users: list[User]) -> None:
        """Whether all users live here; those who have an account do, and those with a name."""
        known = {*chain[0].accounts, *self.names[partition].ids}
        strangers = (user for user in users if user not in known)
        if any(home(user, self.partitions) != partition for user in strangers):
            raise Rejection("wrong-partition")

    def _settle(
        self,
        place: Place,
        chain: list[Dataset],
        charge: Mapping[str, Any],
        users: list[User],
        norms: list[float],
        left_out: list[int | None],
        witness: Mapping[int, float],
    ) -> tuple[list[float | None], list[int]]:
        """Charge every user; the granted norm of each, None for those halted, and for these the
        reason: the first budget that refused, or why nothing was asked of any.
        """
        granted: list[float | None] = []
        reasons = []
        for position, (user, norm) in enumerate(zip(users, norms, strict=True)):
            accounts = [d.accounts.setdefault(user, d.account(user)) for d in chain]
            if (reason := left_out[position]) is not None:
                granted.append(None)
                reasons.append(reason)
                continue
            grant, refusing, costs = granted_norm(
                chain, accounts, charge, norm, witness.get(position)
            )
            granted.append(grant)
            reasons += refusing[:1]
            for dataset, cost in zip(chain, costs, strict=True):
                self._book(place, dataset, user, cost)
        return granted, reasons

    def _book(self, place: Place, dataset: Dataset, user: User, cost: Cost) -> None:
        """Charge what was granted to a user; add an odometer record if the bound rises."""
        account = dataset.accounts[user]
        before = account.bound(dataset)
        account.pay(cost, dataset.at_orders(account, dataset.steps))
        bound = account.bound(dataset)
        if bound != before:
            self.odometers.add((dataset.policy["dataset"], user, *place, bound))
            if account.order is not None:
                key = dataset.policy["dataset"], user, *place
                self.bound_orders[key] = dataset.orders[account.order]


def check_number(chain: Sequence[Dataset], collection: Collection) -> None:
    """Check the documented maxima of the norm events of a step."""
    balances = sum(map(_orders, chain))
    most = min(_MOST_COLLECTED, _MOST_ACCOUNTS // len(chain), _MOST_BALANCES // balances)
    if collection.events > most or collection.octets > _MOST_OCTETS:
        raise Rejection("too-many-norms")


def _check_collected(run: RunState, charge: Mapping[str, Any], users: Sequence[User]) -> None:
    """Check that a run may be charged with users who are named, or with those it collected."""
    collect = run.collect
    if charge["collected"] is NOT_GIVEN:
        if collect and users:
            raise Rejection("not-collecting")
        return
    if collect is None:
        raise Rejection("not-collecting")
    clip_norm = charge["clip_norm"] in (None, collect["clip_norm"])
    if not clip_norm or charge["mechanism"] != collect["mechanism"]:
        raise Rejection("collect-changed")


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
        return {**run.decision, "attempt": charge["attempt"], "digest": digest}
    if charge["step"] != run.step + 1:
        raise Rejection("step-out-of-order")
    return None


def check_mechanism(dataset: Dataset, charge: Mapping[str, Any]) -> None:
    """Whether the measure charges it; sampled steps are charged by cost tables alone."""
    if dataset.measure == "gdp" and charge["mechanism"] != "gaussian":
        raise Rejection("invalid-mechanism")
    _check_unsampled(dataset, charge)


def check_clipped(chain: Sequence[Dataset], charge: Mapping[str, Any]) -> None:
    """The dataset that is charged says whether norms are clipped, and then they are Gaussian."""
    gaussian = charge["mechanism"] in ("gaussian", "poisson-gaussian")
    if chain[0].policy["on_exhaustion"] == "clip" and not gaussian:
        raise Rejection("invalid-mechanism")


def _check_unsampled(dataset: Dataset, charge: Mapping[str, Any]) -> None:
    if charge["mechanism"] != "pure-dp" and not 0 < charge["scale"] < math.inf:
        raise Rejection("invalid-mechanism")
    if dataset.measure == "pure-dp" and charge["mechanism"] == "gaussian":
        raise Rejection("invalid-mechanism")
    if dataset.measure == "steps" and (
        charge["mechanism"] != "gaussian" or dataset.policy["sampling_rate"] < 1
    ):
        raise Rejection("invalid-mechanism")


def _check_roster_mechanism(dataset: Dataset, charge: Mapping[str, Any]) -> None:
    if charge["mechanism"] != "poisson-gaussian":
        if charge["sampling_rate"] != 1:
            raise Rejection("invalid-mechanism")
        _check_unsampled(dataset, charge)
    elif charge["sampling_rate"] == 1:  # everybody is drawn
        _check_unsampled(dataset, {**charge, "mechanism": "gaussian"})
    elif dataset.measure == "steps":
        if not 0 < charge["scale"] < math.inf:
            raise Rejection("invalid-mechanism")
        if not dataset.largest_norm(float(charge["scale"]), float(charge["sampling_rate"])):
            raise Rejection("invalid-mechanism")
    elif dataset.measure != "renyi" or not 0 < charge["scale"] < math.inf:
        raise Rejection("invalid-mechanism")


def _check_noise(
    chain: Sequence[Dataset], charge: Mapping[str, Any], clip_norm: float | None
) -> None:
    """Check that users at the clip norm can be charged by datasets that count steps."""
    if clip_norm is None:
        return
    scale, rate = float(charge["scale"]), float(charge.get("sampling_rate", 1.0))
    for dataset in chain:
        if dataset.measure == "steps" and clip_norm > dataset.largest_norm(scale, rate):
            raise Rejection("invalid-mechanism")


def _orders(dataset: Dataset) -> int:
    return 1 if dataset.binds else len(dataset.budget)


def _may_say(users: list[User], on_exhaustion: str) -> int:
    """How many bytes a decision may take: of each user the id, or what was granted."""
    packed = all(isinstance(user, int) for user in users)
    said = 4096 + 3 * len(users) // 2
    for user in users:
        size = 3 + len(user.encode()) if isinstance(user, str) else 8 if packed else 9
        said += max(size, 12 if on_exhaustion == "clip" else 0)
    return said
