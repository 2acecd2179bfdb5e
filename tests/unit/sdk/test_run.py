"""No paid step is lost, none is charged twice, and none is released for other content."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest

from streams.ledger.outputs import Channel
from streams.records import Decision, OpenRun, Reason, decode_request, encode
from streams.records.packing import pack_bits
from streams.sdk.errors import (
    ADVICE,
    ConflictingDecisions,
    DecisionTimeout,
    Fenced,
    InvalidRequest,
    PartitionsDisagree,
    ReleaseUnknown,
    StepContentChanged,
    UncoveredStep,
    Unusable,
)
from streams.sdk.run import Run
from tests.unit.sdk.partitions import Partitions

USERS = list(range(12))
NORMS = np.linspace(0.5, 2.0, 12)
COST = NORMS**2 / 32  # at a noise of 4


def charge(run: Run, norms: Any = NORMS, users: Any = USERS) -> Any:
    return run.charge(users, norms, noise_stddev=4.0)


def opened(count: int = 3, **policy: Any) -> tuple[Partitions, Run]:
    service = Partitions(count)
    service.create(**policy)
    return service, service.open()


def assert_charged(service: Partitions, times: int) -> None:
    spent = service.spent()
    np.testing.assert_allclose([spent[user] for user in USERS], times * COST, rtol=1e-9)


# --- a step that was interrupted ------------------------------------------------------------------

PLACES = [{0}, {1, 2}, {0, 1, 2}]


def interrupted(reached: set[int]) -> tuple[Partitions, Run]:
    """A run whose trainer died when step 1 had come to these partitions, and its next attempt."""
    service, run = opened()
    charge(run)
    service.deaf, service.mute = {0, 1, 2} - reached, reached
    with pytest.raises(DecisionTimeout):
        charge(run)
    service.deaf, service.mute = set(), set()
    return service, service.open()


@pytest.mark.parametrize("reached", PLACES[:2], ids=str)
def test_interrupted_step_is_completed_with_its_content_only(reached: set[int]) -> None:
    service, run = interrupted(reached)
    assert (run.step, run.interrupted) == (1, True)
    before = service.spent()
    lengths = [len(log) for log in service.logs]
    for _ in range(2):
        with pytest.raises(StepContentChanged):
            charge(run, NORMS / 2)
        assert service.spent() == before
    unreached = {0, 1, 2} - reached
    assert all(len(service.logs[p]) == lengths[p] for p in unreached)  # nothing was even sent
    assert charge(run).step == 1  # the right content still completes it
    assert not run.interrupted
    assert_charged(service, times=2)
    assert charge(run).step == 2


@pytest.mark.parametrize("reached", PLACES[:2], ids=str)
def test_an_interrupted_step_can_be_given_up(reached: set[int]) -> None:
    service, run = interrupted(reached)
    before = service.spent()
    run.abandon()
    assert (run.step, run.interrupted) == (2, False)
    assert service.spent() == before
    assert charge(run).step == 2
    assert service.rejects == []


def test_a_step_that_this_attempt_has_published_is_not_abandoned() -> None:
    service, run = opened()
    service.mute = {1}
    with pytest.raises(DecisionTimeout):
        charge(run)
    with pytest.raises(InvalidRequest):
        run.abandon()
    service.mute = set()
    assert charge(run).step == 0
    assert_charged(service, times=1)


# --- after DecisionTimeout ------------------------------------------------------------------------


def interrupt() -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("mute", [{0}, {0, 1, 2}, None], ids=str)
def test_interrupted_charge_can_only_be_repeated(mute: set[int] | None) -> None:
    service, run = opened()
    if mute is None:
        service.before_result = interrupt
    else:
        service.mute = mute
    with pytest.raises(KeyboardInterrupt if mute is None else DecisionTimeout):
        charge(run)
    service.mute, service.before_result = set(), lambda: None
    lengths = [len(log) for log in service.logs]
    for users, norms in ((USERS, NORMS / 2), (USERS[:-1], NORMS[:-1]), (USERS[::-1], NORMS[::-1])):
        with pytest.raises(InvalidRequest):
            charge(run, norms, users)
    with pytest.raises(InvalidRequest):
        run.charge(USERS, NORMS, noise_stddev=5.0)
    assert [len(log) for log in service.logs] == lengths
    assert charge(run).step == 0
    assert_charged(service, times=1)
    assert charge(run, NORMS / 2).step == 1


# --- released -------------------------------------------------------------------------------------


def test_a_step_that_was_decided_and_not_released_is_handed_back() -> None:
    service, run = opened()
    told = [charge(run) for _ in range(3)]
    for _ in range(2):  # and again, if that attempt dies too
        run = service.open(released=1)
        assert (run.step, run.interrupted) == (2, True)
        again = charge(run)
        assert again.step == 2
        for field in ("admitted", "granted", "exhausted"):
            np.testing.assert_array_equal(getattr(again, field), getattr(told[2], field))
        assert_charged(service, times=3)
    assert charge(run).step == 3
    assert service.rejects == []
    for released in (3, None):
        run = service.open(released=released)
        assert (run.step, run.interrupted) == (4, False)


def test_late_decision_of_other_content_is_no_forgery() -> None:
    service, run = opened()
    charge(run)
    run = service.open(released=-1)
    service.late = {0, 1, 2}
    with pytest.raises(DecisionTimeout):
        charge(run)
    service.late, service.deaf = set(), {0, 1, 2}  # what is asked now is answered later still
    with pytest.raises(StepContentChanged):
        charge(run, NORMS / 2)
    service.deaf = set()
    assert charge(run).step == 0
    assert_charged(service, times=1)


def test_steps_of_unknown_release_are_given_up() -> None:
    service, run = opened()
    for _ in range(8):
        charge(run)
    with pytest.raises(ReleaseUnknown) as refused:
        service.open(released=3)
    assert (refused.value.released, refused.value.newest) == (3, 7)
    given_up = service.open(released=refused.value.newest)
    assert (given_up.step, given_up.interrupted) == (8, False)
    with pytest.raises(InvalidRequest) as undecided:
        service.open(released=8)
    assert not isinstance(undecided.value, ReleaseUnknown)


# --- an attempt that still holds ------------------------------------------------------------------


@pytest.mark.parametrize("lost", ["deaf", "mute", "late"])
def test_lost_answer_does_not_confirm_an_attempt(lost: str) -> None:
    service, run = opened()
    setattr(service, lost, {0, 1, 2})
    with pytest.raises(DecisionTimeout):
        run.check_attempt()
    setattr(service, lost, set())
    run.check_attempt()
    assert charge(run).step == 0


def test_a_copy_of_an_earlier_answer_does_not_confirm_an_attempt() -> None:
    service, run = opened()
    token = service.ledgers[0].state.runs["d", "r"].request
    question = OpenRun(dataset="d", run="r", attempt=1, request=token)
    copy = service.publish(0, question)
    charge(run)
    service.mute = {0}  # the copy is all that comes of partition 0
    copies = [copy]

    def comes_late() -> None:
        if copies:
            service.hear(copies.pop())

    service.before_result = comes_late
    with pytest.raises(DecisionTimeout):
        run.check_attempt()
    assert not copies
    service.mute = set()
    run.check_attempt()


# --- who may use a run ----------------------------------------------------------------------------


def test_a_run_is_not_charged_by_two_threads_at_once() -> None:
    service, run = opened()
    entered, go_on = threading.Event(), threading.Event()

    def wait() -> None:
        entered.set()
        assert go_on.wait(60.0)

    service.before_result = wait
    thread = threading.Thread(target=charge, args=(run,))
    thread.start()
    assert entered.wait(60.0)
    for call in (lambda: charge(run), run.abandon, run.close):
        with pytest.raises(Unusable):
            call()
    go_on.set()
    thread.join()
    assert charge(run).step == 1
    assert_charged(service, times=2)


# --- forged and contradicting decisions -----------------------------------------------------------


def with_exhausted_users() -> tuple[Partitions, Run]:
    """Everybody but user 0 has too little left for their norms."""
    service, run = opened(budget=float(2 * COST[0]))
    for _ in range(2):
        decision = charge(run)
    assert decision.admitted.tolist() == [True] + 11 * [False]
    return service, run


def admit_all(decision: Decision) -> Decision:
    """What somebody would forge who can read the charge in `norms`."""
    everyone = pack_bits(np.ones(decision.users, dtype=bool))
    return msgspec.structs.replace(decision, admitted=everyone, halted=b"", reasons=b"")


def assert_nothing_goes_on(run: Run) -> None:
    for call in (lambda: charge(run), run.abandon, run.close):
        with pytest.raises((ConflictingDecisions, Unusable)):
            call()


@pytest.mark.parametrize("forged_first", [True, False])
def test_conflict_ends_the_charge(forged_first: bool) -> None:
    service, run = with_exhausted_users()
    order = 1 if forged_first else -1
    service.heard = lambda decision: [admit_all(decision), decision][::order]
    with pytest.raises(ConflictingDecisions):
        charge(run)
    assert_nothing_goes_on(run)


@pytest.mark.parametrize("steps_later", [0, 100])
def test_later_conflict_ends_the_run(steps_later: int) -> None:
    service, run = with_exhausted_users()
    true: list[Decision] = []

    def forge(decision: Decision) -> list[Decision]:
        true.append(decision)
        return [admit_all(decision)]

    service.heard = forge
    assert charge(run).admitted.all()  # this is what forging can do, for one step
    service.heard = lambda decision: [decision]
    for _ in range(steps_later):
        charge(run)
    for decision in true:
        service.hear(decision)
    with pytest.raises(ConflictingDecisions):
        charge(run)
    assert_nothing_goes_on(run)


def test_reopened_run_remembers_the_conflict() -> None:
    service, run = with_exhausted_users()
    true = charge(run)
    assert not true.admitted[1:].any()
    stored = msgspec.msgpack.decode(service.ledgers[0].state.runs["d", "r"].decision, type=Decision)
    service.hear(admit_all(stored))
    with pytest.raises(ConflictingDecisions):
        charge(service.open())


@pytest.mark.parametrize("channel", [Channel.HALTS, Channel.REJECTS])
def test_records_that_no_worker_has_written_end_no_run(channel: Channel) -> None:
    service, run = opened()

    def junk() -> None:
        for record in (b"", b"\xc1", b"{}", b"{", b"\x91" * 5000, encode({"type": "x"})):
            service.hear_record(channel, 0, record)

    service.before_result = junk
    assert [charge(run).step for _ in range(2)] == [0, 1]
    assert_charged(service, times=2)


@pytest.mark.parametrize("places", [{0}, {0, 1, 2}], ids=str)
def test_forged_charge_makes_the_true_one_fail(places: set[int]) -> None:
    service, run = opened()
    charge(run)
    for partition in places:
        true = decode_request(service.logs[partition][-1])
        forged = msgspec.structs.replace(true, step=1, norms=true.norms[:-8] + bytes(8))
        assert isinstance(service.publish(partition, forged), Decision)
    with pytest.raises(StepContentChanged):
        charge(run)
    with pytest.raises(Unusable):
        charge(run)
    again = service.open(released=0)
    assert (again.step, again.interrupted) == (1, True)
    again.abandon()
    assert charge(again).step == 2


def replaced(**fields: Any) -> Callable[[Decision], list[Decision]]:
    return lambda decision: [msgspec.structs.replace(decision, **fields)]


IMPOSSIBLE = {
    "other content": replaced(digest=bytes(16)),
    "more users": replaced(users=99),
    "fewer bits": replaced(admitted=b""),
    "more bits": replaced(exhausted=bytes(9)),
    "a grant without a norm": replaced(clipped=bytes(4)),
    "a grant that is cut off": replaced(clipped=bytes(3), granted=bytes(8)),
    "a grant behind the last user": lambda decision: replaced(
        clipped=np.array([0, decision.users], "<u4").tobytes(), granted=np.full(2, 0.1).tobytes()
    )(decision),
    "more than was asked for": replaced(
        clipped=np.array([0], "<u4").tobytes(), granted=np.array([5.0]).tobytes()
    ),
    "no number": replaced(
        clipped=np.array([0], "<u4").tobytes(), granted=np.array([np.nan]).tobytes()
    ),
}


@pytest.mark.parametrize("heard", IMPOSSIBLE.values(), ids=IMPOSSIBLE)
def test_impossible_decision_ends_the_run(
    heard: Callable[[Decision], list[Decision]],
) -> None:
    service, run = opened()
    service.heard = heard
    with pytest.raises(ConflictingDecisions):
        charge(run)
    with pytest.raises(Unusable):
        charge(run)


# --- who is charged -------------------------------------------------------------------------------


def test_two_spellings_of_a_name_are_one_user() -> None:
    service, run = opened()
    users = ["Zoe\u0308", "b", "名前"]
    norms = [1.0, 2.0, 3.0]
    assert charge(run, norms, users).granted.tolist() == norms
    assert charge(run, norms[::-1], ["名前", "b", "Zoë"]).granted.tolist() == norms[::-1]
    assert service.spent() == {"Zoë": 2 / 32, "b": 8 / 32, "名前": 18 / 32}
    with pytest.raises(InvalidRequest):
        charge(run, [1.0, 1.0], ["Zoë", "Zoe\u0308"])
    with pytest.raises(InvalidRequest):
        charge(run, [1.0], [200 * "\u0344"])  # longer in normal form
    assert service.rejects == []


def test_users_that_change_between_steps_are_charged_as_given() -> None:
    service, run = opened()
    users = [1, 2, 3]
    for step, change in enumerate((lambda: None, lambda: users.append(4), users.reverse)):
        change()
        assert charge(run, np.ones(len(users)), users).step == step
    assert service.spent() == {1: 3 / 32, 2: 3 / 32, 3: 3 / 32, 4: 2 / 32}
    array = np.array([1, 2])
    charge(run, np.ones(2), array)
    array[0] = 5
    charge(run, np.ones(2), array)
    assert service.spent() == {1: 4 / 32, 2: 5 / 32, 3: 3 / 32, 4: 2 / 32, 5: 1 / 32}
    service.create("both", user_ids="mixed")
    run = service.open(dataset="both")
    for of_a_kind in ([1, 2], ["a", "b"], [1, "a"], [], ["a"], [1]):
        charge(run, np.ones(len(of_a_kind)), of_a_kind)
    for same in (True, 1.0):  # which equal the id given last, and are no ids
        with pytest.raises(InvalidRequest):
            charge(run, np.ones(1), [same])
    assert service.spent("both") == {1: 3 / 32, 2: 1 / 32, "a": 3 / 32, "b": 1 / 32}
    names: Any = np.array(["a", "b"])
    service.create("names")
    run = service.open(dataset="names")
    charge(run, np.ones(2), names)
    names[0] = "c"
    charge(run, np.ones(2), names)
    assert service.spent("names") == {"a": 1 / 32, "b": 2 / 32, "c": 1 / 32}


@pytest.mark.parametrize(
    "error",
    [
        Fenced(Reason.OLDER_ATTEMPT, "so it is", 2, 7),
        PartitionsDisagree("they do", 1),
        InvalidRequest("bad"),
        UncoveredStep("no such step", "gdp", ("renyi", "zcdp")),
        ConflictingDecisions("two"),
        ReleaseUnknown("r", 3, 7),
    ],
    ids=lambda error: type(error).__name__,
)
def test_errors_survive_a_process_boundary(error: Exception) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), vars(again)) == (type(error), str(error), vars(error))


@pytest.mark.parametrize("reason", Reason)
def test_every_reason_has_advice(reason: Reason) -> None:
    assert reason in ADVICE
