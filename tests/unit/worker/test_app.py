"""What a worker says when it begins."""

from __future__ import annotations

import pytest

from streams.config import Config
from streams.worker.app import unheeded_partitions


@pytest.mark.parametrize(("asked", "there"), [(8, 4), (1, 4), (8, 2)])
def test_who_asks_for_other_partitions_than_there_are_is_told_what_counts(
    asked: int, there: int
) -> None:
    said = unheeded_partitions(Config(partitions=asked, prefix="t."), there)
    assert said.startswith(f"partitions is {asked}, and t.norms has {there}, which counts")
    assert "\n" not in said


@pytest.mark.parametrize(("asked", "there"), [(4, 4), (8, 8), (Config.partitions, 12)])
def test_nothing_is_said_of_what_is_so_or_was_not_asked_for(asked: int, there: int) -> None:
    assert unheeded_partitions(Config(partitions=asked), there) == ""
