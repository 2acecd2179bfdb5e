"""Who asks for a dataset that there is not is told so, where that can be known."""

from __future__ import annotations

from typing import Any

import pytest

from streams.cli import presence
from streams.cli.output import Exit
from streams.config import Config
from streams.operations.errors import Unavailable

SEEN = {
    "there is none": ("nope", {"mine": None}, Exit.REFUSED, "there is no dataset 'nope'"),
    "it has nothing": ("mine", {"mine": None}, Exit.OK, "nothing of dataset 'mine' among HALTs"),
    "nobody knows": ("nope", Unavailable("away"), Exit.OK, "nothing of dataset 'nope' among HALTs"),
    "none was named": (None, {}, Exit.OK, ""),
}


@pytest.mark.parametrize("case", SEEN)
def test_why_nothing_is_shown(
    case: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    dataset, found, code, said = SEEN[case]

    def read(_: Config) -> dict[str, Any]:
        if isinstance(found, Exception):
            raise found
        return found

    monkeypatch.setattr(presence, "read_datasets", read)
    presence.warn_of_absent(dataset, Config())
    warned = capsys.readouterr().err
    assert ("there is no dataset 'nope' yet" in warned) == (code == Exit.REFUSED)
    assert presence.nothing_of(dataset, "HALTs", Config()) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert said in captured.err
    assert bool(captured.err) == bool(said)
