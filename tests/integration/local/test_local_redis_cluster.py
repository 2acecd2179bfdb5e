"""A Redis Cluster on this machine keeps its keys, and is never taken for another."""

from __future__ import annotations

from pathlib import Path

import pytest
import redis

from streams.local import LocalStack, LocalStackError, RedisCluster
from streams.local.secure_stack import SecureStack


def client_of(cluster: RedisCluster) -> redis.RedisCluster:
    return redis.RedisCluster(host="127.0.0.1", port=cluster.nodes[0].port)


@pytest.mark.drill
def test_a_cluster_that_is_started_again_on_other_ports_has_its_keys(tmp_path: Path) -> None:
    first = RedisCluster(tmp_path, 3)
    first.start()
    with client_of(first) as client:
        for number in range(30):
            client.set(f"key-{number}", number)
    first.stop()
    assert not first.running
    second = RedisCluster(tmp_path, 3)
    second.start()
    try:
        assert second.address != first.address
        with client_of(second) as client:
            assert [client.get(f"key-{n}") for n in range(30)] == [b"%d" % n for n in range(30)]
    finally:
        second.kill()


def test_a_cluster_of_two_is_none(tmp_path: Path) -> None:
    with pytest.raises(LocalStackError, match="give 3, or 6"):
        RedisCluster(tmp_path, 2)


def test_data_of_one_redis_are_not_taken_for_those_of_a_cluster(tmp_path: Path) -> None:
    (tmp_path / "redis").mkdir()
    stack = LocalStack(workers=0, kafka="127.0.0.1:1", redis_nodes=3, data=tmp_path)
    with pytest.raises(LocalStackError, match="has the data of 1 node of Redis, and 3 are asked"):
        stack.start()


def test_a_file_that_names_no_node_is_refused(tmp_path: Path) -> None:
    for number in (1, 2, 3):
        data = tmp_path / f"redis-{number}" / "redis"
        data.mkdir(parents=True)
        (data / "nodes.conf").write_text("vars currentEpoch 3 lastVoteEpoch 0\n")
    with pytest.raises(LocalStackError, match="does not say which node this is"):
        RedisCluster(tmp_path, 3).start()


def test_a_secure_stack_has_one_redis() -> None:
    with pytest.raises(LocalStackError, match="one Redis, and 3 nodes are asked for, which would"):
        SecureStack(redis_nodes=3)
