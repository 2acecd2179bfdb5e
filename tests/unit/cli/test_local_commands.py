"""The commands that start a local service."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from streams.cli import local_commands
from streams.config import Config


@pytest.mark.parametrize("configured", [7, 4])
@pytest.mark.parametrize("secure", [False, True])
def test_local_stack_waits_for_all_partitions_of_its_topics(
    secure: bool, configured: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = tmp_path / "operator.toml"
    settings.write_text('kafka = "there:1"\n')  # which says nothing of partitions

    class Stack:
        kafka, redis = "here:1", "redis://here:1/0"

        def __init__(self, **options: Any) -> None:
            if secure:
                self.roles = {"operator": settings}

        def __enter__(self) -> Stack:
            return self

        def __exit__(self, *_: object) -> None: ...

        def start_worker(self, health: str = "") -> None:
            owners[:] = ["a worker"] * 7

        def check(self) -> None: ...

    owners = [""] * 7
    seen = []

    def read_owners(config: Config, partitions: int) -> list[str]:
        seen.append((config.kafka, config.partitions, partitions))
        return owners[:partitions]

    monkeypatch.setattr(local_commands, "LocalStack", Stack)
    monkeypatch.setattr("streams.local.secure.SecureStack", Stack)
    monkeypatch.setattr(local_commands, "read_owners", read_owners)
    monkeypatch.setattr(local_commands, "ensure_topics", lambda config: 7)
    monkeypatch.setattr(local_commands, "topics_of", lambda config: SimpleNamespace(partitions=7))
    with local_commands.local_stack(Config(partitions=configured), 1, None, secure):
        pass
    assert set(seen) == {("there:1" if secure else "here:1", 7, 7)}
