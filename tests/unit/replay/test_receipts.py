"""A receipt detects a rewritten log, and a signature a changed receipt."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

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
    result = verify(archived, archived)
    assert result.fits
    return new_receipt("p.", result.topic, result.heads, result.policies_digest())


def test_a_log_that_goes_on_continues_its_receipt(archived: Archived, tmp_path: Path) -> None:
    write(receipt_of(archived), tmp_path / "receipt")
    earlier = read(tmp_path / "receipt")
    assert verify(archived, archived, against=earlier).fits
    archived.apply(1, b"one more record")
    assert verify(archived, archived, against=earlier).fits
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
    assert verify(other, other).fits
    findings = verify(other, other, against=earlier).findings
    assert [finding.check for finding in findings] == [Check.RECEIPT] * 2
    assert {finding.found == finding.expected for finding in findings} == {False}


def test_log_that_lost_its_end_does_not_continue_the_receipt(archived: Archived) -> None:
    before, records = receipt_of(archived), {p: len(r) for p, r in archived.topics.items()}
    archived.apply(0, b"one more record")
    receipt = receipt_of(archived)
    for place, found in archived.topics.items():
        del found[records.get(place, 0) :]
    (state, ended) = verify(archived, archived, against=receipt).findings
    assert (state.check, ended.check) == (Check.STATE, Check.RECEIPT)
    assert ended.expected == {"at least": before.heads[0].next + 1}


def keys(folder: Path, name: str = "key") -> tuple[Path, Path]:
    """A private key, and the public one that belongs to it, as openssl writes them."""
    key = Ed25519PrivateKey.generate()
    private, public = folder / f"{name}.pem", folder / f"{name}.pub.pem"
    private.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    public.write_bytes(
        key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    )
    return private, public


def test_signature_is_of_the_key_owner(archived: Archived, tmp_path: Path) -> None:
    private, public = keys(tmp_path)
    receipt = signed(receipt_of(archived), private)
    write(receipt, tmp_path / "receipt")
    assert read(tmp_path / "receipt") == receipt
    check_signature(receipt, public)
    with pytest.raises(UnusableReceipt):
        check_signature(receipt, keys(tmp_path, "another")[1])


def test_receipt_can_be_signed_with_a_worker_key(archived: Archived, tmp_path: Path) -> None:
    for name, key in zip(("private", "public"), new_keys(), strict=True):
        (tmp_path / name).write_text(f"{key}\n")
    receipt = signed(receipt_of(archived), tmp_path / "private")
    check_signature(receipt, tmp_path / "public")
    for wrong in ("public", "private"):
        with pytest.raises(UnusableReceipt):
            (signed if wrong == "public" else check_signature)(receipt, tmp_path / wrong)


CHANGES = {
    "prefix": {"prefix": "q."},
    "topic": {"topic": "00" * 16},
    "heads": {"heads": []},
    "policies": {"policies": "00" * 32},
    "time": {"time": "2020-01-01T00:00:00+00:00"},
    "signature": {"signature": "00" * 64},
    "no signature at all": {"signature": "zz"},
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_changed_receipt_has_no_valid_signature(
    archived: Archived, tmp_path: Path, change: dict[str, object]
) -> None:
    private, public = keys(tmp_path)
    receipt = signed(receipt_of(archived), private)
    with pytest.raises(UnusableReceipt):
        check_signature(msgspec.structs.replace(receipt, **change), public)


def test_unsigned_receipt_has_no_valid_signature(archived: Archived, tmp_path: Path) -> None:
    with pytest.raises(UnusableReceipt):
        check_signature(receipt_of(archived), keys(tmp_path)[1])


def test_unusable_keys_and_receipts_are_rejected(archived: Archived, tmp_path: Path) -> None:
    private, public = keys(tmp_path)
    other = tmp_path / "other.pem"
    curve = generate_private_key(SECP256R1())
    other.write_bytes(curve.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
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
