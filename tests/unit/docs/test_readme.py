"""The README's example runs, and prints what the README shows."""

import pytest

from tests.readme import README, blocks


def test_the_first_example_prints_what_stands_below_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    (example,) = (block for block in blocks(README) if "in_memory()" in block)
    (shown,) = (block for block in README.split("```")[1::2] if block.startswith("\n"))
    exec(example, {})
    assert capsys.readouterr().out == shown.lstrip()


def test_tests_run_every_block_of_the_readme() -> None:
    known = [
        block for block in blocks(README) if "in_memory()" in block or "PrivacyEngine" in block
    ]
    assert blocks(README) == known
