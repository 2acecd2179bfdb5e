"""Trainers on a real service: whichever process dies, each step is charged once, and the model
equals the one trained in memory bit for bit.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from streams.records import ChargeRoster, decode_request
from streams.records.digests import roster_digest
from streams.sdk.client import Turnstile
from streams.sdk.errors import DecisionTimeout
from streams.sdk.memory_connection import MemoryConnection
from streams.trainers import Checkpoint
from tests.audit.stored import Rows, state_of
from tests.integration import training
from tests.integration.service import KILLED, Life, Service, ServiceFactory, eventually
from tests.integration.test_trainer_kills import assert_no_rejects
from tests.integration.training import POLICY, STEPS, Training
from tests.waiting import HANGS_AFTER


@pytest.fixture(scope="module")
def shared(start_service: ServiceFactory) -> Iterator[Service]:
    with start_service(workers=1, partitions=3) as service:
        yield service


class Death(BaseException):
    """Raised to end a training in memory."""


def trained_in_memory(
    name: str, path: Path, dies_in: Sequence[int] = ()
) -> tuple[np.ndarray, Rows]:
    """Return the model and the users' charges, after crashes in some drawn steps."""
    connection = MemoryConnection(3, HANGS_AFTER)
    turnstile = Turnstile(connection=connection)
    turnstile.create_dataset(name, **POLICY)

    def live(dies_in: int) -> np.ndarray:
        def at(point: str, step: int) -> None:
            if (point, step) == ("decided", dies_in):
                raise Death

        return Training(turnstile, name, Checkpoint(path), at).go()

    for step in dies_in:
        with pytest.raises(Death):
            live(step)
    model = live(-1)
    charged = charged_in_memory(connection, name)
    spent = [paid for paid, *_ in charged.values()]
    assert len(set(spent)) > 10  # users were charged different amounts
    return model, charged


def charged_in_memory(connection: MemoryConnection, name: str) -> Rows:
    parts = [state_of(ledger, name) for ledger in connection.ledgers]
    return {user: row for part in parts for user, row in part.items()}


@pytest.mark.fault
def test_a_killed_worker_does_not_change_the_trained_model(
    shared: Service, name: str, tmp_path: Path
) -> None:
    shared.client.create_dataset(name, **POLICY)
    turnstile = shared.turnstile(timeout=4.0)
    reached, killed = threading.Event(), threading.Event()

    def at(point: str, step: int) -> None:
        if (point, step) == ("decided", STEPS // 2):
            reached.set()
            killed.wait(HANGS_AFTER)

    def kill() -> None:
        if reached.wait(HANGS_AFTER):
            pid = shared.stack.workers[0].pid
            shared.stack.workers[0].kill()
            killed.set()
            eventually(lambda: shared.stack.workers[0].pid != pid)

    life = Training(turnstile, name, Checkpoint(tmp_path / "real.npz"), at)
    killer = threading.Thread(target=kill, daemon=True)
    killer.start()
    model = eventually(lambda: went_to_the_end(life))
    killer.join(60.0)
    assert killed.is_set()
    in_memory, charged = trained_in_memory(name, tmp_path / "in_memory.npz")
    assert model == in_memory.tobytes()
    assert shared.state(name) == charged
    shared.audit()


def went_to_the_end(life: Training) -> bytes | None:
    """Return the model; None after a timeout, when the caller must retry."""
    try:
        return life.go().tobytes()
    except DecisionTimeout:
        return None


@pytest.mark.fault
def test_a_trainer_killed_between_draw_and_release_abandons_the_step(
    shared: Service, name: str, life: Life, tmp_path: Path
) -> None:
    shared.client.create_dataset(name, **POLICY)
    path = tmp_path / "real.npz"
    live = partial(life, "-m", training.__name__, shared.kafka, shared.prefix, name, path)
    dies_in = 0, 7, 8, 25
    for step in dies_in:
        assert live("decided", step) == KILLED
        assert Checkpoint(path).released() == step - 1
    assert live("", -1) == 0
    saved = Checkpoint(path).load((name, "training"))
    assert saved is not None
    assert saved.released == STEPS - 1
    in_memory, charged = trained_in_memory(name, tmp_path / "in_memory.npz", dies_in)
    assert saved.arrays["model"].tobytes() == in_memory.tobytes()
    assert shared.state(name) == charged
    assert_each_step_charged_once(shared, name)
    shared.audit()


def test_a_trainer_killed_at_any_point_is_charged_once_per_step(
    shared: Service, name: str, life: Life, tmp_path: Path
) -> None:
    shared.client.create_dataset(name, **POLICY)
    path = tmp_path / "real.npz"
    live = partial(life, "-m", training.__name__, shared.kafka, shared.prefix, name, path)
    for point, step in (("half", 0), ("released", 3), ("half", 9), ("released", 20)):
        assert live(point, step) == KILLED, (point, step)
    seen: list[int] = []
    last = Training(
        shared.client,
        name,
        Checkpoint(path),
        lambda point, step: seen.append(step) if point == "released" else None,
    )
    last.go()
    assert seen == list(range(21, STEPS))
    assert Checkpoint(path).released() == STEPS - 1
    assert_each_step_charged_once(shared, name)
    shared.audit()


def assert_each_step_charged_once(service: Service, dataset: str) -> None:
    """Check that no partition received two contents of a step, or rejected one."""
    service.log.refresh()
    contents = defaultdict(set)
    for partition, _, value in service.log.records["norms"]:
        request = decode_request(value)
        if isinstance(request, ChargeRoster) and request.dataset == dataset:
            contents[partition, request.step].add(roster_digest(request))
    assert len(contents) == service.partitions * STEPS
    assert {len(digests) for digests in contents.values()} == {1}
    assert_no_rejects(service, dataset)
