"""Signs of life: they show how far a partition is, and find out that Redis is not what it was."""

import asyncio

import pytest

from streams.ledger.ledger import Ledger
from streams.records import Erase, encode
from streams.store.store_port import decode_pulse
from streams.worker.ports import Ending
from tests.unit.ledger.roster_logs import begun
from tests.unit.worker.processors import Ended, Record, bench


def go_back(store, earlier):
    store.restore(earlier)


def go_back_past_a_merge_only(store, _):
    kept = store.contents(0)
    kept.meta["version"] = str(int(kept.meta["version"]) - 1)


def be_emptied(store, _):
    store.restore({})


def lose_a_key(store, _):
    store.lose(0, "changes")


def have_another_owner(store, _):
    store.contents(0).meta["owner"] = "somebody else"


NOT_AS_IT_WAS = {
    go_back: Ending.REWOUND,
    go_back_past_a_merge_only: Ending.REWOUND,
    be_emptied: Ending.FENCED,
    lose_a_key: Ending.DAMAGED,
    have_another_owner: Ending.FENCED,
}


@pytest.mark.parametrize(
    ("change", "reason"), NOT_AS_IT_WAS.items(), ids=lambda case: getattr(case, "__name__", case)
)
async def test_idle_partition_notices_a_changed_redis_at_its_beat(change, reason):
    made = bench()
    heartbeat = made.processor.heartbeat
    made.processor.start()
    earlier = made.store.copy()
    await made.arrive(Record(0))
    await made.until(lambda: made.processor.next == 1)
    await heartbeat.beat(1)
    change(made.store, earlier)
    with pytest.raises(Ended) as ended:
        await heartbeat.beat(1)
    assert ended.value.reason is reason
    assert not made.store.contents(0).alive or (
        decode_pulse(made.store.contents(0).alive["pulse"]).next == 1
    )


async def test_a_commit_under_way_is_not_taken_for_somebody_elses_write():
    made = bench()
    heartbeat = made.processor.heartbeat
    made.gate.hold("store.committed")
    made.processor.start()
    await made.arrive(Record(0))
    await made.until(lambda: made.gate.waiting["store.committed"])
    beating = asyncio.create_task(heartbeat.beat(1))
    for _ in range(9):
        await asyncio.sleep(0)
    made.gate.waiting.pop("store.committed")[0].set_result(None)
    await beating
    assert decode_pulse(made.store.contents(0).alive["pulse"]).next == 1


@pytest.mark.parametrize("keys", ["", "a-key-of-sixteen-bytes"])
async def test_a_beat_says_whether_users_were_erased_without_a_key(keys):
    log = begun([7, 8])
    made = bench(Ledger(0, 1, erasure_keys=keys), offsets=20)
    heartbeat = made.processor.heartbeat
    made.processor.start()
    await made.arrive(*(Record(at, value) for at, value in enumerate(log.records)))
    await made.until(lambda: made.processor.next == len(log.records))
    await heartbeat.beat(None)
    assert not decode_pulse(made.store.contents(0).alive["pulse"]).erased_without_key
    await made.arrive(Record(len(log.records), encode(Erase(request="f", user=7))))
    await made.until(lambda: made.processor.next == len(log.records) + 1)
    await heartbeat.beat(None)
    shown = decode_pulse(made.store.contents(0).alive["pulse"])
    assert shown.erased_without_key is not bool(keys)


async def test_a_partition_that_is_not_decided_gives_no_sign_of_life():
    made = bench()
    made.processor.start()
    await made.processor.pause()
    made.store.restore({})
    await made.processor.heartbeat.beat(0)
    assert made.store.contents(0).alive == {}
