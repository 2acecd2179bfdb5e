"""Nested datasets that clip: the largest norm is granted that every budget has room for."""

from fractions import Fraction
from math import ceil, floor

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import accounting
from accounting import Gaussian
from streams.records import Reason, Rejected
from streams.records.packing import unpack_norms
from streams.records.users import UserIds
from tests.unit.ledger.ledgers import admitted, exhausted, rebuilt
from tests.unit.ledger.roster_logs import CLIP, LEVELS, RosterLog, told

CLIPS = {"on_exhaustion": "clip"}
UNIT = 2**44
GRANTED_LESS = Fraction(1, 2**48)
"""Of a cost: a norm is granted that is at most a relative 2**-49 below the largest."""


def chain(*policies: dict) -> RosterLog:
    """A log of datasets d, e and so on, each within the next one, with a run of d."""
    log = RosterLog()
    names = "defghijk"[: len(policies)]
    for number in reversed(range(len(policies))):
        parents = {"parents": [names[number + 1]]} if number + 1 < len(policies) else {}
        made = log.create(names[number], **policies[number], **parents)
        assert not isinstance(made, Rejected), made
    log.open("d")
    return log


def granted(decision) -> list[float]:
    """The norms of a decision about norms of 1, 0 to the halted."""
    norms = np.array(admitted(decision), dtype=float)
    norms[np.frombuffer(decision.clipped, dtype="<u4")] = unpack_norms(decision.granted)
    return norms.tolist()


