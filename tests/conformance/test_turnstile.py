"""The service over Kafka and the service in memory are the same to a trainer or an answerer."""

from __future__ import annotations

import itertools
import math
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from typing import Any
from uuid import uuid4

import numpy as np
import pytest
from dp_accounting import dp_event
from msgspec import structs

from accounting import (
    MEASURES,
    Gaussian,
    InvalidInput,
    Laplace,
    PoissonGaussian,
    PureDP,
    banded_step,
    renyi_cost,
)
from streams import (
    AsyncTurnstile,
    DatasetInUse,
    DatasetIsClosed,
    Fenced,
    Halt,
    InvalidRequest,
    PolicyChanged,
    RequestRejected,
    RunIsClosed,
    SeparationChanged,
    StepContentChanged,
    Turnstile,
    Unusable,
)
from streams.local import LocalStack
from streams.queries import QueryAnswerer
from streams.sdk.memory_connection import MemoryConnection
from streams.wire.signatures import public_text
from tests.conformance.blocking import BlockingTurnstile
from tests.keys import OPERATOR, private_key, public_key
from tests.waiting import HANGS_AFTER, eventually

PARTITIONS = 3


@pytest.fixture(scope="module")
def stack(servers: LocalStack) -> Iterator[LocalStack]:
    prefix, where = f"t{uuid4().hex[:8]}.", {"kafka": servers.kafka, "redis": servers.redis}
    with LocalStack(workers=1, partitions=PARTITIONS, prefix=prefix, **where) as running:
        yield running


@pytest.fixture(params=["memory", "awaited", pytest.param("kafka", marks=pytest.mark.process)])
def turnstile(request: pytest.FixtureRequest) -> Iterator[Turnstile]:
    opened: Any
    if request.param == "memory":
        opened = Turnstile.in_memory(partitions=PARTITIONS)
    elif request.param == "awaited":
        opened = BlockingTurnstile(AsyncTurnstile.in_memory(partitions=PARTITIONS))
    else:
        running = request.getfixturevalue("stack")
        opened = Turnstile(running.kafka, prefix=running.prefix, timeout=HANGS_AFTER)
    with opened:
        yield opened


@pytest.fixture(params=["memory", "awaited", pytest.param("kafka", marks=pytest.mark.process)])
def signers(request: pytest.FixtureRequest) -> Iterator[Callable[[str | None], Any]]:
    """Gives the client of a principal, or of nobody, to one service of an operator."""
    address: dict[str, Any] = {"connection": MemoryConnection(PARTITIONS, 10.0)}
    with ExitStack() as opened:
        if request.param == "kafka":
            shared = request.getfixturevalue("stack")
            servers = {"kafka": shared.kafka, "redis": shared.redis, "prefix": "signed."}
            opened.enter_context(LocalStack(workers=1, partitions=PARTITIONS, **servers))
            address = {"kafka": shared.kafka, "prefix": "signed.", "timeout": HANGS_AFTER}

        def client(name: str | None) -> Any:
            who = {} if name is None else {"principal": name, "request_key": private_key(name)}
            if request.param == "awaited":
                return opened.enter_context(BlockingTurnstile(AsyncTurnstile(**address, **who)))
            return opened.enter_context(Turnstile(**address, **who))

        yield client


@pytest.fixture
def name() -> str:
    """A dataset that nobody else uses."""
    return f"d{uuid4().hex[:10]}"


# --- datasets -------------------------------------------------------------------------------------


def test_a_dataset_is_created_once_and_keeps_its_policy(turnstile: Turnstile, name: str) -> None:
    made = turnstile.create_dataset(name, epsilon=1.0, delta=1e-5)
    assert (made.dataset, made.measure, made.partitions) == (name, "zcdp", PARTITIONS)
    assert turnstile.create_dataset(name, epsilon=1.0, delta=1e-5) == made
    with pytest.raises(PolicyChanged):
        turnstile.create_dataset(name, epsilon=2.0, delta=1e-5)
    assert turnstile.run(name, "r").policy == made


def test_a_dataset_is_withdrawn_until_it_is_used(turnstile: Turnstile, name: str) -> None:
    turnstile.withdraw_dataset(name)
    turnstile.create_dataset(name, budget=1.0)
    turnstile.withdraw_dataset(name)
    with pytest.raises(RequestRejected, match="unknown-dataset"):
        turnstile.run(name, "r")
    turnstile.create_dataset(name, budget=2.0)
    turnstile.run(name, "r")
    with pytest.raises(DatasetInUse):
        turnstile.withdraw_dataset(name)


