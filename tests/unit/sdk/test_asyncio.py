"""What an event loop adds to the SDK: tasks side by side, and tasks that are cancelled."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from streams import AsyncTurnstile, Halt, Turnstile, Unusable
from streams.sdk.decisions import StepDecision
from streams.sdk.run import Run


def test_runs_of_several_tasks_spend_one_budget() -> None:
    async def one(t: AsyncTurnstile, name: str) -> int:
        run = await t.run("d", name)
        charges = [await run.charge([7], [1.0], noise_stddev=1.0) for _ in range(6)]
        return sum(int(d.admitted[0]) for d in charges)

    async def train() -> list[int]:
        async with AsyncTurnstile.in_memory() as t:
            await t.create_dataset("d", measure="zcdp", budget=3.0, assume_independent_timing=True)
            return await asyncio.gather(one(t, "a"), one(t, "b"))

    assert sum(asyncio.run(train())) == 6  # at rho 1/2 each


class HeldRun:
    """The charges of ``Run``, each of which waits until it is let go."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.began, self.may_end = threading.Event(), threading.Event()
        charge = Run.charge

        def held(run: Run, *args: Any, **options: Any) -> StepDecision:
            self.began.set()
            self.may_end.wait()
            return charge(run, *args, **options)

        monkeypatch.setattr(Run, "charge", held)


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[HeldRun]:
    made = HeldRun(monkeypatch)
    yield made
    made.may_end.set()


def test_a_charge_that_was_cancelled_is_never_made_twice(held: HeldRun) -> None:
    """It is made, and nobody was told; the run is opened again, and hands the step back."""

    async def train() -> None:
        async with AsyncTurnstile.in_memory() as t:
            await t.create_dataset("d", measure="zcdp", budget=3.0)
            run = await t.run("d", "r", released=-1)
            charging = asyncio.create_task(run.charge([7], [1.0], noise_stddev=1.0))
            await asyncio.to_thread(held.began.wait)
            charging.cancel()
            with pytest.raises(asyncio.CancelledError):
                await charging
            held.may_end.set()
            with pytest.raises(Unusable):
                await run.charge([7], [1.0], noise_stddev=1.0)
            while run.blocking.step == 0:  # its thread is not done yet
                await asyncio.sleep(0)
            again = await t.run("d", "r", released=-1)
            assert (again.step, again.interrupted) == (0, True)
            d = await again.charge([7], [1.0], noise_stddev=1.0)
            assert d.admitted.tolist() == [True]
            bounds = [c.bound async for c in t.odometer("d", follow=False)]
            assert bounds[-1][0] <= 0.75  # half of the budget's unit, and at most one tick more

    asyncio.run(train())


def test_the_event_loop_goes_on_while_a_charge_waits(held: HeldRun) -> None:
    async def train() -> None:
        async with AsyncTurnstile.in_memory() as t:
            await t.create_dataset("d", measure="zcdp", budget=3.0)
            await t.create_dataset("e", measure="zcdp", budget=3.0)
            run = await t.run("d", "r")
            charging = asyncio.create_task(run.charge([7], [1.0], noise_stddev=1.0))
            await asyncio.to_thread(held.began.wait)
            other = await t.run("e", "other")  # this would wait for ever if the loop did
            assert other.step == 0
            held.may_end.set()
            assert (await charging).step == 0

    asyncio.run(train())


def test_halts_are_received_and_an_abandoned_loop_ends() -> None:
    async def train() -> list[Halt]:
        async with AsyncTurnstile.in_memory() as t:
            await t.create_dataset("d", measure="zcdp", budget=0.5)
            run = await t.run("d", "r")
            heard = t.halts("d")
            first = asyncio.create_task(anext(heard))
            for _ in range(3):
                await run.charge([7], [1.0], noise_stddev=1.0)
            halts = [await first]
            await heard.aclose()
            assert [halt async for halt in heard] == []
            return halts

    (halt,) = asyncio.run(train())
    assert (halt.user, halt.step) == (7, 1)
    names = [thread.name for thread in threading.enumerate()]
    for thread in threading.enumerate():
        if thread.name == "turnstile-follower":
            thread.join(timeout=10)
    assert "turnstile-follower" not in [t.name for t in threading.enumerate()], names


def test_error_of_the_iterator_is_raised_at_the_await() -> None:
    async def follow() -> None:
        async with AsyncTurnstile.in_memory() as t:
            heard = t.halts("d")
            first = asyncio.create_task(anext(heard))
            await asyncio.sleep(0)
            t.blocking.close()
            with pytest.raises(Unusable):
                await first

    asyncio.run(follow())


def test_every_public_name_exists() -> None:
    assert {name for name in vars(Turnstile) if not name.startswith("_")} <= {
        name for name in dir(AsyncTurnstile) if not name.startswith("_")
    }
