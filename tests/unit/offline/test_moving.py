"""A dataset that moves to another number of partitions: nobody has more left than before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from streams import Turnstile
from streams.ledger.ledger import LostErasureKey, ledger_of
from streams.ledger.tracked import Tracked
from streams.offline import moves
from streams.offline.aggregates import shares_of
from streams.offline.archive import Unreadable
from streams.offline.explanation import explain
from streams.offline.fold import HeadMismatch
from streams.offline.mover import compare, move, plan
from streams.offline.moves import NothingToMove, Unmovable
from streams.offline.report import ReportRefused, report
from streams.offline.states import differences
from streams.offline.verification import verify
from streams.schemas import (
    VERSION,
    Balances,
    CloseDataset,
    Reason,
    WithdrawDataset,
    decode_request,
    encode,
)
from streams.sdk.errors import DatasetIsClosed, DecisionTimeout, RequestRejected
from streams.wire.partitioner import partitions_of
from tests.audit.auditor import Auditor
from tests.audit.comparison import compare as audit
from tests.audit.comparison import compare_moved
from tests.unit.offline.service import Archived, new_service

THERE = b"the new log of it"[:16]
USERS: dict[str, list[Any]] = {
    "integers": list(range(60)),
    "strings": [f"Zoë-{number}" for number in range(40)],
}
FAMILIES: dict[str, dict[str, dict[str, Any]]] = {
    "halting": {"d": {"budget": 1.0, "odometer_step": 0.1}},
    "clipping": {"d": {"measure": "gdp", "budget": 0.7, "on_exhaustion": "clip"}},
    "orders": {"d": {"measure": "renyi", "budget": [0.5, 1.5], "orders": [2.0, 6.0]}},
    "own orders": {"d": {"measure": "renyi", "epsilon": 1.0, "delta": 1e-5}},
    "clipping own orders": {
        "d": {"measure": "renyi", "epsilon": 1.0, "delta": 1e-5, "on_exhaustion": "clip"}
    },
    "nested": {
        "d": {"budget": 1.0},
        "inner": {"measure": "gdp", "budget": 0.5, "within": "d"},
        "innermost": {"measure": "renyi", "epsilon": 0.5, "delta": 1e-5, "within": "inner"},
        "beside": {"budget": 0.4, "within": "d", "odometer_step": 0.01},
    },
    "nested and clipping": {
        "d": {"budget": 0.6, "on_exhaustion": "clip"},
        "inner": {"measure": "gdp", "budget": 0.5, "within": "d"},
        "innermost": {"budget": 0.3, "on_exhaustion": "clip", "within": "inner"},
    },
}


class Life:
    """A service that was charged at random; from the same numbers the same comes."""

    def __init__(self, family: str, kind: str, seed: int, partitions: int, keys: str = "") -> None:
        rng = np.random.default_rng(seed)
        self.archived, self.client = new_service(partitions, erasure_keys=keys)
        self.users = USERS[kind]
        self.datasets = list(FAMILIES[family])
        for name, policy in FAMILIES[family].items():
            self.client.create_dataset(name, **policy)
        runs = {name: self.client.run(name, "r") for name in self.datasets}
        rosters = {}
        for _ in range(int(rng.integers(3, 12))):
            name = str(rng.choice(self.datasets))
            some = rng.permutation(len(self.users))[: int(rng.integers(1, 30))]
            users = [self.users[i] for i in some]
            what = int(rng.integers(6))
            if what == 0:
                self.client.forget(users[0], name)
            elif what < 3:
                if name not in rosters:
                    rosters[name] = self.client.run(name, "s").enrol(users, clip_norm=2.0, levels=9)
                rosters[name].charge(noise_stddev=float(rng.choice([3.0, 8.0])))
            else:
                runs[name].charge(users, rng.uniform(0.0, 2.5, len(users)), noise_stddev=4.0)

    def go_on(self, client: Turnstile, seed: int) -> list[Any]:
        """What a service decides from here on."""
        rng = np.random.default_rng(seed)
        runs = {name: client.run(name, "after") for name in self.datasets}
        decided = []
        for _ in range(6):
            name = str(rng.choice(self.datasets))
            norms = rng.uniform(0.0, 3.0, len(self.users))
            step = runs[name].charge(self.users, norms, noise_stddev=3.0)
            decided.append((name, *(a.tolist() for a in (step.admitted, step.exhausted))))
            decided.append((name, step.granted.tolist()))
        roster = client.run(name, "roster").enrol(self.users, clip_norm=1.0, levels=5)
        decided.append(roster.charge(noise_stddev=2.0).admitted.tolist())
        return decided


def moved(
    old: Archived, partitions: int, dataset: str = "d", keys: str = ""
) -> tuple[Archived, Turnstile]:
    there, client = new_service(partitions, THERE, keys)
    move(old, there, old, there, dataset)
    return there, client


def bounds(archived: Archived) -> dict[Any, Any]:
    """What users are told by the odometer: dataset and user -> the last bound."""
    told: dict[Any, Any] = {}
    for (topic, _), records in archived.topics.items():
        for record in records if topic == "odometer" else ():
            said = msgspec.msgpack.decode(record.value) if record.value else {}
            told[record.key] = said.get("bound"), said.get("order")
    return {key: said for key, said in told.items() if said[0] is not None}


@settings(max_examples=settings().max_examples // 5, suppress_health_check=list(HealthCheck))
@given(
    family=st.sampled_from(sorted(FAMILIES)),
    kind=st.sampled_from(sorted(USERS)),
    seed=st.integers(0, 2**32),
    shape=st.sampled_from([(1, 3), (2, 3), (3, 1), (4, 6), (2, 2), (3, 4)]),
)
def test_everybody_is_admitted_to_what_the_old_service_would_have_admitted(
    family: str, kind: str, seed: int, shape: tuple[int, int]
) -> None:
    before, after = shape
    stayed, life = (Life(family, kind, seed, before) for _ in range(2))
    there, client = moved(life.archived, after)
    told = bounds(life.archived)
    assert told == bounds(there)
    assert life.go_on(client, seed) == stayed.go_on(stayed.client, seed)
    assert verify(there, there).fits
    audited(there)


def audited(archived: Archived) -> Auditor:
    """The auditor, who shares no code with the ledger, agrees about all of it."""
    auditor = Auditor(archived.partitions, archived.topic)
    records: dict[str, list[Any]] = {t: [] for t in ("norms", "halts", "rejects", "odometer")}
    for (topic, partition), kept in archived.topics.items():
        records[topic] += [(partition, r.offset, r.value) for r in kept]
    log = type("Log", (), {"records": records})()
    auditor.apply_all(log)
    audit(auditor, log, dict(enumerate(archived.ledgers)))
    return auditor


def sent(archived: Archived, partition: int, kind: type) -> list[Any]:
    records = archived.topics.get(("norms", partition), [])
    requests = [decode_request(record.value) for record in records]
    return [request for request in requests if isinstance(request, kind)]


class Interrupted(Archived):
    """A service that stops answering after so many records."""

    left = 10**9

    def _publish(self, waiting: Any) -> None:
        for partition, request in waiting.requests.items():
            if self.left <= 0:
                raise DecisionTimeout("no answer")
            self.left -= 1
            self._answer(partition, self._apply(partition, request))


@pytest.fixture
def short_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moves, "_PART_USERS", 4)


def interrupted(partitions: int, topic: bytes, left: int) -> Interrupted:
    service = Interrupted(partitions, topic)
    service.left = left
    return service


@pytest.mark.slow
def test_a_move_that_broke_off_anywhere_goes_on_and_comes_to_the_same(short_parts: None) -> None:
    whole, _ = moved(Life("nested", "integers", 5, 2).archived, 3)
    records = sum(len(whole.topics["norms", p]) for p in range(3))
    assert records > 40
    for left in range(0, records, 7):
        life = Life("nested", "integers", 5, 2)
        there = interrupted(3, THERE, left)
        with pytest.raises(DecisionTimeout):
            move(life.archived, there, life.archived, there, "d")
        client = Turnstile(connection=there)
        there.left = 10**9
        with pytest.raises(RequestRejected) as refused:
            client.run("d", "early")
        assert refused.value.reason in (Reason.UNKNOWN_DATASET, Reason.DATASET_MOVING)
        move(life.archived, there, life.archived, there, "d")
        for here, other in zip(there.ledgers, whole.ledgers, strict=True):
            assert {k: a.spent_units()[1].tolist() for k, a in here.datasets.items()} == {
                k: a.spent_units()[1].tolist() for k, a in other.datasets.items()
            }
        compare(life.archived, there, "d")


def test_it_breaks_off_while_it_is_closed_and_goes_on() -> None:
    for left in range(3):
        old = interrupted(3, b"another old log!", 10**9)
        client = Turnstile(connection=old)
        client.create_dataset("d", budget=1.0)
        run = client.run("d", "r")
        run.charge(np.arange(30), np.ones(30), noise_stddev=4.0)
        there, _ = new_service(2, THERE)
        old.left = left
        with pytest.raises(DecisionTimeout):
            move(old, there, old, there, "d")
        assert not any(there.topics.values())
        old.left = 10**9
        move(old, there, old, there, "d")


@pytest.mark.parametrize("closed", [1, 2, 3])
def test_a_dataset_that_was_created_within_it_while_it_was_closed_does_not_hold_it_up(
    closed: int,
) -> None:
    old = interrupted(3, b"another old log!", 10**9)
    client = Turnstile(connection=old)
    client.create_dataset("d", budget=1.0)
    client.run("d", "r").charge(np.arange(30), np.ones(30), noise_stddev=4.0)
    there, after = new_service(2, THERE)
    old.left = 1
    with pytest.raises(DecisionTimeout):
        move(old, there, old, there, "d")
    old.left = 10**9
    with pytest.raises(DatasetIsClosed):
        client.create_dataset("inner", budget=0.5, within="d")
    token = old.new_token()
    closing = encode(CloseDataset(v=3, dataset="d", request=token, moves_to=THERE.hex()))
    is_closed = [("d",) in ledger.moved for ledger in old.ledgers]
    assert is_closed.count(True) == 1  # that of its name
    somewhere = sorted(range(3), key=lambda partition: not is_closed[partition])[:closed]
    old.ask(token, dict.fromkeys(somewhere, closing), old.deadline(None))
    assert [("inner",) in ledger.policies for ledger in old.ledgers].count(True) == 2
    move(old, there, old, there, "d")
    compare(old, there, "d")
    after.create_dataset("inner", budget=0.5, within="d")
    after.run("inner", "r").charge([1], [1.0], noise_stddev=4.0)


def test_it_goes_to_one_log_and_to_no_other() -> None:
    life = Life("halting", "integers", 1, 2)
    moved(life.archived, 3)
    other, _ = new_service(3, bytes(16))
    with pytest.raises(Unmovable, match="goes to no other one"):
        move(life.archived, other, life.archived, other, "d")
    assert not any(other.topics.values())


def test_two_who_move_it_at_once_do_not_share_it() -> None:
    life = Life("halting", "integers", 1, 3)
    first, _ = new_service(2, THERE)
    plan(life.archived, first, "d")
    moved(life.archived, 2)
    life.archived.ledgers[0].moved.clear()
    token = life.archived.new_token()
    request = CloseDataset(v=3, dataset="d", request=token, moves_to="ab" * 16)
    replies = life.archived.survey(
        token, dict.fromkeys(range(3), encode(request)), life.archived.deadline(1)
    )
    refused = [r.reason for r in replies.values() if isinstance(r, RequestRejected)]
    assert refused == [Reason.DATASET_MOVING] * 2


class Raced(Archived):
    """A service in which somebody else moves the same, just before the first part gets there."""

    rival: Callable[[], Any] | None = None

    def _publish(self, waiting: Any) -> None:
        requests = [decode_request(request) for request in waiting.requests.values()]
        rival = self.rival
        if rival is not None and any(isinstance(request, Balances) for request in requests):
            self.rival = None
            rival()
        super()._publish(waiting)


def test_whoever_was_faster_the_slower_one_goes_on_behind_it(short_parts: None) -> None:
    life, there = Life("nested", "integers", 5, 2), Raced(3, THERE)
    faster = []
    there.rival = lambda: faster.append(move(life.archived, there, life.archived, there, "d"))
    slower = move(life.archived, there, life.archived, there, "d")
    assert slower.sent == 0
    assert faster[0].sent == slower.parts == faster[0].parts
    compare(life.archived, there, "d")


def test_nothing_is_charged_opened_or_forgotten_here_any_more_and_the_rest_goes_on() -> None:
    life = Life("nested", "integers", 3, 2)
    life.client.create_dataset("stays", budget=1.0)
    run = life.client.run("stays", "r")
    run.charge([1, 2], [1.0, 1.0], noise_stddev=4.0)
    moved(life.archived, 3)
    for name in ("d", "inner"):
        with pytest.raises(RequestRejected) as refused:
            life.client.run(name, "again")
        assert refused.value.reason is Reason.DATASET_CLOSED
        assert f"moved to the log {THERE.hex()}: go on there" in str(refused.value)
    with pytest.raises(RequestRejected) as refused:
        life.client.forget(7, "d")
    assert refused.value.reason is Reason.DATASET_MOVING
    assert life.client.forget(1) == ["stays"]
    assert run.charge([1, 2], [1.0, 1.0], noise_stddev=4.0).admitted.tolist() == [False, True]
    audited(life.archived)
    assert verify(life.archived, life.archived).fits


def test_who_was_forgotten_stays_so_in_every_partition_where_the_id_may_live() -> None:
    for keys, shape in (("", (2, 6)), ("k" * 20, (3, 2)), ("", (2, 4)), ("k" * 20, (4, 4))):
        archived, client = new_service(shape[0], erasure_keys=keys)
        client.create_dataset("d", budget=1.0)
        run = client.run("d", "r")
        run.charge(np.arange(40), np.ones(40), noise_stddev=4.0)
        gone = list(range(0, 40, 3))
        for user in gone:
            client.forget(user)
        there, new = moved(archived, shape[1], keys=keys)
        after = new.run("d", "r")
        decided = after.charge(np.arange(40), np.full(40, 0.1), noise_stddev=4.0)
        assert np.flatnonzero(~decided.admitted).tolist() == gone
        assert decided.forgotten.tolist() == decided.halted.tolist()
        parts = [part for p in range(shape[1]) for part in sent(there, p, Balances)]
        assert not any(np.isin(gone, np.frombuffer(part.users, "<i8")).any() for part in parts)
        # Once more: names of the first log are still known in a third one.
        third, newest = new_service(5, b"the third of them"[:16], keys)
        move(there, third, there, third, "d")
        decided = newest.run("d", "r").charge(np.arange(40), np.full(40, 0.1), noise_stddev=4.0)
        assert np.flatnonzero(~decided.admitted).tolist() == gone


@pytest.mark.parametrize("trims", [False, True], ids=["whole", "trimmed"])
def test_who_is_forgotten_elsewhere_in_the_old_log_does_not_change_what_is_said(
    trims: bool,
) -> None:
    old, client = new_service(2)
    for dataset in ("d", "elsewhere"):
        client.create_dataset(dataset, budget=1.0)
        client.run(dataset, "r").charge(np.arange(9), np.ones(9), noise_stddev=4.0)
    there = interrupted(3, THERE, 2)
    with pytest.raises(DecisionTimeout):
        move(old, there, old, there, "d")
    client.forget(7, "elsewhere")
    if trims:
        for partition in range(2):
            old.draw(partition)
            old.trim("norms", partition, old.kept[partition].next)
    there.left = 10**9
    move(old, there, old, there, "d")
    compare(old, there, "d")


def test_without_the_key_of_their_names_nothing_is_taken() -> None:
    archived, client = new_service(2, erasure_keys="k" * 20)
    client.create_dataset("d", budget=1.0)
    client.run("d", "r").charge(np.arange(9), np.ones(9), noise_stddev=4.0)
    client.forget(3)
    with pytest.raises(LostErasureKey):
        moved(archived, 3)


def test_a_log_that_took_names_by_a_key_is_not_read_without_it() -> None:
    archived, client = new_service(2, erasure_keys="k" * 20)
    client.create_dataset("d", budget=1.0)
    client.run("d", "r").charge(np.arange(9), np.ones(9), noise_stddev=4.0)
    client.forget(3)
    there, _ = moved(archived, 3, keys="k" * 20)
    there.erasure_keys = ""
    with pytest.raises(Unreadable, match="partition 0: users were forgotten under the erasure key"):
        verify(there, there)
    with pytest.raises(Unreadable, match="erasure_keys"):
        shares_of(there, "d")


def test_a_dataset_that_had_been_closed_before_stays_closed() -> None:
    archived, client = new_service(2)
    client.create_dataset("d", budget=1.0)
    for name in ("ended", "open"):
        client.create_dataset(name, budget=0.5, within="d")
        client.run(name, "r").charge(np.arange(9), np.ones(9), noise_stddev=4.0)
    client.close_dataset("ended")
    _, new = moved(archived, 3)
    with pytest.raises(RequestRejected) as refused:
        new.run("ended", "r")
    assert refused.value.reason is Reason.DATASET_CLOSED
    assert new.run("open", "r").charge([1], [0.1], noise_stddev=4.0).admitted.all()


def are_closed(archived: Archived) -> list[str]:
    """Which datasets of a log are, in all partitions alike."""
    (closed,) = {tuple(sorted(name for (name,) in ledger.closed)) for ledger in archived.ledgers}
    return list(closed)


def test_one_that_was_closed_as_a_whole_moves_and_is_closed_with_all_within_it() -> None:
    life = Life("nested", "strings", 9, 2)
    assert plan(life.archived, new_service(3, THERE)[0], "d").leaving.closed == frozenset()
    everything = life.client.close_dataset("d")
    assert plan(life.archived, new_service(3, THERE)[0], "d").leaving.closed == {*everything}
    there, client = moved(life.archived, 3)
    compare(life.archived, there, "d")
    assert are_closed(there) == sorted(everything)
    for name in everything:
        with pytest.raises(DatasetIsClosed):
            client.run(name, "r")
    with pytest.raises(DatasetIsClosed):
        client.create_dataset("another", budget=0.1, within="d")
    assert bounds(life.archived) == bounds(there)
    compare_moved(audited(life.archived), audited(there))
    third, _ = new_service(2, b"the third of them"[:16])
    move(there, third, there, third, "d")
    assert are_closed(third) == sorted(everything)
    compare_moved(audited(there), audited(third))


@pytest.mark.parametrize("first", ["nothing", "inner", "d"])
@pytest.mark.parametrize("trims", [False, True], ids=["whole", "trimmed"])
def test_what_was_closed_before_the_first_record_that_moved_it_and_nothing_else_stays_closed(
    first: str, trims: bool
) -> None:
    """However often it is told to move, and whatever is closed meanwhile."""
    life, there = Life("nested", "integers", 5, 2), interrupted(3, THERE, 4)
    closed = [] if first == "nothing" else life.client.close_dataset(first)
    with pytest.raises(DecisionTimeout):
        move(life.archived, there, life.archived, there, "d")
    assert life.client.close_dataset("d")
    assert life.client.close_dataset("beside")
    for partition in range(2) if trims else ():
        life.archived.draw(partition)
        life.archived.trim("norms", partition, life.archived.kept[partition].next)
    there.left = 10**9
    move(life.archived, there, life.archived, there, "d")
    move(life.archived, there, life.archived, there, "d")
    assert are_closed(there) == sorted(closed)
    compare(life.archived, there, "d")
    if not trims:
        compare_moved(audited(life.archived), audited(there))


def test_one_that_was_closed_in_some_partitions_before_it_moved_is_closed_in_all() -> None:
    old = interrupted(3, b"another old log!", 10**9)
    client = Turnstile(connection=old)
    client.create_dataset("d", budget=1.0)
    client.run("d", "r").charge(np.arange(30), np.ones(30), noise_stddev=4.0)
    old.left = 1
    with pytest.raises(DecisionTimeout):
        client.close_dataset("d")
    assert [("d",) in ledger.closed for ledger in old.ledgers].count(True) == 1
    old.left = 10**9
    there, _ = moved(old, 2)
    assert are_closed(there) == ["d"]
    compare_moved(audited(old), audited(there))


@pytest.mark.parametrize("closed", ["inner", "d"])
def test_what_an_earlier_release_kept_of_a_move_is_opened_and_goes_on_as_it_did(
    closed: str,
) -> None:
    """It did not say when a dataset was moved: those that were closed before all were stay so."""
    life = Life("nested", "integers", 5, 2)
    for ledger in life.archived.ledgers:
        ledger.departed = Tracked("departed", int)  # which nobody keeps
    assert life.client.close_dataset(closed)
    there = interrupted(3, THERE, 0)
    with pytest.raises(DecisionTimeout):
        move(life.archived, there, life.archived, there, "d")
    assert verify(life.archived, life.archived).fits
    for partition in range(2):
        life.archived.draw(partition)
        life.archived.trim("norms", partition, life.archived.kept[partition].next)
    there.left = 10**9
    move(life.archived, there, life.archived, there, "d")
    assert are_closed(there) == (["inner", "innermost"] if closed == "inner" else [])


def test_one_that_was_withdrawn_while_it_was_closed_has_nothing_to_move() -> None:
    """Withdrawing was first in one partition, and closing in the other."""
    archived, client = new_service()
    client.create_dataset("d", **FAMILIES["halting"]["d"])
    to = bytes(range(16)).hex()
    archived._apply(0, encode(WithdrawDataset(v=VERSION, dataset="d", request="w")))
    closing = CloseDataset(v=VERSION, dataset="d", request="c", moves_to=to)
    archived._apply(1, encode(closing))
    with pytest.raises(NothingToMove, match="Create it in the new log"):
        moves.departure(archived.ledgers, archived.topic, [], "d")


def test_creating_it_again_with_the_same_policy_is_fine_and_it_cannot_be_withdrawn() -> None:
    life = Life("halting", "integers", 2, 2)
    there, client = moved(life.archived, 3)
    client.create_dataset("d", **FAMILIES["halting"]["d"])
    with pytest.raises(RequestRejected) as refused:
        client.withdraw_dataset("d")
    assert refused.value.reason is Reason.DATASET_IN_USE
    audited(there)


@pytest.mark.parametrize(
    ("prepare", "dataset", "problem"),
    [
        (lambda old, new: None, "nobody", "there is no dataset"),
        (lambda old, new: None, "inner", "move the outermost dataset"),
        (
            lambda old, new: Turnstile(connection=new).create_dataset("beside", budget=0.3),
            "d",
            "exists in the new log",
        ),
    ],
)
def test_what_cannot_move_is_refused_before_anything_is_closed(
    prepare: Any, dataset: str, problem: str
) -> None:
    life = Life("nested", "integers", 4, 2)
    there, _ = new_service(3, THERE)
    prepare(life.archived, there)
    with pytest.raises(Unmovable, match=problem):
        move(life.archived, there, life.archived, there, dataset)
    assert not any(ledger.closed for ledger in life.archived.ledgers)


def test_a_log_does_not_move_into_itself() -> None:
    life = Life("halting", "integers", 4, 2)
    with pytest.raises(Unmovable, match="the same"):
        move(life.archived, life.archived, life.archived, life.archived, "d")


def test_kinds_of_ids_that_must_not_meet_do_not() -> None:
    archived, client = new_service(2)
    client.create_dataset("d", budget=1.0)
    run = client.run("d", "r")
    run.charge([1, 2, 4], [1.0] * 3, noise_stddev=4.0)
    homes = [len(ledger.datasets["d"]) for ledger in archived.ledgers]
    empty = homes.index(0) if 0 in homes else None
    assert empty is not None, homes
    names = [f"n{number}" for number in range(40)]
    some = [n for n, p in zip(names, partitions_of(names, 2), strict=True) if p == empty]
    run.charge(some, [1.0] * len(some), noise_stddev=4.0)
    there, _ = new_service(3, THERE)
    with pytest.raises(Unmovable, match="cannot be put together"):
        move(archived, there, archived, there, "d")
    assert not any(ledger.closed for ledger in archived.ledgers)


def test_a_new_owner_has_what_came() -> None:
    there, _ = moved(Life("nested", "integers", 8, 3).archived, 2)
    for partition, ledger in enumerate(there.ledgers):
        kept = there.load(partition)
        assert kept is not None
        again = ledger_of(kept, partition, 2, THERE, ledger.chain)
        assert dict(again.arrivals) == dict(ledger.arrivals)
        for name, accounts in ledger.datasets.items():
            numbers = accounts.numbers(slice(0, len(accounts)))
            others = again.datasets[name].numbers(slice(0, len(accounts)))
            assert all((numbers[column] == others[column]).all() for column in numbers)


def test_a_log_that_was_trimmed_after_it_was_closed_still_moves() -> None:
    life = Life("nested", "integers", 6, 2)
    there = interrupted(3, THERE, 5)
    with pytest.raises(DecisionTimeout):
        move(life.archived, there, life.archived, there, "d")
    for partition in range(2):
        life.archived.draw(partition)
        life.archived.trim("norms", partition, life.archived.kept[partition].next - 1)
    there.left = 10**9
    move(life.archived, there, life.archived, there, "d")
    compare(life.archived, there, "d")


def test_what_was_changed_on_its_way_is_found() -> None:
    life = Life("halting", "integers", 7, 2)
    there, _ = moved(life.archived, 3)
    part = sent(there, 0, Balances)[0]
    less = np.frombuffer(part.spent, "<i8") // 2
    there.change("norms", "balances", 0, spent=less.tobytes(), base=bytes(len(part.base)))
    with pytest.raises(HeadMismatch):
        compare(life.archived, there, "d")


def test_a_user_is_told_what_was_brought_along_and_no_report_is_made_of_half_a_history() -> None:
    life = Life("nested", "integers", 5, 2)
    there, client = moved(life.archived, 3)
    client.run("d", "after").charge([11], [0.1], noise_stddev=9.0)
    before = explain(life.archived, 11, delta=1e-5, dataset="d").events
    first, *_ = told = explain(there, 11, delta=1e-5, dataset="d").events
    assert (first.what, first.dataset) == ("earlier", "d")
    shares = [share for event in before for share in event.budgets if share.dataset == "d"]
    assert first.budgets[0].spent == shares[-1].spent
    assert told[-1].what in ("charged", "halted")
    with pytest.raises(ReportRefused, match="came from the log"):
        report(there, delta=1e-5, method="renyi")


def test_a_state_that_knows_another_move_than_the_log_is_found() -> None:
    life = Life("halting", "integers", 3, 2)
    there, _ = moved(life.archived, 3)
    for archived, kind in ((life.archived, "moved"), (there, "arrivals")):
        ours, kept = archived.ledgers[0], archived.load(0)
        assert kept is not None
        found = ledger_of(kept, 0, archived.partitions, archived.topic, ours.chain)
        assert not list(differences(ours, found))
        del getattr(found, kind)["d",]
        (difference,) = differences(ours, found)
        assert difference.problem == f"another entry of {kind}"


def test_a_state_that_knows_another_time_of_a_move_than_the_log_is_found() -> None:
    archived = Life("halting", "integers", 3, 2).archived
    moved(archived, 3)
    ours, kept = archived.ledgers[0], archived.load(0)
    assert kept is not None
    found = ledger_of(kept, 0, 2, archived.topic, ours.chain)
    found.departed["d",] += 1
    (difference,) = differences(ours, found)
    assert difference.problem == "another entry of departed"
    assert (difference.expected, difference.found) == (ours.departed["d",], found.departed["d",])
