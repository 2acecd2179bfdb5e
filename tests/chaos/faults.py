"""What goes wrong, kind by kind. Each fault has had its time when its function returns."""

from __future__ import annotations

import os
import random
import resource
import shutil
import signal
import time
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

import redis
from kafka import KafkaConsumer, KafkaProducer, TopicPartition

from streams.local.errors import LocalStackError
from streams.topics.topics import NORMS
from tests.chaos.proxy import Proxy
from tests.chaos.scene import PREFIX, Scene

Fault = Callable[[Scene, random.Random], None]

FAULTS: dict[str, Fault] = {}
"""By the name that the summary calls it."""


def fault(name: str) -> Callable[[Fault], Fault]:
    """Note a kind of fault."""

    def note(work: Fault) -> Fault:
        FAULTS[name] = work
        return work

    return note


@fault("worker killed")
def kill_worker(scene: Scene, rng: random.Random) -> None:
    """SIGKILL; its supervisor starts another."""
    scene.stack.kill_worker(rng.randrange(len(scene.stack.workers)))


@fault("all workers killed")
def kill_all_workers(scene: Scene, rng: random.Random) -> None:
    """All of them, one right after the other."""
    for worker in scene.stack.workers:
        scene.stack.kill_worker(worker.index)


@fault("worker paused")
def pause_worker(scene: Scene, rng: random.Random) -> None:
    """SIGSTOP for longer than the group waits for it: it wakes up as a zombie."""
    pid = rng.choice(scene.stack.workers).pid
    if pid is not None:
        _pause(pid, rng.uniform(1.0, 12.0))


@fault("trainer killed")
def kill_trainer(scene: Scene, rng: random.Random) -> None:
    """SIGKILL, between any two of its steps or within one."""
    scene.trainer.kill()


@fault("Redis killed")
def kill_redis(scene: Scene, rng: random.Random) -> None:
    """It loses up to a second of what it acknowledged."""
    scene.redis.kill()
    time.sleep(rng.uniform(0.0, 2.0))
    scene.redis.start()


@fault("Redis restarted")
def restart_redis(scene: Scene, rng: random.Random) -> None:
    """In order: it loses nothing."""
    scene.redis.stop()
    scene.redis.start()


@fault("Redis gone back")
def roll_back_redis(scene: Scene, rng: random.Random) -> None:
    """Its files are put back to a copy from a while ago."""
    data, copy = scene.directory / "redis", scene.directory / "redis.copy"
    shutil.copytree(data, copy)
    time.sleep(rng.uniform(2.0, 10.0))
    scene.redis.kill()
    changed = scene.directory / "redis.changed"
    data.rename(changed)
    copy.rename(data)
    try:
        scene.redis.start()
    except LocalStackError:  # the copy was taken while a file changed: nothing goes back
        shutil.rmtree(data)
        changed.rename(data)
        scene.redis.start()
    shutil.rmtree(changed, ignore_errors=True)


@fault("Redis emptied")
def flush_redis(scene: Scene, rng: random.Random) -> None:
    """FLUSHALL."""
    with closing(redis.Redis.from_url(scene.redis.url)) as client:
        client.flushall()


@fault("some keys lost")
def lose_keys(scene: Scene, rng: random.Random) -> None:
    """A few keys of the service are deleted, as somebody might who cleans up."""
    with closing(redis.Redis.from_url(scene.redis.url)) as client:
        keys = sorted(client.scan_iter(f"{PREFIX}*"))
        client.delete(*rng.sample(keys, min(len(keys), rng.randint(1, 3))))


@fault("Redis has no disk")
def fill_disk_of_redis(scene: Scene, rng: random.Random) -> None:
    """It cannot write to its file for a while, and refuses what it cannot keep."""
    _without_disk(scene.redis.pid, _largest(scene.directory / "redis"), rng)


@fault("Redis paused")
def pause_redis(scene: Scene, rng: random.Random) -> None:
    """It answers nothing for a while, and then everything."""
    _pause(scene.redis.pid, rng.uniform(0.5, 8.0))


