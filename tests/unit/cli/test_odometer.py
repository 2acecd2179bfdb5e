"""`turnstile odometer` converts bounds by the policy of the dataset."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from streams import Turnstile
from streams.cli.main import main
from streams.failures import Exit
from streams.operations.guarantees import ABOVE_BUDGET
from streams.operations.status import DatasetStatus


@pytest.fixture
def turnstile(monkeypatch: pytest.MonkeyPatch) -> Iterator[Turnstile]:
    """A service in memory that the command reads instead of Kafka and Redis."""
    with Turnstile.in_memory(partitions=2) as service:
        known = {
            terms["name"]: DatasetStatus(service.create_dataset(**terms))
            for terms in (
                {"name": "plain", "budget": 1.0},
                {"name": "sampled", "measure": "renyi", "epsilon": 4.0, "delta": 1e-5},
                {"name": "stated", "budget": 1.0, "sampled_levels": True},
            )
        }
        monkeypatch.setattr("streams.cli.topic_commands.client_of", lambda _: service)
        monkeypatch.setattr("streams.cli.topic_commands.read_glances", lambda *_: ())
        monkeypatch.setattr("streams.cli.topic_commands.datasets_of", lambda _: known)
        for name in known:
            run = service.run(name, "r")
            for _ in range(8):
                run.charge([7], [1.0], noise_stddev=4.0)
        yield service


@pytest.mark.parametrize("dataset", ["plain", "sampled", "stated"])
def test_only_the_budget_has_an_epsilon_with_sampled_levels(
    turnstile: Turnstile, dataset: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["odometer", dataset, "--json"]) == Exit.OK
    captured = capsys.readouterr()
    shown: list[dict[str, Any]] = [json.loads(line) for line in captured.out.splitlines()]
    assert shown
    assert all(0.0 < line["share"] <= 1.0 for line in shown)
    assert all(line["budget_epsilon"] > 0.0 for line in shown)
    hidden = dataset != "plain"
    assert {line["epsilon"] is None for line in shown} == {hidden}
    assert bool(captured.err) == hidden


@pytest.mark.parametrize("further_steps", [0, 8])
def test_any_time_epsilon_above_the_budget_is_explained_once(
    further_steps: int, turnstile: Turnstile, capsys: pytest.CaptureFixture[str]
) -> None:
    run = turnstile.run("plain", "r", take_over=True)
    for _ in range(further_steps):
        run.charge([7, 8], [1.0, 1.0], noise_stddev=4.0)
    assert main(["odometer", "plain", "--json"]) == Exit.OK
    captured = capsys.readouterr()
    lines = [json.loads(line) for line in captured.out.splitlines()]
    is_above = any(line["epsilon"] > line["budget_epsilon"] for line in lines)
    assert is_above == bool(further_steps)
    assert captured.err.count(ABOVE_BUDGET) == is_above
