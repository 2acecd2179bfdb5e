"""Workers publish JSON or MessagePack; readers take a topic that contains both."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from kafka import KafkaConsumer, TopicPartition

from tests.integration.service import Service, ServiceFactory
from tests.readme import TOP

FOLLOWER = str(TOP / "examples" / "follow_halts.py")
USERS = [f"user-{n}" for n in range(20)]


def raw(service: Service, topic: str, partition: int = 0) -> list[bytes]:
    """Return all values of a partition, as any Kafka client reads them."""
    consumer = KafkaConsumer(bootstrap_servers=service.kafka, group_id=None)
    place = TopicPartition(service.config.topic(topic), partition)
    try:
        consumer.assign([place])
        consumer.seek_to_beginning(place)
        end, values = consumer.end_offsets([place])[place], []
        while consumer.position(place) < end:
            polled = consumer.poll(timeout_ms=200).get(place, [])
            values += [record.value for record in polled if record.value]
        return values
    finally:
        consumer.close()


def test_workers_change_the_form_in_the_middle_of_a_run(
    start_service: ServiceFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TURNSTILE_OUTPUTS", "msgpack")
    with start_service(workers=1, partitions=1) as service:
        service.client.create_dataset("d", measure="zcdp", budget=0.5, odometer_step=0.1)
        run = service.client.run("d", "r")
        step: dict[str, Any] = {"noise_stddev": 2.0}
        run.charge(USERS, np.ones(20), **step)
        assert not any(value[:1] == b"{" for value in raw(service, "halts"))
        service.settle()
        service.stack.workers[0].stop()
        monkeypatch.setenv("TURNSTILE_OUTPUTS", "json")
        service.stack.start_worker()
        run.charge(USERS, np.linspace(0.0, 1.0, 20), **step)
        run.charge(USERS, np.full(20, 3.0), **step)
        decisions = [json.loads(value) for value in raw(service, "halts")[-2:]]
        assert [decision["step"] for decision in decisions] == [1, 2]
        assert decisions[1]["admitted"] == [False] * 20
        assert decisions[1]["halted"][7] == {
            "user": USERS[7],
            "reason": "budget",
            "budget": "d",
            "exhausted": False,
        }
        followed = list(service.client.halts("d", since="earliest", follow=False))
        assert [(halt.step, halt.user) for halt in followed] == [(2, user) for user in USERS]
        service.settle()
        odometers = [json.loads(v) for v in raw(service, "odometer") if v[:1] == b"{"]
        assert odometers
        assert {odometer["user"] for odometer in odometers} <= set(USERS)
        seen = service.client.odometer("d", since="earliest", follow=False)
        assert len({odometer.user for odometer in seen}) == 20
        service.audit()
        printed = subprocess.run(
            [sys.executable, FOLLOWER, service.kafka, service.prefix, "2000"],
            capture_output=True,
            text=True,
            check=False,
        )
        assert printed.stdout.splitlines() == [f"d r 2 {user} budget" for user in USERS]
        assert service.command("verify").code == 0
