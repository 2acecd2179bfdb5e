"""The answerer on a real broker and Redis: killed at any time, it answers each window once.

All answerers sign their answers, and readers ignore unsigned ones.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import msgspec
import pytest
from kafka import KafkaProducer
from kafka.admin import KafkaAdminClient
from prometheus_client.parser import text_string_to_metric_families

from streams.answerer.events import SkipReason
from streams.answerer.kafka_journal import KafkaJournal
from streams.kafka.answer_topics import ensure_answer_topics
from streams.kafka.authentic import ANSWERERS
from streams.local import Child
from streams.local.server_process import free_ports
from streams.records import Charge, decode_request
from streams.records.digests import charge_digest
from streams.records.packing import unpack_norms
from streams.records.signatures import new_keys
from streams.records.users import UserIds
from streams.sdk.followers import Reading
from streams.sdk.kafka_connection import read_signed
from tests.batches import bomb
from tests.integration import answerer
from tests.integration.command import turnstile
from tests.integration.service import (
    KILLED,
    Service,
    ServiceFactory,
    eventually,
    largest_resident_bytes,
)
from tests.waiting import HANGS_AFTER

PRIVATE, PUBLIC = new_keys()
DAYS = 8
POINTS = {
    "opened": 0,
    "closing": 1,
    "charged": 3,
    "drawn": 5,
    "answered": 7,
    "published": 9,
    "forgotten": 10,
}
FILE = """
dataset = "{name}"
run = "r"
[input]
topic = "{topic}"
user = "user"
users = "integer"
time = "day"
start = 2026-01-01
end = 2026-01-08
clock = "events"
lateness = "1h"
idle = "1s"
[[query]]
name = "buyers"
kind = "distinct"
window = "1d"
noise = 2.0
[[query]]
name = "spent"
kind = "sum"
column = "amount"
by = "shop"
labels = ["north", "south"]
clip = 10.0
window = "2d"
every = "1d"
noise = 20.0
"""
STEPS = (DAYS - 1) + (DAYS - 2)
MORE_DAYS = 3
ZEROS = 400 * 2**20
BESIDE = 100


def events() -> list[tuple[int, dict[str, Any]]]:
    """Return events by partition, in the order of time: some users per day."""
    return [
        (
            user % 2,
            {
                "user": user,
                "day": f"2026-01-{day + 1:02d}T0{user % 10}:30:00",
                "amount": 0.1 * user + day,
                "shop": ("north", "south", "west")[(user + day) % 3],
            },
        )
        for day in range(DAYS)
        for user in sorted(range(day, 30 + day, 3), key=lambda user: user % 10)
    ]


@pytest.fixture(scope="module")
def shared(start_service: ServiceFactory) -> Iterator[Service]:
    with start_service(workers=1, partitions=2) as service:
        ensure_answer_topics(service.config)
        yield service


@pytest.fixture
def file(shared: Service, name: str, tmp_path: Path) -> Path:
    """Return a query file for a topic with all events, and for an existing dataset."""
    shared.client.create_dataset(name, measure="zcdp", budget=0.9, user_ids="integer")
    topic = f"{shared.prefix}events-{name}"
    admin = KafkaAdminClient(bootstrap_servers=shared.kafka)
    admin.create_topics({topic: {"num_partitions": 2, "replication_factor": 1, "configs": {}}})
    admin.close()
    producer = KafkaProducer(bootstrap_servers=shared.kafka, acks="all")
    for number, (partition, event) in enumerate(events()):
        encode = (msgspec.json if number % 2 else msgspec.msgpack).encode
        producer.send(topic, value=encode(event), partition=partition)
    producer.close()
    path = tmp_path / "queries.toml"
    path.write_text(FILE.format(name=name, topic=topic))
    return path


Start = Callable[..., Child]


@pytest.fixture
def start(shared: Service, file: Path, tmp_path: Path) -> Iterator[Start]:
    """Start an answerer, which is killed when it reaches a point of a step."""
    with ExitStack() as started:

        def start(*doom: str, health: str = "") -> Child:
            environment = {**os.environ, **shared.environment, "TURNSTILE_HEALTH": health}
            environment |= {"TURNSTILE_SIGNING_KEY": PRIVATE, "TURNSTILE_ANSWER_KEYS": PUBLIC}
            environment["TURNSTILE_LOG_FORMAT"] = "json"
            command = [sys.executable, answerer.__file__, *doom, "answer", str(file)]
            log = tmp_path / "answerer.log"
            child = Child("An answerer", command, log=log, environment=environment)
            started.callback(child.kill)
            return child

        yield start


def answers_of(service: Service, dataset: str, ring: str = PUBLIC) -> dict[int, list[bytes]]:
    """Return the published, signed answers by step."""
    found = defaultdict(list)
    config = replace(service.config, answer_keys=ring)
    reading = Reading("earliest", follow=False)
    for record in read_signed(config, config.topic("answers"), ANSWERERS, reading):
        answer = msgspec.json.decode(record.value)
        if answer["dataset"] == dataset:
            found[answer["step"]].append(record.value)
    return dict(found)


def forge(service: Service, dataset: str, published: bytes, **fields: Any) -> None:
    """Publish an unsigned answer, as any Kafka client could."""
    producer = KafkaProducer(bootstrap_servers=service.kafka, acks="all")
    forged = msgspec.json.encode({**msgspec.json.decode(published), **fields})
    producer.send(f"{service.prefix}answers", forged, f"{dataset}/r".encode()).get(30)
    producer.close()


def contents_of(service: Service, dataset: str) -> dict[tuple[int, int], set[bytes]]:
    """Return the content digests of all charges, by partition and step."""
    service.log.refresh()
    found = defaultdict(set)
    for partition, _, value in service.log.records["norms"]:
        request = decode_request(value)
        if isinstance(request, Charge) and request.dataset == dataset:
            found[partition, request.step].add(charge_digest(request))
    return dict(found)


def assert_answered_once(service: Service, dataset: str, steps: int = STEPS) -> None:
    answers = answers_of(service, dataset)
    assert sorted(answers) == list(range(steps))
    assert all(len(set(values)) == 1 for values in answers.values())
    contents = contents_of(service, dataset)
    assert len(contents) == service.partitions * steps
    assert all(len(digests) == 1 for digests in contents.values())


@pytest.mark.fault
def test_an_answerer_killed_at_any_point_of_a_release_answers_every_window_once(
    shared: Service, name: str, start: Start
) -> None:
    for point, step in POINTS.items():
        assert start(point, str(step)).wait(HANGS_AFTER) == KILLED, point
    last = start()
    eventually(lambda: len(answers_of(shared, name)) == STEPS)
    # Of all that was entered the last answer alone is left, and who begins again needs no more.
    eventually(lambda: entries_of(shared, name) == [("answered", STEPS - 1)])
    last.kill()
    assert_answered_once(shared, name)
    shared.audit()
    again = start()
    eventually(lambda: entries_of(shared, name)[1:] == [("begin", STEPS)])
    again.kill()
    assert_answered_once(shared, name)


def entries_of(service: Service, dataset: str) -> list[tuple[str, int]]:
    with closing(KafkaJournal(service.config, dataset)) as journal:
        return [(entry.kind, entry.step) for entry in journal.catch_up() if entry.run == "r"]


def assert_answerer_reports_its_state(service: Service, health: str) -> None:
    """Check that the answerer reports itself as ready and healthy, has metrics, and passes
    `doctor`.
    """
    for path in ("livez", "readyz", "healthz"):
        with urlopen(f"http://{health}/{path}", timeout=HANGS_AFTER) as answer:
            assert answer.status == 200, path
    samples = samples_of(health)
    assert samples["turnstile_answerer_answers_total", ""] > 0
    assert samples["turnstile_client_requests_total", "answered"] > 0
    assert {value for (name, _), value in samples.items() if name == "turnstile_answerer_lag"} == {
        0
    }
    gone = f"127.0.0.1:{free_ports(1)[0]}"
    examined = service.command("doctor", "--answerer", health, "--answerer", gone, "--json")
    found = [line for line in examined.lines if line["area"] == "answerers"]
    assert [line["about"] for line in found if line["level"] == "wrong"] == [{"answerer": gone}]
    topics = {f"{service.prefix}{name}" for name in ("answers", "answers-state")}
    assert topics <= {line["about"].get("topic") for line in found}
    assert {"answerer": health} in [line["about"] for line in found if line["level"] == "ok"]


@pytest.mark.fault
def test_killed_answerer_reads_new_partitions_and_rejects_another_file(
    shared: Service, name: str, file: Path, start: Start
) -> None:
    text = file.read_text().replace("end = 2026-01-08", f"end = 2026-01-{DAYS + MORE_DAYS}")
    file.write_text(text)
    assert start("charged", "3").wait(HANGS_AFTER) == KILLED
    charged = contents_of(shared, name)
    file.write_text(text.replace("noise = 2.0", "noise = 1.0"))
    assert start().wait(HANGS_AFTER) == 2
    assert contents_of(shared, name) == charged
    file.write_text(text)
    topic = f"{shared.prefix}events-{name}"
    with closing(shared.admin()) as admin:
        admin.create_partitions({topic: 3})
    producer = KafkaProducer(bootstrap_servers=shared.kafka, acks="all")
    for day in range(DAYS, DAYS + MORE_DAYS):
        for user in range(6):
            time = f"2026-01-{day + 1:02d}T09:30:00"
            event = {"user": user, "day": time, "amount": 1.0, "shop": "north"}
            producer.send(topic, value=msgspec.json.encode(event), partition=user % 3)
    producer.close()
    last = start()
    steps = STEPS + 2 * MORE_DAYS
    eventually(lambda: len(answers_of(shared, name)) == steps)
    last.kill()
    assert_answered_once(shared, name, steps)
    shared.audit()


@pytest.mark.fault
def test_a_second_answerer_takes_over_and_the_first_one_ends(
    shared: Service, name: str, start: Start
) -> None:
    first = start("sleep", "4")  # with its decision in hand
    eventually(lambda: len(contents_of(shared, name)) == 2 * 5)
    # An answer beyond the last entry would end who believes it.
    (last,) = answers_of(shared, name)[3]
    forge(shared, name, last, step=STEPS + 1)
    forge(shared, name, last, value=-1.0)
    health = f"127.0.0.1:{free_ports(1)[0]}"
    second = start(health=health)
    eventually(lambda: len(answers_of(shared, name)) == STEPS)
    assert_answerer_reports_its_state(shared, health)
    os.kill(first.pid, signal.SIGCONT)
    assert first.wait(HANGS_AFTER) == 1
    second.kill()
    assert_answered_once(shared, name)
    shared.audit()
    assert sorted(answers_of(shared, name, ring="")) == [*range(STEPS), STEPS + 1]
    believing = shared.command("answers", name)
    assert (believing.code, "has two different answers" in believing.said) == (70, True)
    environment = {**shared.environment, "TURNSTILE_ANSWER_KEYS": PUBLIC}
    read = turnstile("answers", name, "--json", environment=environment)
    assert (read.code, [line["step"] for line in read.lines]) == (0, list(range(STEPS)))


def test_a_decompression_bomb_is_skipped_and_the_other_events_of_its_batch_count(
    shared: Service, name: str, file: Path, start: Start
) -> None:
    text = file.read_text()
    file.write_text(text.replace("end = 2026-01-08", f"end = 2026-01-{DAYS + MORE_DAYS}"))
    topic = f"{shared.prefix}events-{name}"
    moment = f"2026-01-{DAYS + 1:02d}T09:00:00"
    others = [
        msgspec.json.encode({"user": user, "day": moment, "amount": 1.0, "shop": "north"})
        for user in range(1000, 1000 + BESIDE)
    ]
    offset = shared.publish_batch(bomb(ZEROS, *others), topic=topic)
    producer = KafkaProducer(bootstrap_servers=shared.kafka, acks="all")
    for day in range(DAYS, DAYS + MORE_DAYS):
        for user in range(4):
            time = f"2026-01-{day + 1:02d}T09:30:00"
            event = {"user": user, "day": time, "amount": 1.0, "shop": "north"}
            producer.send(topic, value=msgspec.json.encode(event), partition=user % 2)
    producer.close()
    health = f"127.0.0.1:{free_ports(1)[0]}"
    first = start(health=health)
    eventually(lambda: len(answers_of(shared, name)) == STEPS + 2 * MORE_DAYS)
    samples = samples_of(health)
    assert samples["turnstile_answerer_passed_over_total", SkipReason.UNREADABLE] == 1
    assert samples["turnstile_answerer_next_offset", "0"] > offset + BESIDE
    answers = [msgspec.json.decode(packed) for packed, *_ in answers_of(shared, name).values()]
    buyers = [answer["value"] for answer in answers if answer["query"] == "buyers"]
    assert max(buyers) > BESIDE - 20  # ten noises below; on other days there are ten users
    assert largest_resident_bytes(first.pid) < ZEROS
    first.kill()
    second = start(health=health)
    eventually(lambda: samples_of(health).get(("turnstile_answerer_ready", "")))
    assert ("turnstile_answerer_passed_over_total", SkipReason.UNREADABLE) not in samples_of(health)
    assert largest_resident_bytes(second.pid) < ZEROS


def samples_of(health: str) -> dict[tuple[str, str], float]:
    """Return an answerer's metrics by name and first label; empty until it serves them."""
    try:
        with urlopen(f"http://{health}/metrics", timeout=HANGS_AFTER) as answer:
            text = answer.read().decode()
    except OSError:
        return {}
    return {
        (
            sample.name,
            next((sample.labels[x] for x in sample.labels if x != "log"), ""),
        ): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def charges_of(service: Service, dataset: str) -> dict[tuple[int, int], tuple[Any, bytes]]:
    """Return the users and norms of the steps that both runs have."""
    found = {}
    for partition, _, value in service.log.records["norms"]:
        request = decode_request(value)
        if isinstance(request, Charge) and request.dataset == dataset and request.step < STEPS:
            found[partition, request.step] = (request.users, request.norms)
    return found


BY_ARRIVAL = """
dataset = "{name}"
run = "by-arrival"
[input]
topic = "{topic}"
user = "user"
users = "integer"
time = "at"
time_unit = "ms"
start = {start}
lateness = "1m"
idle = "1s"
[[query]]
name = "visits"
kind = "count"
window = "1h"
each = 4.0
noise = 10.0
"""


def test_an_event_counts_if_it_arrives_in_time_by_the_broker_clock(
    shared: Service, name: str, file: Path, start: Start
) -> None:
    topic = f"{shared.prefix}visits-{name}"
    stamped = {"message.timestamp.type": "LogAppendTime"}
    with closing(shared.admin()) as admin:
        options = {"num_partitions": 2, "replication_factor": 1, "configs": stamped}
        admin.create_topics({topic: options})
    producer = KafkaProducer(bootstrap_servers=shared.kafka, acks="all")

    def send(user: int, at: float, partition: int = 0) -> int:
        """Send an event; return its time of arrival by the broker's clock."""
        value = msgspec.json.encode({"user": user, "at": at})
        arrived: int = producer.send(topic, value, partition=partition).get(30).timestamp
        return arrived

    now = time.time() * 1000
    hour = 3_600_000.0
    visits = [(user, now - hour / 2) for user in range(10) for _ in range(1 + user % 3)]
    visits += [(50, now), (51, now + 48 * hour)]  # in the next window, and in no window at all
    last = max(send(user, at, user % 2) for user, at in visits)
    while send(99, now) < last + 200:  # the broker's clock goes on
        pass
    for user in (0, 1, 60, 61):
        send(user, now - hour / 2)
    producer.close()
    # The window closes between those that came in time and those that are too late, an hour and a
    # minute after it began. Partition 1 has nothing more to say, and holds nobody up.
    began = datetime.fromtimestamp((last + 100 - hour - 60_000) / 1000, UTC)
    file.write_text(BY_ARRIVAL.format(name=name, topic=topic, start=began.isoformat()))
    assert start("drawn", "0").wait(120.0) == KILLED
    second = start()
    eventually(lambda: answers_of(shared, name))
    second.kill()
    assert_answered_once(shared, name, 1)
    charged = {
        int(user): float(norm)
        for users, norms in charges_of(shared, name).values()
        for user, norm in zip(UserIds.unpack(users), unpack_norms(norms), strict=True)
    }
    assert charged == pytest.approx({user: 1.0 + user % 3 for user in range(10)})


def test_events_with_the_sender_time_close_no_window_by_arrival(
    file: Path, start: Start, tmp_path: Path
) -> None:
    file.write_text(file.read_text().replace('clock = "events"', 'clock = "arrival"'))
    assert start().wait(120.0) == 2
    assert "message.timestamp.type" in (tmp_path / "answerer.log").read_text()
