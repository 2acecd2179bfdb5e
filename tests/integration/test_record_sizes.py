"""The largest records of each kind, over a broker with the default `message.max.bytes`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
import pytest
from kafka.admin import KafkaAdminClient
from kafka.errors import MessageSizeTooLargeError

from streams.kafka.topics import settings_of
from streams.records import MAX_QUOTED_BYTES, MAX_RECORD_BYTES
from streams.records.json_outputs import to_msgpack
from streams.sdk.errors import InvalidRequest
from tests.integration.service import Service, ServiceFactory
from tests.integration.test_outputs import raw

KAFKA_DEFAULT = 1_048_588  # of message.max.bytes


@pytest.fixture(scope="module")
def service(start_service: ServiceFactory) -> Iterator[Service]:
    with start_service(partitions=1) as service:
        yield service


def published(service: Service, topic: str, kind: str) -> list[dict[str, Any]]:
    """Return the records of a kind, all of which are JSON that brokers take by default."""
    values = raw(service, topic)
    assert max(map(len, values)) <= MAX_RECORD_BYTES
    assert {value[:1] for value in values} == {b"{"}
    records = [msgspec.msgpack.decode(to_msgpack(value)) for value in values]
    return [record for record in records if record["type"] == kind]


def test_no_topic_has_a_setting_for_large_records(service: Service, name: str) -> None:
    service.client.create_dataset(name, measure="zcdp", budget=1.0)  # when there are topics
    admin = KafkaAdminClient(bootstrap_servers=service.kafka)
    topics = [service.config.topic(name) for name in ("norms", "halts", "odometer", "rejects")]
    found = settings_of(admin, dict.fromkeys(topics, ("max.message.bytes",)))
    admin.close()
    assert found == {topic: {"max.message.bytes": str(KAFKA_DEFAULT)} for topic in topics}


def test_the_largest_charge_is_decided_and_a_larger_one_is_not_sent(
    service: Service, name: str
) -> None:
    service.client.create_dataset(name, measure="zcdp", budget=1e-12)
    run = service.client.run(name, "r")
    users = np.arange(63_000)
    with pytest.raises(InvalidRequest):
        run.charge(users, np.ones(len(users)), noise_stddev=4.0)
    users = users[:62_470]
    assert run.charge(users, np.ones(len(users)), noise_stddev=4.0).halted.all()
    assert MAX_RECORD_BYTES - 1_000 < max(map(len, raw(service, "norms"))) <= MAX_RECORD_BYTES
    run.close()


def test_a_large_roster_is_enrolled_charged_and_handed_back(service: Service, name: str) -> None:
    service.client.create_dataset(
        name, measure="zcdp", budget=0.05, on_exhaustion="clip", user_ids="integer"
    )
    users, run = np.arange(900_000), service.client.run(name, "r")
    roster = run.enrol(users, clip_norm=1.0)
    norms = np.where(users % 3, 0.2, 1.0)
    roster.charge(noise_stddev=4.0, norms=norms)
    step = roster.charge(noise_stddev=1.0, norms=np.ones(len(users)))
    again = service.client.run(name, "r", released=step.step - 1).enrol(users, clip_norm=1.0)
    handed = again.charge(noise_stddev=1.0)
    assert (handed.admitted == step.admitted).all()
    assert (handed.clip_norms == step.clip_norms).all()
    assert published(service, "halts", "enrolled")[-1]["parts"] > 2
    assert published(service, "halts", "roster-decision")[-1]["parts"] > 1


def test_a_reject_quotes_the_beginning_of_the_largest_request(service: Service, name: str) -> None:
    record = {"type": "charge", "dataset": name, "run": "r", "attempt": 1, "step": 0}
    value = msgspec.json.encode({**record, "users": [], "norms": []})
    value += b" " * (MAX_RECORD_BYTES - len(value))
    service.publish(0, value)
    with pytest.raises(MessageSizeTooLargeError):
        service.publish(0, b"x" * (KAFKA_DEFAULT + 1))
    service.settle()
    (reject,) = [
        each for each in published(service, "rejects", "rejected") if each["dataset"] == name
    ]
    assert reject["reason"] == "unknown-dataset"
    assert reject["record"] == value[:MAX_QUOTED_BYTES]
