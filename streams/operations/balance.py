"""The balances of a user in the stored state: nothing is acquired or written."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from streams.config import Config, Unavailable
from streams.ledger.accrual import budgets_of
from streams.ledger.ledger import Ledger, ledger_of
from streams.ledger.partition_errors import UnknownState
from streams.operations.guarantees import Amounts
from streams.operations.status import from_redis
from streams.records import User
from streams.records.users import UserIds
from streams.store.layout import LAYOUT, Damaged, Identity

if TYPE_CHECKING:
    from streams.store.redis_store import RedisStore


def read_balances(config: Config, dataset: str, users: Sequence[User]) -> list[dict[str, Any]]:
    """Return the balances of users, by ids as the log has them; none if never charged.

    Raises:
        PartitionError: users were erased under a key that is not known here.
        Rejection: UNKNOWN_DATASET.
        Unavailable: Redis does not answer, or has no intact state of this release.
    """

    async def read(store: RedisStore) -> list[dict[str, Any]]:
        layout, topic, partitions = Identity.of((await store.glance(0)).meta)
        if layout != str(LAYOUT):
            raise Unavailable("Redis has no state of this release: check the address and prefix")
        found: list[dict[str, Any]] = []
        for user in users:
            (home,) = UserIds([user]).homes(int(partitions)).tolist()
            if (stored := await store.load(home)) is None:
                raise Unavailable(f"Redis has no state of partition {home}: start a worker")
            place = home, int(partitions), bytes.fromhex(topic)
            ledger = ledger_of(stored, *place, stored.meta.chain, config.erasure_keys)
            at = {"partition": home, "offset": stored.next}
            found += [{**one, **at} for one in _balances(ledger, dataset, user)]
        return found

    try:
        return from_redis(config, read)
    except (Damaged, UnknownState) as error:
        raise Unavailable(f"{error}: look at `turnstile status`") from error


def _balances(ledger: Ledger, dataset: str, user: User) -> Iterator[dict[str, Any]]:
    """Yield the balance in each budget that a charge to the dataset draws on."""
    budgets = budgets_of(ledger.state, dataset)
    known = budgets.known_as(UserIds([user]))
    for accounts in budgets.accounts:
        if accounts.knows(known)[0]:
            policy, amounts = accounts.policy, Amounts(accounts.policy)
            numbers = accounts.numbers(accounts.seek(known).slots)
            spent = np.atleast_1d(numbers["spent"][0])
            order = int(numbers["order"][0]) if "order" in numbers else None
            # A user without charges may be bound to any order, and has its whole budget.
            is_bound = order is None or bool(numbers["bound"][0])
            yield {
                "dataset": policy.dataset,
                "user": user,
                "unit": policy.row.unit,
                "orders": amounts.orders(order) if is_bound else [],
                "spent": amounts.stated(spent),
                "left": amounts.left(spent, order) if is_bound else [],
            }
