"""The output and the exit codes of `turnstile verify`."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from tests.unit.replay.cli import command_on
from tests.unit.replay.service import Archived, new_service
from tests.unit.replay.test_receipts import keys


@pytest.fixture
def archived() -> Archived:
    archived, turnstile = new_service()
    turnstile.create_dataset("d", measure="zcdp", budget=1.0, odometer_step=0.01)
    run = turnstile.run("d", "r")
    for _ in range(3):
        run.charge(list(range(8)), [1.0] * 8, noise_stddev=4.0)
    return archived


def test_verify_exits_with_0_if_everything_fits(archived: Archived) -> None:
    done = command_on(archived, "verify")
    assert done.code == 0
    *partitions, summary = command_on(archived, "verify", "--json").lines
    assert [part["partition"] for part in partitions] == [0, 1]
    assert [part["head"] for part in partitions] == [
        ledger.chain.head.hex() for ledger in archived.ledgers
    ]
    assert (summary["fits"], summary["findings"], summary["users"]) == (True, 0, 8)


def test_verify_exits_with_1_and_shows_mismatches(archived: Archived, tmp_path: Path) -> None:
    receipt = tmp_path / "receipt"
    archived.change("halts", "decision", admitted=b"\xff")
    done = command_on(archived, "verify", "--receipt", str(receipt))
    assert done.code == 1
    assert not receipt.exists()
    finding, *_ = command_on(archived, "verify", "--json").lines
    assert finding["type"] == "mismatch"
    assert (finding["check"], finding["partition"], finding["offset"]) == ("halts", 0, 4)
    assert finding["about"] == {"dataset": "d", "run": "r", "step": 2, "at": "halts 4"}


def test_receipt_is_written_signed_and_continued(archived: Archived, tmp_path: Path) -> None:
    private, public = keys(tmp_path)
    receipt = str(tmp_path / "receipt")
    assert command_on(archived, "verify", "--receipt", receipt, "--key", str(private)).code == 0
    archived.apply(0, b"one more record")
    done = command_on(archived, "verify", "--against", receipt, "--public-key", str(public))
    assert done.code == 0
    unchecked = command_on(archived, "verify", "--against", receipt)
    assert unchecked.code == 0
    other = keys(tmp_path, "other")[1]
    refused = command_on(archived, "verify", "--against", receipt, "--public-key", str(other))
    assert refused.code == 2


@pytest.mark.parametrize(
    "changed",
    [{"prefix": "other."}, {"topic": "00" * 16}, {"partitions": 3}, {"heads": []}],
)
def test_receipt_of_another_log_is_rejected(
    archived: Archived, tmp_path: Path, changed: dict[str, object]
) -> None:
    receipt = tmp_path / "receipt"
    command_on(archived, "verify", "--receipt", str(receipt))
    content = {**msgspec.json.decode(receipt.read_bytes()), **changed}
    receipt.write_bytes(msgspec.json.encode(content))
    done = command_on(archived, "verify", "--against", str(receipt))
    assert done.code == 2, done.said


@pytest.mark.parametrize(
    "arguments",
    [("--key", "key.pem"), ("--public-key", "key.pem"), ("--against", "gone")],
)
def test_keys_without_a_receipt_are_rejected(
    archived: Archived, arguments: tuple[str, ...]
) -> None:
    done = command_on(archived, "verify", *arguments)
    assert done.code == 2, done.said