def test_tightest_budget_decides_the_grant_and_all_are_charged():
    log = chain({"budget": 0.5, **CLIPS}, {"measure": "gdp", "budget": 0.25})  # of mu squared
    decision = log.charge(0, [1, 2], [1.0, 0.25], scale=1.0)
    assert granted(decision)[0] == pytest.approx(0.5, rel=2**-48)
    assert granted(decision)[0] <= 0.5
    assert list(decision.clipped) == [0, 0, 0, 0]  # the first user alone
    assert exhausted(decision) == [True, False]
    assert log.spent("e") == {1: UNIT // 4, 2: UNIT // 16}
    assert log.spent("d") == {1: UNIT // 8, 2: UNIT // 32}
    again = log.charge(1, [1, 2], [0.1, 0.1], scale=1.0)
    assert (admitted(again), list(again.reasons)) == ([False, True], [1])
    log.audit()


def test_the_first_empty_budget_is_the_reason():
    log = chain({"budget": 0.5, **CLIPS}, {"budget": 0.125}, {"budget": 0.125})
    assert granted(log.charge(0, [1], [1.0], scale=1.0)) == pytest.approx([0.5], rel=2**-48)
    halted = log.charge(1, [1, 2], [1.0, 0.1], scale=1.0)
    assert (admitted(halted), list(halted.reasons)) == ([False, True], [1])
    assert UserIds.unpack(halted.halted).tolist() == [1]
    before = {name: log.spent(name)[1] for name in "def"}
    log.charge(2, [1], [1e-6], scale=1.0)
    assert {name: log.spent(name)[1] for name in "def"} == before  # who is halted pays nothing
    log.audit()


@pytest.mark.parametrize("is_nested", [False, True])
def test_who_is_halted_pays_nothing_though_too_little_is_left_for_any_norm(is_nested):
    renyi = {"measure": "renyi", "orders": [64.0], "budget": 64 * 3 / UNIT + 7 / UNIT}
    outer = {"budget": 0.5}
    log = chain({**outer, **CLIPS}, renyi, outer) if is_nested else chain({**renyi, **CLIPS})
    norm = (2 * 3 / UNIT) ** 0.5 * (1 - 2**-40)  # of which 3 units of rho are charged
    assert admitted(log.charge(0, [1], [norm], scale=1.0)) == [True]
    charged = {name: log.spent(name) for name in ("def" if is_nested else "d")}
    assert charged["e" if is_nested else "d"] == {1: [64 * 3]}
    refused = log.charge(1, [1], [1.0], scale=1.0)
    assert (admitted(refused), list(refused.reasons)) == ([False], [int(is_nested)])
    assert {name: log.spent(name) for name in charged} == charged
    log.audit()


@pytest.mark.parametrize("by_roster", [False, True])
def test_the_dataset_that_is_charged_says_whether_norms_are_clipped(by_roster):
    """Whatever those around it do with their own steps."""
    for inner, outer, clipped in ((CLIPS, {}, True), ({}, CLIPS, False), (CLIPS, CLIPS, True)):
        log = chain({"budget": 0.5, **inner}, {"budget": 0.125, **outer})
        log.open("e", "e")
        if by_roster:
            log.enrol([1])
            units = 2 * prices("zcdp", 1.0)
            step = log.step(0, units, members=1)
            assert told(step, "halted") == ([] if clipped else [0])
            assert list(step.granted) == ([5] if clipped else [])
        else:
            decision = log.charge(0, [1], [1.0], scale=1.0)
            assert granted(decision) == pytest.approx([0.5 if clipped else 0.0], rel=2**-48)
        rest = log.charge(0, [1, 2], [0.5, 1.0], scale=1.0, dataset="e", run="e")
        assert admitted(rest) == [not clipped, bool(outer)]
        log.audit()


def test_parent_that_clips_accepts_other_mechanisms():
    log = chain({"budget": 0.5}, {"budget": 0.5, **CLIPS})
    assert admitted(log.charge(0, [1], [0.5], mechanism="laplace", scale=1.0)) == [True]
    log = chain({"budget": 0.5, **CLIPS}, {"budget": 0.5})
    refused = log.charge(0, [1], [0.5], mechanism="laplace", scale=1.0)
    assert refused.reason is Reason.INVALID_MECHANISM
    log.audit()


def prices(measure: str, scale: float, orders: list[float] | None = None) -> bytes:
    row = accounting.MEASURES[measure]
    return row.cost_table(Gaussian(scale), CLIP, LEVELS, orders).astype("<i8").tobytes()


MEASURES = [
    {"measure": "zcdp"},
    {"measure": "gdp"},
    {"measure": "renyi", "orders": [1.5, 4.0, 32.0]},
    {"measure": "renyi", "orders": [1.5, 4.0, 32.0], "per_user_order": True},
]
AMOUNT = st.integers(1, 2**20) | st.integers(2**38, 2**46) | st.integers(2**57, 2**61)


@st.composite
def budgets(draw, exhaustion: list[dict]) -> dict:
    kind = draw(st.sampled_from(MEASURES))
    units = [draw(AMOUNT) for _ in kind.get("orders", [0])]
    return {
        **kind,
        **draw(st.sampled_from(exhaustion)),
        "budget": [Fraction(unit, UNIT) for unit in units],
        "odometer_step": [max(1, unit // 3) for unit in units],
    }


CHAINS = st.tuples(budgets([CLIPS]), budgets([CLIPS, {}]), budgets([CLIPS, {}]))
USERS = [3, 5, 8, 9]
NORM = st.floats(0.0, 8.0) | st.sampled_from([1.0, 2.0**-20, 1e-300])


class Reference:
    """One dataset, in fractions: what users have spent, one after the other."""

    def __init__(self, policy: dict) -> None:
        self.measure = policy["measure"]
        self.budget = [int(number * UNIT) for number in policy["budget"]]
        self.orders = list(map(Fraction, policy.get("orders", [1])))
        self.binds = "per_user_order" in policy
        self.bound: dict[int, int] = {}
        self.spent: dict[int, list[int]] = {user: [0] * len(self.budget) for user in USERS}
        self.exact: dict[int, list[Fraction]] = {user: [Fraction(0)] * 3 for user in USERS}

    def base(self, norm: float, scale: float) -> Fraction:
        """Exact units, at order 1."""
        square = (Fraction(norm) / Fraction(scale)) ** 2 * UNIT
        return square if self.measure == "gdp" else square / 2

    def units(self, norm: float, scale: float) -> list[int]:
        base = ceil(self.base(norm, scale))
        return [min(ceil(order * base), 2**62) for order in self.orders]

    def bind(self, user: int, cost: list[int]) -> None:
        if self.binds and any(cost) and user not in self.bound:
            charges = [max(1, units) for units in cost]
            pairs = list(zip(self.budget, charges, strict=True))
            steps = [(budget // charge, budget / charge) for budget, charge in pairs]
            self.bound[user] = steps.index(max(steps))

    def counted(self, user: int) -> list[int]:
        """The places of the orders that count for a user."""
        return [self.bound.get(user, 0)] if self.binds else list(range(len(self.orders)))

    def left(self, user: int) -> list[int]:
        return [b - s for b, s in zip(self.budget, self.spent[user], strict=True)]

    def payable(self, user: int) -> list[int]:
        left = self.left(user)
        return [floor(left[at] / self.orders[at]) for at in self.counted(user)]

    def fits(self, user: int, cost: list[int]) -> bool:
        left = self.left(user)
        return all(cost[at] <= left[at] for at in self.counted(user))

    def pay(self, user: int, cost: list[int]) -> None:
        for at in self.counted(user):
            self.spent[user][at] += cost[at]

    def pay_for(self, user: int, norm: float, scale: float, *, clipped: bool) -> None:
        cost, base = self.units(norm, scale), self.base(norm, scale)
        payable = self.payable(user)
        if clipped and min(payable) - ceil(base) <= min(payable) // 2**48:
            tightest = self.counted(user)[payable.index(min(payable))]
            cost[tightest] = self.left(user)[tightest]
        for at in self.counted(user):
            self.exact[user][at] += self.orders[at] * base
            assert self.exact[user][at] <= self.budget[at], "in rational arithmetic"
        self.pay(user, cost)

    def written(self) -> dict[int, int | list[int]]:
        """As ``Log.spent`` has it."""
        is_one = self.binds or self.measure != "renyi"
        return {u: s[self.bound.get(u, 0)] if is_one else s for u, s in self.spent.items()}


ZCDP = {**MEASURES[0], **CLIPS, "budget": [Fraction(33, UNIT)], "odometer_step": [11]}
RENYI = {
    **MEASURES[3],
    "budget": [Fraction(237, UNIT), Fraction(8192), Fraction(1491, UNIT)],
    "odometer_step": [79, 48038396025285290, 497],
}
"""With the last tick the bound at order 4 rises by 2 units, and its float64 not at all."""


def largest_square(references: list[Reference], user: int) -> Fraction:
    """Of norm over scale, that all budgets can pay for."""
    return min(min(r.payable(user)) / r.base(1.0, 1.0) for r in references)


@settings(deadline=None)
@given(
    CHAINS,
    st.lists(st.tuples(st.lists(NORM, min_size=4, max_size=4), st.sampled_from([0.7, 4.0, 300.0]))),
)
@example((ZCDP, ZCDP, RENYI), [([0.0, 0.0, 0.0, norm], 0.7) for norm in (8.6e-50, 9.5e-7, 1.0)])
def test_grants_are_the_largest_that_fit_all_budgets(policies, steps):
    log, references = chain(*policies), [Reference(policy) for policy in policies]
    for step, (norms, scale) in enumerate(steps):
        decision = log.charge(step, USERS, norms, scale)
        clipped = np.frombuffer(decision.clipped, dtype="<u4").tolist()
        lower = dict(zip(clipped, unpack_norms(decision.granted).tolist(), strict=True))
        refused = iter(decision.reasons)
        for place, (user, norm) in enumerate(zip(USERS, norms, strict=True)):
            for reference in references:
                reference.bind(user, reference.units(norm, scale))
            fit = all(r.fits(user, r.units(norm, scale)) for r in references)
            nothing = [n for n, r in enumerate(references) if not min(r.payable(user))]
            assert admitted(decision)[place] == (fit or not nothing)
            if not admitted(decision)[place]:
                assert next(refused) == nothing[0]
                continue
            grant = lower.get(place, norm)
            if fit:
                assert grant == norm
            else:
                largest = largest_square(references, user)
                square = (Fraction(grant) / Fraction(scale)) ** 2
                assert largest * (1 - GRANTED_LESS) <= square <= largest
                assert 0 < grant < norm
            for reference in references:
                reference.pay_for(user, grant, scale, clipped=not fit)
            ended = any(not r.left(user)[at] for r in references for at in r.counted(user))
            assert exhausted(decision)[place] == ended
            assert fit or ended, "somebody who is clipped is at the end of a budget"
        if steps:
            assert [log.spent(name) for name in "def"] == [r.written() for r in references]
    log.audit()


@settings(deadline=None)
@given(CHAINS, st.data())
def test_members_are_granted_the_highest_level_that_fits(policies, data):
    """Standing charges, over hand-overs, against a step at a time in whole numbers."""
    log, references = chain(*policies), [Reference(policy) for policy in policies]
    log.enrol(USERS)
    levels, tables = [LEVELS] * len(USERS), []
    for step in range(data.draw(st.integers(1, 12))):
        units = b""
        if step == 0 or data.draw(st.integers(0, 4)) == 0:
            scale = data.draw(st.sampled_from([0.7, 4.0, 300.0]))
            parts = [prices(p["measure"], scale, p.get("orders")) for p in policies]
            units = b"".join(parts)
            tables = [
                np.frombuffer(part, dtype="<i8").reshape(LEVELS + 1, -1).tolist() for part in parts
            ]
        moved = data.draw(st.dictionaries(st.integers(0, 3), st.integers(0, LEVELS), max_size=2))
        moved = dict(sorted(moved.items()))
        step_of = {"members": 4, "positions": list(moved), "levels": list(moved.values())}
        decision = log.step(step, units, **step_of)
        assert not isinstance(decision, Rejected)
        expected = []
        for place, user in enumerate(USERS):
            levels[place] = asked = moved.get(place, levels[place])
            for reference, table in zip(references, tables, strict=True):
                reference.bind(user, table[asked])
            granted = max(
                level
                for level in range(asked + 1)
                if all(r.fits(user, t[level]) for r, t in zip(references, tables, strict=True))
            )
            expected.append(granted)
            for reference, table in zip(references, tables, strict=True):
                reference.pay(user, table[granted])
        assert list(log.enrol([]).granted) == expected
        assert [log.spent(name) for name in "def"] == [r.written() for r in references]
        if data.draw(st.booleans()):
            log.hand_over(rebuilt(log.changes))
    log.audit()


def test_steps_that_stand_are_steps_that_are_sent_with_all_levels():
    """The same bits, whoever is looked at by a step."""
    policies = (
        {"budget": 0.2, **CLIPS},
        {"measure": "renyi", "orders": [1.5, 8.0], "budget": [0.1, 0.5]},
        {"measure": "gdp", "budget": 0.15, **CLIPS},
    )
    standing, dense = chain(*policies), chain(*policies)
    units = prices("zcdp", 3.0) + prices("renyi", 3.0, [1.5, 8.0]) + prices("gdp", 3.0)
    users, seen = list(range(40)), set()
    levels = [1 + user % LEVELS for user in users]
    for log in (standing, dense):
        log.enrol(users)
    for step in range(30):
        fields = {"levels": levels} if step == 0 else {}
        standing.step(step, units if step == 0 else b"", members=40, **fields)
        dense.step(step, units, members=40, levels=levels)
        for name in "def":
            assert standing.spent(name) == dense.spent(name)
        granted = [log.enrol([]).granted for log in (standing, dense)]
        assert granted[0] == granted[1]
        seen.add(granted[0])
    assert len(seen) > 5
    standing.audit()
    dense.audit()


@pytest.mark.parametrize("nested", [False, True])
def test_a_step_without_users_has_any_mechanism(nested):
    log = chain(*[CLIPS] * (1 + nested))
    decided = log.charge(0, [], [], mechanism="pure-dp")
    assert (decided.step, decided.users) == (0, 0)
    log.audit()