def test_a_dataset_that_is_closed_stays_closed_with_those_within_it(
    turnstile: Turnstile, name: str
) -> None:
    turnstile.create_dataset(name, budget=1.0)
    turnstile.create_dataset(f"{name}-in", budget=1.0, within=name)
    run = turnstile.run(f"{name}-in", "r")
    assert run.charge([1, 2, 3], np.ones(3), noise_stddev=4.0).admitted.all()
    assert turnstile.close_dataset(name) == turnstile.close_dataset(name) == [name, f"{name}-in"]
    with pytest.raises(DatasetIsClosed):
        run.charge([1, 2, 3], np.ones(3), noise_stddev=4.0)
    for ask in (
        lambda: turnstile.run(f"{name}-in", "r"),
        lambda: turnstile.create_dataset(name, budget=1.0),
        lambda: turnstile.withdraw_dataset(name),
        lambda: turnstile.create_dataset(f"{name}-new", budget=1.0, within=name),
    ):
        with pytest.raises(DatasetIsClosed):
            ask()
    with pytest.raises(RequestRejected, match="unknown-dataset"):
        turnstile.close_dataset(f"{name}-not")


# --- who may --------------------------------------------------------------------------------------


def test_a_dataset_is_charged_and_managed_by_those_it_names_and_by_nobody_else(
    signers: Callable[[str | None], Any],
) -> None:
    operator = {"operator_key": private_key(OPERATOR)}

    def add(name: str, key: str) -> None:
        public = public_text(public_key(key))
        signers(None).add_principal(name, public, creates=name == "cora", **operator)

    def allowed(who: str | None, act: Callable[[Any], Any]) -> bool:
        try:
            act(signers(who))
        except RequestRejected as error:
            return error.reason != "not-allowed"
        return True

    def create(client: Any) -> None:
        client.create_dataset("d", budget=1.0, allow={"charge": ["alice"], "manage": ["mary"]})

    def charge(client: Any) -> None:
        charged = client.run("d", "r").charge([1, 2, 3], np.full(3, 0.1), noise_stddev=4.0)
        assert charged.admitted.all()

    for name in ("alice", "mary", "cora"):
        add(name, name)
    everybody = (None, "alice", "mary", "bob", "cora")
    assert [who for who in everybody if allowed(who, create)] == ["cora"]
    assert [who for who in everybody if allowed(who, charge)] == ["alice"]
    assert [who for who in everybody if allowed(who, lambda c: c.forget(1, "d"))] == ["mary"]
    add("alice", "bob")
    assert not allowed("alice", charge)
    signers(None).remove_principal("mary", **operator)
    assert not allowed("mary", lambda client: client.close_dataset("d"))


# --- users who are forgotten ----------------------------------------------------------------------


def test_who_was_forgotten_is_told_of_as_such_and_never_admitted_again(
    turnstile: Turnstile, name: str
) -> None:
    turnstile.create_dataset(name, budget=1.0, odometer_step=0.01, user_ids="mixed")
    turnstile.create_dataset(f"{name}-in", budget=1.0, within=name)
    someone = uuid4().int >> 66  # whom no other dataset has
    users = [someone, "Zoë", 2, 3]
    run, inner = turnstile.run(name, "r"), turnstile.run(f"{name}-in", "i")
    roster = turnstile.run(name, "roster").enrol(users, clip_norm=1.0, levels=4)
    for charge in (run.charge, inner.charge):
        assert charge(users, np.ones(4), noise_stddev=4.0).admitted.all()
    roster.charge(noise_stddev=4.0)
    assert turnstile.forget("Zoe\u0308", f"{name}-in") == [name, f"{name}-in"]
    assert turnstile.forget(someone) == [name, f"{name}-in"]
    assert turnstile.forget(someone, name) == [name, f"{name}-in"], "again"
    assert turnstile.forget(99, name) == []
    for charge in (run.charge, inner.charge):
        decision = charge(users, [1.0, 0.0, 1.0, 1.0], noise_stddev=4.0)
        assert decision.forgotten.tolist() == [True, True, False, False]
        assert (decision.admitted == ~decision.forgotten).all()
    assert roster.charge(noise_stddev=4.0).admitted.tolist() == [False, False, True, True]
    again = turnstile.run(name, "roster").enrol([*users, 4], clip_norm=1.0, levels=4)
    assert again.charge(noise_stddev=4.0).admitted.tolist() == [False, False, True, True, True]
    forgotten = [halt for halt in turnstile.halts(name, follow=False) if halt.reason == "forgotten"]
    assert {halt.run for halt in forgotten} == {"r", "roster"}
    assert not {halt.user for halt in forgotten} & set(users)
    with pytest.raises(InvalidRequest):
        turnstile.forget(1, "no such name")
    with pytest.raises(RequestRejected, match="unknown-dataset"):
        turnstile.forget(1, f"{name}-not")