@fault("broker killed")
def kill_broker(scene: Scene, rng: random.Random) -> None:
    """SIGKILL, and again on the same data."""
    scene.broker.kill()
    time.sleep(rng.uniform(0.0, 2.0))
    scene.broker.start()


@fault("broker restarted")
def restart_broker(scene: Scene, rng: random.Random) -> None:
    """In order."""
    scene.broker.stop()
    scene.broker.start()


@fault("broker has no disk")
def fill_disk_of_broker(scene: Scene, rng: random.Random) -> None:
    """It cannot make its log longer, gives up, and is started again when there is room."""
    with suppress(ProcessLookupError):
        _without_disk(scene.broker.pid, _largest(scene.directory / "kafka" / "log", ".log"), rng)
    scene.broker.kill()
    scene.broker.start()


@fault("broker paused")
def pause_broker(scene: Scene, rng: random.Random) -> None:
    """It answers nothing for a while, and then everything."""
    _pause(scene.broker.pid, rng.uniform(0.5, 6.0))


def _network_fails(where: str, how: Callable[[Proxy], None]) -> Fault:
    def fail(scene: Scene, rng: random.Random) -> None:
        proxy = scene.to_kafka if where == "Kafka" else scene.to_redis
        how(proxy)
        try:
            time.sleep(rng.uniform(0.5, 10.0))
        finally:
            proxy.heal()

    return fail


for _where in ("Kafka", "Redis"):
    for _name, _how in (
        (f"network to {_where} cut", Proxy.cut),
        (f"connections to {_where} half open", Proxy.freeze),
        (f"slow {_where}", Proxy.slow),
    ):
        fault(_name)(_network_fails(_where, _how))


@fault("clock jumps")
def jump(scene: Scene, rng: random.Random) -> None:
    """The time of day of workers and the trainer is an hour off, or a day, to either side."""
    scene.clock.write_text(str(rng.choice((-1, 1)) * rng.choice((1, 60, 3600, 86400))))


@fault("old records sent again")
def send_again(scene: Scene, rng: random.Random) -> None:
    """Copies of what the log has, in another order, as a client that repeats itself sends them."""
    topic = f"{PREFIX}{NORMS}"
    consumer = KafkaConsumer(bootstrap_servers=scene.broker.address, group_id=None)
    with closing(consumer):
        number = rng.choice(sorted(consumer.partitions_for_topic(topic)))
        place = TopicPartition(topic, number)
        consumer.assign([place])
        end = consumer.end_offsets([place])[place]
        consumer.seek(place, rng.randrange(max(1, end)))
        found = [r.value for r in consumer.poll(timeout_ms=2000, max_records=50).get(place, [])]
    rng.shuffle(found)
    _send(scene, number, found[:20])


@fault("garbage sent")
def send_garbage(scene: Scene, rng: random.Random) -> None:
    """Records that nobody can apply: noise of many lengths."""
    noise = [rng.randbytes(rng.randint(0, 2000)) for _ in range(10)]
    _send(scene, rng.randrange(scene.stack.partitions), noise)


def _send(scene: Scene, partition: int, values: list[bytes | None]) -> None:
    producer = KafkaProducer(bootstrap_servers=scene.broker.address, acks="all")
    with closing(producer):
        for value in values:
            key = b"tombstone" if value is None else None
            producer.send(f"{PREFIX}{NORMS}", value=value, key=key, partition=partition)
        producer.flush()


def _pause(pid: int, seconds: float) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGSTOP)
        try:
            time.sleep(seconds)
        finally:
            os.kill(pid, signal.SIGCONT)


def _without_disk(pid: int, size: int, rng: random.Random) -> None:
    """No file of a process grows beyond a size for a while."""
    before = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (size + rng.randint(0, 20_000), before[1]))
    try:
        time.sleep(rng.uniform(1.0, 6.0))
    finally:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, before)


def _largest(directory: Path, suffix: str = "") -> int:
    return max((p.stat().st_size for p in directory.rglob(f"*{suffix}") if p.is_file()), default=0)
