"""Where a dataset is that is charged here no more, in words."""

from __future__ import annotations

from collections.abc import Mapping

from streams.operations.status import DatasetStatus


def state_of(dataset: DatasetStatus, prefixes: Mapping[str, str]) -> str:
    """A word or three for a table; ``prefixes`` are those of logs, by their ids."""
    if dataset.moved_to:
        return f"moved to {prefixes.get(dataset.moved_to, dataset.moved_to)}"
    return "closed" if dataset.closed else "open"


def where_it_moved(dataset: DatasetStatus, prefixes: Mapping[str, str]) -> str:
    """A sentence that says where it moved, and what to do."""
    name, log = dataset.policy.dataset, dataset.moved_to
    if prefix := prefixes.get(log):
        go_on = f"charge it with TURNSTILE_PREFIX={prefix}"
    else:
        go_on = "which these brokers do not have, or not for you: charge it where that log is"
    return f"dataset {name!r} moved to the log {log}: {go_on}"
