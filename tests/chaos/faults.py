"""The kinds of faults. A fault has ended, or continues on its own, when its function returns."""

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

from streams.kafka.kafka_clients import new_admin, new_reader
from streams.kafka.results import TopicsUnavailable
from streams.kafka.security import security
from streams.kafka.topics import NORMS
from streams.local import RedisServer
from streams.local.launch_errors import LocalStackError
from streams.store.layout import key_of
from tests.chaos.proxy import Proxy
from tests.chaos.service import PREFIX, ServiceUnderTest, Shape
from tests.servers.redis_failover import client_of

Fault = Callable[[ServiceUnderTest, random.Random], None]
Suits = Callable[[Shape], bool]

FAULTS: dict[str, Fault] = {}
"""The faults by their names in the summary."""
_SUITS: dict[str, Suits] = {}


def suiting(shape: Shape) -> list[str]:
    """Return the names of the faults that can happen to a service of this shape."""
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
    """Register a kind of fault, and the shapes of service that it can happen to."""

    def note(work: Fault) -> Fault:
        FAULTS[name], _SUITS[name] = work, suits
        return work

    return note


@fault("worker killed")
def kill_worker(service: ServiceUnderTest, rng: random.Random) -> None:
    """Kill a worker with SIGKILL; its supervisor starts another."""
    service.stack.workers[rng.randrange(len(service.stack.workers))].kill()


@fault("all workers killed")
def kill_all_workers(service: ServiceUnderTest, rng: random.Random) -> None:
    """Kill all workers at once with SIGKILL."""
    for worker in service.stack.workers:
        worker.kill()


@fault("worker paused")
def pause_worker(service: ServiceUnderTest, rng: random.Random) -> None:
    """Stop a worker with SIGSTOP, often for longer than the consumer group waits for it."""
    pid = rng.choice(service.stack.workers).pid
    if pid is not None:
        _pause(pid, rng.uniform(1.0, 12.0))


@fault("Redis killed")
def kill_redis(service: ServiceUnderTest, rng: random.Random) -> None:
    """Kill a Redis server, which loses up to a second of acknowledged writes."""
    server = rng.choice(service.redises)
    server.kill()
    time.sleep(rng.uniform(0.0, 2.0))
    server.start()


@fault("Redis restarted")
def restart_redis(service: ServiceUnderTest, rng: random.Random) -> None:
    """Stop a Redis server gracefully and start it again; it loses nothing."""
    server = rng.choice(service.redises)
    server.stop()
    server.start()


@fault("Redis rolled back", _has_one_redis)
def roll_back_redis(service: ServiceUnderTest, rng: random.Random) -> None:
    """Restore the Redis files from a copy that is some seconds old."""
    (server,) = service.redises
    data, copy = server.directory / "redis", service.directory / "redis.copy"
    shutil.copytree(data, copy)
    time.sleep(rng.uniform(2.0, 10.0))
    server.kill()
    changed = service.directory / "redis.changed"
    data.rename(changed)
    copy.rename(data)
    try:
        server.start()
    except LocalStackError:  # a file changed during the copy: start the newer files
        shutil.rmtree(data)
        changed.rename(data)
        server.start()
    shutil.rmtree(changed, ignore_errors=True)


@fault("Redis emptied", _is_open)
def flush_redis(service: ServiceUnderTest, rng: random.Random) -> None:
    """Empty every Redis server with FLUSHALL."""
    for server in service.redises:
        with closing(client_of(server)) as client, suppress(redis.ReadOnlyError):
            client.flushall()


@fault("some keys lost", _is_open)
def lose_keys(service: ServiceUnderTest, rng: random.Random) -> None:
    """Delete up to three keys of the service."""
    with closing(client_of(rng.choice(service.redises))) as client:
        keys = sorted(client.scan_iter(f"{PREFIX}*"))
        for key in rng.sample(keys, min(len(keys), rng.randint(1, 3))):
            with suppress(redis.ResponseError):  # a replica rejects writes
                client.delete(key)


@fault("Redis has no disk", _is_open)
def fill_disk_of_redis(service: ServiceUnderTest, rng: random.Random) -> None:
    """Let a Redis server run out of disk space for a while; it then rejects writes."""
    server = rng.choice(service.redises)
    with suppress(ProcessLookupError):
        _without_disk(server.pid, _largest(server.directory / "redis"), rng)
    server.start()  # a Cluster node exits if it cannot write its configuration


@fault("Redis paused")
def pause_redis(service: ServiceUnderTest, rng: random.Random) -> None:
    """Stop a Redis server with SIGSTOP for a while; a Cluster continues without it."""
    _pause(rng.choice(service.redises).pid, rng.uniform(0.5, 8.0))


@fault("master failed over", _has_cluster)
def fail_over(service: ServiceUnderTest, rng: random.Random) -> None:
    """Kill a master and promote its replica; the old master returns as a replica."""
    if pair := _pair(service, rng):
        _fail_over(service, *pair)


@fault("failover that loses the last decisions", _has_cluster)
def fail_over_behind(service: ServiceUnderTest, rng: random.Random) -> None:
    """Fail over to a replica that did not receive the last writes."""
    assert service.failover is not None
    if pair := _pair(service, rng):
        service.failover.cut(pair[1])
        time.sleep(rng.uniform(0.5, 5.0))
        _fail_over(service, *pair)