def test_pseudonyms_are_forgotten_by_those_who_can_make_them(name: str) -> None:
    with Turnstile.in_memory(pseudonym_key="k" * 32) as turnstile:
        turnstile.create_dataset(name, budget=1.0)
        run = turnstile.run(name, "r")
        run.charge(["a", "b"], [1.0, 1.0], noise_stddev=4.0)
        assert turnstile.forget("a") == [name]
        assert run.charge(["a", "b"], [1.0, 1.0], noise_stddev=4.0).forgotten.tolist() == [
            True,
            False,
        ]


# --- what is decided ------------------------------------------------------------------------------

POLICIES: dict[str, tuple[dict[str, Any], list[Any]]] = {
    "zcdp": ({"budget": 0.3}, [Gaussian(1.7), Laplace(3.1), PureDP()]),
    "zcdp, clip": ({"budget": 0.3, "on_exhaustion": "clip"}, [Gaussian(1.7), Gaussian(0.9)]),
    "gdp": ({"measure": "gdp", "epsilon": 1.0, "delta": 1e-5}, [Gaussian(2.0)]),
    "renyi": (
        {"measure": "renyi", "orders": [1.5, 32], "budget": [0.7, 6.0]},
        [Gaussian(2.7), Laplace(4.3)],
    ),
    "approx-dp": ({"measure": "approx-dp", "epsilon": 3.0, "delta": 1e-6}, [PureDP()]),
}


def told(turnstile: Turnstile, name: str, policy: dict[str, Any], mechanisms: list[Any]) -> Any:
    """Everything that a client hears of two runs that take turns, the halts too."""
    random = np.random.default_rng(1)
    turnstile.create_dataset(name, user_ids="mixed", **policy)
    population = [*range(20), *(f"user {number}" for number in range(20))]
    runs = itertools.cycle([turnstile.run(name, "a"), turnstile.run(name, "b")])
    heard: list[Any] = []
    for step, run in zip(range(12), runs, strict=False):
        chosen = random.permutation(40)[: random.integers(0, 40)]
        users = [population[position] for position in chosen]
        norms = random.exponential(0.7, len(users))
        decision = run.charge(users, norms, mechanism=mechanisms[step % len(mechanisms)])
        arrays = decision.admitted, decision.granted, decision.exhausted, decision.halted
        heard.append((decision.step, *(array.tolist() for array in arrays)))
    return heard, halts_of(turnstile, name)


def halts_of(turnstile: Turnstile, name: str, **options: Any) -> set[tuple[Any, ...]]:
    found = [
        (halt.run, halt.step, halt.user, halt.exhausted, halt.partition)
        for halt in turnstile.halts(name, follow=False, **options)
    ]
    assert len(set(found)) == len(found), "each once"
    return set(found)


def bounds_of(turnstile: Turnstile, name: str) -> dict[int | str, list[float]]:
    """The newest checkpoint of each user: of older ones the service may have dropped some."""
    return {seen.user: seen.bound for seen in turnstile.odometer(name, follow=False)}


def test_what_a_user_has_spent_is_told_in_epsilon(turnstile: Turnstile, name: str) -> None:
    for measure in ("zcdp", "gdp", "renyi"):
        dataset = f"{name}-{measure}"
        made = turnstile.create_dataset(dataset, measure=measure, epsilon=1.0, delta=1e-6)
        run = turnstile.run(dataset, "r")
        decided = run.charge([1, 2], [1.0, 0.5], noise_stddev=6.0)
        assert decided.admitted.all()
        assert made.epsilon(1e-6) == run.policy.epsilon(1e-6) == pytest.approx(1.0, rel=1e-6)
        # A checkpoint comes behind the decision, which does not wait for it.
        told = next(turnstile.odometer(dataset, user=1, idle_timeout=HANGS_AFTER))
        # Never less than the step itself implies.
        row, orders = MEASURES[made.measure], made.orders or None
        cost = row.charge_units(Gaussian(6.0), [1.0], orders)[0]
        least = row.epsilon(row.stated(np.atleast_1d(cost)), 1e-6, orders)
        assert least <= told.epsilon(run.policy, 1e-6) <= made.epsilon(1e-6)
        assert 0 < made.first_epsilon(1e-6) <= made.epsilon(1e-6)
        with pytest.raises(InvalidInput, match="policy"):
            told.epsilon(structs.replace(made, dataset="another"))


@pytest.mark.parametrize(("policy", "mechanisms"), POLICIES.values(), ids=POLICIES)
def test_both_decide_the_same(
    turnstile: Turnstile, name: str, policy: dict[str, Any], mechanisms: list[Any]
) -> None:
    with Turnstile.in_memory(partitions=PARTITIONS) as other:
        heard = told(turnstile, name, policy, mechanisms)
        assert heard == told(other, name, policy, mechanisms)
        bounds = bounds_of(other, name)
    decisions, halts = heard
    assert len(halts) == sum(sum(halted) for *_, halted in decisions) > 0
    assert bounds
    # Decisions do not wait for checkpoints.
    eventually(lambda: bounds_of(turnstile, name) == bounds)


