"""Receipts: signed commitments to the contents of a log.

For each partition, a receipt contains an offset and the head of the hash chain over all records
before it (``streams.records.digests``). Later its holder can verify from the log whether the
log continues from there or was rewritten. An Ed25519 signature shows who made the receipt.

    signature = Ed25519("dp-turnstile receipt 1\\n" | the receipt without its signature, as JSON
                        with sorted keys and no spaces)

Keys are those of ``turnstile keys new``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta

from streams.failures import Exit, Failure
from streams.records.signatures import private_key_of, public_key_of

Key = TypeVar("Key")

_PURPOSE = b"dp-turnstile receipt 1\n"


class UnusableReceipt(Failure, ValueError):
    """A receipt or a key that cannot be read, or does not belong to this log."""

    exit_code = Exit.USAGE


class Head(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The head of a partition's hash chain over all records before an offset."""

    partition: Annotated[int, Meta(ge=0)]
    next: Annotated[int, Meta(ge=0)]
    head: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]


class Receipt(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A commitment to all records of a log at one time."""

    receipt: Annotated[int, Meta(ge=1, le=1)] = 1  # its own version
    prefix: str
    topic: str  # the id of norms, hexadecimal
    partitions: int
    heads: list[Head]
    policies: str  # the digest of all policies
    time: str  # of its creation, in UTC
    signature: str | None = None  # hexadecimal

    def head_of(self, partition: int) -> Head | None:
        """Return the head of a partition; None if the receipt lacks it."""
        return next((head for head in self.heads if head.partition == partition), None)


def new_receipt(prefix: str, topic: bytes, heads: Sequence[Head], policies: str) -> Receipt:
    """Return a receipt with the present time, not signed."""
    return Receipt(
        prefix=prefix,
        topic=topic.hex(),
        partitions=len(heads),
        heads=list(heads),
        policies=policies,
        time=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def policies_digest(policies: Sequence[Mapping[str, bytes]]) -> str:
    """Return the digest of all policies, by partition and dataset, in hexadecimal."""
    digest = hashlib.sha256(b"dp-turnstile policies 1")
    for number, of_partition in enumerate(policies):
        for name, packed in sorted(of_partition.items()):
            digest.update(msgspec.msgpack.encode((number, name, packed)))
    return digest.hexdigest()


def signed(receipt: Receipt, key: Path) -> Receipt:
    """Return a receipt with a signature.

    Args:
        key: a file with an Ed25519 private key.

    Raises:
        UnusableReceipt: the key cannot be read, or the package cryptography is missing.
    """
    signature = _key(key, private_key_of, "private").sign(_content(receipt))
    return msgspec.structs.replace(receipt, signature=signature.hex())


def check_signature(receipt: Receipt, key: Path) -> None:
    """Check that a receipt was signed with the private key of a public key.

    Args:
        key: a file with an Ed25519 public key.

    Raises:
        UnusableReceipt: it was not, or the key cannot be read.
    """
    if receipt.signature is None:
        raise UnusableReceipt(
            "the receipt is not signed: check it without --public-key, if only trusted people "
            "could have written it"
        )
    public = _key(key, public_key_of, "public")
    from cryptography.exceptions import InvalidSignature

    try:
        public.verify(bytes.fromhex(receipt.signature), _content(receipt))
    except (InvalidSignature, ValueError):
        raise UnusableReceipt(
            f"the receipt was not signed with the key in {key}, or was changed later"
        ) from None


def write(receipt: Receipt, path: Path) -> None:
    """Write a receipt as JSON.

    Raises:
        UnusableReceipt: the file cannot be written.
    """
    packed = msgspec.json.format(msgspec.json.encode(receipt), indent=2)
    try:
        path.write_bytes(packed + b"\n")
    except OSError as error:
        raise UnusableReceipt(f"cannot write {path}: {error}") from error


def read(path: Path) -> Receipt:
    """Read a receipt.

    Raises:
        UnusableReceipt: the file contains no receipt.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=Receipt)
    except OSError as error:
        raise UnusableReceipt(f"cannot read {path}: {error}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UnusableReceipt(f"{path} is not a receipt: {error}") from error


def _content(receipt: Receipt) -> bytes:
    fields = msgspec.to_builtins(receipt)
    del fields["signature"]
    return _PURPOSE + msgspec.json.encode(fields, order="sorted")


def _key(path: Path, parse: Callable[[str], Key], kind: str) -> Key:
    try:
        return parse(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UnusableReceipt(f"cannot read the key {path}: {error}") from error
    except ValueError:
        raise UnusableReceipt(
            f"{path} contains no {kind} key: give one of `turnstile keys new`"
        ) from None
    except ImportError as error:
        raise UnusableReceipt(
            "signatures need the package cryptography: pip install 'dp-turnstile[secure]'"
        ) from error
