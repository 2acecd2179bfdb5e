"""Norm events: what a run collects, what it rejects, and that a charge of it is a charge."""

from itertools import product

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET

from streams.ledger import collecting
from streams.ledger.ledger import Channel, Ledger
from streams.records import (
    CollectTerms,
    Decision,
    Erase,
    NormEvent,
    NormEvents,
    Reason,
    Rejected,
    encode,
)
from streams.records.packing import unpack_norms
from streams.records.users import UserIds, partitions_of
from tests.audit import auditor_charges
from tests.unit.ledger.audited import AuditedLog
from tests.unit.ledger.ledgers import Log, admitted, answer_of, rebuilt

CLIP = 1.0
KEY = "0123456789abcdef"
HERE = [int(user) for user in np.flatnonzero(partitions_of(np.arange(100), 2) == 0)]
THERE = [int(user) for user in np.flatnonzero(partitions_of(np.arange(100), 2) == 1)]


class CollectingLog(AuditedLog):
    """A log with the dataset d and its run r, which collects norms."""

    def __init__(self, partitions: int = 1, **policy) -> None:
        super().__init__(partitions)
        self.create(**{"user_ids": "integer", **policy})
        self.open(collect=CollectTerms(clip_norm=CLIP))

    def norm(self, user, norm=0.5, step=0, run="r", **fields) -> Rejected | None:
        """Send one event, and return its reject, if there is one."""
        event = NormEvent(dataset="d", run=run, step=step, user=user, norm=norm, **fields)
        return self._reject_of(self.send(msgspec.json.encode(event)))

    def decide(self, step=0, **fields) -> Decision | Rejected:
        return self.charge(step, [], [], collected=True, **fields)

    @staticmethod
    def _reject_of(outputs):
        assert all(output.channel is Channel.REJECTS for output in outputs)
        return answer_of(outputs) if outputs else None


def collected_of(decision: Decision) -> dict:
    users = UserIds.unpack(decision.collected).tolist()
    return dict(zip(users, unpack_norms(decision.norms).tolist(), strict=True))


NORMS = st.floats(0, CLIP, allow_subnormal=True)
STEPS = st.lists(st.dictionaries(st.integers(0, 12), NORMS, max_size=8), min_size=1, max_size=6)


