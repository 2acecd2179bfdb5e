"""Workers are added and removed during charges: partitions move, and nothing is lost."""

import threading

import numpy as np
import pytest

from streams import Turnstile
from streams.operations.status import read_owners
from tests.integration.service import ServiceFactory, eventually

pytestmark = pytest.mark.fault


def test_partitions_move_to_new_workers_and_back_without_a_gap(
    start_service: ServiceFactory,
) -> None:
    with start_service(workers=1, partitions=4) as service:
        stop = threading.Event()
        steps: list[int] = []

        def charge() -> None:
            with Turnstile(config=service.config) as turnstile:
                turnstile.create_dataset("moving", measure="zcdp", budget=20.0)
                run = turnstile.run("moving", "r")
                while not stop.is_set():
                    norms = np.full(200, 0.5)
                    steps.append(run.charge(np.arange(200), norms, noise_stddev=2.0).step)

        def owners() -> set[str]:
            return set(read_owners(service.config, 4))

        load = threading.Thread(target=charge)
        load.start()
        try:
            eventually(lambda: len(steps) > 20)
            for count in (2, 3):
                service.stack.start_worker()
                eventually(lambda count=count: len(owners()) == count)
                seen = len(steps)
                eventually(lambda seen=seen: len(steps) > seen + 20)
            service.stack.workers[0].stop()
            eventually(lambda: len(owners()) == 2)
            seen = len(steps)
            eventually(lambda: len(steps) > seen + 20)
        finally:
            stop.set()
            load.join()
        assert steps == list(range(len(steps)))
        service.audit()
