"""The id of a decision: the place of the record in the log that was decided.

The text is ``LOG/PARTITION/OFFSET``: the 32 hexadecimal digits of the log's id, the partition, and
the offset of the charge in it. Each partition decides its part of a step, so a step has one id for
each partition. A request that is sent again gets the decision, and the id, of the first one. The
published records have partition and offset; all of them are about one log.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

_TEXT = re.compile(r"([0-9a-f]{32})/(0|[1-9][0-9]{0,9})/(0|[1-9][0-9]{0,18})", re.ASCII)


class DecisionId(NamedTuple):
    """The place of a decided record."""

    log: bytes  # the 16 bytes of the id of the topic ``norms``, or of a budget file
    partition: int  # that decided
    offset: int  # of the charge

    def __str__(self) -> str:
        return f"{self.log.hex()}/{self.partition}/{self.offset}"

    @classmethod
    def of(cls, text: str) -> DecisionId:
        """Read the text of an id.

        Raises:
            ValueError: it is none.
        """
        if (found := _TEXT.fullmatch(text)) is None:
            raise ValueError("a decision id is LOG/PARTITION/OFFSET, with 32 digits of the log")
        log, partition, offset = found.groups()
        return cls(bytes.fromhex(log), int(partition), int(offset))


def ids_of_step(log: bytes, offsets: Mapping[int, int]) -> tuple[str, ...]:
    """Return the decision ids of a step, by partition.

    ``offsets`` has the offset of the charge that each partition decided.
    """
    return tuple(str(DecisionId(log, *place)) for place in sorted(offsets.items()))
