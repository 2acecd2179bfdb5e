"""What each command does."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from msgspec import UnsetType

from accounting.exact.units import from_units_down
from streams.cli.logs import log_as_json
from streams.cli.output import Exit, note, say, show, show_table
from streams.cli.presence import no_dataset, nothing_of, warn_of_absent
from streams.cli.users import ids, user_of
from streams.config import Config
from streams.operations.errors import Unavailable
from streams.operations.guarantees import (
    budget_epsilon,
    budget_of,
    spent_epsilon,
    spent_share,
)
from streams.operations.status import (
    DatasetStatus,
    datasets_of,
    read_datasets,
    read_glances,
)
from streams.schemas import DELTA, AccessList, OdometerCheckpoint, Policy, Reason, User
from streams.sdk.client import Turnstile
from streams.sdk.errors import ErasedInPart, RequestRejected
from streams.wire.signatures import public_text


def up(options: argparse.Namespace, config: Config) -> int:
    """Run broker, Redis and workers in the foreground."""
    from streams.cli.local import run_until_stopped

    for name in ("kafka", "redis"):
        if getattr(config, name) != getattr(Config, name):
            note(f"the setting {name} is for other commands: `up` starts its own, see below")

    def on_ready(addresses: Mapping[str, Any]) -> None:
        roles = addresses.get("roles", {})
        show(addresses if options.json else _without(addresses, "roles"), options.json)
        if options.json:
            return
        for role, path in roles.items():
            show({"role": role, "config": path}, False)
        if roles:
            note(f"\nfor example: turnstile status --config {roles['operator']}")
            note("a dataset that only the trainer's key charges and manages:")
            create = "turnstile dataset create NAME --epsilon 1 --delta 1e-5"
            public = shlex.quote(roles["trainer"].removesuffix(".toml") + ".public")
            note(f"  {create} --allow $(cat {public}):charge,manage --config {roles['trainer']}")
            return
        note("\nFor other commands, in another terminal:")
        for name in ("kafka", "redis"):
            say(f"export TURNSTILE_{name.upper()}={shlex.quote(addresses[name])}")
        if config.prefix != Config.prefix:
            say(f"export TURNSTILE_PREFIX={shlex.quote(config.prefix)}")

    return run_until_stopped(
        config,
        workers=options.workers,
        data=options.data,
        on_ready=on_ready,
        secure=options.secure,
        # Clients that use these default ports have no login.
        known_ports=not (options.free_ports or options.secure),
    )


def _without(record: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in record.items() if key != name}


def topics_create(options: argparse.Namespace, config: Config) -> int:
    """Create the topics that are missing, for workers who have no right to."""
    from streams.kafka.answers import ANSWER_TOPICS, ensure_answer_topics
    from streams.kafka.topics import TOPICS, ensure_topics

    partitions = ensure_topics(config)
    ensure_answer_topics(config)
    topics = [config.topic(name) for name in (*TOPICS, *ANSWER_TOPICS)]
    show({"kafka": config.kafka, "topics": topics, "partitions": partitions}, options.json)
    return Exit.OK


def worker(options: argparse.Namespace, config: Config) -> int:
    """Run a worker in the foreground."""
    from streams.worker.app import run_worker

    # With --json on standard output, as what other commands say.
    if options.json or config.log_format == "json":
        log_as_json(options.log_level, sys.stdout if options.json else sys.stderr)
    run_worker(config, options.log_level)
    return Exit.OK


def dataset_create(options: argparse.Namespace, config: Config) -> int:
    """Create a dataset, or check that it exists under this policy."""
    whole = None
    if options.share_of is not None:
        datasets = read_datasets(config)
        if options.share_of not in datasets:
            return no_dataset(options.share_of)
        whole = datasets[options.share_of].policy
    with Turnstile(config=config) as turnstile:
        policy = turnstile.create_dataset(
            options.name,
            measure=options.measure,
            share_of=whole,
            share=options.share,
            assume_independent_timing=options.assume_independent_timing,
            sampled_levels=options.sampled_levels,
            epsilon=options.epsilon,
            delta=options.delta,
            budget=_one_or_many(options.budget),
            orders=options.orders,
            odometer_step=_one_or_many(options.odometer_step),
            on_exhaustion=options.on_exhaustion,
            user_ids=options.user_ids,
            parent=options.parent,
            allow=options.allow and dict(options.allow),
        )
    delta = DELTA if options.delta is None else options.delta
    show({**_policy(policy), "epsilon": policy.epsilon(delta), "delta": delta}, options.json)
    return Exit.OK


def dataset_access(options: argparse.Namespace, config: Config) -> int:
    """Replace the access list of a dataset."""
    allow = dict(options.allow)
    with Turnstile(config=config) as turnstile:
        try:
            turnstile.set_access(options.name, allow, copied_from=options.copied_from)
        except RequestRejected as refused:
            if refused.reason is Reason.UNKNOWN_DATASET:
                return no_dataset(options.name)
            raise
    show({"dataset": options.name, "allow": allow}, options.json)
    return Exit.OK


def dataset_withdraw(options: argparse.Namespace, config: Config) -> int:
    """Take back a dataset that nobody has used."""
    with Turnstile(config=config) as turnstile:
        turnstile.withdraw_dataset(options.name)
    show({"dataset": options.name, "withdrawn": True}, options.json)
    return Exit.OK


def dataset_close(options: argparse.Namespace, config: Config) -> int:
    """End a dataset for good, and all that are nested in it."""
    with Turnstile(config=config) as turnstile:
        try:
            closed = turnstile.close_dataset(options.name)
        except RequestRejected as refused:
            if refused.reason is Reason.UNKNOWN_DATASET:
                return no_dataset(options.name)
            raise
    for name in closed:
        show({"dataset": name, "closed": True}, options.json)
    return Exit.OK


def run_close(options: argparse.Namespace, config: Config) -> int:
    """End a run for good; one that is closed stays so."""
    with Turnstile(config=config) as turnstile:
        try:
            found = turnstile.close_run(options.dataset, options.name)
        except RequestRejected as refused:
            if refused.reason is Reason.UNKNOWN_DATASET:
                return no_dataset(options.dataset)
            raise
    if not found:
        note(
            f"turnstile: there was no run {options.name!r} of dataset {options.dataset!r}: check "
            "its name. Nothing was closed"
        )
        return Exit.REFUSED
    show({"dataset": options.dataset, "run": options.name, "closed": True}, options.json)
    return Exit.OK


def erase(options: argparse.Namespace, config: Config) -> int:
    """Have the service erase a user."""
    given = user_of(options)
    meant = {given: given} if config.pseudonym_key else ids(given, config)
    dataset = None if options.dataset == _EVERYWHERE else options.dataset
    found, not_allowed = False, set[str]()
    with Turnstile(config=config) as turnstile:
        for user in dict.fromkeys(meant.values()):
            try:
                datasets = turnstile.erase(user, dataset)
            except ErasedInPart as error:
                datasets = error.datasets
                not_allowed.update(error.not_allowed)
            found = found or bool(datasets)
            for name in datasets:
                show({"dataset": name, "id_kind": _kind(user), "erased": True}, options.json)
    if not_allowed:
        note(
            f"turnstile: you may not manage {', '.join(sorted(not_allowed))}, so the user was not "
            "erased there: sign with a key that may (request_key)"
        )
        return Exit.REFUSED
    if not found:
        note(
            "turnstile: nobody of that id was ever charged there: nothing was erased, and "
            "whoever has it can be charged"
        )
        return Exit.REFUSED
    return Exit.OK


_EVERYWHERE = "all"


def _kind(user: User) -> str:
    return "string" if isinstance(user, str) else "integer"


def dataset_show(options: argparse.Namespace, config: Config) -> int:
    """One dataset: policy, users, how many are exhausted."""
    datasets = read_datasets(config)
    if options.name not in datasets:
        return no_dataset(options.name)
    dataset = datasets[options.name]
    show(_dataset(dataset, options.delta), options.json)
    if not dataset.allow_agrees:
        note(
            "turnstile: not all partitions have the same access list: set it again with "
            "`turnstile dataset access`, which completes the change"
        )
    return Exit.OK


def dataset_list(options: argparse.Namespace, config: Config) -> int:
    """All datasets."""
    found = [dataset for _, dataset in sorted(read_datasets(config).items())]
    if options.json:
        for dataset in found:
            show(_dataset(dataset, options.delta), True)
    elif found:
        rows = [_row(dataset, options.delta) for dataset in found]
        show_table(_LISTED, rows, _LISTED_WORDS)
    else:
        note("turnstile: there are no datasets: `turnstile dataset create` makes one")
    return Exit.OK


_LISTED = (
    *("dataset", "measure", "budget", "epsilon", "delta", "users", "exhausted"),
    *("state", "parent"),
)
_LISTED_WORDS = ("dataset", "measure", "budget", "state", "parent")


def _row(dataset: DatasetStatus, delta: float) -> list[object]:
    policy = dataset.policy
    return [
        policy.dataset,
        policy.measure,
        budget_of(policy),
        policy.epsilon(delta),
        delta,
        dataset.users,
        dataset.exhausted,
        dataset.state,
        policy.parent or None,
    ]


def halts(options: argparse.Namespace, config: Config) -> int:
    """HALT events, from the first that Kafka still has."""
    found = False
    if options.follow:
        warn_of_absent(options.dataset, config)
    with Turnstile(config=config) as turnstile:
        for halt in turnstile.halts(
            options.dataset, run=options.run, since="earliest", follow=options.follow
        ):
            found = True
            show(asdict(halt), options.json)
    what = "HALT events" if options.run is None else f"HALT events of run {options.run!r}"
    return Exit.OK if found else nothing_of(options.dataset, what, config)


def odometer(options: argparse.Namespace, config: Config) -> int:
    """Odometer checkpoints."""
    wanted = None if options.user is None else ids(user_of(options), config)
    found = False
    if options.follow:
        warn_of_absent(options.dataset, config)
    with Turnstile(config=config) as turnstile:
        policies = ShownPolicies(config, turnstile.partitions)
        for checkpoint in turnstile.odometer(options.dataset, follow=options.follow):
            if wanted is not None and checkpoint.user not in wanted:
                continue
            found = True
            show(
                {
                    "dataset": checkpoint.dataset,
                    "user": wanted[checkpoint.user] if wanted else checkpoint.user,
                    "bound": checkpoint.bound,
                    **policies.meaning(checkpoint, options.delta),
                    "delta": options.delta,
                    "partition": checkpoint.partition,
                    "offset": checkpoint.offset,
                },
                options.json,
            )
    what = "odometer checkpoints" if wanted is None else "odometer checkpoints of this user"
    return Exit.OK if found else nothing_of(options.dataset, what, config)


def _dataset(dataset: DatasetStatus, delta: float) -> dict[str, Any]:
    return {
        **_policy(dataset.policy),
        "epsilon": dataset.policy.epsilon(delta),
        "delta": delta,
        "users": dataset.users,
        "exhausted": dataset.exhausted,
        "closed": dataset.closed,
        "allow": _allow(dataset.allow),
        "allow_agrees": dataset.allow_agrees,
    }


def _policy(policy: Policy) -> dict[str, Any]:
    in_measure = [float(from_units_down(units)) for units in policy.budget]
    name = "budget_mu_squared" if policy.measure == "gdp" else "budget"
    return {
        "dataset": policy.dataset,
        "measure": policy.measure,
        name: in_measure if policy.measure == "renyi" else in_measure[0],
        "orders": policy.orders or None,
        "on_exhaustion": policy.on_exhaustion,
        "user_ids": policy.user_ids,
        "parent": policy.parent or None,
        "share_of": policy.share_of or None,
        "assume_independent_timing": policy.assume_independent_timing is True,
        "sampled_levels": policy.has_sampled_levels,
        "pseudonyms": policy.pseudonyms or None,
        "allow": None if isinstance(policy.allow, UnsetType) else _allow(policy.allow),
        "partitions": policy.partitions,
    }


def _allow(allow: AccessList | None) -> dict[str, Any] | None:
    return None if allow is None else {public_text(entry.key): entry.rights for entry in allow}


def _one_or_many(numbers: list[float] | None) -> float | list[float] | None:
    return numbers[0] if numbers and len(numbers) == 1 else numbers


class ShownPolicies:
    """Of the datasets, as Redis shows them; none, and that is said once, where it does not."""

    def __init__(self, config: Config, partitions: int) -> None:
        self._config = config
        self._asked: set[str] = set()
        self._without_epsilon: set[str] = set()  # datasets of which this has been said
        try:
            self._datasets = datasets_of(read_glances(config, partitions))
            self._is_there = True
        except Unavailable as error:
            note(f"turnstile: no epsilons, since the policies cannot be read: {error}")
            self._datasets, self._is_there = {}, False

    def meaning(self, checkpoint: OdometerCheckpoint, delta: float) -> dict[str, float | None]:
        """Return what an odometer's bound means: which part of the budget it is, and two epsilons.

        These are the any-time epsilon of the bound and the epsilon of the whole budget. All are
        None without a policy. If norm levels may follow sampling coins, the first epsilon is None.
        """
        found = self._of(checkpoint.dataset)
        if found is None:
            return {"share": None, "epsilon": None, "budget_epsilon": None}
        policy = found.policy
        if policy.has_sampled_levels and policy.dataset not in self._without_epsilon:
            self._without_epsilon.add(policy.dataset)
            note(
                f"turnstile: only the whole budget of dataset {policy.dataset!r} has an epsilon, "
                "because norm levels may follow sampling coins (sampled_levels)"
            )
        order = None if isinstance(checkpoint.order, UnsetType) else checkpoint.order
        return {
            "share": spent_share(policy, checkpoint.bound, order),
            "epsilon": spent_epsilon(policy, checkpoint.bound, order, delta),
            "budget_epsilon": budget_epsilon(policy, order, delta),
        }

    def _of(self, dataset: str) -> DatasetStatus | None:
        """A new dataset is waited for once, until the owners of the partitions have told of it."""
        if dataset not in self._datasets and dataset not in self._asked and self._is_there:
            self._asked.add(dataset)
            with suppress(Unavailable):
                self._datasets = read_datasets(self._config)
        return self._datasets.get(dataset)
