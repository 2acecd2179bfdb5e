"""Killed trainers: no paid step is lost, charged twice or charged with other content.

A fault-injection smoke test: it has no mark `fault`, so that `make test` runs it.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import msgspec
import pytest

from streams.records import Charge, decode_request
from streams.records.digests import charge_digest
from tests.integration import trainer
from tests.integration.service import KILLED, Life, Service, ServiceFactory

KILLS = [("opened", 0), ("half", 0), ("published", 1), ("decided", 2), ("released", 3)]


@pytest.fixture(scope="module")
def shared(start_service: ServiceFactory) -> Iterator[Service]:
    with start_service(workers=1, partitions=3) as service:
        yield service


def test_a_repeatedly_killed_trainer_loses_no_paid_step(
    shared: Service, name: str, life: Life, tmp_path: Path
) -> None:
    shared.client.create_dataset(name, measure="zcdp", budget=0.2)
    checkpoint = tmp_path / "checkpoint.json"
    train = partial(life, trainer.__file__, shared.kafka, shared.prefix, name, checkpoint)
    trainer.write(checkpoint, {"released": -1, "model": 0.0, "history": []})
    for point, step in KILLS:
        assert train(point, step) == KILLED, (point, step)
    assert train("", -1) == 0

    history = trainer.read(checkpoint)["history"]
    assert [released["step"] for released in history] == list(range(trainer.STEPS))
    assert not all(
        all(released["admitted"]) for released in history
    )  # some users' budgets are exhausted
    units = dict.fromkeys(trainer.USERS.tolist(), 0)
    for released in history:
        parts = zip(trainer.USERS.tolist(), released["norms"], released["admitted"], strict=True)
        for user, norm, admitted in parts:
            units[user] += admitted * math.ceil(norm**2 / (2 * trainer.NOISE**2) * 2**44)
    state = shared.state(name)
    for user, expected in units.items():
        assert abs(state[user][0][0] - expected) <= trainer.STEPS  # up to one rounding each
    shared.audit()
    assert_one_content_a_step(shared, name)
    assert_no_rejects(shared, name)


def assert_one_content_a_step(service: Service, dataset: str) -> None:
    service.log.refresh()
    contents = defaultdict(set)
    for partition, _, value in service.log.records["norms"]:
        request = decode_request(value)
        if isinstance(request, Charge) and request.dataset == dataset:
            contents[partition, request.step].add(charge_digest(request))
    assert len(contents) == service.partitions * trainer.STEPS
    assert {len(digests) for digests in contents.values()} == {1}


def assert_no_rejects(service: Service, dataset: str) -> None:
    rejects = [msgspec.msgpack.decode(v or b"") for _, _, v in service.log.records["rejects"]]
    assert [reject for reject in rejects if reject["dataset"] == dataset] == []