def test_the_budget_is_spent_to_its_last_unit(turnstile: Turnstile, name: str) -> None:
    turnstile.create_dataset(name, budget=1.0)
    run = turnstile.run(name, "r")
    for step in range(32):
        decision = run.charge([1, 2], [1.0, 1.0], noise_stddev=4.0)
        assert (decision.step, decision.admitted.all()) == (step, True)
    assert decision.exhausted.all()
    after = run.charge([1, 2, 3], [5e-324, 0.0, 1.0], noise_stddev=4.0)
    assert after.admitted.tolist() == [False, True, True]
    assert after.granted.tolist() == [0.0, 0.0, 1.0]
    assert halts_of(turnstile, name, run="r") == {("r", 32, 1, True, home_of(1))}
    assert halts_of(turnstile, name, run="s") == halts_of(turnstile, name, since="latest") == set()


def home_of(user: int) -> int:
    with Turnstile.in_memory(partitions=PARTITIONS) as other:
        other.create_dataset("d", budget=2.0**-44)
        other.run("d", "r").charge([user], [1.0], noise_stddev=1.0)
        (halt,) = other.halts("d", follow=False)
        return halt.partition


def test_queries_are_answered_under_the_budget(turnstile: Turnstile, name: str) -> None:
    turnstile.create_dataset(name, budget=0.5)
    answerer = QueryAnswerer.calibrated(turnstile.run(name, "q"), norm_budget=2.0, rho=0.5)
    releases = [answerer.answer(["ann", "bob"], [1.0, 0.0]) for _ in range(3)]
    assert [release.step for release in releases] == [0, 1, 2]
    assert answerer.last_charge is not None
    assert answerer.last_charge.decision.halted.tolist() == [True]
    assert all(math.isfinite(float(release.value)) for release in releases)


# --- runs -----------------------------------------------------------------------------------------


def charge(run: Any, scale: float = 1.0) -> Any:
    return run.charge(range(10), np.linspace(0.0, 1.0, 10) * scale, noise_stddev=2.0)


def test_a_run_is_resumed_where_it_was(turnstile: Turnstile, name: str) -> None:
    turnstile.create_dataset(name, budget=1.0)
    first = turnstile.run(name, "r")
    assert (first.attempt, first.step, first.interrupted) == (1, 0, False)
    said = [charge(first) for _ in range(2)]
    with pytest.raises(InvalidRequest, match="handed back"):
        turnstile.run(name, "r", released=-1)
    second = turnstile.run(name, "r", released=0)
    assert (second.step, second.interrupted) == (1, True)
    with pytest.raises(StepContentChanged):
        charge(second, scale=0.5)
    again = charge(second)
    assert again.step == said[1].step == 1
    np.testing.assert_array_equal(again.granted, said[1].granted)
    third = turnstile.run(name, "r")
    assert (third.step, third.interrupted) == (2, False)
    assert third.attempt > second.attempt > first.attempt
    for older in (first, second):
        with pytest.raises(Fenced):
            charge(older)
        with pytest.raises(Unusable):
            charge(older)
    assert charge(third).step == 2


def test_a_step_that_is_handed_back_can_be_given_up(turnstile: Turnstile, name: str) -> None:
    turnstile.create_dataset(name, budget=1.0)
    charge(turnstile.run(name, "r"))
    run = turnstile.run(name, "r", released=-1)
    assert (run.step, run.interrupted) == (0, True)
    run.abandon()
    assert (run.step, run.interrupted) == (1, False)
    run.abandon()
    assert charge(run).step == 1


def test_a_run_is_closed_for_good(turnstile: Turnstile, name: str) -> None:
    with pytest.raises(RequestRejected, match="unknown-dataset"):
        turnstile.close_run(name, "r")
    turnstile.create_dataset(name, budget=1.0)
    assert not turnstile.close_run(name, "never-opened")
    run = turnstile.run(name, "r")
    charge(run)
    run.close()
    run.close()
    with pytest.raises(RunIsClosed):
        charge(run)
    with pytest.raises(RunIsClosed):
        turnstile.run(name, "r")
    other = turnstile.run(name, "s")
    assert turnstile.close_run(name, "s")
    assert turnstile.close_run(name, "s")
    with pytest.raises(RequestRejected):
        charge(other)


