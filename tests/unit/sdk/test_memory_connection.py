"""What the service in memory needs, keeps and forgets; what it decides, tests/conformance says."""

from __future__ import annotations

import os

import numpy as np
import pytest

from streams.ledger.ledger import Ledger
from streams.sdk import memory_connection
from streams.sdk.client import Turnstile
from streams.sdk.errors import Unusable
from tests.unit.sdk.partitions import Partitions


def test_forked_process_cannot_use_it(monkeypatch: pytest.MonkeyPatch) -> None:
    turnstile = Turnstile.in_memory()
    turnstile.create_dataset("d", measure="zcdp", budget=1.0)
    run = turnstile.run("d", "r")
    monkeypatch.setattr(os, "getpid", lambda: -1)
    for call in (lambda: run.charge([1], [1.0], noise_stddev=4.0), lambda: turnstile.run("d", "r")):
        with pytest.raises(Unusable):
            call()
    with pytest.raises(Unusable):
        turnstile.halts()
    turnstile.close()  # what belongs to the other process is left to it


def test_interrupted_ledger_is_not_used_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    turnstile = Turnstile.in_memory(partitions=1)
    turnstile.create_dataset("d", measure="zcdp", budget=1.0)
    run = turnstile.run("d", "r")

    def interrupted(self: Ledger, offset: int, value: bytes | None) -> list[object]:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Ledger, "apply", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run.charge([1], [1.0], noise_stddev=4.0)
    for call in (lambda: run.charge([1], [1.0], noise_stddev=4.0), lambda: turnstile.run("d", "r")):
        with pytest.raises(Unusable):
            call()


def test_memory_service_keeps_a_bounded_number_of_decisions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(memory_connection, "KEPT_BYTES", 5_000)
    service = Partitions(1)
    turnstile = service.turnstile
    service.create(budget=0.5)
    run = service.open()
    followed = turnstile.halts("d")
    for _ in range(100):
        run.charge(["a", "b"], [0.25, 0.5], noise_stddev=1.0)
    steps = [halt.step for halt in turnstile.halts("d", follow=False) if halt.user == "a"]
    assert steps[-1] == 99
    assert steps == list(range(steps[0], 100))
    assert steps[0] > 20
    assert next(followed).step == steps[0], "who is too slow misses what is forgotten"
    newest = [(seen.user, seen.bound) for seen in turnstile.odometer("d", follow=False)]
    assert len(newest) == 2
    assert dict(newest).keys() == {"a", "b"}


def test_ledger_changes_are_dropped() -> None:
    service = Partitions(1)
    service.create(budget=1e3)
    run = service.open()
    for _ in range(20):
        run.charge(range(100), np.ones(100), noise_stddev=4.0)
    assert [ledger.state.unwritten_bytes for ledger in service.ledgers] == [0]
