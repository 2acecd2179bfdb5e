"""The warning of a worker whose setting for partitions has no effect."""

from __future__ import annotations

import pytest

from streams.config import Config
from streams.worker.app import partitions_warning


@pytest.mark.parametrize(("asked", "there"), [(8, 4), (1, 4), (8, 2)])
def test_a_setting_that_differs_from_the_topic_is_reported(asked: int, there: int) -> None:
    assert partitions_warning(Config(partitions=asked, prefix="t."), there)


@pytest.mark.parametrize(("asked", "there"), [(4, 4), (8, 8), (Config.partitions, 12)])
def test_an_equal_or_default_setting_is_not_reported(asked: int, there: int) -> None:
    assert partitions_warning(Config(partitions=asked), there) == ""
