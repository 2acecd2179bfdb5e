"""A receipt detects a rewritten log, and a signature a changed receipt."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from streams.records.signatures import new_keys
from streams.replay.findings import Check
from streams.replay.receipts import (
    Receipt,
    UnusableReceipt,
    check_signature,
    new_receipt,
    read,
    signed,
    write,
)
from streams.replay.verify import verify
from tests.unit.replay.service import Archived, new_service


@pytest.fixture
def archived() -> Archived:
    archived, turnstile = new_service()
    turnstile.create_dataset("d", measure="zcdp", budget=1.0)
    run = turnstile.run("d", "r")
    for _ in range(3):
        run.charge(list(range(8)), [1.0] * 8, noise_stddev=4.0)
    return archived


def receipt_of(archived: Archived) -> Receipt:
    result = verify(archived)
    assert result.fits
    return new_receipt("p.", result.topic, result.heads, result.policies_digest())


def test_a_log_that_goes_on_continues_its_receipt(archived: Archived, tmp_path: Path) -> None:
    write(receipt_of(archived), tmp_path / "receipt")
    earlier = read(tmp_path / "receipt")
    assert verify(archived, against=earlier).fits
    archived.apply(1, b"one more record")
    assert verify(archived, against=earlier).fits
    later = receipt_of(archived)
    assert later.policies == earlier.policies
    assert later.heads[0] == earlier.heads[0]
    assert later.heads[1].next == earlier.heads[1].next + 1


def test_rewritten_log_does_not_continue_the_receipt(archived: Archived) -> None:
    """Also where Redis, decisions and odometers are those of the new log throughout."""
    earlier = receipt_of(archived)
    other, turnstile = new_service()
    turnstile.create_dataset("d", measure="zcdp", budget=1.0)
    run = turnstile.run("d", "r")
    for _ in range(3):
        run.charge(list(range(8)), [0.5] * 8, noise_stddev=4.0)  # half of it never happened
    assert verify(other).fits
    findings = verify(other, against=earlier).findings
    assert [finding.check for finding in findings] == [Check.RECEIPT] * 2
    assert {finding.found == finding.expected for finding in findings} == {False}


def test_log_that_lost_its_end_does_not_continue_the_receipt(archived: Archived) -> None:
    before, records = receipt_of(archived), {p: len(r) for p, r in archived.topics.items()}
    archived.apply(0, b"one more record")
    receipt = receipt_of(archived)
    for place, found in archived.topics.items():
        del found[records.get(place, 0) :]
    (state, ended) = verify(archived, against=receipt).findings
    assert (state.check, ended.check) == (Check.STATE, Check.RECEIPT)
    assert ended.expected == {"at least": before.heads[0].next + 1}


def keys(folder: Path, name: str = "key") -> tuple[Path, Path]:
    """A private key, and the public one that belongs to it, as `turnstile keys new` makes them."""
    paths = folder / f"{name}.private", folder / f"{name}.public"
    for path, key in zip(paths, new_keys(), strict=True):
        path.write_text(f"{key}\n")
    return paths


def test_signature_is_of_the_key_owner(archived: Archived, tmp_path: Path) -> None:
    private, public = keys(tmp_path)
    receipt = signed(receipt_of(archived), private)
    write(receipt, tmp_path / "receipt")
    assert read(tmp_path / "receipt") == receipt
    check_signature(receipt, public)
    with pytest.raises(UnusableReceipt):
        check_signature(receipt, keys(tmp_path, "another")[1])


CHANGES = {
    "prefix": {"prefix": "q."},
    "topic": {"topic": "00" * 16},
    "heads": {"heads": []},
    "policies": {"policies": "00" * 32},
    "time": {"time": "2020-01-01T00:00:00+00:00"},
    "signature": {"signature": "00" * 64},
    "no hexadecimal": {"signature": "zz"},
    "no signature": {"signature": None},
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_changed_receipt_has_no_valid_signature(
    archived: Archived, tmp_path: Path, change: dict[str, object]
) -> None:
    private, public = keys(tmp_path)
    receipt = signed(receipt_of(archived), private)
    with pytest.raises(UnusableReceipt):
        check_signature(msgspec.structs.replace(receipt, **change), public)


def test_unusable_keys_and_receipts_are_rejected(archived: Archived, tmp_path: Path) -> None:
    private, public = keys(tmp_path)
    other = tmp_path / "other"
    other.write_bytes(b"\xff of no kind")
    receipt = receipt_of(archived)
    for key in (public, other, tmp_path / "gone"):
        with pytest.raises(UnusableReceipt):
            signed(receipt, key)
    with pytest.raises(UnusableReceipt):
        check_signature(signed(receipt, private), private)
    with pytest.raises(UnusableReceipt):
        read(private)
    with pytest.raises(UnusableReceipt):
        read(tmp_path / "gone")
    with pytest.raises(UnusableReceipt):
        write(receipt, tmp_path / "gone" / "receipt")
