"""What Redis keeps names an erased user only as long as the last decision of an open run does."""

import asyncio
from contextlib import asynccontextmanager

import pytest

from streams.records import CloseRun, CollectTerms, Erase, NormEvent
from tests.unit.ledger.ledgers import Log
from tests.unit.worker.test_ownership import Cluster, Worker

ERASED, OTHER = "ada-7f3a", "bert-19c2"


class Erased(Cluster):
    """A partition in which the last decision of run r names a user who was then erased."""

    def __init__(self):
        super().__init__()
        self.log = Log(2, 0)
        self.log.create(user_ids="string", budget=0.03125)
        self.log.open()
        self.log.charge(0, [ERASED], [1.0])
        self.log.charge(1, [ERASED, OTHER], [1.0, 0.0])
        self.log.send(Erase(request="f", user=ERASED))
        norms = self.broker.norms(0)
        norms.remove(0, norms.end)
        norms.end = 0
        self.append_all()

    def append_all(self):
        """Append what the log has since the last time."""
        norms = self.broker.norms(0)
        for value in self.log.records[norms.end :]:
            norms.append(value)

    def names_the_user(self):
        """Whether pages or changes in Redis have the id of the erased user."""
        kept = self.store.contents(0)
        return any(ERASED.encode() in value for value in (*kept.pages.values(), *kept.changes))


class Owner(Worker):
    async def decide(self):
        self.positions = {0: self.positions[0]}
        await self.deliver(0)
        self.positions[0] = self.cluster.end(0)
        await self.until(lambda: self.cluster.next(0) == self.cluster.end(0))

    async def until(self, condition):
        async with asyncio.timeout(20):
            while not condition():
                self.ends.refuse()
                await asyncio.sleep(0)

    @property
    def merger(self):
        return self.partitions.by_partition[0].merger

    @asynccontextmanager
    async def merging(self):
        keeping = asyncio.create_task(self.partitions.keep_merged())
        try:
            yield
            await self.until(lambda: not self.merger.is_due())
        finally:
            keeping.cancel()


@pytest.fixture(autouse=True)
def _eager(monkeypatch):
    monkeypatch.setattr("streams.worker.ownership._MERGE_EVERY", 0.0)


def charge_the_next_step(log):
    log.charge(2, [OTHER], [0.0])


def close_the_run(log):
    log.send(CloseRun(dataset="d", run="r", attempt=1, request="close"))


@pytest.mark.parametrize("follow", [charge_the_next_step, close_the_run])
async def test_the_id_goes_with_the_last_decision_that_names_it(follow):
    cluster = Erased()
    owner = Owner(cluster, "owner")
    await owner.acquire()
    async with owner.merging():
        await owner.decide()
    assert cluster.names_the_user(), "the trainer may ask for its last decision again"
    assert len(cluster.store.contents(0).changes) == 0
    follow(cluster.log)
    cluster.append_all()
    async with owner.merging():
        await owner.decide()
    assert not cluster.names_the_user()
    await owner.leave()


async def test_next_owner_deletes_an_erased_id():
    cluster = Erased()
    before, after = Owner(cluster, "before"), Owner(cluster, "after")
    await before.acquire()
    async with before.merging():
        await before.decide()
    charge_the_next_step(cluster.log)
    cluster.append_all()
    await before.decide()
    await before.leave()
    assert cluster.names_the_user()
    await after.acquire()
    async with after.merging():
        pass
    assert not cluster.names_the_user()
    await after.leave()


def collect_again(log):
    log.send(NormEvent(dataset="d", run="collects", step=0, user=OTHER, norm=0.5))


def close_the_collecting_run(log):
    log.send(CloseRun(dataset="d", run="collects", attempt=1, request="close"))


@pytest.mark.parametrize("follow", [None, collect_again, close_the_collecting_run])
@pytest.mark.parametrize(("erased_first", "changes_owner"), [(1, 0), (1, 1), (0, 0)])
async def test_the_id_of_a_user_with_nothing_but_a_collected_norm_goes_at_once(
    follow, erased_first, changes_owner
):
    cluster = Erased()
    charge_the_next_step(cluster.log)  # now no decision names the user
    cluster.append_all()
    owner = Owner(cluster, "owner")
    await owner.acquire()
    await owner.decide()
    async with owner.merging():
        pass
    assert not cluster.names_the_user()
    new = f"{ERASED}7"  # who has no account
    cluster.log.open(run="collects", collect=CollectTerms(clip_norm=1.0))
    cluster.log.send(NormEvent(dataset="d", run="collects", step=0, user=new, norm=0.5))
    cluster.append_all()
    await owner.decide()
    steps = [lambda log: log.send(Erase(request="g", user=new)), *filter(None, [follow])]
    for step in steps if erased_first else reversed(steps):
        step(cluster.log)
    cluster.append_all()
    await owner.decide()
    assert cluster.names_the_user()
    if changes_owner:
        await owner.leave()
        owner = Owner(cluster, "next")
        await owner.acquire()
    async with owner.merging():
        pass
    assert not cluster.names_the_user()
    await owner.leave()
