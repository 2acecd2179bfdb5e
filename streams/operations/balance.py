"""The balances of users in the stored state: nothing is acquired or written."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any

import numpy as np

from streams.config import Config, Unavailable
from streams.ledger.accrual import budgets_of
from streams.ledger.budgets import Budgets
from streams.ledger.ledger import Ledger, ledger_of
from streams.ledger.partition_errors import UnknownState
from streams.operations.guarantees import Amounts
from streams.operations.status import from_redis
from streams.records import User
from streams.records.users import UserIds
from streams.sdk.budget_file import BudgetFile
from streams.store.layout import LAYOUT, Damaged, Identity

if TYPE_CHECKING:
    from streams.store.redis_store import RedisStore


def read_balances(config: Config, dataset: str, users: Sequence[User]) -> list[dict[str, Any]]:
    """Return the balances of users, by ids as the log has them; none if never charged.

    A service is read from Redis, and a budget file by itself.

    Raises:
        PartitionError: users were erased under a key that is not known here.
        Rejection: UNKNOWN_DATASET.
        Unavailable: Redis does not answer, or has no intact state of this release.
        UnusableFile: the budget file cannot be read, or a service continues its budgets.
    """
    if config.budgets:
        with closing(BudgetFile(config.budgets, config.timeout, writable=False)) as file:
            file.check_moved()
            ledgers = file.load()
        return balances_of(ledgers, dataset, users)

    async def read(store: RedisStore) -> list[dict[str, Any]]:
        layout, topic, partitions = Identity.of((await store.glance(0)).meta)
        if layout != str(LAYOUT):
            raise Unavailable("Redis has no state of this release: check the address and prefix")
        found: list[dict[str, Any]] = []
        for partition, some in _by_partition(users, int(partitions)).items():
            if (stored := await store.load(partition)) is None:
                raise Unavailable(f"Redis has no state of partition {partition}: start a worker")
            place = partition, int(partitions), bytes.fromhex(topic)
            ledger = ledger_of(stored, *place, stored.meta.chain, config.erasure_keys)
            found += _balances_in(ledger, stored.next, dataset, some)
        return found

    try:
        return from_redis(config, read)
    except (Damaged, UnknownState) as error:
        raise Unavailable(f"{error}: look at `turnstile status`") from error


def balances_of(
    ledgers: Sequence[Ledger], dataset: str, users: Sequence[User]
) -> list[dict[str, Any]]:
    """Return the balances of users, from the ledgers of all partitions.

    Raises:
        Rejection: UNKNOWN_DATASET.
    """
    return [
        balance
        for partition, some in _by_partition(users, len(ledgers)).items()
        for balance in _balances_in(
            ledgers[partition], ledgers[partition].chain.last + 1, dataset, some
        )
    ]


def _by_partition(users: Sequence[User], partitions: int) -> dict[int, list[User]]:
    """Return the partitions of users, each with its users, in increasing order."""
    homes = UserIds(users).homes(partitions).tolist()
    return {
        partition: [user for user, home in zip(users, homes, strict=True) if home == partition]
        for partition in sorted(set(homes))
    }


def _balances_in(
    ledger: Ledger, offset: int, dataset: str, users: Sequence[User]
) -> Iterator[dict[str, Any]]:
    """Yield each user's balance in each budget that a charge to the dataset draws on.

    Args:
        offset: the offset that it applies next.
        users: ids as the log has them.

    Raises:
        Rejection: UNKNOWN_DATASET.
    """
    budgets = budgets_of(ledger.state, dataset)
    place = {"partition": ledger.state.partition, "offset": offset}
    for user in users:
        yield from ({**one, **place} for one in _balances(budgets, user))


def _balances(budgets: Budgets, user: User) -> Iterator[dict[str, Any]]:
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
