"""`turnstile status` reports a service that decides nothing as unhealthy, and reads no state."""

from __future__ import annotations

import os
import signal
import sys
from urllib.request import urlopen

import numpy as np
import pytest
from kafka.admin import KafkaAdminClient
from prometheus_client.parser import text_string_to_metric_families

from streams.config import Config
from streams.failures import Exit
from streams.kafka import facts, kafka_clients
from streams.kafka.topics import ensure_topics
from streams.local.server_process import free_ports
from streams.operations import status as operations
from streams.operations.status import (
    WaitReason,
    read_owners,
    topics_of,
)
from tests.integration.service import Service, ServiceFactory, eventually
from tests.waiting import HANGS_AFTER

USERS = np.arange(50)
NORMS = np.full(50, 1.0)


@pytest.fixture(autouse=True)
def who_is_silent_is_soon_taken_for_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operations, "SILENT_AFTER", 3)
    monkeypatch.setattr(operations, "STALLED_AFTER", 3.0)


def charge(service: Service, steps: int) -> None:
    service.client.create_dataset("d", measure="zcdp", budget=1.0)
    run = service.client.run("d", "r")
    for _ in range(steps):
        run.charge(USERS, NORMS, noise_stddev=1.0)


def test_a_service_without_any_worker_yet_is_not_healthy(start_service: ServiceFactory) -> None:
    with start_service(workers=0, partitions=2) as service:
        ensure_topics(service.config)
        service.eventually_all(WaitReason.NO_STATE)
        assert service.command("status").code == Exit.UNAVAILABLE
        service.stack.start_worker()
        charge(service, 1)
        assert not any(service.reasons())
        for command in (("status", "--json"), ("doctor",)):
            done = service.command(*command)
            assert (done.code, done.said) == (Exit.OK, "")


def test_facts_are_read_from_brokers_before_kafka_3_7(
    start_service: ServiceFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    def new_admin(config: Config) -> KafkaAdminClient:
        return KafkaAdminClient(bootstrap_servers=config.kafka, api_version=(3, 6))

    monkeypatch.setattr(kafka_clients, "new_admin", new_admin)
    with start_service(workers=0) as service:
        assert facts.read_facts(service.config).brokers == 1


def test_a_paused_worker_with_records_waiting_is_not_healthy(
    start_service: ServiceFactory,
) -> None:
    with start_service(workers=1, partitions=2) as service:
        charge(service, 2)
        service.settle()
        with service.paused_worker():
            for partition in range(2):
                service.publish(partition, b"waits")
            found = service.eventually_all(WaitReason.OWNER_SILENT)
            assert all(partition.lag == 1 for partition in found)
            assert service.command("status").code == Exit.UNAVAILABLE
        service.settle()
        eventually(lambda: not any(service.reasons()))


STALLS = """
import asyncio, sys
from streams.cli.main import main
from streams.worker.inbox import Inbox

async def never(self, record):
    await asyncio.Event().wait()

Inbox.arrive = never
sys.exit(main(["worker"]))
"""


def test_a_running_worker_that_applies_nothing_is_not_healthy(
    start_service: ServiceFactory,
) -> None:
    command = (sys.executable, "-c", STALLS)
    with start_service(workers=1, partitions=1, worker_command=command) as service:
        eventually(lambda: read_owners(service.config, 1) != [""])
        service.publish(0, b"waits")
        (partition,) = service.eventually_all(WaitReason.STALLED)
        assert partition.lag == 1


def test_a_worker_reports_over_http_that_it_decides_and_how_much(
    start_service: ServiceFactory,
) -> None:
    address = f"127.0.0.1:{free_ports(1)[0]}"
    environment = {"TURNSTILE_HEALTH": address}
    with start_service(workers=1, partitions=2, worker_environment=environment) as service:
        charge(service, 3)
        service.publish(0, b"garbage")
        service.settle()
        for path in ("livez", "readyz", "healthz"):
            with urlopen(f"http://{address}/{path}", timeout=HANGS_AFTER) as answer:
                assert answer.status == 200
        with urlopen(f"http://{address}/metrics", timeout=HANGS_AFTER) as answer:
            text = answer.read().decode()
        samples = {
            (sample.name, sample.labels.get("partition")): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }
        ends = service.log.norms_ends()
        for partition in range(2):
            assert samples["turnstile_records_total", str(partition)] == ends[partition]
            assert samples["turnstile_next_offset", str(partition)] == ends[partition]
        assert samples["turnstile_commit_seconds_count", None] > 0
        log = f"{service.prefix}norms@{topics_of(service.config).topic.hex()[:12]}"
        assert f'turnstile_rejects_total{{log="{log}",reason="malformed"}} 1.0' in text


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
def test_a_worker_leaves_no_folders_behind(
    start_service: ServiceFactory, tmp_path: object, end: signal.Signals
) -> None:
    environment = {"TMPDIR": str(tmp_path)}
    with start_service(workers=1, partitions=1, worker_environment=environment) as service:
        charge(service, 1)
        worker = service.stack.workers[0]
        assert worker.pid is not None
        pid = worker.pid
        os.kill(pid, end)
        eventually(lambda: worker.pid not in (None, pid))
        charge(service, 1)
    assert os.listdir(str(tmp_path)) == []
