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
from kafka import KafkaProducer, TopicPartition
from kafka.errors import KafkaError

from streams.kafka.clients import new_admin, new_reader
from streams.kafka.security import security
from streams.kafka.topics import NORMS
from streams.local import RedisServer
from streams.local.errors import LocalStackError
from streams.store.layout import key_of
from tests.chaos.proxy import Proxy
from tests.chaos.scene import PREFIX, Scene, Shape
from tests.servers.redis_failover import client_of

Fault = Callable[[Scene, random.Random], None]
Suits = Callable[[Shape], bool]

FAULTS: dict[str, Fault] = {}
"""By the name that the summary calls it."""
_SUITS: dict[str, Suits] = {}


def suiting(shape: Shape) -> list[str]:
    """The names of the faults that can happen to such a service."""
    return [name for name in FAULTS if _SUITS[name](shape)]


def _always(shape: Shape) -> bool:
    return True


def _is_open(shape: Shape) -> bool:
    return not shape.is_secure


def _has_one_redis(shape: Shape) -> bool:
    return not shape.has_cluster


def _has_cluster(shape: Shape) -> bool:
    return shape.has_cluster


def _has_brokers(shape: Shape) -> bool:
    return shape.brokers > 1


def fault(name: str, suits: Suits = _always) -> Callable[[Fault], Fault]:
    """Note a kind of fault, and which services it can happen to."""

    def note(work: Fault) -> Fault:
        FAULTS[name], _SUITS[name] = work, suits
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
    """It loses up to a second of what it acknowledged; a node of a Cluster, perhaps its place."""
    server = rng.choice(scene.redises)
    server.kill()
    time.sleep(rng.uniform(0.0, 2.0))
    server.start()


@fault("Redis restarted")
def restart_redis(scene: Scene, rng: random.Random) -> None:
    """In order: it loses nothing."""
    server = rng.choice(scene.redises)
    server.stop()
    server.start()


@fault("Redis gone back", _has_one_redis)
def roll_back_redis(scene: Scene, rng: random.Random) -> None:
    """Its files are put back to a copy from a while ago."""
    (server,) = scene.redises
    data, copy = server.directory / "redis", scene.directory / "redis.copy"
    shutil.copytree(data, copy)
    time.sleep(rng.uniform(2.0, 10.0))
    server.kill()
    changed = scene.directory / "redis.changed"
    data.rename(changed)
    copy.rename(data)
    try:
        server.start()
    except LocalStackError:  # the copy was taken while a file changed: nothing goes back
        shutil.rmtree(data)
        changed.rename(data)
        server.start()
    shutil.rmtree(changed, ignore_errors=True)


@fault("Redis emptied", _is_open)
def flush_redis(scene: Scene, rng: random.Random) -> None:
    """FLUSHALL, wherever there is state."""
    for server in scene.redises:
        with closing(client_of(server)) as client, suppress(redis.ReadOnlyError):
            client.flushall()


@fault("some keys lost", _is_open)
def lose_keys(scene: Scene, rng: random.Random) -> None:
    """A few keys of the service are deleted, as somebody might who cleans up."""
    with closing(client_of(rng.choice(scene.redises))) as client:
        keys = sorted(client.scan_iter(f"{PREFIX}*"))
        for key in rng.sample(keys, min(len(keys), rng.randint(1, 3))):
            with suppress(redis.ResponseError):  # a replica's are its master's
                client.delete(key)


@fault("Redis has no disk", _is_open)
def fill_disk_of_redis(scene: Scene, rng: random.Random) -> None:
    """It cannot write to its file for a while, and refuses what it cannot keep."""
    server = rng.choice(scene.redises)
    with suppress(ProcessLookupError):
        _without_disk(server.pid, _largest(server.directory / "redis"), rng)
    server.start()  # a node of a Cluster that cannot keep what it knows of it ends


@fault("Redis paused")
def pause_redis(scene: Scene, rng: random.Random) -> None:
    """It answers nothing for a while, and then everything; a Cluster goes on without it."""
    _pause(rng.choice(scene.redises).pid, rng.uniform(0.5, 8.0))


@fault("master failed over", _has_cluster)
def fail_over(scene: Scene, rng: random.Random) -> None:
    """A master is killed, its replica takes its place, and it comes back as a replica."""
    if pair := _pair(scene, rng):
        _fail_over(scene, *pair)


@fault("failover that loses what was decided last", _has_cluster)
def fail_over_behind(scene: Scene, rng: random.Random) -> None:
    """The same, and the replica had been told nothing for a while."""
    assert scene.failover is not None
    if pair := _pair(scene, rng):
        scene.failover.cut(pair[1])
        time.sleep(rng.uniform(0.5, 5.0))
        _fail_over(scene, *pair)


