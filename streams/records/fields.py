"""Types of fields with their ranges, and base classes of records."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import Meta

VERSION = 1
"""The version of the records. Records of other versions are rejected."""

Name: TypeAlias = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$(?!\n)")]
"""A dataset or a run: 1 to 128 letters, digits, dots, dashes and underscores."""

IntegerUser: TypeAlias = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
StringUser: TypeAlias = Annotated[str, Meta(min_length=1, max_length=256)]
User: TypeAlias = int | str
Users: TypeAlias = list[IntegerUser | StringUser] | bytes
"""User ids, or packed little-endian signed 64-bit integers (the fast path)."""

ERASED_INTEGER, ERASED_STRING = "erased:i:", "erased:s:"
"""The prefixes of the keyed hashes that replace the integer and string ids of erased users. A
request with such an id is malformed, so no other user can have one."""

HIDDEN = "hidden:"
"""Follows the prefix of a keyed hash that no output may have."""

RESERVED = "erased:"
"""The prefix that no id may have."""

Norms: TypeAlias = list[float] | bytes
"""One norm per user, or packed little-endian float64 (the fast path)."""

Measure: TypeAlias = Literal["renyi", "zcdp", "gdp", "pure-dp", "steps"]
MechanismName: TypeAlias = Literal["gaussian", "laplace", "pure-dp"]
RosterMechanism: TypeAlias = MechanismName | Literal["poisson-gaussian"]
OnExhaustion: TypeAlias = Literal["halt", "clip"]
UserIdKind: TypeAlias = Literal["one-kind", "integer", "string", "mixed"]
"""The kind of a dataset's ids. Integers and strings are never equal, so a person known by 1 and by
"1" would have two budgets. ``one-kind``: the kind that comes first in a partition."""

Attempt: TypeAlias = Annotated[int, Meta(ge=1, le=2**63 - 1)]
"""An attempt that a partition has given."""

AskedAttempt: TypeAlias = Annotated[int, Meta(ge=0, le=2**62)]
"""An attempt that a sender requests, 0 for the next. The last attempt that an answer can contain
cannot be requested: no attempt could follow it."""

Counter: TypeAlias = Annotated[int, Meta(ge=0, le=2**53)]
Fingerprint: TypeAlias = Annotated[str, Meta(pattern=r"^[0-9a-f]{16}$(?!\n)")]
Rate: TypeAlias = Annotated[float, Meta(gt=0.0, le=1.0)]
Reserve: TypeAlias = Annotated[float, Meta(ge=0.0, lt=1.0)]
Positive: TypeAlias = Annotated[float, Meta(gt=0.0, le=1.7976931348623157e308)]
BudgetUnits: TypeAlias = Annotated[int, Meta(ge=1, le=2**61)]
"""Units of ``accounting.exact.units``, in the range that a filter accepts."""
Order: TypeAlias = Annotated[float, Meta(gt=1.0)]
MAX_BUDGETS = 8
"""The maximum number of budgets that a charge draws on: the dataset's and its ancestors'."""
MAX_SEPARATION = 2**14
"""The participants of a step are stored until this many steps have followed."""
MinSeparation: TypeAlias = Annotated[int, Meta(ge=2, le=MAX_SEPARATION)]
"""The minimum number of steps from a participation of a user to the next one."""
Token: TypeAlias = Annotated[str, Meta(min_length=1, max_length=64)]
"""A random string by which the sender recognises the answer."""
PublicKey: TypeAlias = Annotated[bytes, Meta(min_length=32, max_length=32)]
"""An Ed25519 public key, as ``streams.records.signatures.check_public_key`` accepts it."""
Signature: TypeAlias = Annotated[bytes, Meta(min_length=64, max_length=64)]
PartitionCount: TypeAlias = Annotated[int, Meta(ge=1, le=100_000)]
LogId: TypeAlias = Annotated[bytes, Meta(min_length=16, max_length=16)]
"""The id of the topic norms in Kafka."""
DELTA = 1e-5
"""The default delta at which an epsilon is reported. A policy has no delta of its own."""
FALSE_POSITIVE_RATE = 0.01
"""The default false-positive rate at which the risk of a membership attack is reported."""
Right: TypeAlias = Literal["charge", "manage"]
"""``charge``: open, charge and close runs, and enrol users. ``manage``: withdraw and close the
dataset, erase users, create nested datasets and shares, and change its access list."""
Rights: TypeAlias = Annotated[list[Right], Meta(min_length=1, max_length=2)]
MAX_KEYS = 32
"""The maximum number of keys in an access list. A worker takes about 1 ms to check each of them."""


class Record(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="type", forbid_unknown_fields=True
):
    """The base of all records: they have a ``type`` and a version."""

    v: int = VERSION
    """The version of the record format: 1."""


class OfDataset(Record, frozen=True):
    """The base of all records about a dataset."""

    dataset: Name
    """The name of the dataset."""

    @property
    def address(self) -> tuple[str, ...]:
        """The names of the record's subject: a dataset, or a dataset and a run."""
        return (self.dataset,)


class OfRun(OfDataset, frozen=True):
    """The base of all records about a run."""

    run: Name
    """The name of the run: one trainer or query answerer that charges the dataset."""

    @property
    def address(self) -> tuple[str, ...]:
        """The dataset and the run."""
        return self.dataset, self.run
