"""Clients of a real broker after partitions were added, and after a fork."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import numpy as np
import pytest
from kafka.admin import KafkaAdminClient

from streams.sdk.errors import (
    DecisionTimeout,
    PartitionsDisagree,
    TurnstileError,
)
from tests.integration.service import Life, Service, ServiceFactory


@pytest.fixture(scope="module")
def shared(start_service: ServiceFactory) -> Iterator[Service]:
    with start_service(workers=1, partitions=3) as service:
        yield service


@pytest.fixture(autouse=True)
def everything_is_as_audited(shared: Service) -> Iterator[None]:
    yield
    shared.audit()


def charges(service: Service) -> int:
    service.log.refresh()
    records = [msgspec.msgpack.decode(v or b"") for _, _, v in service.log.records["norms"]]
    return sum(record["type"] == "charge" for record in records)


@pytest.mark.fault
def test_after_partitions_were_added_nothing_is_charged(start_service: ServiceFactory) -> None:
    with start_service(workers=1, partitions=2) as service:
        service.client.create_dataset("d", measure="zcdp", budget=1.0)
        run = service.client.run("d", "r")
        run.charge(list(range(40)), np.full(40, 1.4), noise_stddev=1.0)
        service.settle()
        before = charges(service)
        admin = KafkaAdminClient(bootstrap_servers=service.kafka)
        topics = ("norms", "halts", "rejects", "odometer")
        admin.create_partitions({service.config.topic(name): 4 for name in topics})
        admin.close()
        with pytest.raises(PartitionsDisagree):
            service.client.run("d", "r")
        with pytest.raises(PartitionsDisagree):
            service.client.create_dataset("e", measure="zcdp", budget=1.0)
        with service.turnstile(timeout=5.0) as late:
            assert late.partitions == 4
            # Workers then stop, or answer that the new partitions have no state.
            with pytest.raises((PartitionsDisagree, DecisionTimeout)):
                late.run("d", "r")
            with pytest.raises(TurnstileError):
                late.create_dataset("d", measure="zcdp", budget=1.0)
        assert charges(service) == before


FORKED = """
import os, sys
import numpy as np
from streams.sdk.client import Turnstile
from streams.sdk.errors import Unusable

kafka, prefix, name = sys.argv[1:]
with Turnstile(kafka, prefix=prefix) as turnstile:
    turnstile.create_dataset(name, measure="zcdp", budget=1.0)
    run = turnstile.run(name, "r")
    child = os.fork()
    if child == 0:
        try:
            run.charge([1], [1.0], noise_stddev=1.0)
        except Unusable:
            turnstile.close()
            os._exit(42)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 42
    assert run.charge([1], [1.0], noise_stddev=1.0).step == 0
"""


def test_a_forked_process_does_not_charge_on_its_parent_s_connection(
    shared: Service, name: str, life: Life
) -> None:
    assert life("-c", FORKED, shared.kafka, shared.prefix, name) == 0
