"""A Redis Cluster is found by any of its nodes, and moved slots are not followed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
import redis
from redis.crc import key_slot

from streams.local import RedisServer
from streams.store.layout import KEYS, key_of
from streams.store.redis_store import RedisStore
from streams.store.store_port import StoreUnavailable
from tests.conformance.store.bench import Owner, commit
from tests.servers.redis_cluster import RedisCluster

PREFIX = "t."
PARTITIONS = range(6)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisCluster]:
    running = RedisCluster(tmp_path_factory.mktemp("cluster"), 3)
    running.start()
    yield running
    running.kill()


def test_the_keys_of_a_partition_are_in_one_slot_and_partitions_are_spread() -> None:
    slots = [{key_slot(key_of(PREFIX, p, name).encode()) for name in KEYS} for p in range(64)]
    assert all(len(of_one) == 1 for of_one in slots)
    thirds = {slot * 3 // 16384 for of_one in slots for slot in of_one}
    assert thirds == {0, 1, 2}


def test_one_answering_node_is_enough(cluster: RedisCluster) -> None:
    async def scenario() -> set[str]:
        url = f"redis+cluster://127.0.0.1:1,{cluster.nodes[2].address}"
        async with RedisStore(url, PREFIX) as store:
            await store.connect()
            for partition in PARTITIONS:
                await Owner(store, f"owner-{partition}", partition).acquire()
            return {
                (await store.glance(partition)).meta.get("owner", "") for partition in PARTITIONS
            }

    assert asyncio.run(scenario()) == {f"owner-{partition}" for partition in PARTITIONS}


async def test_a_moved_slot_is_not_followed_and_is_found_after_a_restart(
    cluster: RedisCluster,
) -> None:
    prefix, partition = "moving.", 0
    slot = key_slot(key_of(prefix, partition, "meta").encode())
    async with RedisStore(cluster.url, prefix) as store:
        await store.connect()
        writer = await Owner(store, "a", partition).acquire()
        await commit(writer, 0, 1)
        before, after = move(cluster, slot)
        with pytest.raises(StoreUnavailable):
            await commit(writer, 1, 2)
    async with RedisStore(cluster.url, prefix) as again:
        writer = await Owner(again, "b", partition).acquire()
        await commit(writer, 1, 2)
        assert (await Owner(again, "b", partition).load()).next == 2
    assert keys_of(before, slot) == 0 < keys_of(after, slot)


def move(cluster: RedisCluster, slot: int) -> tuple[RedisServer, RedisServer]:
    """Move a slot to another node, as an operator does; return the old and the new node.

    The slot moves with all of its keys: partitions of one number share a slot under any prefix.
    """
    clients = [redis.Redis(port=node.port) for node in cluster.nodes]
    ids = [client.execute_command("CLUSTER", "MYID").decode() for client in clients]
    old = next(n for n, node in enumerate(cluster.nodes) if keys_of(node, slot))
    new = (old + 1) % len(ids)
    clients[new].execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", ids[old])
    clients[old].execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", ids[new])
    keys = clients[old].execute_command("CLUSTER", "GETKEYSINSLOT", slot, 1000)
    where = ("127.0.0.1", cluster.nodes[new].port)
    clients[old].execute_command("MIGRATE", *where, "", 0, 5000, "KEYS", *keys)
    for number in (new, old):
        clients[number].execute_command("CLUSTER", "SETSLOT", slot, "NODE", ids[new])
    for client in clients:
        client.close()
    return cluster.nodes[old], cluster.nodes[new]


def keys_of(node: RedisServer, slot: int) -> int:
    with redis.Redis(port=node.port) as client:
        return int(client.execute_command("CLUSTER", "COUNTKEYSINSLOT", slot))
