"""A log that continues a retired one with another number of partitions, as the documents say it."""

from __future__ import annotations

from copy import deepcopy

from tests.audit.auditor import Auditor
from tests.audit.auditor_access import Listed
from tests.audit.auditor_accounts import Dataset
from tests.audit.auditor_state import home, next_link


def continued(old: Auditor, topic: bytes, partitions: int, record: bytes) -> Auditor:
    """Return the auditor of the log that continues a retired log, after its imports.

    Args:
        old: the auditor of the retired log.
        topic: the id of the new log.
        partitions: the number of partitions of the new log.
        record: the first record of each of its partitions.
    """
    new = Auditor(partitions, topic)
    new.skip(len(new.chains))
    for partition in range(partitions):
        new.chains[partition] = next_link(new.chains[partition][0], 0, record)
        _import_access(old, new, partition)
        _import_runs(old, new, partition)
        for name in old.datasets[0]:
            _import_dataset(old, new, partition, name)
    return new


def _import_access(old: Auditor, new: Auditor, partition: int) -> None:
    access = new.access[partition]
    lists = old.access[0].lists.items()
    access.lists = {name: Listed(new.topic, dict(listed.rights)) for name, listed in lists}
    access.numbers = dict(old.access[0].numbers)


def _import_runs(old: Auditor, new: Auditor, partition: int) -> None:
    """Each run as it ended in the partition that charged most of its steps."""
    for runs in old.runs:
        for address, run in runs.items():
            known = new.runs[partition].get(address)
            if known is None or (run.attempt, run.step) > (known.attempt, known.step):
                new.runs[partition][address] = deepcopy(run)
    for run in new.runs[partition].values():
        run.end()


def _import_dataset(old: Auditor, new: Auditor, partition: int, name: str) -> None:
    """Users go to their new home; the account of an erased user goes to every partition."""
    first = old.datasets[0][name]
    dataset = Dataset({**first.policy, "partitions": new.partitions}, is_closed=first.is_closed)
    new.datasets[partition][name] = dataset
    names = new.names[partition]
    for datasets, theirs in zip(old.datasets, old.names, strict=True):
        for user, account in datasets[name].accounts.items():
            names.ids |= {user: theirs.ids[user]} if user in theirs.ids else {}
            if user not in theirs.ids and home(user, new.partitions) != partition:
                continue
            dataset.accounts[user] = deepcopy(account)
            if user not in theirs.ids and account.ticks > 1:
                key = name, user, partition, 0
                new.odometers.add((*key, account.bound(dataset)))
                if account.order is not None:
                    new.bound_orders[key] = dataset.orders[account.order]
