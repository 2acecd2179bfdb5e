"""Types of fields with their ranges, and base classes of records."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import Meta

VERSION = 1
"""The version of the records. Records of other versions are refused."""

Name: TypeAlias = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$(?!\n)")]
"""A dataset or a run: 1 to 128 letters, digits, dots, dashes and underscores."""

IntegerUser: TypeAlias = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
StringUser: TypeAlias = Annotated[str, Meta(min_length=1, max_length=256)]
User: TypeAlias = int | str
Users: TypeAlias = list[IntegerUser | StringUser] | bytes
"""User ids, or packed little-endian signed 64-bit integers (the fast path)."""

ERASED_INTEGER, ERASED_STRING = "erased:i:", "erased:s:"
"""How the keyed hashes of erased users begin, of integer ids and of string ids. Workers put them in
the place of ids. A request with such an id is malformed, so that no living user can have one."""

RESERVED = "erased:"
"""How no id may begin."""

Norms: TypeAlias = list[float] | bytes
"""One norm per user, or packed little-endian float64 (the fast path)."""

Measure: TypeAlias = Literal["renyi", "zcdp", "gdp", "approx-dp", "pure-dp"]
MechanismName: TypeAlias = Literal["gaussian", "laplace", "pure-dp"]
RosterMechanism: TypeAlias = MechanismName | Literal["poisson-gaussian"]
OnExhaustion: TypeAlias = Literal["halt", "clip"]
UserIds: TypeAlias = Literal["one-kind", "integer", "string", "mixed"]
"""Which ids a dataset has: integers and strings are never equal, so that one person known by 1 and
by "1" would have two budgets. ``one-kind``: whichever comes first in a partition."""

Attempt: TypeAlias = Annotated[int, Meta(ge=1, le=2**63 - 1)]
"""One that a partition has given."""

AskedAttempt: TypeAlias = Annotated[int, Meta(ge=0, le=2**62)]
"""One that a sender asks for, 0 for the next. The last attempt that an answer can carry cannot be
requested: it would end the run."""

Counter: TypeAlias = Annotated[int, Meta(ge=0, le=2**53)]
Fingerprint: TypeAlias = Annotated[str, Meta(pattern=r"^[0-9a-f]{16}$(?!\n)")]
Positive: TypeAlias = Annotated[float, Meta(gt=0.0, le=1.7976931348623157e308)]
BudgetUnits: TypeAlias = Annotated[int, Meta(ge=1, le=2**61)]
"""Units of ``accounting.exact.units``, and as many as a filter takes."""
Order: TypeAlias = Annotated[float, Meta(gt=1.0)]
MAX_SEPARATION = 2**14
"""Who took part in a step is kept until so many have followed it: an entry for each of them."""
MinSeparation: TypeAlias = Annotated[int, Meta(ge=2, le=MAX_SEPARATION)]
"""Steps from a participation of a user to the next one, at least."""
Token: TypeAlias = Annotated[str, Meta(min_length=1, max_length=64)]
"""A random string by which the sender recognises the answer."""
PublicKey: TypeAlias = Annotated[bytes, Meta(min_length=32, max_length=32)]
"""An Ed25519 public key; ``streams.records.request_signatures`` says which 32 bytes are one."""
Signature: TypeAlias = Annotated[bytes, Meta(min_length=64, max_length=64)]
PartitionCount: TypeAlias = Annotated[int, Meta(ge=1, le=100_000)]
LogId: TypeAlias = Annotated[bytes, Meta(min_length=16, max_length=16)]
"""What Kafka calls the id of the topic norms."""
DELTA = 1e-5
"""At which an epsilon is told if nobody says at which: a policy has none of its own."""
Right: TypeAlias = Literal["charge", "manage"]
"""``charge``: open, charge and close runs, and enrol users. ``manage``: withdraw and close the
dataset, erase users, create nested datasets and shares, and change its access list."""
Rights: TypeAlias = Annotated[list[Right], Meta(min_length=1, max_length=2)]
MAX_KEYS = 32
"""Keys in an access list. A worker checks each of them, which takes about a millisecond."""


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
