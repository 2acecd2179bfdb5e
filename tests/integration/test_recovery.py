"""Workers recover partitions whose state is empty, old or invalid.

A fault-injection smoke test: it has no mark `fault`, so that `make test` runs it.
"""

import os
import signal

import numpy as np
import redis

from streams.operations.status import read_owners
from tests.integration.service import Service, ServiceFactory, eventually

USERS = np.arange(60)
NORMS = np.full(60, 0.9)


def keys_of(service: Service, client: redis.Redis) -> list[bytes]:
    return list(client.scan_iter(f"{service.prefix}*"))


def charge(service: Service, name: str, steps: int) -> None:
    service.client.create_dataset(name, measure="zcdp", budget=1.0)
    run = service.client.run(name, "r")
    for _ in range(steps):
        run.charge(USERS, NORMS, noise_stddev=2.0)


def test_an_empty_redis_is_rebuilt_from_the_log(start_service: ServiceFactory) -> None:
    with start_service(workers=1, partitions=3) as service:
        charge(service, "d", 15)
        service.settle()
        service.stack.workers[0].stop()
        with redis.Redis.from_url(service.redis) as client:
            client.delete(*keys_of(service, client))
        service.stack.start_worker()
        charge(service, "d", 1)
        run = service.client.run("d", "r")
        assert run.step == 16
        service.audit()


def test_a_worker_that_continues_after_a_pause_decides_nothing_and_exits(
    start_service: ServiceFactory,
) -> None:
    with start_service(workers=1, partitions=1) as service:
        service.client.create_dataset("d", measure="zcdp", budget=9.0)
        run = service.client.run("d", "r")
        run.charge(USERS, NORMS, noise_stddev=2.0)
        first = service.stack.workers[0]
        before = read_owners(service.config, 1)
        paused = first.pid
        assert paused is not None
        os.kill(paused, signal.SIGSTOP)
        try:
            service.stack.start_worker()
            eventually(lambda: read_owners(service.config, 1) != before)
            for _ in range(5):
                run.charge(USERS, NORMS, noise_stddev=2.0)
        finally:
            os.kill(paused, signal.SIGCONT)
        for _ in range(30):
            run.charge(USERS, NORMS, noise_stddev=2.0)
        service.audit()