def test_what_is_refused_changes_nothing(turnstile: Turnstile, name: str) -> None:
    turnstile.create_dataset(name, budget=1.0)
    run = turnstile.run(name, "r")
    for users, norms, options in (
        ([1, 1], [1.0, 1.0], {}),
        ([1, "a"], [1.0, 1.0], {}),
        ([1], [math.nan], {}),
        ([1], [2.0], {"clip_norm": 1.0}),
        ([1], [1.0], {"timeout": -1.0}),
    ):
        with pytest.raises(InvalidRequest):
            run.charge(users, norms, noise_stddev=4.0, **options)
    assert run.charge([1], [1.0], noise_stddev=4.0).step == 0


# --- following ------------------------------------------------------------------------------------


def test_who_follows_hears_what_others_charge(turnstile: Turnstile, name: str) -> None:
    turnstile.create_dataset(name, budget=0.25, odometer_step=0.1)
    run = turnstile.run(name, "r")
    halts = turnstile.halts(name)  # the position is fixed here
    bounds = turnstile.odometer(name, user="a")
    heard: list[Halt] = []
    thread = threading.Thread(target=lambda: heard.extend(itertools.islice(halts, 2)))
    thread.start()
    for norm in (0.6, 0.3, 1.0, 1.0):
        run.charge(["a"], [norm], noise_stddev=1.0)
    thread.join(60.0)
    assert [(halt.step, halt.user, halt.exhausted) for halt in heard] == [
        (2, "a", False),
        (3, "a", False),
    ]
    assert next(bounds).bound[0] >= 0.18
    with closing(turnstile.halts(name, idle_timeout=0.3)) as idle:
        assert list(idle) == []


def test_following_ends_when_the_turnstile_is_closed(turnstile: Turnstile, name: str) -> None:
    ended: list[BaseException] = []
    halts = turnstile.halts(name)

    def follow() -> None:
        try:
            next(halts)
        except BaseException as error:
            ended.append(error)

    thread = threading.Thread(target=follow)
    thread.start()
    turnstile.close()
    turnstile.close()
    thread.join(60.0)
    assert [type(error) for error in ended] == [Unusable]


@pytest.mark.parametrize("options", [{"since": "yesterday"}, {"idle_timeout": -1.0}], ids=str)
def test_what_cannot_be_followed_is_refused(turnstile: Turnstile, options: dict[str, Any]) -> None:
    for follow in (turnstile.halts, turnstile.odometer):
        with pytest.raises(InvalidRequest):
            list(follow("d", follow=False, **options))


def test_a_closed_turnstile_is_of_no_more_use(turnstile: Turnstile, name: str) -> None:
    turnstile.create_dataset(name, budget=1.0)
    run = turnstile.run(name, "r")
    turnstile.close()
    for call in (
        lambda: charge(run),
        run.close,
        lambda: turnstile.create_dataset(name, budget=1.0),
        lambda: turnstile.withdraw_dataset(name),
        lambda: turnstile.run(name, "r"),
        lambda: turnstile.close_run(name, "r"),
        lambda: list(turnstile.halts(follow=False)),
        lambda: list(turnstile.odometer(follow=False)),
    ):
        with pytest.raises(Unusable, match="closed"):
            call()


