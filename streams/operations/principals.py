"""Who signs requests, as the owners of the partitions say: read where nobody has to be asked."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from streams.config import Config
from streams.ledger.ledger import Summary
from streams.operations.status import read_inventories
from streams.wire.signatures import public_text


@dataclass(frozen=True)
class KnownPrincipal:
    """One principal, as some partitions know it."""

    name: str
    public_key: str
    creates: bool
    partitions: tuple[int, ...]


@dataclass(frozen=True)
class Known:
    """Whom a service knows.

    Attributes:
        partitions: P.
        operators: the public key of the operator -> the partitions where it is bound.
        principals: by name. One whose key is being changed may be there twice.
    """

    partitions: int
    operators: dict[str, tuple[int, ...]]
    principals: list[KnownPrincipal]


def read_principals(config: Config) -> Known:
    """The operator and all principals, with all that is decided by now.

    Raises:
        Unavailable: Kafka or Redis does not answer, or a partition was never decided.
    """
    return known_of([inventory.summary for inventory in read_inventories(config)])


def known_of(summaries: Sequence[Summary]) -> Known:
    """The same, of what every partition holds, in their order."""
    operators: defaultdict[str, list[int]] = defaultdict(list)
    principals: defaultdict[tuple[str, str, bool], list[int]] = defaultdict(list)
    for partition, summary in enumerate(summaries):
        if summary.operator:
            operators[public_text(summary.operator)].append(partition)
        for name, known in summary.principals.items():
            principals[name, public_text(known.key), known.creates].append(partition)
    return Known(
        len(summaries),
        {key: tuple(where) for key, where in sorted(operators.items())},
        [KnownPrincipal(*who, tuple(where)) for who, where in sorted(principals.items())],
    )
