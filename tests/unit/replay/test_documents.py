"""The page on proofs shows what the commands say."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.replay.documented import blocks, outputs, steady


@pytest.mark.slow
def test_the_page_shows_what_the_commands_say(tmp_path: Path) -> None:
    shown = [output for _, output in blocks()]
    assert len(shown) == 6
    for is_shown, is_said in zip(shown, outputs(tmp_path), strict=True):
        assert steady(is_shown) == steady(is_said)