def test_runs_of_several_threads_spend_one_budget(turnstile: Turnstile, name: str) -> None:
    turnstile.create_dataset(name, budget=1.0)
    runs = [turnstile.run(name, f"r{number}") for number in range(4)]
    admitted = [0] * len(runs)

    def work(number: int) -> None:
        for _ in range(12):
            decision = runs[number].charge(range(6), np.ones(6), noise_stddev=4.0)
            admitted[number] += int(decision.admitted.sum())

    threads = [threading.Thread(target=work, args=(number,)) for number in range(len(runs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60.0)
    assert sum(admitted) == 6 * 32


# --- rosters --------------------------------------------------------------------------------------


def test_a_roster_is_enrolled_once_and_charged_by_level(turnstile: Turnstile, name: str) -> None:
    turnstile.create_dataset(name, budget=0.5)
    run = turnstile.run(name, "r")
    users = list(range(100, 150))
    roster = run.enrol(users, clip_norm=1.0, levels=10)
    first = roster.charge(noise_stddev=4.0)
    assert (first.step, run.step) == (0, 1)
    assert first.admitted.all()
    assert (first.clip_norms == 1.0).all()
    roster.set_norms(np.full(2, 0.25), [3, 7])
    second = roster.charge(noise_stddev=4.0)
    assert second.clip_norms[[3, 7]] == pytest.approx(0.3)  # rounded up to a level
    third = roster.charge(noise_stddev=1.0)  # costs half of everybody else's budget
    assert np.flatnonzero(third.admitted).tolist() == [3, 7]
    assert third.halted.tolist() == [i for i in range(50) if i not in (3, 7)]
    assert (third.clip_norms > 0).tolist() == third.admitted.tolist()
    fourth = roster.charge(noise_stddev=4.0, norms=np.full(50, 0.5))
    assert fourth.readmitted.tolist() == third.halted.tolist()
    halts = turnstile.halts(name, follow=False)
    assert {halt.user for halt in halts} == {users[i] for i in third.halted}
    assert (
        not turnstile.run(name, "other")
        .enrol(users, clip_norm=2.0)
        .charge(noise_stddev=2.0)
        .admitted.any()
    )


def test_a_sampled_step_costs_what_renyi_says(turnstile: Turnstile, name: str) -> None:
    orders, rate, noise = [4.0, 16.0], 0.01, 1.0
    cost = renyi_cost(PoissonGaussian(noise, rate), [1.0], orders)[0]
    turnstile.create_dataset(name, measure="renyi", orders=orders, budget=(2.5 * cost).tolist())
    roster = turnstile.run(name, "r").enrol(["ann", "bob"], clip_norm=1.0)
    admitted = [roster.charge(noise_stddev=noise, sampling_rate=rate).admitted for _ in range(3)]
    assert [step.tolist() for step in admitted] == [[True] * 2, [True] * 2, [False] * 2]


def test_a_roster_goes_on_after_a_restart_and_grows_at_its_end(
    turnstile: Turnstile, name: str
) -> None:
    turnstile.create_dataset(name, budget=1.0)
    run = turnstile.run(name, "r")
    users = [f"user {number}" for number in range(20)]
    roster = run.enrol(users[:15], clip_norm=1.0)
    roster.set_norms([0.5], [1])
    roster.charge(noise_stddev=4.0)
    again = turnstile.run(name, "r")
    with pytest.raises(InvalidRequest, match="other users"):
        again.enrol(users[::-1], clip_norm=1.0)
    with pytest.raises(InvalidRequest, match="on its roster"):
        again.enrol([], clip_norm=1.0)
    grown = again.enrol(users, clip_norm=1.0)
    charged = grown.charge(noise_stddev=4.0).clip_norms
    assert charged[1] == 0.5
    assert (np.delete(charged, 1) == 1.0).all()
    with pytest.raises(Fenced):
        roster.charge(noise_stddev=4.0)


def test_a_step_that_was_not_released_is_handed_back_as_it_was_decided(
    turnstile: Turnstile, name: str
) -> None:
    turnstile.create_dataset(name, budget=1.0)
    users = list(range(20))
    roster = turnstile.run(name, "r").enrol(users, clip_norm=1.0)
    roster.charge(noise_stddev=4.0)
    roster.set_norms(np.linspace(0, 1, 20))
    lost = roster.charge(noise_stddev=8.0)  # decided, and the trainer dies
    run = turnstile.run(name, "r", released=0)
    assert (run.step, run.interrupted) == (1, True)
    back = run.enrol(users, clip_norm=1.0)
    with pytest.raises(StepContentChanged):
        back.charge(noise_stddev=4.0)
    back.set_norms(np.ones(20))  # of the steps after it
    given = back.charge(noise_stddev=8.0)
    assert (given.step, run.step) == (1, 2)
    np.testing.assert_array_equal(given.clip_norms, lost.clip_norms)
    assert (back.charge(noise_stddev=8.0).clip_norms == 1.0).all()


def test_a_step_can_be_charged_before_the_one_before_it_is_released(
    turnstile: Turnstile, name: str
) -> None:
    turnstile.create_dataset(name, budget=1.0)
    users = list(range(20))
    run = turnstile.run(name, "r", released=-1, charges_ahead=True)
    roster = run.enrol(users, clip_norm=1.0)
    first = roster.charge(noise_stddev=4.0)
    ahead = roster.charge_ahead(noise_stddev=4.0)
    roster.set_norms(np.full(20, 0.5))  # of what is seen meanwhile
    with pytest.raises(Unusable, match="decision first"):
        roster.charge(noise_stddev=4.0)
    assert (first.step, run.step) == (0, 1)
    second = ahead.decision()
    assert (second.step, run.step, ahead.decision().step) == (1, 2, 1)
    assert (second.clip_norms == 1.0).all()
    assert (roster.charge_ahead(noise_stddev=4.0).decision().clip_norms == 0.5).all()
    # The trainer dies here, and has released step 0 alone.
    with pytest.raises(InvalidRequest, match="charges_ahead"):
        turnstile.run(name, "r", released=0)
    run = turnstile.run(name, "r", released=0, charges_ahead=True)
    assert (run.step, run.interrupted) == (2, True)
    back = run.enrol(users, clip_norm=1.0)
    assert (back.charge_ahead(noise_stddev=4.0).decision().clip_norms == 0.5).all()
    listed = turnstile.run(name, "listed", charges_ahead=True)
    steps = [listed.charge_ahead([1, 2], [1.0, 1.0], noise_stddev=4.0).decision() for _ in range(2)]
    assert [step.step for step in steps] == [0, 1]
    spent = {
        odometer.user: odometer.bound[0] for odometer in turnstile.odometer(name, follow=False)
    }
    assert spent.keys() <= set(users)


# --- datasets within others -----------------------------------------------------------------------


def test_one_budget_holds_over_all_datasets_of_a_person(turnstile: Turnstile, name: str) -> None:
    person, ads, search = (f"{name}-{kind}" for kind in ("person", "ads", "search"))
    turnstile.create_dataset(person, budget=0.2)
    turnstile.create_dataset(ads, budget=1.0, within=person)
    made = turnstile.create_dataset(search, measure="gdp", budget=0.5, within=person)
    assert (made.within, made.user_ids) == (person, "one-kind")
    users = list(range(40))
    run = turnstile.run(ads, "r")
    assert [policy.dataset for policy in run.outer] == [person]
    assert run.charge(users[:30], np.ones(30), noise_stddev=2.0).admitted.all()  # rho 1/8
    roster = turnstile.run(search, "r").enrol(users, clip_norm=1.0)
    first = roster.charge(noise_stddev=2.0)  # mu 1/2: all of the budget of search
    assert first.halted.tolist() == users[:30]
    assert np.flatnonzero(first.exhausted).tolist() == users[30:]
    second = roster.charge(noise_stddev=4.0)
    assert second.readmitted.tolist() == users[:30]
    assert second.halted.tolist() == users[30:]
    decided = run.charge(users, np.ones(40), noise_stddev=2.0)
    assert not decided.admitted[:30].any()
    refused = {
        (halt.dataset, halt.step, halt.user): halt.refused_by
        for dataset in (ads, search)
        for halt in turnstile.halts(dataset, follow=False)
    }
    assert refused == {
        **{(search, 0, user): person for user in users[:30]},
        **{(search, 1, user): search for user in users[30:]},
        **{(ads, 1, user): person for user in users},
    }


def test_an_outer_dataset_has_to_be_there_and_is_withdrawn_last(
    turnstile: Turnstile, name: str
) -> None:
    with pytest.raises(RequestRejected, match="create the outer one first"):
        turnstile.create_dataset(name, budget=1.0, within=f"{name}-outer")
    turnstile.create_dataset(f"{name}-outer", budget=1.0)
    turnstile.create_dataset(name, budget=1.0, within=f"{name}-outer")
    with pytest.raises(PolicyChanged):
        turnstile.create_dataset(name, budget=1.0)
    with pytest.raises(DatasetInUse):
        turnstile.withdraw_dataset(f"{name}-outer")
    turnstile.withdraw_dataset(name)
    turnstile.withdraw_dataset(f"{name}-outer")


def test_within_another_dataset_a_norm_is_clipped_to_what_all_budgets_have_room_for(
    turnstile: Turnstile, name: str
) -> None:
    person, ads, news = (f"{name}-{kind}" for kind in ("person", "ads", "news"))
    turnstile.create_dataset(person, budget=0.125)
    made = turnstile.create_dataset(
        ads, measure="gdp", budget=1.0, within=person, on_exhaustion="clip"
    )
    assert (made.within, made.on_exhaustion) == (person, "clip")
    assert made == turnstile.create_dataset(
        ads, measure="gdp", budget=1.0, within=person, on_exhaustion="clip"
    )
    turnstile.create_dataset(news, budget=1.0, within=ads)  # which halts, whatever ads does
    run = turnstile.run(ads, "r")
    decided = run.charge([1, 2], [1.0, 0.25], noise_stddev=1.0)
    assert decided.admitted.all()
    assert decided.granted == pytest.approx([0.5, 0.25])
    assert decided.exhausted.tolist() == [True, False]
    assert run.charge([1], [0.1], noise_stddev=1.0).halted.all()
    roster = turnstile.run(ads, "s").enrol([3, 4], clip_norm=1.0, levels=8)
    assert roster.charge(noise_stddev=1.0).clip_norms.tolist() == [0.5, 0.5]
    assert roster.charge(noise_stddev=1.0).halted.tolist() == [0, 1]  # positions
    assert turnstile.run(news, "r").charge([5], [1.0], noise_stddev=1.0).halted.all()
    refused = {
        (halt.dataset, halt.user): halt.refused_by
        for dataset in (ads, news)
        for halt in turnstile.halts(dataset, follow=False)
    }
    assert refused == {(ads, 1): person, (ads, 3): person, (ads, 4): person, (news, 5): person}
    with pytest.raises(PolicyChanged):
        turnstile.create_dataset(ads, measure="gdp", budget=1.0, within=person)
    turnstile.create_dataset(f"{name}-pure", measure="pure-dp", budget=1.0)
    with pytest.raises(RequestRejected, match="gaussian"):
        turnstile.create_dataset(
            f"{name}-new", budget=1.0, within=f"{name}-pure", on_exhaustion="clip"
        )


@pytest.mark.parametrize("measure", ["pure-dp", "zcdp", "gdp"])
def test_a_step_is_given_up_under_every_measure(
    turnstile: Turnstile, name: str, measure: Any
) -> None:
    turnstile.create_dataset(name, measure=measure, budget=1.0)
    mechanism: Any = PureDP() if measure == "pure-dp" else Gaussian(4.0)
    turnstile.run(name, "r").charge([1, 2], [0.1, 0.1], mechanism=mechanism)
    run = turnstile.run(name, "r", released=-1)
    assert run.interrupted
    run.abandon()
    assert run.step == 1


# --- participations that are apart ---------------------------------------------------------------


def test_participations_are_kept_apart_over_attempts_and_halts_say_so(
    turnstile: Turnstile, name: str
) -> None:
    turnstile.create_dataset(name, budget=0.2, on_exhaustion="clip")
    users = list(range(12))
    columns = [banded_step([2.0, 1.0, 2.0], 12.0)] * 6  # the noise of a plain step of 4
    run = turnstile.run(name, "ftrl", min_separation=3)
    taken: dict[int, list[int]] = {user: [] for user in users}
    for step, mechanism in enumerate(columns):
        if step == 3:
            run = turnstile.run(name, "ftrl", released=2)
            assert run.min_separation == 3
        asked = users[step % 2 :: 2] if step else users[:4]
        decision = run.charge(asked, np.ones(len(asked)), mechanism=mechanism, clip_norm=1.0)
        for user, admitted, waits in zip(asked, decision.admitted, decision.too_soon, strict=True):
            assert waits == (bool(taken[user]) and step - taken[user][-1] < 3)
            assert admitted == (not waits)
            taken[user] += [step] * int(admitted)
        assert (decision.granted == decision.admitted).all()
    halts = {(h.step, h.user, h.reason) for h in turnstile.halts(name, follow=False)}
    assert halts == {
        (step, user, "too-soon")
        for user, steps in taken.items()
        for step in range(6)
        if user in (users[step % 2 :: 2] if step else users[:4]) and step not in steps
    }
    with pytest.raises(SeparationChanged):
        turnstile.run(name, "ftrl", min_separation=4)
    with pytest.raises(InvalidRequest, match="roster"):
        run.enrol(users, clip_norm=1.0)
    run.close()


# --- what describes a step ------------------------------------------------------------------------


def test_events_of_dp_accounting_are_charged_as_the_steps_they_describe(
    turnstile: Turnstile, name: str
) -> None:
    fine = {"budget": [5.0, 20.0], "odometer_step": [2.0**-30, 2.0**-28]}
    turnstile.create_dataset(name, measure="renyi", orders=[4.0, 16.0], **fine)
    sampled = dp_event.PoissonSampledDpEvent(0.02, dp_event.GaussianDpEvent(1.5))
    charged = []
    for mechanism in (sampled, PoissonGaussian(3.0, 0.02)):  # at a clip norm of 2
        user = len(charged)
        roster = turnstile.run(name, f"roster-{user}").enrol([user], clip_norm=2.0, levels=10)
        step = roster.charge(mechanism=mechanism)
        assert step.sampling_rate == 0.02
        charged.append(step.clip_norms.tolist())
    assert charged == [[2.0]] * 2
    run = turnstile.run(name, "by-norms")
    assert run.charge(
        [0], [0.5], mechanism=dp_event.GaussianDpEvent(4.0), clip_norm=0.5
    ).admitted.all()
    assert run.charge([1], [0.5], mechanism=Gaussian(2.0), clip_norm=0.5).admitted.all()
    checkpoints = turnstile.odometer(name, follow=False)
    bounds = {checkpoint.user: checkpoint.bound for checkpoint in checkpoints}
    assert bounds[0] == bounds[1]
    assert bounds[0][0] > 4 * 0.25**2 / 2  # more than the step by norms alone
    with pytest.raises(InvalidRequest, match="give clip_norm"):
        run.charge([0], [0.5], mechanism=dp_event.GaussianDpEvent(4.0))
    with pytest.raises(InvalidRequest, match="a step of its own"):
        run.charge([0], [0.5], mechanism=dp_event.SelfComposedDpEvent(sampled, 3), clip_norm=0.5)
    with pytest.raises(InvalidRequest, match="charged by a roster"):
        run.charge([0], [0.5], mechanism=sampled, clip_norm=0.5)
