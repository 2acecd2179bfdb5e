"""Whatever is lost, late or repeated between clients and ledgers, every promise is kept.

Two trainers share two datasets, one that halts and one that clips, and two runs of each. Requests
and answers are lost or late, a trainer acts while another waits, processes end and resume. After
every call the log of charges is added up again, as rational numbers, and compared with the ledgers
and with everything that a client was told.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from streams.ledger.ledger import Output
from streams.records import (
    TOO_SOON,
    Charge,
    CloseRun,
    Decision,
    OpenRun,
    Reason,
    RunClosed,
    RunOpened,
    decode_answer,
    decode_request,
)
from streams.records.packing import unpack_bits, unpack_norms
from streams.records.users import UserIds, partitions_of
from streams.sdk.decisions import DecisionArrays, StepDecision
from streams.sdk.errors import ConflictingDecisions, TurnstileError
from streams.sdk.run import Run
from tests.unit.sdk.partitions import Partitions

PLACES = range(3)
UNIT = Fraction(1, 2**44)
BUDGET = Fraction(1, 2)
DATASETS = {"halts": "halt", "clips": "clip"}
SIDE_BY_SIDE = {"clips"}
"""Whose runs may charge at a time."""
EXPECTED = {
    Reason.POLICY_CHANGED,
    Reason.UNKNOWN_DATASET,
    Reason.UNKNOWN_RUN,
    Reason.DATASET_IN_USE,
    Reason.RUN_CLOSED,
    Reason.OLDER_ATTEMPT,
    Reason.SEPARATION_CHANGED,
    Reason.BUDGET_HELD,
    Reason.STEP_CONTENT_CHANGED,
}
"""Refusals that trainers bring upon each other. All others would be errors of the SDK."""


class Content(NamedTuple):
    """What a step is charged for."""

    users: tuple[int, ...]
    norms: tuple[float, ...]
    noise_stddev: float


CONTENTS = [
    Content((0, 1, 2, 3, 4, 5), (0.5, 0.25, 0.0, 0.3, 0.7, 0.1), 1.0),
    Content((5, 4, 3, 2, 1, 0), (0.5, 0.25, 0.0, 0.3, 0.7, 0.1), 1.0),
    Content((0, 1, 2), (0.9, 0.9, 0.9), 1.5),
    Content((2,), (1.0,), 0.9),
    Content((), (), 1.0),
]

Step = tuple[str, str, int]
"""Dataset, run, step."""

Loss = tuple[str, frozenset[int]]
"""What goes wrong during one call, and where; see ``Partitions``."""

NOTHING: Loss = ("mute", frozenset())
LOSSES = st.one_of(
    st.just(NOTHING),
    st.tuples(
        st.sampled_from(["deaf", "mute", "late"]),
        st.frozensets(st.sampled_from(PLACES), min_size=1),
    ),
)
TRAINERS = st.sampled_from([0, 1])
NAMES = st.sampled_from(["r", "s"])
CHOICE = st.sampled_from(CONTENTS)
SOME = st.frozensets(st.sampled_from(PLACES), min_size=1, max_size=2)
NAMES_OF_DATASETS = st.sampled_from(list(DATASETS))


def part_of(content: Content, partition: int) -> Content:
    """What a partition is asked for."""
    here = [
        (user, norm)
        for user, norm, home in zip(
            content.users,
            content.norms,
            partitions_of(np.array(content.users, dtype=np.int64), len(PLACES)),
            strict=True,
        )
        if home == partition
    ]
    users, norms = zip(*here, strict=True) if here else ((), ())
    return Content(users, norms, content.noise_stddev)


PARTS = {
    content: {partition: part_of(content, partition) for partition in PLACES}
    for content in CONTENTS
}


class Recorded(Partitions):
    """Remembers every decision that was made, and not those that were only repeated."""

    def __init__(self) -> None:
        super().__init__(len(PLACES))
        self.made: dict[tuple[Step, int], tuple[Charge, Decision]] = {}
        self.attempts: dict[tuple[str, str, int], int] = {}
        self.separations: dict[tuple[str, str, int], int] = {}
        self.holders: dict[tuple[str, int], str] = {}  # which run holds a budget

    def _apply(self, partition: int, request: bytes) -> Sequence[Output]:
        outputs = super()._apply(partition, request)
        record = decode_request(request)
        answer = None if outputs[0].channel.value == "rejects" else decode_answer(outputs[0].value)
        if answer is None and self.rejects[-1] is Reason.UNKNOWN_RUN:
            assert isinstance(record, CloseRun), "only who closes a run asks whether it is there"
        if isinstance(record, OpenRun) and isinstance(answer, RunOpened):
            self._hold(partition, record, answer)
        if isinstance(answer, RunClosed):
            held = answer.dataset, partition
            if self.holders.get(held) == answer.run:
                del self.holders[held]
        if isinstance(answer, RunOpened):
            self.attempts[answer.dataset, answer.run, partition] = answer.attempt
            self.separations[answer.dataset, answer.run, partition] = answer.min_separation or 1
        if isinstance(record, Charge) and isinstance(answer, Decision):
            newest = self.attempts[record.dataset, record.run, partition]
            assert record.attempt == newest, "older attempts are fenced"
            if record.dataset not in SIDE_BY_SIDE:
                holder = self.holders.get((record.dataset, partition))
                assert holder == record.run, "one run at a time is charged"
            is_separated = self.separations[record.dataset, record.run, partition] > 1
            assert is_separated or TOO_SOON not in answer.reasons, "no separation was asked for"
            place = (record.dataset, record.run, record.step), partition
            self.made.setdefault(place, (record, answer))
        return outputs

    def _hold(self, partition: int, record: OpenRun, answer: RunOpened) -> None:
        holder = self.holders.get((record.dataset, partition))
        if record.dataset not in SIDE_BY_SIDE and holder != record.run:
            known = self.attempts.get((record.dataset, record.run, partition), 0)
            assert answer.attempt > known, "a repeated opening takes nothing over"
            assert holder is None or record.take_over is True, "nothing is taken over unasked"
        self.holders[record.dataset, partition] = record.run

    def granted(self, step: Step, partition: int) -> dict[int, float | None]:
        """The norm that each user of a step was granted there, None if the user was halted."""
        charge, decision = self.made[step, partition]
        admitted = unpack_bits(decision.admitted, decision.users).tolist()
        norms = unpack_norms(charge.norms).copy()
        norms[np.frombuffer(decision.clipped, "<u4")] = np.frombuffer(decision.granted, "<f8")
        users = UserIds.unpack(charge.users).tolist()
        return {
            user: norm if is_in else None
            for user, norm, is_in in zip(users, norms.tolist(), admitted, strict=True)
        }


class Clients(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.service = Recorded()
        self.runs: dict[int, Run] = {}
        self.told: dict[Step, tuple[Content, StepDecision]] = {}
        self.used: set[str] = set()

    @initialize(
        begun=st.sampled_from(["nothing", "half-made", "half-withdrawn", "made", "open", "open"]),
        loss=LOSSES,
        separation=st.sampled_from([None, None, 2, 3]),
    )
    def begin(self, begun: str, loss: Loss, separation: int | None) -> None:
        """Mostly with datasets that are there, and trainers at work."""
        for trainer, dataset in enumerate(DATASETS):
            if begun != "nothing":
                self.create(dataset, 1, loss if begun == "half-made" else NOTHING)
            if begun == "half-withdrawn":
                self.withdraw(dataset, loss)
                self.create(dataset, 2, NOTHING)
            if begun != "made":
                self.open(trainer, dataset, "r", None, NOTHING, separation)

    @rule(trainer=TRAINERS, content=CHOICE, opens=st.booleans())
    def act_while_somebody_waits(self, trainer: int, content: Content, opens: bool) -> None:
        """Once, when requests were published and nobody has looked at the answers."""

        def act() -> None:
            self.service.before_result = lambda: None
            if opens and self.runs:
                run = next(iter(self.runs.values()))
                self.open(trainer, run.dataset, run.name, None, NOTHING)
            elif trainer in self.runs:
                self.charge(trainer, content, NOTHING)

        self.service.before_result = act

    @rule(dataset=NAMES_OF_DATASETS, factor=st.sampled_from([1, 1, 2]), loss=LOSSES)
    def create(self, dataset: str, factor: int, loss: Loss) -> None:
        self.attempt(
            loss,
            lambda: self.service.create(
                dataset,
                budget=float(factor * BUDGET),
                on_exhaustion=DATASETS[dataset],
                user_ids="integer",
                assume_independent_timing=dataset in SIDE_BY_SIDE,
            ),
        )

    @rule(dataset=NAMES_OF_DATASETS, loss=LOSSES)
    def withdraw(self, dataset: str, loss: Loss) -> None:
        self.attempt(loss, lambda: self.service.withdraw(dataset))

    @rule(
        trainer=TRAINERS,
        dataset=NAMES_OF_DATASETS,
        name=NAMES,
        released=st.sampled_from([None, None, -1, 0, 1, 2]),
        loss=LOSSES,
        separation=st.sampled_from([None, 2, 3]),
        take_over=st.booleans(),
    )
    def open(
        self,
        trainer: int,
        dataset: str,
        name: str,
        released: int | None,
        loss: Loss,
        separation: int | None = None,
        take_over: bool = False,
    ) -> None:
        run: Run | None = self.attempt(
            loss,
            lambda: self.service.open(name, dataset, released, separation, take_over=take_over),
        )
        if run is not None:
            self.runs[trainer] = run
            self.used.add(dataset)
            assert released is None or run.step > released, "what was released is not handed back"
            kept = {self.service.separations[dataset, name, place] for place in PLACES}
            assert kept == {run.min_separation or 1}, "all partitions keep apart alike"
            assert separation in (None, run.min_separation)

    @precondition(lambda self: self.runs)
    @rule(
        trainer=TRAINERS, content=CHOICE, loss=LOSSES, notes=st.booleans(), take_over=st.booleans()
    )
    def resume(
        self, trainer: int, content: Content, loss: Loss, notes: bool, take_over: bool
    ) -> None:
        """As a trainer does who wrote down the last step that it was told, or did not."""
        run = self.runs.get(trainer)
        if run is not None:
            told = [s for d, r, s in self.told if (d, r) == (run.dataset, run.name)]
            released = max(told, default=-1) if notes else None
            self.open(trainer, run.dataset, run.name, released, NOTHING, take_over=take_over)
            self.charge(trainer, content, loss)

    @precondition(lambda self: self.runs)
    @rule(
        trainer=TRAINERS,
        content=CHOICE,
        unreached=SOME,
        then=CHOICE,
        notes=st.booleans(),
    )
    def die_and_resume(
        self,
        trainer: int,
        content: Content,
        unreached: frozenset[int],
        then: Content,
        notes: bool,
    ) -> None:
        """A trainer ends when a step has come to some partitions, and goes on with another one."""
        self.charge(trainer, content, ("deaf", unreached))
        self.resume(trainer, then, NOTHING, notes, take_over=True)

    @precondition(lambda self: self.runs)
    @rule(trainer=TRAINERS, content=CHOICE, loss=LOSSES)
    def charge(self, trainer: int, content: Content, loss: Loss) -> None:
        run = self.runs.get(trainer)
        if run is None:
            return
        users, norms, noise = content
        step = run.dataset, run.name, run.step
        decision = self.attempt(
            loss, lambda: run.charge(list(users), list(norms), noise_stddev=noise)
        )
        if decision is not None:
            self.hear(step, content, decision)

    @precondition(lambda self: self.runs)
    @rule(trainer=TRAINERS, content=CHOICE, unreached=SOME, then=CHOICE)
    def change_its_mind(
        self, trainer: int, content: Content, unreached: frozenset[int], then: Content
    ) -> None:
        """A step has come to some partitions only, and the trainer goes on with another one."""
        self.charge(trainer, content, ("deaf", unreached))
        self.charge(trainer, then, NOTHING)

    @precondition(lambda self: self.runs)
    @rule(trainer=TRAINERS, call=st.sampled_from(["abandon", "abandon", "close"]), loss=LOSSES)
    def end(self, trainer: int, call: str, loss: Loss) -> None:
        if trainer in self.runs:
            self.attempt(loss, getattr(self.runs[trainer], call))

    @rule(dataset=NAMES_OF_DATASETS, name=NAMES, loss=LOSSES)
    def close_run(self, dataset: str, name: str, loss: Loss) -> None:
        self.attempt(loss, lambda: self.service.close_run(name, dataset))

    def attempt(self, loss: Loss, call: Callable[[], Any]) -> Any:
        """What comes of a call; None if it failed in a way that clients are told of."""
        kind, where = loss
        setattr(self.service, kind, set(where))
        try:
            return call()
        except ConflictingDecisions:
            raise  # nobody but the workers writes here
        except TurnstileError:
            return None
        finally:
            self.service.deaf = self.service.mute = self.service.late = set()

    # --- what must be true ------------------------------------------------------------------------

    def hear(self, step: Step, content: Content, decision: StepDecision) -> None:
        """A client was told a decision, and may release the step."""
        assert decision.step == step[2]
        known, before = self.told.setdefault(step, (content, decision))
        assert known == content, "one step is one content"
        for field in ("admitted", "granted", "exhausted", "too_soon"):
            np.testing.assert_array_equal(getattr(before, field), getattr(decision, field))
        granted: dict[int, float | None] = {}
        for partition in PLACES:  # nobody is admitted before all partitions have decided
            granted |= self.service.granted(step, partition)
        assert granted.keys() == set(content.users)
        for position, (user, norm) in enumerate(zip(content.users, content.norms, strict=True)):
            held = granted[user]
            assert decision.admitted[position] == (held is not None)
            assert decision.halted[position] == (held is None)
            assert decision.granted[position] == (held or 0.0) <= norm

    @invariant()
    def budgets_are_kept_and_every_step_is_charged_once(self) -> None:
        exact: dict[tuple[str, int], Fraction] = {}
        steps: dict[tuple[str, int], int] = {}
        clipped: set[tuple[str, int]] = set()
        for (step, partition), (charge, decision) in self.service.made.items():
            granted = self.service.granted(step, partition)
            users = UserIds.unpack(charge.users).tolist()
            asked = dict(zip(users, unpack_norms(charge.norms).tolist(), strict=True))
            waiting = dict(
                zip(users, (DecisionArrays.of(decision).reasons == TOO_SOON).tolist(), strict=True)
            )
            for user, norm in granted.items():
                key = step[0], user
                cost = (Fraction(norm or 0.0) / Fraction(charge.scale)) ** 2 / 2
                exact[key] = exact.get(key, Fraction(0)) + cost
                steps[key] = steps.get(key, 0) + 1
                assert norm is None or not waiting[user], "who comes too soon is halted"
                if DATASETS[step[0]] == "clip" and norm != asked[user] and not waiting[user]:
                    clipped.add(key)
            assert decision.digest, "only decisions of charges are remembered"
        for dataset in DATASETS:
            policies = {
                ledger.state.datasets[dataset].policy.budget[0]
                for ledger in self.service.ledgers
                if dataset in ledger.state.datasets
            }
            held = self.service.spent_units(dataset)
            spent = {user: cost for (name, user), cost in exact.items() if name == dataset}
            assert held.keys() == spent.keys()
            for user, cost in spent.items():
                units = held[user]
                assert cost <= units * UNIT <= max(policies) * UNIT, "within the budget"
                if (dataset, user) in clipped:
                    assert units in policies, "nothing is left"
                else:
                    assert units * UNIT < cost + steps[dataset, user] * UNIT, "charged once"

    @invariant()
    def participations_keep_the_minimum_separation(self) -> None:
        last: dict[tuple[str, str, int], int] = {}
        for (step, partition), _ in sorted(self.service.made.items(), key=lambda one: one[0]):
            dataset, name, number = step
            separation = self.service.separations[dataset, name, partition]
            for user, norm in self.service.granted(step, partition).items():
                if norm:
                    before = last.get((dataset, name, user), -separation)
                    assert number - before >= separation, f"{user} in {before} and {step}"
                    last[dataset, name, user] = number

    @invariant()
    def a_step_has_one_content_or_was_given_up(self) -> None:
        parts: dict[Step, dict[int, Content]] = {}
        for (step, partition), (charge, _) in self.service.made.items():
            users = tuple(UserIds.unpack(charge.users).tolist())
            norms = tuple(unpack_norms(charge.norms).tolist())
            parts.setdefault(step, {})[partition] = Content(users, norms, charge.scale)
        for step, found in parts.items():
            given_up = {content for content in found.values() if content == CONTENTS[-1]}
            assert any(
                set(found.items()) <= set(PARTS[content].items())
                or (
                    given_up
                    and step not in self.told
                    and all(part in (PARTS[content][p], CONTENTS[-1]) for p, part in found.items())
                )
                for content in CONTENTS
            ), f"{step}: {found}"

    @invariant()
    def nothing_is_sent_that_makes_no_sense(self) -> None:
        assert set(self.service.rejects) <= EXPECTED

    @invariant()
    def a_dataset_that_is_in_use_is_everywhere_under_one_policy(self) -> None:
        for dataset in self.used:
            assert all(dataset in ledger.state.datasets for ledger in self.service.ledgers)
            held = {str(ledger.state.datasets[dataset].policy) for ledger in self.service.ledgers}
            assert len(held) == 1

    def teardown(self) -> None:
        """When nothing goes wrong any more, everybody can go on, whatever was left half-way."""
        self.service.before_result = lambda: None
        for trainer in list(self.runs):
            for content in CONTENTS:
                self.resume(trainer, content, NOTHING, notes=True, take_over=True)
        for dataset in DATASETS:
            for factor in (1, 2):
                self.create(dataset, factor, NOTHING)
            run = self.service.open("after", dataset, take_over=True)
            for content in CONTENTS:
                step = dataset, "after", run.step
                users, norms, noise = content
                self.hear(step, content, run.charge(users, norms, noise_stddev=noise))
            run.close()
        self.budgets_are_kept_and_every_step_is_charged_once()
        self.a_step_has_one_content_or_was_given_up()
        self.nothing_is_sent_that_makes_no_sense()
        self.a_dataset_that_is_in_use_is_everywhere_under_one_policy()


Clients.TestCase.settings = settings(stateful_step_count=30)
TestClients = Clients.TestCase
