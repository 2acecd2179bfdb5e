"""`verify`, `explain` and `report` on a running service, with the real broker and Redis."""

from __future__ import annotations

import threading
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from kafka import KafkaProducer, TopicPartition

from streams.kafka.results import Extent
from streams.local.server_process import free_ports
from streams.replay.archive import UnreadableService
from streams.replay.service import ServiceArchive
from streams.sdk.run import Run
from tests.integration.service import Service, eventually

USERS = np.arange(60)


@pytest.fixture(scope="module")
def run(shared: Service) -> Run:
    """Make charges, HALTs, rejects and a sampled roster."""
    shared.client.create_dataset("d", measure="zcdp", budget=0.5, odometer_step=0.1)
    run = shared.client.run("d", "r")
    for _ in range(4):
        run.charge(USERS, np.linspace(0.1, 4.0, len(USERS)), noise_stddev=4.0)
    shared.client.create_dataset("faces", measure="renyi", epsilon=1.0, delta=1e-5)
    roster = shared.client.run("faces", "s").enrol(USERS, clip_norm=1.0, levels=10)
    for _ in range(3):
        roster.charge(noise_stddev=1.1, sampling_rate=0.1)
    shared.publish(0, b"garbage")
    shared.audit()
    return run


@pytest.fixture
def command(shared: Service, run: Run) -> Any:
    return shared.command


def test_a_running_service_agrees_with_its_log_and_continues_its_receipt(
    run: Run, command: Any, tmp_path: Path
) -> None:
    receipt = tmp_path / "receipt.json"
    done = command("verify", "--receipt", str(receipt))
    assert done.code == 0, done
    stop = threading.Event()

    def charge() -> None:
        while not stop.is_set():
            run.charge(USERS, np.full(len(USERS), 0.01), noise_stddev=4.0)

    trainer = threading.Thread(target=charge)
    trainer.start()
    try:
        done = command("verify", "--json", "--against", str(receipt))
    finally:
        stop.set()
        trainer.join()
    *partitions, summary = done.lines
    assert (done.code, summary["fits"]) == (0, True), done
    assert summary["continues_receipt_of"] == msgspec.json.decode(receipt.read_bytes())["time"]
    assert len(partitions) == 3
    assert all(part["state_at"] is not None for part in partitions)


@pytest.mark.parametrize("asked", [("explain", "--user", "59"), ("report", "d")])
def test_without_redis_the_log_is_compared_only_with_snapshots(
    shared: Service, run: Run, command: Any, asked: tuple[str, ...]
) -> None:
    (port,) = free_ports(1)
    done = command(*asked, "--redis", f"redis://127.0.0.1:{port}/0", "--json")
    assert done.code == 0
    assert done.lines
    assert {line["compared"]["redis"] for line in done.lines} == {None}
    with_redis = command(*asked, "--json")
    assert None not in {line["compared"]["redis"] for line in with_redis.lines}


def test_redis_has_no_data_of_an_erased_user_and_verify_still_passes(
    shared: Service, run: Run, command: Any
) -> None:
    user, others = "remember-me-not", [f"user {number}" for number in range(9)]
    shared.client.create_dataset("names", measure="zcdp", budget=1.0, odometer_step=0.01)
    named = shared.client.run("names", "r")
    assert named.charge([user, *others], np.ones(10), noise_stddev=4.0).admitted.all()
    assert user.encode() in redis_has(shared)
    done = command("erase", "--user", user, "--json")
    assert (done.code, [line["dataset"] for line in done.lines]) == (0, ["names"]), done
    decision = named.charge([user, *others], np.zeros(10), noise_stddev=4.0)
    assert decision.erased.tolist() == [True] + [False] * 9
    assert (decision.admitted == ~decision.erased).all()
    eventually(lambda: user.encode() not in redis_has(shared))
    shared.audit()
    assert command("verify").code == 0
    lines = command("explain", "--user", user, "--json").lines
    assert [line["what"] for line in lines] == ["charged", "erased", "halted"]
    rows = command("report", "names", "--json").lines
    assert sorted(row["user"] for row in rows) == sorted(others)
    assert command("erase", "--user", "nobody").code == 1


def redis_has(shared: Service) -> bytes:
    """Return the stored state of all partitions."""
    return b"".join(
        part for kept in shared.settle().values() for part in (*kept.pages.values(), *kept.changes)
    )


def test_records_deleted_during_a_replay_are_noticed(shared: Service, run: Run) -> None:
    archive = ServiceArchive(replace(shared.config, timeout=1.0))
    extent = archive.extent("halts", 2)
    with closing(shared.admin()) as admin:
        admin.delete_records({TopicPartition(shared.config.topic("halts"), 2): 1})
    with pytest.raises(UnreadableService):
        list(archive.read("halts", 2, extent))
    with pytest.raises(UnreadableService):
        list(archive.read("halts", 2, Extent(extent.end, extent.end + 1)))


def test_verify_finds_foreign_records_on_the_broker(
    shared: Service, run: Run, command: Any
) -> None:
    """This is the last test of the module, because its records stay in Kafka."""
    (halted,) = [
        value
        for partition, _, value in shared.log.records["halts"]
        if partition == 1 and msgspec.msgpack.decode(value).get("step") == 3
    ]
    forged = {**msgspec.msgpack.decode(halted), "admitted": b"\xff" * 3}
    producer = KafkaProducer(bootstrap_servers=shared.kafka)
    packed = msgspec.msgpack.encode(forged)
    producer.send(shared.config.topic("halts"), packed, key=b"r", partition=1).get(60)
    producer.close()
    done = command("verify", "--json")
    assert done.code == 1
    (finding,) = [line for line in done.lines if line["type"] == "mismatch"]
    assert (finding["check"], finding["partition"]) == ("halts", 1)
    assert finding["about"]["step"] == 3
    assert "contradicts" in finding["problem"]
    assert command("verify").code == 1