@given(STEPS, st.sampled_from(["halt", "clip"]), st.randoms(use_true_random=False))
def test_collected_norms_are_charged_like_named_users(steps, on_exhaustion, random):
    policy = {"on_exhaustion": on_exhaustion, "budget": 0.04}
    collects, names = CollectingLog(**policy), Log()
    names.create(user_ids="integer", **policy)
    names.open()
    for step, norms in enumerate(steps):
        events = [*norms.items(), *random.sample(sorted(norms.items()), k=len(norms) // 2)]
        for user, norm in events:
            assert collects.norm(user, norm, step) is None
        decision = collects.decide(step)
        named = names.charge(step, list(norms), list(norms.values()))
        same = "users", "admitted", "exhausted", "halted", "reasons", "clipped", "granted"
        for field in same:
            assert getattr(decision, field) == getattr(named, field)
        granted = np.array(list(norms.values()))
        granted[np.frombuffer(named.clipped, "<u4")] = unpack_norms(named.granted)
        let_in = np.array(admitted(named), dtype=bool)
        users = np.array(list(norms), dtype=int)[let_in].tolist()
        assert collected_of(decision) == dict(zip(users, granted[let_in].tolist(), strict=True))
        assert collects.spent() == names.spent()


@pytest.fixture
def log():
    """A run whose step 0 was decided under attempt 2, and whose step 1 has one norm."""
    log = CollectingLog(partitions=2)
    log.open(run="named")
    log.open(attempt=2, request="second")
    for user in HERE[:2]:
        log.norm(user)
    log.decide(attempt=2)
    log.send(Erase(request="t", user=HERE[0], dataset="d", hidden=True))
    assert log.norm(HERE[2], step=1) is None
    return log


@pytest.mark.parametrize(("of_policy", "of_event"), [(KEY, None), (KEY, KEY[::-1]), (None, KEY)])
def test_ids_of_another_key_are_no_users_of_the_dataset(of_policy, of_event):
    right, wrong = ({"pseudonyms": key} if key else {} for key in (of_policy, of_event))
    log = CollectingLog(**right)
    assert log.norm(1, **wrong).reason == Reason.MIXED_USERS
    assert log.norm(1, **right) is None
    assert collected_of(log.decide()) == {1: 0.5}


def test_several_events_in_one_record_are_rejected_alone(log):
    users, norms = [HERE[3], THERE[0], HERE[4], HERE[0], HERE[5]], [0.1, 0.2, -1.0, 0.4, 0.5]
    record = NormEvents(dataset="d", run="r", step=1, users=users, norms=norms)
    rejects = [msgspec.msgpack.decode(out.value, type=Rejected) for out in log.send(record)]
    assert [(each.reason, each.user) for each in rejects] == [
        (Reason.WRONG_PARTITION, THERE[0]),
        (Reason.INVALID_NORM, HERE[4]),
        (Reason.USER_ERASED, UNSET),
    ]
    assert rejects[0].record == encode(
        NormEvent(dataset="d", run="r", step=1, user=THERE[0], norm=0.2)
    )
    assert str(HERE[0]).encode() not in rejects[2].record
    assert collected_of(log.decide(1, attempt=2)) == {HERE[2]: 0.5, HERE[3]: 0.1, HERE[5]: 0.5}


@pytest.mark.parametrize(
    ("reason", "given"),
    [
        (Reason.STEP_DECIDED, {"step": 0}),
        (Reason.STEP_OUT_OF_ORDER, {"step": 9}),
        (Reason.OLDER_ATTEMPT, {"attempt": 1}),
        (Reason.NOT_COLLECTING, {"run": "named"}),
        (Reason.UNKNOWN_RUN, {"run": "other"}),
        (Reason.MIXED_USERS, {"pseudonyms": KEY}),
        (Reason.INVALID_NORM, {"norm": -1.0}),
        (Reason.USER_ERASED, {}),
    ],
    ids=lambda given: given if isinstance(given, str) else "",
)
def test_no_reject_names_an_erased_user(log, reason, given):
    def rejected(users):
        about = {"dataset": "d", "run": "r", "step": 1, "norm": 0.25, **given}
        if len(users) == 1:
            event = NormEvent(user=users[0], **about)
        else:
            event = NormEvents(users=users, norms=[about.pop("norm")] * len(users), **about)
        outputs = log.send(event)
        return [msgspec.msgpack.decode(out.value, type=Rejected) for out in outputs]

    for users in ([HERE[0]], [HERE[0], HERE[3]]):
        first = rejected(users)[0]
        assert (first.reason, first.record, first.user) == (reason, b"", UNSET)
    if given:
        (other,) = rejected([HERE[3]])
        assert (other.reason, other.user) == (reason, HERE[3])
        assert other.record


def test_no_reject_names_an_erased_user_in_another_spelling():
    log = CollectingLog(user_ids="string")
    log.norm("Zo\u00eb")
    log.decide()
    log.send(Erase(request="t", user="Zo\u00eb", dataset="d", hidden=True))
    about = {"dataset": "d", "run": "r", "step": 1}
    for record in (
        NormEvent(user="Zoe\u0308", norm=0.5, **about),
        NormEvents(users=["Zoe\u0308", "Mary"], norms=[0.5, 0.5], **about),
    ):
        (output,) = log.send(record)
        rejected = msgspec.msgpack.decode(output.value, type=Rejected)
        assert rejected.reason == Reason.MALFORMED
        assert "Zo" not in str(rejected)
    assert collected_of(log.decide(1)) == {"Mary": 0.5}
    assert log.norm("Jose\u0301", step=2).user == "Jose\u0301"
    log.audit()


def test_events_are_rejected_alone_wherever_they_are(monkeypatch):
    monkeypatch.setattr(collecting, "_TOGETHER", 3)
    for count, bad in product(range(8), range(8)):
        log = CollectingLog()
        norms = [-1.0 if user in (bad, 5) else 0.5 for user in range(count)]
        record = NormEvents(dataset="d", run="r", step=0, users=list(range(count)), norms=norms)
        rejects = [msgspec.msgpack.decode(out.value, type=Rejected) for out in log.send(record)]
        assert [each.user for each in rejects] == [u for u in range(count) if norms[u] < 0]
        assert collected_of(log.decide()) == {u: 0.5 for u in range(count) if norms[u] > 0}


def test_an_erased_user_leaves_the_collection():
    """Also one who was never charged, and of whom the dataset knows nothing else."""
    log = CollectingLog(user_ids="mixed")
    for user in (1, "some name", 3, 0):
        log.norm(user)
    for user in (1, "some name", 0):
        log.send(Erase(request="t", user=user, dataset="d", hidden=True))
    again = rebuilt(log.changes, 1, 0)
    page = b"".join(filter(None, map(again.state.take_page, again.state.unmerged())))
    assert b"some name" not in page
    assert collected_of(log.decide()) == {3: 0.5}


def test_a_collection_survives_a_new_attempt_and_a_restore(monkeypatch):
    monkeypatch.setattr(collecting, "BLOCK", 3)
    log = CollectingLog()
    pages = {}
    for user in range(8):
        log.norm(user, user / 10)
        if user == 4:  # a merge: later deltas change a block that has a page
            names = log.ledger.state.unmerged()
            pages = {name: log.ledger.state.take_page(name) for name in names}
    log.open(attempt=2, request="second")
    restored = Ledger(0, 1)
    restored.state.load({n: page for n, page in pages.items() if page is not None}, log.changes)
    log.hand_over(restored)
    assert log.norm(2, 0.9).reason == Reason.NORM_CHANGED
    decision = log.decide(attempt=2)
    assert collected_of(decision) == {user: user / 10 for user in range(8)}
    assert list(collected_of(decision)) == list(range(8))
    log.hand_over(rebuilt(log.changes, 1, 0))
    assert not log.ledger.state.collected
    assert log.decide(attempt=2) == decision


@pytest.mark.parametrize("is_merged", list(product([False, True], repeat=4)))
def test_a_user_who_sends_again_after_an_erasure_counts_once_after_a_restore(
    monkeypatch, is_merged
):
    """The user is in another block then, and any of the pages may be newer than the deltas."""
    monkeypatch.setattr(collecting, "BLOCK", 1)
    log = CollectingLog()
    for user in range(3):
        log.norm(user)
    state, since = log.ledger.state, len(log.changes)
    pages = {name: state.take_page(name) for name in state.unmerged()}
    log.send(Erase(request="t", user=1, dataset="d"))
    assert log.norm(1, 0.25) is None
    newer = {f"collected:d/r/0/{number}": merged for number, merged in enumerate(is_merged)}
    pages |= {name: state.take_page(name) for name, merged in newer.items() if merged}
    restored = Ledger(0, 1)
    restored.state.load(pages, log.changes[since:])
    log.hand_over(restored)
    assert log.norm(1, 0.5).reason == Reason.NORM_CHANGED
    assert collected_of(log.decide()) == {0: 0.5, 2: 0.5, 1: 0.25}


def test_an_erasure_and_an_event_in_one_batch_are_restored_in_any_order(monkeypatch):
    """The delta has block 10 before block 2, by name."""
    monkeypatch.setattr(collecting, "BLOCK", 1)
    log, about = Log(), {"dataset": "d", "run": "r", "step": 0}
    log.create(user_ids="integer")
    log.open(collect=CollectTerms(clip_norm=CLIP))
    log.send(NormEvents(**about, users=list(range(10)), norms=[0.5] * 10))
    for record in (Erase(request="t", user=2), NormEvent(**about, user=2, norm=0.25)):
        log.apply(encode(record))
    log.changes.append(encode(log.ledger.state.take_delta()))
    log.hand_over(rebuilt(log.changes, 1, 0))
    rejected = answer_of(log.send(NormEvent(**about, user=2, norm=0.5)))
    assert rejected.reason == Reason.NORM_CHANGED


@pytest.mark.parametrize("most", ["COLLECTED", "ACCOUNTS", "BALANCES"])
def test_too_many_norms_cost_the_step_its_decision(monkeypatch, most):
    monkeypatch.setattr(collecting, f"MAX_{most}", 3)
    monkeypatch.setattr(auditor_charges, f"_MOST_{most}", 3)
    log = CollectingLog()
    assert [log.norm(user) for user in range(3)] == [None] * 3
    assert log.norm(0) is None  # the same event
    for user in (3, 4):
        assert log.norm(user).reason == Reason.TOO_MANY_NORMS
    log.hand_over(rebuilt(log.changes, 1, 0))
    assert log.decide().reason == Reason.TOO_MANY_NORMS
    assert log.spent() == {}
    log.send(Erase(request="t", user=0, dataset="d"))  # which frees no place for another user
    assert log.decide().reason == Reason.TOO_MANY_NORMS


def test_the_size_of_a_write_is_not_underestimated():
    log = CollectingLog(user_ids="string")
    for number in range(100):
        event = NormEvent(dataset="d", run="r", step=0, user=f"{number}" + "u" * 200, norm=0.5)
        log.ledger.apply(0, encode(event))
        expected = log.ledger.state.unwritten_bytes
        assert len(encode(log.ledger.state.take_delta())) <= expected
    log.made.remove(log)  # whose auditor has not seen these events


def test_long_ids_count_towards_the_maximum(monkeypatch):
    monkeypatch.setattr(collecting, "MAX_COLLECTED_BYTES", 100)
    monkeypatch.setattr(auditor_charges, "_MOST_OCTETS", 100)
    log = CollectingLog(user_ids="string")
    assert log.norm("\u00fc" * 46) is None
    assert log.norm("a").reason == Reason.TOO_MANY_NORMS
    log.send(Erase(request="t", user="\u00fc" * 46, dataset="d"))  # which frees no bytes
    log.hand_over(rebuilt(log.changes, 1, 0))
    assert log.decide().reason == Reason.TOO_MANY_NORMS


@pytest.mark.parametrize("first", [None, CollectTerms(clip_norm=CLIP)])
def test_a_new_attempt_sets_the_terms_before_the_first_step(first):
    """Otherwise an opening that reached some partitions would make the run's name unusable."""
    log = CollectingLog()
    log.open(run="s", collect=UNSET if first is None else first)
    terms = CollectTerms(clip_norm=2 * CLIP)
    again = log.open(run="s", collect=terms)
    assert again.reason == Reason.COLLECT_CHANGED  # the opening of the current attempt, repeated
    assert log.open(run="s", attempt=2, request="second", collect=terms).collect == terms
    log.hand_over(rebuilt(log.changes, 1, 0))
    assert log.norm(1, 1.5 * CLIP, run="s") is None
    assert collected_of(log.decide(run="s", attempt=2)) == {1: 1.5 * CLIP}


def test_norms_that_were_collected_under_other_terms_are_dropped():
    log = CollectingLog()
    for step in (0, 1):
        assert log.norm(1, CLIP, step) is None
    log.open(attempt=2, request="same", collect=CollectTerms(clip_norm=CLIP))
    assert log.norm(1, CLIP / 2).reason == Reason.NORM_CHANGED
    log.open(attempt=3, request="other", collect=CollectTerms(clip_norm=CLIP / 2))
    log.hand_over(rebuilt(log.changes, 1, 0))
    assert log.norm(2, CLIP / 2) is None
    assert log.norm(2, CLIP).reason == Reason.NORM_ABOVE_CLIP
    assert collected_of(log.decide(attempt=3)) == {2: CLIP / 2}
    assert collected_of(log.decide(1, attempt=3)) == {}
