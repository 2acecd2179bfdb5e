"""Trainers that use the real SDK over a faulty network.

A trainer is synchronous code, as users write it. It can die at any request. Afterwards it resumes,
receives decisions and releases steps. The simulation checks the decisions that it received.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any

from msgspec import UNSET

from streams.records import CollectTerms, CreateDataset, Policy, WithdrawDataset, encode
from streams.sdk.client import Turnstile
from streams.sdk.dataset_requests import policy_from
from streams.sdk.decisions import StepDecision
from streams.sdk.errors import (
    BudgetHeld,
    DatasetIsClosed,
    DecisionTimeout,
    ErasedInPart,
    Fenced,
    InvalidRequest,
    PartitionsDisagree,
    PolicyChanged,
    RequestRejected,
    RunIsClosed,
    StepContentChanged,
)
from streams.sdk.run import Run
from tests.simulation.charging import (
    ByEvents,
    ByLevels,
    ByNorms,
    Charging,
    check_in_progress,
)
from tests.simulation.clock import Fibre
from tests.simulation.connection import Died, SimulatedConnection
from tests.simulation.received import Content, ReceivedDecisions, RosterDecided
from tests.simulation.world import World, Wrong

if TYPE_CHECKING:
    from tests.simulation.clients_signed import Signing

LEVELS = 4
"""The number of norm levels of a roster; norms are multiples of a quarter."""
_DISAGREEMENTS = 5
"""The number of disagreements after which a trainer gives up a contradicted dataset."""


@dataclass
class Plan:
    """The plan that all trainers of a dataset share."""

    dataset: str
    users: list[Any]
    policies: list[dict[str, Any]]  # each trainer creates the dataset under one of these
    parents: tuple[Plan, ...] = ()  # the plans of the parents
    whole: Plan | None = None  # the plan of the dataset whose budget this one shares
    contradicted: bool = False  # partitions may hold it under two policies permanently

    @property
    def chain(self) -> list[Plan]:
        """Return the plans of all datasets that must exist, the outermost first."""
        above = self.parents if self.whole is None else (self.whole,)
        found = {each.dataset: each for plan in above for each in plan.chain}
        return [*found.values(), self]

    @property
    def outermost(self) -> list[Plan]:
        """Return the plans of the datasets without a parent whose budgets are charged."""
        return [plan for plan in self.chain if not plan.parents] if self.parents else [self]

    @property
    def is_exclusive(self) -> bool:
        """Return whether only one run at a time charges an outermost budget."""
        policies = [plan.policies[0] for plan in self.outermost]
        return not all(policy.get("assume_independent_timing") for policy in policies)


@dataclass(frozen=True)
class Held:
    """A step that was decided and is not released."""

    step: int
    content: Content
    decided: Any


class Trainer:
    """Charges steps of one run until its quota is used up, and survives any number of crashes.

    Two things survive a crash, as on a disk: the contents that were tried for the next steps, and
    the last released step.
    """

    def __init__(
        self, world: World, received: ReceivedDecisions, plan: Plan, name: str, run: str
    ) -> None:
        rng = world.rng
        self.world = world
        self.received = received
        self.plan = plan
        self.name = name
        self.run = run
        self.policies = {each.dataset: rng.choice(each.policies) for each in plan.chain}
        self.shares_run = False  # other trainers charge the same run
        self.remembers_released = rng.random() < 0.6
        self.varies_content = rng.random() < 0.3
        self.closes = rng.random() < 0.2
        self.charges_ahead = False  # by at most one step
        self.uses_roster = False  # whether it charges a roster
        self.has_stable_levels = (
            rng.random() < 0.5
        )  # a roster trainer with constant noise and few new levels
        self.collect: CollectTerms | None = None  # the terms under which its run collects norms
        self.terms = Random()  # chooses those of an opening
        self.charges = 0  # the step that it charges
        self.min_separation: int | None = None  # steps between two participations of a user
        self.noise_scale = 1.0  # multiplies the noise of every step
        self.erases = 0.0  # the rate at which it erases a user after a step
        self.ends = 0.0  # the rate at which it closes the dataset after its last step
        self.takes_over = 0.0  # the rate at which it takes over a budget that another run holds
        self.sleeps = (
            0.0  # the rate at which it sleeps before a release, while a successor continues
        )
        self.sleep = Random()
        self.signing: Signing | None = None  # the keys, if it signs requests
        self._chance = Random(f"forgotten by {name} of {plan.dataset}")
        self.released = -1
        self._held: Held | None = None
        self.contents: dict[int, Content] = {}
        self.quota = 0
        self.is_closed = False
        self._holds = Random(f"held budgets for {name} of {plan.dataset}")
        self._take_over = self._holds.random() < 0.5
        self._reserve = Random(f"reserve of {run} of {plan.dataset}").choice((0.0, 0.0, 0.3, 0.5))
        self._lives = 0
        self._disagreements = 0
        self._refused = 0  # how often too little of the budget was left for its share

    def work(self, fibre: Fibre) -> None:
        """Charge steps until the quota is used up."""
        while self.quota > 0 and not self.is_closed:
            self._lives += 1
            connection = SimulatedConnection(self.world, fibre, f"{self.name}.{self._lives}")
            try:
                who = self.signing.credentials(self.name) if self.signing else {}
                with Turnstile(connection=connection, **who) as turnstile:
                    self._use_client(turnstile, fibre)
            except (Died, DecisionTimeout, Fenced) as error:
                self._note(f"starts again after {error!r:.120}")
            except DatasetIsClosed:
                self.is_closed = True
            except BudgetHeld as error:
                self._wait_for_the_budget(fibre, error)
            except RunIsClosed:
                if not self.shares_run and not self.closes:
                    raise
                self.is_closed = True
            except RequestRejected as error:
                if self.signing is None or error.reason != "not-allowed":
                    raise
                self.signing.refused()
                self._note("has a key that is not on the list")
            fibre.wait(asyncio.sleep(self.world.rng.uniform(0.0, 1.0)))

    def _use_client(self, turnstile: Turnstile, fibre: Fibre) -> None:
        rng = self.world.rng
        released, collect = self.released, self.collect
        if collect is not None:  # before the first step an opening may have other terms, or none
            other = CollectTerms(clip_norm=0.5)
            collect = self.terms.choice((collect, collect, collect, None, other))
        try:
            run = turnstile.run(
                self.plan.dataset,
                self.run,
                released=released if self.remembers_released else None,
                min_separation=self.min_separation,
                charges_ahead=self.charges_ahead,
                take_over=self._take_over,
                collect=collect,
            )
        except PartitionsDisagree as error:
            self._note(f"{error!r:.120}")
            self._resolve_disagreement(turnstile)
            return
        except InvalidRequest:
            if self.shares_run:
                self.remembers_released = False
                return
            raise
        except RequestRejected as error:
            if error.reason == "collect-changed" and collect is not None:
                self._note("finds the run charged under other terms of collecting")
                return
            if error.reason != "unknown-dataset":
                raise
            self._create(turnstile)
            return
        self._note(f"has attempt {run.attempt}, step {run.step}")
        self.received.opened(self.plan.dataset, self.run, run.attempt)
        if self.collect is not None and run.collect is None:
            self._note("opened a run that collects nothing yet")
            return
        if self._take_over and self.world.settings.twice:
            self._repeat_an_opening()
        self._take_over = False
        if self.released != released:
            return  # its predecessor released a step during the opening
        self._check_handed(run)
        charging: Charging = ByNorms(run, self._reserve)
        if self.uses_roster:
            roster = run.enrol(self.plan.users, clip_norm=1.0, levels=LEVELS)
            charging = ByLevels(roster, self.plan.users)
        elif self.collect is not None:
            charging = ByEvents(run, self._reserve)
        while self.quota > 0:
            step = self.charges = run.step
            if self.collect is not None:  # the schedule, which leaves time to send norms
                fibre.wait(asyncio.sleep(rng.uniform(0.0, 1.0)))
            content = self.contents.get(step)
            if content is None or (self.varies_content and rng.random() < 0.3):
                content = self.contents[step] = self._content()
            try:
                if self.charges_ahead:
                    decided = self._charge_ahead(run, charging, content, fibre)
                else:
                    decided = charging.charge(content)
            except DecisionTimeout:
                if rng.random() < 0.3:
                    raise
                continue
            except InvalidRequest:
                if not self.varies_content:
                    raise
                return  # the content differs from the published one
            except StepContentChanged:
                if not run.interrupted:
                    raise Wrong(f"{self.name}: step {step} is new, and was decided") from None
                run.abandon()
                self.released = max(self.released, step)
                self._note(f"abandons step {step}")
                continue
            except RequestRejected as error:
                if self.collect is None or error.reason != "too-many-norms":
                    raise
                self.closes = True
                self._note(f"closes the run: {turnstile.close_run(self.plan.dataset, self.run)}")
                self.is_closed = True
                return
            self._held = Held(step, content, decided)
            decision = self._receive(run, charging, self._held)
            if self.min_separation is not None:
                self.received.check_separation(run.dataset, self.run, step, self.min_separation)
            self._note(f"receives step {step}: {decision.admitted.astype(int).tolist()}")
            drops = 0.2 if self.charges_ahead else 0.9  # an unreleased step may be charged again
            self.contents.pop(step, None) if rng.random() < drops else None
            if self.remembers_released and rng.random() < 0.2:
                self.contents[step] = content  # for the retry of the step that was not released
                raise Died
            if self.sleep.random() < self.sleeps:
                self._sleep(run, fibre)
                return
            if not self.charges_ahead:
                self._release()
            if self._chance.random() < self.erases:
                self._erase(turnstile)
            if rng.random() < 0.5:
                fibre.wait(asyncio.sleep(rng.uniform(0.0, 0.5)))
        self._release()
        if self.closes:
            run.close()
            self.is_closed = True
        if self._chance.random() < self.ends:
            self._note(f"closes {turnstile.close_dataset(self.plan.dataset)}")
            self.is_closed = True

    def _sleep(self, run: Run, fibre: Fibre) -> None:
        """Sleep before the release while a successor continues; then release if that is allowed.

        The check of the attempt cannot exclude a successor that opens the run between request and
        answer. In that case nothing is released.
        """
        held, received = self._held, self.received
        self._note(f"sleeps before the release of step {run.step - 1}")
        successor = self.world.start(Fibre(self.work).run())
        try:
            fibre.wait(asyncio.sleep(self.sleep.uniform(0.0, 10.0)))
            self._wake(run, held, received)
            fibre.wait(successor)
        finally:
            if not successor.done():
                successor.cancel()
                fibre.wait(asyncio.wait([successor]))

    def _wake(self, run: Run, held: Held | None, received: ReceivedDecisions) -> None:
        newest = received.attempt(run.dataset, run.name)
        try:
            run.check_attempt()
        except (Died, DecisionTimeout, RequestRejected) as error:
            self._note(f"wakes up, and releases nothing after {error!r:.120}")
        else:
            if received is self.received and received.attempt(run.dataset, run.name) == newest:
                self._note("wakes up, and its attempt is current")
                self._held = held
                self._release()

    def _wait_for_the_budget(self, fibre: Fibre, error: BudgetHeld) -> None:
        """Wait while another run holds the budget, and take it over in the end."""
        if not self.plan.is_exclusive:
            raise Wrong(f"{self.name}: runs may charge {self.plan.dataset} side by side") from error
        if error.holder == (self.plan.dataset, self.run):
            raise Wrong(f"{self.name} holds the budget itself") from error
        self._note(f"finds that {error.holder} holds the budget")
        self._take_over = self._holds.random() < self.takes_over
        fibre.wait(asyncio.sleep(self._holds.uniform(0.0, 2.0)))

    def _repeat_an_opening(self) -> None:
        """Repeat an opening that took a budget over."""
        recent = self.world.log.records["norms"][-100:]
        openings = [(p, value) for p, _, value in recent if value and b"take_over" in value]
        for opening in self._holds.sample(openings, min(3, len(openings))):
            self.world.append(*opening)

    def _check_handed(self, run: Run) -> None:
        """Check that a new attempt continues after the last released step."""
        self._held = None
        if self.shares_run:
            return
        passed_over = run.step - self.released - 1
        # Of two unreleased steps the last one is handed back, so the first one was decided.
        most = 1 if self.charges_ahead and run.interrupted else 0
        if passed_over < 0 or (self.remembers_released and passed_over > most):
            raise Wrong(f"{self.name} released {self.released} and is handed step {run.step}")
        self.released = run.step - 1  # skipped steps are given up

    def _charge_ahead(self, run: Run, charging: Charging, content: Content, fibre: Fibre) -> Any:
        """Charge a step before the previous one is released."""
        rng = self.world.rng
        ahead = charging.charge_ahead(content)
        self._note(f"charges step {run.step} ahead")
        for _ in range(rng.randint(0, 2)):
            fibre.wait(asyncio.sleep(rng.uniform(0.0, 0.5)))
            if rng.random() < 0.1:
                raise Died
            if self._held is not None:  # its content has not changed
                self._receive(run, charging, self._held)
            if rng.random() < 0.7:
                self._release()
            if rng.random() < 0.5:
                charging.set_levels(self.contents.setdefault(run.step + 1, self._content()))
            if rng.random() < 0.2:
                check_in_progress(run, charging, self._content())
        while True:
            try:
                decided = ahead.decision()
            except DecisionTimeout:
                if rng.random() < 0.3:
                    raise Died from None
            else:
                self._release()
                return decided

    def _receive(self, run: Run, charging: Charging, held: Held) -> StepDecision | RosterDecided:
        charged, decision = charging.decided(held.content, held.decided)
        policies = [run.policy, *run.outer]
        if (whole := self.plan.whole) is not None:
            policies.append(self._policy(whole.dataset, self.policies[whole.dataset]))
        self.received.add(self.name, policies, self.run, held.step, charged, decision)
        return decision

    def _release(self) -> None:
        """Release the step that was decided last, if it is not released, and store that."""
        if self._held is not None:
            step, self._held = self._held.step, None
            if not self.shares_run:
                self.received.release(self.name, self.plan.dataset, self.run, step)
            self.released = max(self.released, step)
            self.quota -= 1

    def _content(self) -> Content:
        content = self.received.content(self.world.rng, self.plan.users, self.noise_scale)
        if not (self.uses_roster and self.has_stable_levels):
            return content
        few = self.world.rng.choice((0, 0, 1))
        return Content(content.users[:few], content.norms[:few], 16.0 * self.noise_scale)

    def _erase(self, turnstile: Turnstile) -> None:
        user = self._chance.choice(self.plan.users)
        dataset = self._chance.choice((None, self.plan.dataset))
        try:
            datasets = turnstile.erase(user, dataset)
            self._note(f"has {user!r} erased in {datasets}")
        except DecisionTimeout:
            pass
        except ErasedInPart as error:
            if self.signing is None:
                raise
            self.signing.refused()
            self._note(f"may not manage {error.not_allowed}")

    def _create(self, turnstile: Turnstile) -> None:
        whole: dict[str, Any] = {}
        for plan in self.plan.chain:
            if plan.whole is None:
                whole = {}
            asked = {**self.policies[plan.dataset], **whole}
            if whole and whole["share_of"].measure == "steps":  # a share is at least one step
                asked["share"] = max(asked["share"], 1.0 / whole["share_of"].steps)
            try:
                made = turnstile.create_dataset(plan.dataset, **asked)
                whole = {"share_of": made}
            except PartitionsDisagree:
                self._resolve_disagreement(turnstile)
            except PolicyChanged:
                self._note("finds another policy")
                self.policies[plan.dataset] = self.world.rng.choice(plan.policies)
            except RequestRejected as error:
                if not self._differs_around(plan, error):
                    raise
                self._note(f"{error!r:.120}")
                if plan.whole is not None and error.reason == "invalid-policy":
                    self._give_back(turnstile)
                elif error.reason == "invalid-policy":
                    self._resolve_disagreement(turnstile)
            else:
                if (
                    plan is not self.plan
                    and self.plan.whole is None
                    and self.world.happens(self.world.settings.disputes)
                ):
                    self._create_contradiction(plan)
                continue
            return

    def _give_back(self, turnstile: Turnstile) -> None:
        """Withdraw a share for which too little of the budget is left in some partitions."""
        self._refused += 1
        try:
            turnstile.withdraw_dataset(self.plan.dataset)
        except RequestRejected as error:
            if error.reason != "dataset-in-use":
                raise
            self._note(f"{error!r:.120}")
        if self._refused > _DISAGREEMENTS:
            self.is_closed = True

    def _resolve_disagreement(self, turnstile: Turnstile) -> None:
        """Complete datasets that exist in some partitions only, or withdraw them."""
        rng = self.world.rng
        self._disagreements += any(plan.contradicted for plan in self.plan.chain)
        if self._disagreements > _DISAGREEMENTS:
            self.is_closed = True  # a run was requested, so nothing can be withdrawn
        completes = rng.random() < 0.5
        if completes and self.plan.whole is not None:
            self._create(turnstile)
            return
        if completes:
            for plan in self.plan.chain:
                self.policies[plan.dataset] = rng.choice(plan.policies)
                try:
                    turnstile.create_dataset(plan.dataset, **self.policies[plan.dataset])
                except (PolicyChanged, PartitionsDisagree) as error:
                    self._note(f"{error!r:.120}")
                except RequestRejected as error:
                    if not self._differs_around(plan, error):
                        raise
                    self._note(f"{error!r:.120}")
            return
        for plan in reversed(self.plan.chain):
            try:
                turnstile.withdraw_dataset(plan.dataset)
            except RequestRejected as error:
                if error.reason != "dataset-in-use":
                    raise
                self._note(f"{error!r:.120}")
            if rng.random() < 0.7:
                return

    def _differs_around(self, plan: Plan, error: RequestRejected) -> bool:
        """Return whether the parents differ from what this trainer expected."""
        if plan.whole is not None:
            return error.reason in ("unknown-dataset", "invalid-policy")
        if not plan.parents:
            return False
        is_other = any(each.contradicted for each in plan.chain[:-1])
        return error.reason == "unknown-dataset" or (is_other and error.reason == "invalid-policy")

    def _create_contradiction(self, plan: Plan) -> None:
        """Change the policy of a dataset in one partition, as a very late request would."""
        world, terms, name = self.world, self.policies[plan.dataset], plan.dataset
        if (budget := terms["budget"]) is None:
            return  # such a policy has no other form
        terms = terms | {"budget": [2 * b for b in budget] if "orders" in terms else 2 * budget}
        plan.policies.append(terms)
        plan.contradicted = True
        other = self._policy(name, terms)
        log = UNSET if other.allow is UNSET else world.broker.topic
        partition = world.rng.randrange(world.broker.partitions)
        self._note(f"has another policy of {name} in {partition}")
        for request in (
            WithdrawDataset(dataset=name, request=world.token(self.name)),
            CreateDataset(policy=other, request=world.token(self.name), log=log),
        ):
            sign = self.signing
            value = sign.signed(self.name, partition, request) if sign else encode(request)
            world.append(partition, value)

    def _policy(self, name: str, terms: dict[str, Any]) -> Policy:
        """Return the policy of a dataset with these terms."""
        return policy_from(name, partitions=self.world.broker.partitions, **terms)

    def _note(self, what: str) -> None:
        self.world.note(self.name, what)