@fault("broker killed")
def kill_broker(scene: Scene, rng: random.Random) -> None:
    """SIGKILL, and again on the same data."""
    broker = rng.choice(scene.brokers)
    broker.kill()
    time.sleep(rng.uniform(0.0, 2.0))
    broker.start()


@fault("leader killed", _has_brokers)
def kill_leader(scene: Scene, rng: random.Random) -> None:
    """The broker that leads a partition of the log; another one leads it before it is back."""
    partition = rng.randrange(scene.stack.partitions)
    if (leader := _leader(scene, partition)) is None:
        return
    scene.brokers[leader].kill()
    deadline = time.monotonic() + 20.0
    while _leader(scene, partition) in (None, leader) and time.monotonic() < deadline:
        time.sleep(0.2)
    scene.brokers[leader].start()


@fault("two of the brokers killed", _has_brokers)
def kill_two_brokers(scene: Scene, rng: random.Random) -> None:
    """Nothing is decided until one of them is back."""
    killed = rng.sample(scene.brokers, 2)
    for broker in killed:
        broker.kill()
    time.sleep(rng.uniform(0.0, 6.0))
    for broker in killed:
        broker.start()


@fault("broker restarted")
def restart_broker(scene: Scene, rng: random.Random) -> None:
    """In order."""
    broker = rng.choice(scene.brokers)
    broker.stop()
    broker.start()


@fault("broker has no disk")
def fill_disk_of_broker(scene: Scene, rng: random.Random) -> None:
    """It cannot make its log longer, gives up, and is started again when there is room."""
    broker = rng.choice(scene.brokers)
    with suppress(ProcessLookupError):
        _without_disk(broker.pid, _largest(broker.directory / "kafka" / "log", ".log"), rng)
    broker.kill()
    broker.start()


@fault("broker paused")
def pause_broker(scene: Scene, rng: random.Random) -> None:
    """It answers nothing for a while, and then everything."""
    _pause(rng.choice(scene.brokers).pid, rng.uniform(0.5, 6.0))


def _network_fails(where: str, how: Callable[[Proxy], None]) -> Fault:
    def fail(scene: Scene, rng: random.Random) -> None:
        proxy = scene.proxies[where]
        how(proxy)
        try:
            time.sleep(rng.uniform(0.5, 10.0))
        finally:
            proxy.heal()

    return fail


_HAS_PROXY: dict[str, Suits] = {
    "Kafka": lambda shape: shape.brokers == 1 and not shape.is_secure,
    "Redis": lambda shape: not shape.has_cluster and not shape.is_secure,
}
for _where in _HAS_PROXY:
    for _name, _how in (
        (f"network to {_where} cut", Proxy.cut),
        (f"connections to {_where} half open", Proxy.freeze),
        (f"slow {_where}", Proxy.slow),
    ):
        fault(_name, _HAS_PROXY[_where])(_network_fails(_where, _how))


@fault("clock jumps")
def jump(scene: Scene, rng: random.Random) -> None:
    """The time of day of workers and the trainer is an hour off, or a day, to either side."""
    scene.clock.write_text(str(rng.choice((-1, 1)) * rng.choice((1, 60, 3600, 86400))))


@fault("old records sent again")
def send_again(scene: Scene, rng: random.Random) -> None:
    """Copies of what the log has, in another order, as a client that repeats itself sends them."""
    topic = f"{PREFIX}{NORMS}"
    with closing(new_reader(scene.looks)) as consumer:
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
    config = scene.trains
    servers = config.kafka.split(",")
    with closing(
        KafkaProducer(bootstrap_servers=servers, acks="all", **security(config))
    ) as producer:
        for value in values:
            key = b"tombstone" if value is None else None
            producer.send(f"{PREFIX}{NORMS}", value=value, key=key, partition=partition)
        producer.flush()


def _pair(scene: Scene, rng: random.Random) -> tuple[RedisServer, RedisServer] | None:
    """The master of a partition and its replica, if that has all there is."""
    assert scene.failover is not None
    key = key_of(PREFIX, rng.randrange(scene.stack.partitions), "meta")
    with suppress(AssertionError, StopIteration, redis.RedisError):  # they come back from a fault
        master = scene.failover.master_of(key)
        return master, scene.failover.replica_of(master)
    return None


def _fail_over(scene: Scene, master: RedisServer, replica: RedisServer) -> None:
    assert scene.failover is not None
    scene.failover.promote(replica, master)
    master.start()


def _leader(scene: Scene, partition: int) -> int | None:
    """Which of the brokers leads a partition of the log, if one does and is asked in time."""
    with suppress(KafkaError), closing(new_admin(scene.looks)) as admin:
        (norms,) = admin.describe_topics([f"{PREFIX}{NORMS}"])
        found = next(p for p in norms["partitions"] if p["partition_index"] == partition)
        leader = int(found["leader_id"])
        return leader - 1 if leader > 0 else None
    return None


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
