"""Which users go to which partition, worked out once for all steps that have the same users."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from msgspec import UNSET
from numpy.typing import NDArray

from streams.schemas import Policy, Users
from streams.sdk.arguments import check_distinct, check_kinds, in_normal_form
from streams.sdk.columns import Ids
from streams.wire.packing import pack_users, select_users
from streams.wire.partitioner import partitions_of


@dataclass(frozen=True, eq=False)
class Layout:
    """Users by partition.

    Attributes:
        ids: all of them, as they were given.
        positions: of the users of each partition among all.
        users: of each partition, as its request carries them.
    """

    ids: Ids
    positions: list[NDArray[np.int64]]
    users: list[Users]

    def is_of(self, ids: Ids) -> bool:
        """Whether these are the same users in the same order."""
        if isinstance(ids, list) and isinstance(self.ids, list):
            return ids == self.ids
        return type(ids) is type(self.ids) and np.array_equal(ids, self.ids)


def lay_out(ids: Ids, policy: Policy) -> Layout:
    """Find the partition of each user.

    Raises:
        InvalidRequest: an id appears twice, or is of a kind that the dataset does not have.
    """
    # A dataset of version 1 knows names as they are written.
    known = ids if policy.user_ids is UNSET else in_normal_form(ids)
    check_distinct(known)
    check_kinds(known, policy)
    homes = partitions_of(known, policy.partitions)
    order = np.argsort(homes, kind="stable")
    bounds = np.searchsorted(homes[order], np.arange(policy.partitions + 1))
    positions = [order[start:stop] for start, stop in pairwise(bounds)]
    users = [pack_users(select_users(known, mine)) for mine in positions]
    return Layout(ids.copy(), positions, users)