@fault("broker killed")
def kill_broker(service: ServiceUnderTest, rng: random.Random) -> None:
    """Kill a broker with SIGKILL and start it again with the same data."""
    broker = rng.choice(service.brokers)
    broker.kill()
    time.sleep(rng.uniform(0.0, 2.0))
    broker.start()


@fault("leader killed", _has_brokers)
def kill_leader(service: ServiceUnderTest, rng: random.Random) -> None:
    """Kill the broker that leads a partition of the log, until another broker leads it."""
    partition = rng.randrange(service.stack.partitions)
    if (leader := _leader(service, partition)) is None:
        return
    service.brokers[leader].kill()
    deadline = time.monotonic() + 20.0
    while _leader(service, partition) in (None, leader) and time.monotonic() < deadline:
        time.sleep(0.2)
    service.brokers[leader].start()


@fault("two of the brokers killed", _has_brokers)
def kill_two_brokers(service: ServiceUnderTest, rng: random.Random) -> None:
    """Kill two of the brokers; no request is decided until one of them has restarted."""
    killed = rng.sample(service.brokers, 2)
    for broker in killed:
        broker.kill()
    time.sleep(rng.uniform(0.0, 6.0))
    for broker in killed:
        broker.start()


@fault("broker restarted")
def restart_broker(service: ServiceUnderTest, rng: random.Random) -> None:
    """Stop a broker gracefully and start it again."""
    broker = rng.choice(service.brokers)
    broker.stop()
    broker.start()


@fault("broker has no disk")
def fill_disk_of_broker(service: ServiceUnderTest, rng: random.Random) -> None:
    """Let a broker run out of disk space, and start it again when there is space."""
    broker = rng.choice(service.brokers)
    with suppress(ProcessLookupError):
        _without_disk(broker.pid, _largest(broker.directory / "kafka" / "log", ".log"), rng)
    broker.kill()
    broker.start()


@fault("broker paused")
def pause_broker(service: ServiceUnderTest, rng: random.Random) -> None:
    """Stop a broker with SIGSTOP for a while."""
    _pause(rng.choice(service.brokers).pid, rng.uniform(0.5, 6.0))


def _network_fails(where: str, how: Callable[[Proxy], None]) -> Fault:
    def fail(service: ServiceUnderTest, rng: random.Random) -> None:
        proxy = service.proxies[where]
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
def jump(service: ServiceUnderTest, rng: random.Random) -> None:
    """Shift the time of day of the workers by up to a day."""
    service.clock.write_text(str(rng.choice((-1, 1)) * rng.choice((1, 60, 3600, 86400))))


@fault("old records sent again")
def send_again(service: ServiceUnderTest, rng: random.Random) -> None:
    """Send copies of records of the log in another order, as clients that retry may do."""
    topic = f"{PREFIX}{NORMS}"
    with closing(new_reader(service.looks)) as consumer:
        number = rng.choice(sorted(consumer.partitions_for_topic(topic)))
        place = TopicPartition(topic, number)
        consumer.assign([place])
        end = consumer.end_offsets([place])[place]
        consumer.seek(place, rng.randrange(max(1, end)))
        found = [r.value for r in consumer.poll(timeout_ms=2000, max_records=50).get(place, [])]
    rng.shuffle(found)
    _send(service, number, found[:20])


@fault("garbage sent")
def send_garbage(service: ServiceUnderTest, rng: random.Random) -> None:
    """Send unreadable records of many lengths."""
    noise = [rng.randbytes(rng.randint(0, 2000)) for _ in range(10)]
    _send(service, rng.randrange(service.stack.partitions), noise)


def _send(service: ServiceUnderTest, partition: int, values: list[bytes | None]) -> None:
    config = service.trains
    servers = config.kafka.split(",")
    with closing(
        KafkaProducer(bootstrap_servers=servers, acks="all", **security(config))
    ) as producer:
        for value in values:
            key = b"tombstone" if value is None else None
            producer.send(f"{PREFIX}{NORMS}", value=value, key=key, partition=partition)
        producer.flush()


def _pair(service: ServiceUnderTest, rng: random.Random) -> tuple[RedisServer, RedisServer] | None:
    """Return a partition's master and its replica; None if the replica is not in sync."""
    assert service.failover is not None
    key = key_of(PREFIX, rng.randrange(service.stack.partitions), "meta")
    with suppress(AssertionError, StopIteration, redis.RedisError):  # the servers are recovering
        master = service.failover.master_of(key)
        return master, service.failover.replica_of(master)
    return None


def _fail_over(service: ServiceUnderTest, master: RedisServer, replica: RedisServer) -> None:
    assert service.failover is not None
    service.failover.promote(replica, master)
    master.start()


def _leader(service: ServiceUnderTest, partition: int) -> int | None:
    """Return the index of the broker that leads a partition of the log; None if unknown."""
    with suppress(KafkaError, TopicsUnavailable), closing(new_admin(service.looks)) as admin:
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
    """Limit the size of a process's files for a while."""
    before = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (size + rng.randint(0, 20_000), before[1]))
    try:
        time.sleep(rng.uniform(1.0, 6.0))
    finally:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, before)


def _largest(directory: Path, suffix: str = "") -> int:
    return max((p.stat().st_size for p in directory.rglob(f"*{suffix}") if p.is_file()), default=0)
