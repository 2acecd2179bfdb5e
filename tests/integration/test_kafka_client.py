"""Workers own every partition again after their Kafka clients had none for a time."""

import sys
from contextlib import closing
from pathlib import Path

import pytest

from streams.operations.status import read_owners
from tests.integration.service import Service, ServiceFactory, eventually

pytestmark = pytest.mark.fault

FAULTS = Path(__file__).with_name("kafka_client_faults.py")


def worker_with(fault: str) -> tuple[str, ...]:
    return sys.executable, str(FAULTS), fault


def owner_of(service: Service) -> str:
    (owner,) = read_owners(service.config, 1)
    return owner


def test_partitions_are_distributed_again_soon_after_the_client_knew_none(
    start_service: ServiceFactory, name: str
) -> None:
    with start_service(worker_command=worker_with("metadata")) as service:
        service.client.create_dataset(name, measure="zcdp", budget=1.0)


def test_a_worker_that_had_no_partition_for_long_takes_over(
    start_service: ServiceFactory, name: str
) -> None:
    with start_service(workers=2, partitions=1, worker_command=worker_with("idle")) as service:
        service.client.create_dataset(name, measure="zcdp", budget=100.0)
        run = service.client.run(name, "r")
        group = f"{service.prefix}worker"
        with closing(service.admin()) as admin:
            eventually(lambda: len(admin.describe_groups([group])[group]["members"]) == 2)
        for _ in range(100):  # takes more than the 0.3 s after which a member counts as idle
            run.charge([1], [1.0], noise_stddev=10.0)
        owner = owner_of(service)
        pids = [worker.pid for worker in service.stack.workers]
        service.stack.workers[pids.index(int(owner.split(":")[1]))].stop()
        run.charge([1], [1.0], noise_stddev=10.0)
        assert owner_of(service) != owner
