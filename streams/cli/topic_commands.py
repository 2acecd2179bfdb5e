"""The commands that show the records of the topics: HALT events, odometers and rejections."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import asdict
from typing import Any, Final

from msgspec import UnsetType

from streams.cli.commands import command
from streams.cli.options import (
    AT_DELTA,
    FILE_CLIENT,
    FILE_OBSERVER,
    FOLLOW,
    ONLY_DATASET,
    ONLY_RUN,
    arg,
    user_option,
)
from streams.cli.printing import note, show
from streams.cli.subjects import client_of, ids, nothing_of, user_of, warn_of_absent
from streams.config import Config, Unavailable
from streams.failures import Exit
from streams.ledger.outputs import Channel
from streams.operations.guarantees import (
    ABOVE_BUDGET,
    budget_epsilon,
    spent_epsilon,
    spent_share,
)
from streams.operations.rejected import by_request, readable
from streams.operations.status import DatasetStatus, datasets_of, read_datasets, read_glances
from streams.records import OdometerRecord, Reason
from streams.sdk.file_connection import FileConnection
from streams.sdk.followers import Followed, Reading, distinct_rejects
from streams.sdk.kafka_connection import read_topic

_HALT: Final = ("dataset", "run", "step", "user", "reason", "refused_by", "exhausted")
_ODOMETER: Final = {
    **{name: name for name in ("dataset", "user", "bound", "share")},
    "epsilon": "any-time epsilon",
    "budget_epsilon": "budget's epsilon",
    "delta": "delta",
}


@command("halts", FILE_CLIENT, ONLY_RUN, FOLLOW, lines=("halt",))
def halts(options: argparse.Namespace, config: Config) -> int:
    """Show HALT events: which users were halted at which step.

    With --json, each has the id of its decision, for `turnstile explain --decision`.
    """
    dataset, run = options.of
    if options.follow:
        warn_of_absent(dataset, config)
    with client_of(config) as turnstile:
        events = turnstile.halts(dataset, run=run, since="earliest", follow=options.follow)
        found = (
            {**asdict(halt), "decision": f"{turnstile.log}/{halt.partition}/{halt.offset}"}
            for halt in events
        )
        if show("halt", found, options.json, _HALT, follow=options.follow):
            return Exit.OK
    what = "HALT events" if run is None else f"HALT events of run {run!r}"
    return nothing_of(dataset, what, config)


@command(
    "odometer",
    FILE_OBSERVER,
    ONLY_DATASET,
    AT_DELTA,
    user_option("digits find the integer and the string", required=False),
    FOLLOW,
    lines=("odometer",),
)
def odometer(options: argparse.Namespace, config: Config) -> int:
    """Show odometer records: upper bounds on what users have spent.

    Each record is for its own user. Of several records of a user in a dataset, the one with the
    highest offset counts. Without Redis, which has the policies, epsilons are missing.
    """
    wanted = None if options.user is None else ids(user_of(options), config)
    if options.follow:
        warn_of_absent(options.dataset, config)

    def rows() -> Iterator[Mapping[str, Any]]:
        for odometer in turnstile.odometer(options.dataset, follow=options.follow):
            if wanted is None or odometer.user in wanted:
                yield {
                    "dataset": odometer.dataset,
                    "user": wanted[odometer.user] if wanted else odometer.user,
                    "bound": odometer.bound,
                    **meanings.of(odometer, options.delta),
                    "delta": options.delta,
                    "partition": odometer.partition,
                    "offset": odometer.offset,
                }

    with client_of(config) as turnstile:
        meanings = OdometerMeanings(config, turnstile.partitions)
        if show("odometer", rows(), options.json, _ODOMETER, follow=options.follow):
            return Exit.OK
    what = "odometer records" if wanted is None else "odometer records of this user"
    return nothing_of(options.dataset, what, config)


class OdometerMeanings:
    """Converts the bounds of odometer records into epsilons, with the policies in Redis.

    Without Redis there are no epsilons, which is printed once.
    """

    def __init__(self, config: Config, partitions: int) -> None:
        self._config = config
        self._noted: set[str] = set()
        self._has_explained = False
        self._datasets: dict[str, DatasetStatus | None] = {}  # None: it was not found
        self._is_there = True
        try:
            self._datasets |= datasets_of(read_glances(config, partitions))
        except Unavailable as error:
            note(f"turnstile: epsilons are missing, because the policies cannot be read: {error}")
            self._is_there = False

    def of(self, odometer: OdometerRecord, delta: float) -> dict[str, float | None]:
        """Return what an odometer's bound means: its share of the budget, and two epsilons.

        These are the any-time epsilon of the bound and the epsilon of the whole budget. All are
        None without a policy. If norm levels may follow sampling coins, the first epsilon is None.
        """
        name = odometer.dataset
        if name not in self._datasets and self._is_there:
            # A new dataset: wait once, until the partitions' owners report it.
            self._datasets[name] = None
            with suppress(Unavailable):
                self._datasets |= read_datasets(self._config)
        if (found := self._datasets.get(name)) is None:
            return {"share": None, "epsilon": None, "budget_epsilon": None}
        policy = found.policy
        if policy.has_sampled_levels and name not in self._noted:
            self._noted.add(name)
            note(
                f"turnstile: only the whole budget of dataset {name!r} has an epsilon, "
                "because norm levels may follow sampling coins (sampled_levels)"
            )
        order = None if isinstance(odometer.order, UnsetType) else odometer.order
        spent = spent_epsilon(policy, odometer.bound, order, delta)
        whole = budget_epsilon(policy, order, delta)
        if spent is not None and spent > whole and not self._has_explained:
            self._has_explained = True
            note(f"turnstile: {ABOVE_BUDGET}", is_wrapped=True)
        share = spent_share(policy, odometer.bound, order)
        return {"share": share, "epsilon": spent, "budget_epsilon": whole}


@command(
    "rejects",
    FILE_CLIENT,
    ONLY_RUN,
    arg("--reason REASON", ", ".join(Reason), choices=[str(reason) for reason in Reason]),
    FOLLOW,
    lines=("reject",),
)
def rejects(options: argparse.Namespace, config: Config) -> int:
    """Show rejected requests: why, when, from which run, and the record itself.

    A request that several partitions rejected is one line, with the first of them; with --follow,
    each rejection is one.
    """
    dataset, run = options.of

    refused = (
        (written, rejected)
        for written, rejected in distinct_rejects(_rejects(config, options.follow))
        if dataset in (None, rejected.dataset)
        and run in (None, rejected.run)
        and options.reason in (None, rejected.reason)
    )
    rows = (readable(*each) for each in (refused if options.follow else by_request(refused)))
    if not show("reject", rows, options.json, follow=options.follow) and dataset is not None:
        # A rejected request may name any dataset, so this one need not exist.
        note(f"turnstile: no request about {'/'.join(filter(None, options.of))} was rejected")
    return Exit.OK


def _rejects(config: Config, follow: bool) -> Iterator[Followed]:
    reading = Reading("earliest", follow)
    if not config.budgets:
        yield from read_topic(config, Channel.REJECTS, reading)
        return
    with closing(FileConnection(config.budgets, config.timeout)) as file:
        yield from file.read(Channel.REJECTS, reading)
