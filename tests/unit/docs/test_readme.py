"""The README's example runs, and prints what the README shows."""

from pathlib import Path

import pytest

from tests.readme import README, blocks


def test_the_first_example_prints_what_stands_below_it(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second run knows what the first one has spent, from the file."""
    monkeypatch.chdir(tmp_path)
    (example,) = (block for block in blocks(README) if "t.odometer(" in block)
    (shown,) = (block for block in README.split("```")[1::2] if block.startswith("\n"))
    exec(example, {})
    assert capsys.readouterr().out == shown.lstrip()
    exec(example, {})
    days = capsys.readouterr().out.splitlines()[:3]
    assert days == [f"{day} [False  True  True]" for day in range(3)]
    assert Path("budgets.db").exists()


def test_tests_run_every_block_of_the_readme() -> None:
    known = [
        block for block in blocks(README) if "t.odometer(" in block or "PrivacyEngine" in block
    ]
    assert blocks(README) == known
