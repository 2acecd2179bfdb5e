"""What a client asks is counted by what came of it, and costs nothing where nobody counts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from streams import Turnstile
from streams.sdk.errors import DecisionTimeout, RequestRejected
from streams.sdk.observing import Headers, measure
from tests.unit.sdk.partitions import Partitions


def samples(registry: CollectorRegistry) -> dict[tuple[str, str], float]:
    """(request, outcome) -> how many."""
    return {
        (sample.labels["request"], sample.labels["outcome"]): sample.value
        for metric in registry.collect()
        for sample in metric.samples
        if sample.name == "turnstile_client_requests_total"
    }


def test_requests_are_counted_by_outcome() -> None:
    registry = CollectorRegistry()
    with Turnstile.in_memory() as t:
        measure(t, registry)
        t.create_dataset("secret-data", measure="zcdp", budget=1.0)
        run = t.run("secret-data", "secret-run")
        before = samples(registry)
        for norm in (1.0, 0.5):
            run.charge(["ada"], [norm], noise_stddev=1.0)
        with pytest.raises(RequestRejected):
            t.create_dataset("inner", measure="zcdp", budget=1.0, parents="nowhere")
        counts = samples(registry)
    assert counts["charge", "answered"] == 2
    assert counts["other", "answered"] == before["other", "answered"]
    assert counts["other", "refused"] >= 1
    told = generate_latest(registry).decode()
    assert 'turnstile_client_request_seconds_count{log="in memory",request="charge"} 2.0' in told
    assert not any(name in told for name in ("secret", "ada", "halt"))


class Watching:
    """Counts who enters and who leaves, and how."""

    def __init__(self) -> None:
        self.left: list[type[BaseException] | None] = []

    @contextmanager
    def asking(self, request: str) -> Iterator[Headers]:
        try:
            yield [("seen", request.encode())]
        except BaseException as error:
            self.left.append(type(error))
            raise
        self.left.append(None)


def test_observers_see_every_request_end_and_change_nothing() -> None:
    watching = Watching()
    service = Partitions(1)
    with service.turnstile as t:
        t.create_dataset("d", measure="zcdp", budget=1.0)
        run = t.run("d", "r")
        t.observe(watching)
        d = run.charge([7], [1.0], noise_stddev=1.0)
        assert d.admitted.all()
        assert watching.left == [None]
        service.deaf = {0}
        with pytest.raises(DecisionTimeout):
            run.charge([7], [1.0], noise_stddev=1.0, timeout=0.01)
        assert watching.left == [None, DecisionTimeout]
