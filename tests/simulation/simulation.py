"""The simulation of one seed: workers, Redis, Kafka, clients, faults, and audits.

faults -> no faults, all processes alive -> settle -> audit      once or twice
faults -> a catastrophe that cannot be repaired -> settle -> audit of all decisions
"""

from __future__ import annotations

import asyncio
import gc
import logging
import math
import traceback
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from random import Random
from typing import Any

from streams.records import CollectTerms
from tests.audit.auditor_accounts import UNIT
from tests.simulation import answerers
from tests.simulation.audit import forget
from tests.simulation.catastrophes import CATASTROPHES
from tests.simulation.clients import Plan, Trainer
from tests.simulation.clients_signed import Signing
from tests.simulation.clock import Fibre
from tests.simulation.faults import damage, inject, overlook, rewind, run_another_release
from tests.simulation.received import ReceivedDecisions
from tests.simulation.senders import Sender
from tests.simulation.service import SETTLE_WITHIN, Service, stop
from tests.simulation.world import World, Wrong

_CHAOS_SECONDS = 15.0
_NOTICED_WITHIN = 30.0
_SILENT_SECONDS = 20.0
_QUIET_WITHIN = 20
_FEW_UNITS, _ENOUGH_TO_SHARE = (1, 2, 3, 5, 8, 20, 50), (20, 50)
_NOISE_FOR_UNITS = 2.0**20
"""With this noise, a step of norm 1 costs some units."""


@dataclass
class Outcome:
    """The outcome of a seed."""

    seed: int
    wrong: str | None
    records: int = 0
    steps: int = 0
    trace: list[tuple[float, str, str]] = field(default_factory=list)


