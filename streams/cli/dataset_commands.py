"""The commands that change or show datasets and runs, charge steps and erase users."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from msgspec.structs import asdict

from accounting.exact.units import from_units_down
from streams.cli.commands import command
from streams.cli.options import (
    AT_DELTA,
    FILE_CLIENT,
    FILE_OBSERVER,
    OF_DATASET,
    OF_RUN,
    ONLY_DATASET,
    arg,
    term_option,
    user_option,
)
from streams.cli.printing import UnusableInput, note, show, tell
from streams.cli.subjects import client_of, ids, is_known_absent, kind_of, no_dataset, user_of
from streams.config import Config
from streams.failures import Exit
from streams.operations.balance import read_balances
from streams.operations.guarantees import budget_of
from streams.operations.run_progress import RunStatus, read_runs
from streams.operations.status import DatasetStatus, read_datasets
from streams.records import DELTA, AccessList, Policy, Rejection
from streams.records.signatures import public_text
from streams.records.terms import TERMS
from streams.sdk.budget_file import create_file
from streams.sdk.dataset_requests import arguments_of
from streams.sdk.errors import ErasedInPart, invalid_requests


@command("dataset create", FILE_CLIENT, OF_DATASET, *map(term_option, TERMS), lines=("dataset",))
def create(options: argparse.Namespace, config: Config) -> int:
    """Create a dataset with a policy that never changes.

    The same command again checks that the dataset has this policy.
    """
    whole = None
    if config.budgets:
        create_file(config.budgets, config.partitions)
    if options.share_of is not None:
        datasets = read_datasets(config)
        if options.share_of not in datasets:
            return no_dataset(options.share_of)
        whole = datasets[options.share_of].policy
        if options.delta is not None:
            with invalid_requests():
                whole.epsilon(options.delta)  # reject an invalid delta before anything is created
    with client_of(config) as turnstile:
        terms = {term: getattr(options, term) for term in TERMS}
        terms["share_of"] = whole
        if whole is not None:
            terms["delta"] = None  # a share's budget has none
        if options.allow is not None:
            terms["allow"] = dict(options.allow)
        policy = turnstile.create_dataset(options.dataset, **terms)
    delta = DELTA if options.delta is None else options.delta
    if policy.row.has_delta and delta > _LARGE_DELTA:
        note(
            f"turnstile: delta {delta:g} is large: the guarantee may fail completely for one user "
            f"in {1 / delta:,.0f}. Values of at most one over the number of users are usual"
        )
    created = {**_policy(policy), "epsilon": policy.epsilon(delta), "delta": delta}
    show("dataset", created, options.json)
    if delta != DELTA and not options.json:
        note(
            f"turnstile: `dataset show` and the pages show the epsilon at delta {DELTA:g}, which "
            f"is another number; give them --delta {delta:g} for this one"
        )
    return Exit.OK


_LARGE_DELTA = 1e-3


@command(
    "dataset access",
    FILE_CLIENT,
    OF_DATASET,
    term_option("allow", required=True),
    arg(
        "--copied-from LOG",
        "the id of the log for which the dataset's requests were signed, if the log was "
        "copied to this topic",
    ),
    lines=("access_list",),
)
def set_access(options: argparse.Namespace, config: Config) -> int:
    """Replace the access list of a dataset.

    Give the whole new list. The request is signed with the setting request_key, by a key that may
    manage the dataset. Repeat the command to complete a request that reached only some partitions.
    """
    allow = dict(options.allow)
    with client_of(config) as turnstile:
        turnstile.set_access(options.dataset, allow, copied_from=options.copied_from)
    show("access_list", {"dataset": options.dataset, "allow": allow}, options.json)
    return Exit.OK


@command("dataset withdraw", FILE_CLIENT, OF_DATASET, lines=("withdrawn_dataset",))
def withdraw(options: argparse.Namespace, config: Config) -> int:
    """Delete a dataset of which no run was ever opened."""
    with client_of(config) as turnstile:
        turnstile.withdraw_dataset(options.dataset)
    show("withdrawn_dataset", {"dataset": options.dataset, "withdrawn": True}, options.json)
    return Exit.OK


@command("dataset close", FILE_CLIENT, OF_DATASET, lines=("closed_dataset",))
def close(options: argparse.Namespace, config: Config) -> int:
    """Close a dataset permanently, with the datasets inside it and all their runs.

    They are never charged again, and their names are not used again. Their charges remain. Repeat
    the command to complete a request that reached only some partitions.
    """
    with client_of(config) as turnstile:
        closed = turnstile.close_dataset(options.dataset)
    rows = [{"dataset": name, "closed": True} for name in closed]
    show("closed_dataset", rows, options.json)
    return Exit.OK


@command("run close", FILE_CLIENT, OF_RUN, lines=("closed_run",))
def close_run(options: argparse.Namespace, config: Config) -> int:
    """Close a run permanently: it can no longer be charged or opened."""
    dataset, run = options.of
    if run is None:
        raise UnusableInput(f"name the run as well: {dataset}/RUN")
    with client_of(config) as turnstile:
        found = turnstile.close_run(dataset, run)
    if not found:
        note(f"turnstile: run {dataset}/{run} does not exist, so nothing was closed")
        return Exit.REFUSED
    show("closed_run", {"dataset": dataset, "run": run, "closed": True}, options.json)
    return Exit.OK


@command(
    "balance",
    ("redis", "prefix", "timeout", "config", "budgets"),
    OF_DATASET,
    user_option("digits find the integer and the string"),
    lines=("balance",),
)
def balance(options: argparse.Namespace, config: Config) -> int:
    """Show what a user has spent and has left, as Redis has it: needs no Kafka and no worker.

    With --budgets, a budget file is read instead. There is a line for each budget that a charge
    draws on. It includes the records of the user's partition before `offset`. All state of the
    partition is read and verified.
    """
    wanted = ids(user_of(options), config)
    try:
        found = read_balances(config, options.dataset, list(wanted))
    except Rejection:
        return no_dataset(options.dataset)
    rows = [{**one, "user": wanted[one["user"]]} for one in found]
    if not show("balance", rows, options.json):
        note(f"turnstile: this user was never charged in dataset {options.dataset!r}")
    if any(one["unit"] == "mu" for one in found):
        note("mu adds in squares: the squares of spent and left add up to that of the budget")
    return Exit.OK


@command(
    "erase",
    FILE_CLIENT,
    user_option("digits mean the integer and the string"),
    arg(
        "dataset DATASET",
        "only in this one, and in those that share a budget with it (default: in all)",
        nargs="?",
    ),
    lines=("erased_user",),
)
def erase(options: argparse.Namespace, config: Config) -> int:
    """Erase a user permanently: the spending remains, and the user is never admitted again.

    A keyed hash replaces the id in the workers' state. The log and its snapshots contain the id
    until they are trimmed: docs/operate/erasure.md. The command may be repeated.
    """
    given = user_of(options)
    meant = {given: given} if config.pseudonym_key else ids(given, config)
    rows, not_allowed = [], set[str]()
    with client_of(config) as turnstile:
        for user in dict.fromkeys(meant.values()):
            try:
                datasets = turnstile.erase(user, options.dataset)
            except ErasedInPart as error:
                datasets = error.datasets
                not_allowed.update(error.not_allowed)
            kind = kind_of(user)
            rows += [{"dataset": name, "id_kind": kind, "erased": True} for name in datasets]
    show("erased_user", rows, options.json)
    if not_allowed:
        note(
            f"turnstile: you may not manage {', '.join(sorted(not_allowed))}, so the user was not "
            "erased there: sign with a key that may (request_key)"
        )
        return Exit.REFUSED
    if not rows:
        note(
            "turnstile: no user with this id was ever charged there, so nothing was erased, and a "
            "user with this id can still be charged"
        )
        return Exit.REFUSED
    return Exit.OK


@command("dataset show", FILE_OBSERVER, OF_DATASET, AT_DELTA, lines=("dataset",))
def show_one(options: argparse.Namespace, config: Config) -> int:
    """Show the policy and the number of users of a dataset."""
    datasets = read_datasets(config)
    if options.dataset not in datasets:
        return no_dataset(options.dataset)
    dataset = datasets[options.dataset]
    show("dataset", _dataset(dataset, options.delta), options.json)
    if not dataset.allow_agrees:
        note(
            "turnstile: the partitions have different access lists: repeat `turnstile dataset "
            "access` to complete the change"
        )
    return Exit.OK


@command("dataset list", FILE_OBSERVER, AT_DELTA, lines=("dataset",))
def listed(options: argparse.Namespace, config: Config) -> int:
    """List all datasets."""
    datasets = read_datasets(config)
    show_datasets(datasets, options.delta, options.json)
    if not datasets and not options.json:
        note("turnstile: no dataset exists; `turnstile dataset create` creates one")
    return Exit.OK


def show_datasets(
    datasets: Mapping[str, DatasetStatus], delta: float | None, as_json: bool
) -> None:
    """Print datasets, sorted by name; nothing if there are none, and no epsilon without a delta."""
    rows = [
        {**_dataset(found, delta), **({} if as_json else _in_short(found))}
        for _, found in sorted(datasets.items())
    ]
    epsilons = () if delta is None else ("epsilon", "delta")
    columns = ("dataset", "measure", "budget", *epsilons, "users", "exhausted", "state", "parents")
    show("dataset", rows, as_json, columns)
    if not as_json and any(found.exhausted for found in datasets.values()):
        note("exhausted users have nothing left: no further step that costs them admits them")


def _in_short(dataset: DatasetStatus) -> dict[str, str]:
    return {"budget": budget_of(dataset.policy), "state": dataset.state}


def _dataset(dataset: DatasetStatus, delta: float | None) -> dict[str, Any]:
    return {
        **_policy(dataset.policy),
        "epsilon": None if delta is None else dataset.policy.epsilon(delta),
        "delta": delta,
        "users": dataset.users,
        "exhausted": dataset.exhausted,
        "closed": dataset.closed,
        "worst_case_left": dataset.worst_case_left,
        "holder": dataset.holder and asdict(dataset.holder),
        "allow": _allow(dataset.allow),
        "allow_agrees": dataset.allow_agrees,
    }


def _policy(policy: Policy) -> dict[str, Any]:
    found = arguments_of(policy)
    budget = [float(from_units_down(units)) for units in policy.budget]
    for field in ("budget", "odometer_step", "per_user_order"):
        del found[field]
    return {
        "dataset": found.pop("dataset"),
        "measure": found.pop("measure"),
        "budget_mu_squared" if policy.row.power == 2 else "budget": (
            budget if policy.row.per_order else budget[0]
        ),
        **found,
        "orders": policy.orders or None,
        "parents": policy.parents or [],
        "assume_independent_timing": policy.assume_independent_timing is True,
        "sampled_levels": policy.has_sampled_levels,
    }


def _allow(allow: AccessList | None) -> dict[str, Any] | None:
    return None if allow is None else {public_text(entry.key): entry.rights for entry in allow}


_RUN = {
    **{name: name for name in ("dataset", "run", "state", "step", "attempt")},
    "users": "users of last step",
    "halted": "halted at last step",
}


@command("runs", FILE_OBSERVER, ONLY_DATASET, lines=("run",))
def runs(options: argparse.Namespace, config: Config) -> int:
    """Show the progress of each run, its state, and how many users its last step halted.

    The owners of the partitions report this every two seconds; no state is read. `users` and
    `halted` count the users of the last step, or of the roster, not those of the dataset. `halted`
    depends on the users' data: do not publish it.
    """
    found, besides = read_runs(config)
    found = [run for run in found if options.dataset in (None, run.dataset)]
    if options.dataset is not None and not found and is_known_absent(options.dataset, config):
        return no_dataset(options.dataset)
    if not show("run", found, options.json, _RUN) and not options.json:
        of = "" if options.dataset is None else f" of dataset {options.dataset!r}"
        note(f"turnstile: no run{of} is open" if besides else f"turnstile: no run{of} exists")
    if not options.json:
        for run in found:
            if run.state == "interrupted":
                tell(f"{run.dataset}/{run.run} was interrupted: {_interruption(run)}")
    if besides:
        note(f"turnstile: {besides:,} more runs are closed and not listed")
    return Exit.OK


def _interruption(run: RunStatus) -> str:
    if run.charged > run.step:
        return (
            f"only some partitions have decided step {run.charged}. Open the run again and repeat "
            "the charge to complete it. If you give it up, it remains charged"
        )
    return "opening or closing it reached only some partitions. Repeat it to complete it"
