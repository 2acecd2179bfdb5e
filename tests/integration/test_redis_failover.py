"""A Redis master fails, and a replica that lags takes over: no charge is lost."""

from __future__ import annotations

import random
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from streams.local import LocalStack
from tests.chaos.trainers import (
    check_received,
    trainers_of_every_kind,
    wait_for_decisions,
)
from tests.integration.service import IMPATIENT_WORKER, Service
from tests.servers.redis_failover import (
    meta_of,
    sentinel_failover,
)
from tests.waiting import HANGS_AFTER

pytestmark = pytest.mark.fault

PARTITIONS = 3


def test_a_failover_that_loses_the_last_decisions_under_load_loses_no_charge(
    servers: LocalStack, tmp_path: Path
) -> None:
    """With a Sentinel; tests/chaos does the same with a Cluster."""
    prefix = f"failover-{random.randrange(10**9)}."
    with (
        sentinel_failover(tmp_path) as failover,
        LocalStack(
            kafka=servers.kafka,
            redis=failover.url,
            prefix=prefix,
            workers=2,
            partitions=PARTITIONS,
            worker_command=IMPATIENT_WORKER,
        ) as stack,
    ):
        service = Service(stack)
        config = replace(service.config, timeout=8.0)
        lanes = trainers_of_every_kind(config, random.randrange(10**9), 0.3)
        for lane in lanes:
            lane.start()
        try:
            wait_for_decisions(lanes)
            key = meta_of(prefix, 0)
            lost = failover.lose(key, lambda: wait_for_decisions(lanes))
            wait_for_decisions(lanes)  # because the state is older than the answers
            lost.start()
            failover.replica_of(failover.master_of(key))
            wait_for_decisions(lanes)
        finally:
            for lane in lanes:
                lane.stop(HANGS_AFTER)
            service.close()
        with closing(Service(stack)) as audited:
            assert check_received(audited.audit(), lanes) > 3 * len(lanes)