class Simulation:
    """The simulation of one world."""

    def __init__(self, seed: int) -> None:
        self.world = world = World(seed)
        self.service = Service(world)
        self.received = ReceivedDecisions()
        self.catastrophe = world.rng.choice(CATASTROPHES) if world.rng.random() < 0.25 else None
        self._separated = Random(f"separations of {seed}")
        self._ahead = Random(f"charged ahead in {seed}")
        self._clips_within = Random(f"clips within others in {seed}").random() < 0.5
        self._parents = Random(f"parents in {seed}")
        self._sleep = Random(f"sleeps in {seed}")
        self._sleeps = self._sleep.choice((0.0, 0.0, 0.1, 0.4))
        self._holds = Random(f"held budgets of {seed}")
        self._erases = 0.15 if Random(f"forgets of {seed}").random() < 0.3 else 0.0
        # Budgets of a few units, which sums of charges meet exactly; None for ordinary ones.
        units = Random(f"budgets of a few units in {seed}")
        self._units = units if units.random() < 1 / 3 else None
        rotations = Random(f"rotations in {seed}")
        if self._erases and rotations.random() < 0.6:
            self._erases = 0.4
            world.erasure_keys += rotations.choice(([], ["key-of-the-beginning"]))
            world.settings.rotate_every, world.settings.old_keys = 3.0, 0.4
        world.settings.part_bytes = Random(f"parts in {seed}").choice((1, 500, 1_000_000))
        self._releases = Random(f"another release in {seed}")
        self.seed = seed
        self.trainers = self._new_trainers()
        events = Random(f"norm events in {seed}")
        self.senders = self._collect(events) if events.random() < 1 / 3 else []
        self.stream, self.answerers = answerers.answerers_of(world, self.received, seed)
        self.signing: Signing | None = None
        if Random(f"signs of {seed}").random() < 0.3:
            self._sign_all_requests(seed)

    def _sign_all_requests(self, seed: int) -> None:
        """Give every dataset an access list of the trainers' keys, which a manager changes."""
        clients = [*self.trainers, *self.answerers]
        names = [client.name for client in clients]
        datasets = {plan.dataset for client in clients for plan in client.plan.chain}
        self.signing = Signing(seed, self.world, names, datasets)
        for client in clients:
            client.signing = self.signing
            for plan in client.plan.chain:
                for policy in plan.policies:
                    policy["allow"] = self.signing.allow

    def _new_trainers(self) -> list[Trainer]:
        rng = self.world.rng
        trainers: list[Trainer] = []
        takes_over = self._holds.choice((0.3, 0.7, 1.0))
        for number, plan in enumerate(self._plans_in_order()):
            runs = rng.choice((1, 1, 2))
            if plan.is_exclusive:
                runs = self._holds.choice((1, 2, 3))
            for run in range(runs):
                rivals = rng.choice((1, 1, 1, 2))
                separation = self._separated.choice((None, None, 2, 3, 4))
                for rival in range(rivals):
                    name = f"t{number}{run}{'ab'[rival]}"
                    trainer = Trainer(self.world, self.received, plan, name, f"r{run}")
                    trainer.shares_run = rivals > 1
                    trainer.uses_roster = rivals == 1 and rng.random() < 0.4
                    if self.world.settings.siblings:
                        trainer.uses_roster = trainer.has_stable_levels = (
                            rivals == 1 and number == 0
                        )
                    if self._units is not None:
                        trainer.noise_scale = _NOISE_FOR_UNITS
                        trainer.has_stable_levels |= self._units.random() < 0.7
                    trainer.min_separation = None if trainer.uses_roster else separation
                    trainer.charges_ahead = self._ahead.random() < 0.35
                    trainer.erases = self._erases
                    trainer.ends = self._erases
                    trainer.takes_over = takes_over
                    trainer.sleeps = 0.0 if trainer.shares_run else self._sleeps
                    trainer.sleep = self._sleep
                    trainers.append(trainer)
        return trainers

    def _collect(self, chance: Random) -> list[Sender]:
        """Let a run collect norms, and return the clients that send them."""
        one = chance.choice(self.trainers)
        trainers = [each for each in self.trainers if (each.plan, each.run) == (one.plan, one.run)]
        for trainer in trainers:
            trainer.collect = CollectTerms(clip_norm=1.0)
            trainer.terms = Random(f"terms of {trainer.name} in {self.seed}")
            trainer.uses_roster = trainer.charges_ahead = False
            trainer.erases = chance.choice((trainer.erases, 0.3))
        for plan in (plan for each in self.trainers for plan in each.plan.chain):
            kind = "integer" if isinstance(plan.users[0], int) else "string"
            for policy in plan.policies:
                if not plan.parents and plan.whole is None:
                    policy.setdefault("user_ids", kind)
        settings = self.world.settings
        settings.block = chance.choice((1, 2, 1024))
        settings.most_norms = chance.choice((3, 2**20, 2**20))
        return [
            Sender(trainers, f"s{number}", Random(f"{chance.random()}"))
            for number in range(chance.choice((1, 2)))
        ]

    def _plans_in_order(self) -> list[Plan]:
        """Return the plans of the charged datasets, each for one run at a time or for several at
        once.
        """
        shared = not self.world.settings.siblings and self._holds.random() < 0.15
        plans = self._shares() if shared else self._plans()
        outermost_ones = [plan.whole or each for plan in plans for each in plan.outermost]
        for outermost in {id(plan): plan for plan in outermost_ones}.values():
            if self._holds.random() < 0.5:
                for policy in outermost.policies:
                    policy["assume_independent_timing"] = True
        return plans

    def _shares(self) -> list[Plan]:
        """Return datasets that share one budget; the last shares may not fit."""
        kind = self._kind()
        whole = self._plan("all", kind, None)
        terms = next(
            policy
            for policy in iter(lambda: self._policy(kind, _ENOUGH_TO_SHARE), None)
            if policy["budget"]
        )
        whole.policies = [terms]
        ends = ("halt",) if terms["measure"] == "steps" else ("halt", "clip")
        return [
            Plan(
                f"d{number}",
                whole.users,
                [{"share": share, "on_exhaustion": self._holds.choice(ends)}],
                whole=whole,
            )
            for number, share in enumerate(self._holds.choices((0.25, 0.5, 0.75), k=3))
        ]

    def _plans(self) -> list[Plan]:
        """Return the plans of the charged datasets; some may be nested."""
        rng = self.world.rng
        datasets = rng.choice((1, 1, 2))
        if not self.world.settings.siblings and rng.random() < 0.7:
            return [self._plan(f"d{n}", self._kind(), None) for n in range(datasets)]
        kind = self._kind()
        plans = [self._plan("all", kind, None)]
        for number in range(2):
            outer = rng.choice(plans) if rng.random() < 0.3 else plans[0]
            plans.append(self._plan(f"d{number}", kind, outer))
        self._add_parents(plans)
        if self.world.settings.siblings:
            plans[1].users = plans[2].users
            return plans[1:]
        if self.world.settings.disputes:
            return plans[1:]  # a charge to the parent fixes its policy
        return plans if rng.random() < 0.3 else plans[1:]

    def _add_parents(self, plans: list[Plan]) -> None:
        """Let the last dataset have the one before it as a parent, or another outermost one."""
        if self.world.settings.siblings or self._parents.random() < 0.5:
            return
        last, ids = plans[-1], plans[0].policies[0].get("user_ids")
        if self._parents.random() < 0.5:
            added = plans[-2]
        else:
            budget = self._parents.choice((0.5, 1.0, 2.0))
            terms = {"measure": "zcdp", "budget": budget, "on_exhaustion": "halt"}
            terms |= {"user_ids": ids} if ids else {}
            added = Plan("else", last.users, [terms])
            for policy in plans[0].policies:  # all outermost datasets have the same kinds of ids
                policy.pop("user_ids", None)
                policy |= {"user_ids": ids} if ids else {}
        last.parents = tuple({each.dataset: each for each in (added, *last.parents)}.values())
        counted = any(p["measure"] == "steps" for each in last.chain[:-1] for p in each.policies)
        for policy in last.policies:
            policy["parents"] = [each.dataset for each in last.parents]
            if counted:
                policy["on_exhaustion"] = "halt"

    def _kind(self) -> str:
        return self.world.rng.choice(("integers", "strings", "both"))

    def _plan(self, dataset: str, kind: str, outer: Plan | None) -> Plan:
        rng = self.world.rng
        count = rng.randint(2, 8)
        users: list[Any] = [
            f"user-{i}" if kind == "strings" or (kind == "both" and i % 2) else 1000 * i
            for i in range(count)
        ]
        policies = [self._policy(kind) for _ in range(rng.choice((1, 1, 2)))]
        outers = [] if outer is None else outer.chain
        for policy in policies:
            if outer is not None:
                policy |= {"parents": outer.dataset, "user_ids": None}
            counted = any(p["measure"] == "steps" for o in outers for p in o.policies)
            nested = outer is not None or dataset == "all"
            if counted or (nested and not self._clips_within):
                policy["on_exhaustion"] = "halt"
        return Plan(dataset, users, policies, () if outer is None else (outer,))

    def _policy(self, kind: str, units: Sequence[int] = _FEW_UNITS) -> dict[str, Any]:
        rng = self.world.rng
        measure = rng.choice(("zcdp", "gdp", "renyi", "steps"))
        budget: Any = rng.choice((0.5, 1.0, 2.0))
        if self._units is not None:
            budget = self._few_units(measure, units)
        policy: dict[str, Any] = {
            "measure": measure,
            "budget": budget,
            "on_exhaustion": rng.choice(("halt", "halt", "clip")),
        }
        if measure == "renyi":
            policy |= {"orders": [2.0, 8.0], "budget": [budget, 4 * budget]}
        if measure == "steps":
            # The noise is at least 1 and norms are at most 1: every step counts.
            policy |= {"noise_multiplier": 1.0, "budget": rng.randint(1, 6)}
            return self._ids(policy | {"on_exhaustion": "halt"}, kind)
        if measure == "renyi" and rng.random() < 0.4 and self._units is None:
            own = {"budget": None, "epsilon": rng.choice((6.0, 9.0)), "delta": 1e-3}
            policy |= own | {"orders": None}
            return self._ids(policy, kind)
        if self.world.settings.fine or rng.random() < 0.5:
            step = 0.03 if self.world.settings.fine else rng.choice((0.05, 0.2, 1.0))
            if self._units is not None:
                step = self._few_units(measure, (1, 2, 5))
            policy["odometer_step"] = [step, step] if measure == "renyi" else step
        return self._ids(policy, kind)

    def _few_units(self, measure: str, choices: Sequence[int]) -> float:
        """Return a budget of a few units in the terms of a measure: gdp counts its square."""
        assert self._units is not None
        amount = float(self._units.choice(choices) / UNIT)
        return math.sqrt(amount) if measure == "gdp" else amount

    def _ids(self, policy: dict[str, Any], kind: str) -> dict[str, Any]:
        rng = self.world.rng
        if kind == "both":
            policy["user_ids"] = "mixed"
        elif rng.random() < 0.5:
            policy["user_ids"] = "integer" if kind == "integers" else "string"
        return policy

    async def run(self) -> None:
        """Run the whole simulation.

        Raises:
            Wrong: a guarantee is broken. Any other error is a failure as well.
        """
        world, rng = self.world, self.world.rng
        chaos = vars(world.settings).copy()
        service = self.service
        service.start()
        episodes = rng.choice((1, 1, 2))
        for episode in range(episodes):
            vars(world.settings).update(chaos)
            is_last = episode == episodes - 1
            await self._chaos(self.catastrophe if is_last else None)
            if world.catastrophe:
                service.check_suspended()
                service.audit.after_catastrophe(self.received)
            else:
                await self._check()

    async def _check(self) -> None:
        """Wait until all faults are repaired, and audit the state."""
        world, rng, service = self.world, self.world.rng, self.service
        if world.settings.overlooks:
            overlook(world)
        await service.settle()
        if rng.random() < 0.3:  # idle workers must detect faults as well
            rng.choice((rewind, damage))(world, service)
            await service.settle()
        await service.audit.when_settled(self.received)
        if self._releases.random() < 0.15:
            await run_another_release(world, service, self._releases)
            await service.settle()
            await service.audit.when_settled(self.received)
        self.stream.check()
        self._check_failures()

    async def _chaos(self, catastrophe: Any) -> None:
        world = self.world
        for trainer in self.trainers:
            trainer.quota = world.rng.randint(1, 6)
            if self._units is not None and trainer.uses_roster:
                trainer.quota += 6  # so that recurring charges meet a budget
        for sender in self.senders:
            sender.quota = 20
        faults = [world.start(work) for work in inject(world, self.service)]
        working = [
            *self.trainers,
            *self.senders,
            *(each for each in self.answerers if not each.is_over),
        ]
        clients = [world.start(Fibre(client.work).run()) for client in working]
        if self.signing is not None:
            self.signing.begin()
            manage = partial(self.signing.manage, is_over=self._is_over)
            clients.append(world.start(Fibre(manage).run()))
            faults.append(world.start(self.signing.steal()))
        over = world.loop.time() + _CHAOS_SECONDS
        if catastrophe is None:
            await asyncio.wait(clients, timeout=_CHAOS_SECONDS)
        else:
            await asyncio.sleep(world.rng.uniform(1.0, _CHAOS_SECONDS / 2))
            if world.rng.random() < 0.5:
                await self._be_quiet(faults)
            world.note("world", f"catastrophe: {catastrophe.__name__}")
            if world.is_bound():  # otherwise Redis is empty, and nothing was spent
                self.service.audit.begin_catastrophe()
                world.floor = len(world.store.history) - 1
                catastrophe(world, self.service)
                world.tell()
            await asyncio.sleep(max(0.0, over - world.loop.time()))
        for fault in faults:
            fault.cancel()
        world.settings.calm()
        world.note("world", "calm")
        if world.rng.random() < 0.5:
            for process in self.service.slots:
                process.wake()
        operating = world.start(self.service.operate())
        if world.catastrophe:
            for partition in sorted(world.lost):
                world.append(partition, b"a worker must look at the log now")
            await asyncio.sleep(_NOTICED_WITHIN)
        within = _SILENT_SECONDS if world.catastrophe else SETTLE_WITHIN
        done, running = await asyncio.wait(clients, timeout=within)
        stop(operating)
        for task in done:
            if not task.cancelled() and (error := task.exception()) is not None:
                self._take(error)
        if running and world.catastrophe is None:
            waiting = [t.name for t in self.trainers if t.quota > 0 and not t.is_closed]
            waiting += [sender.name for sender in self.senders if not sender.is_over]
            waiting += [answerer.name for answerer in self.answerers if not answerer.is_over]
            how = self.service.condition()
            raise Wrong(f"without faults, clients make no progress: {waiting}; {how}")
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running)
        self._check_failures()

    async def _be_quiet(self, faults: Sequence[asyncio.Task[None]]) -> None:
        """End all faults, and wait until all partitions are decided.

        Otherwise a fault or a rebalance starts the checks of an acquisition, and no catastrophe has
        to be noticed by a worker that goes on.
        """
        for fault in faults:
            fault.cancel()
        self.world.settings.calm()
        for process in self.service.slots:
            process.wake()
        for _ in range(_QUIET_WITHIN):
            await asyncio.sleep(1.0)
            partitions = range(self.world.broker.partitions)
            if all(self.service.processor_of(partition) for partition in partitions):
                break

    def _is_over(self) -> bool:
        """Return whether all trainers and answerers have finished."""
        return all(t.quota <= 0 or t.is_closed for t in self.trainers) and all(
            answerer.is_over for answerer in self.answerers
        )

    def _take(self, error: BaseException) -> None:
        """Raise a client's error, unless a catastrophe explains it."""
        if self.world.catastrophe is None or isinstance(error, Wrong):
            raise error
        if not isinstance(error, Exception):
            raise error

    def _check_failures(self) -> None:
        if self.world.failures:
            raise self.world.failures[0]

    def close(self) -> None:
        """Cancel all tasks and close the loop."""
        loop = self.world.loop
        asyncio.events._set_running_loop(None)
        loop.go_on()
        tasks = asyncio.all_tasks(loop)
        for task in tasks:
            task._log_destroy_pending = False
            task.cancel()
        if tasks:
            loop.run_until_complete(_ended(tasks))
        loop.close()


async def _ended(tasks: set[asyncio.Task[Any]]) -> None:
    await asyncio.wait(tasks, timeout=1.0)


def simulate(seed: int) -> Outcome:
    """Run one seed to its end and return the outcome."""
    simulation = Simulation(seed)
    world = simulation.world
    wrong = None
    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with world.settings.sizes():
            work: Coroutine[Any, Any, None] = simulation.run()
            world.start(work)
            task = next(iter(asyncio.all_tasks(world.loop)))
            try:
                world.loop.run_until_complete(task)
            except Exception as error:
                wrong = "".join(traceback.format_exception(error, limit=-6)).strip()
            simulation.close()
    finally:
        logging.disable(level)
    gc.collect(0)
    return Outcome(
        seed,
        wrong,
        len(world.log.records["norms"]),
        len(simulation.received.steps),
        world.trace,
    )


def traceless(seed: int) -> Outcome:
    """Run one seed in a process of a pool, and return the outcome without its trace."""
    outcome = simulate(seed)
    forget()
    return replace(outcome, trace=[])
