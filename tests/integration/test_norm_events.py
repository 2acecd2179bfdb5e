"""Norms that a plain Kafka client publishes, one record for each user, as the page says."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from kafka import KafkaProducer

from streams.records.users import partitions_of
from tests.integration.service import Service, ServiceFactory
from tests.integration.test_outputs import raw
from tests.readme import TOP, blocks, page

SENDER = str(TOP / "examples" / "norm_events.py")
METERS = [f"meter-{number}" for number in range(40)]


def published(service: Service, topic: str) -> list[dict[str, Any]]:
    places = range(service.config.partitions)
    values = (value for partition in places for value in raw(service, topic, partition))
    return [json.loads(value) for value in values]


def test_the_page_about_norm_events(start_service: ServiceFactory) -> None:
    opening, deciding = blocks(page("budgets/norm-events"))
    with start_service(workers=2, partitions=3) as service:
        names: dict[str, Any] = {"contribution": lambda user, clip_to: clip_to}
        address = f'"{service.kafka}", prefix="{service.prefix}"'
        exec(opening.replace('"localhost:9092"', address), names)
        lines = "".join(f"{meter},{0.5 + 0.01 * at}\n" for at, meter in enumerate(METERS))
        about = ("meters", "daily-load", "0", service.prefix)
        subprocess.run(
            [sys.executable, SENDER, service.kafka, *about], input=lines, text=True, check=True
        )
        producer = KafkaProducer(bootstrap_servers=service.kafka)
        event = {"type": "norm", "dataset": "meters", "run": "daily-load", "step": 0}
        wrong = (partitions_of(["meter-x"], 3)[0] + 1) % 3
        for user, norm, partition in (("meter-x", 0.5, int(wrong)), (METERS[3], 0.9, None)):
            value = json.dumps({**event, "user": user, "norm": norm}).encode()
            place = service.config.topic("norms")
            producer.send(place, key=user.encode(), value=value, partition=partition)
        producer.flush()
        service.stack.workers[0].stop()  # the other one takes over what was collected
        exec(deciding, names)
        assert names["decision"].norms == {
            meter: 0.5 + 0.01 * at for at, meter in enumerate(METERS)
        }
        late = json.dumps({**event, "user": "meter-late", "norm": 0.5}).encode()
        producer.send(service.config.topic("norms"), key=b"meter-late", value=late)
        producer.close()
        service.settle()
        rejects = {each["user"]: each["reason"] for each in published(service, "rejects")}
        assert rejects == {
            "meter-x": "wrong-partition",
            METERS[3]: "norm-changed",
            "meter-late": "step-decided",
        }
        decisions = [each for each in published(service, "halts") if each["type"] == "decision"]
        granted = dict(
            pair
            for each in decisions
            for pair in zip(each["collected"], each["norms"], strict=True)
        )
        assert granted == names["decision"].norms
        service.audit()
        names["t"].close()
