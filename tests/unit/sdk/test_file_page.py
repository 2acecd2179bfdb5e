"""The programs of the page about budgets in a file."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.readme import blocks_of_a_file

CHARGE, LEDGER = blocks_of_a_file()


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_a_file_keeps_budgets_between_programs() -> None:
    users = np.arange(100)
    for released in (-1, 0):
        names: dict[str, Any] = {"users": users, "charged": np.ones(100)}
        names["last_released"] = lambda step=released: step
        exec(f"from streams import Turnstile\n{CHARGE}", names)
        assert names["d"].step == released + 1
        assert names["d"].admitted.all()


def test_the_fifth_release_of_a_data_set_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(5):
        exec(LEDGER, {})
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(maxsplit=2)[2] for line in lines] == ["may leave"] * 4 + ["is refused"]
