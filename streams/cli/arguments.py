"""The arguments of every command: their names, their help, and which values they take.

A command has only the options that it heeds; an odd value ends here, before anything is started.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, get_args

from streams.cli.answer_arguments import add_answer
from streams.cli.offline_arguments import add_offline
from streams.cli.operations_arguments import add_completion, add_operations
from streams.cli.options import (
    CLIENT,
    OBSERVER,
    SETTING,
    Later,
    add_allow,
    add_delta,
    add_take_over,
    add_user,
    name_of,
    path_of,
    verb,
    whole,
)
from streams.cli.portal_arguments import add_portal
from streams.cli.security_arguments import add_security
from streams.cli.versions import release
from streams.config import LOG_FORMATS
from streams.schemas import Measure, OnExhaustion, Reason, UserIds

commands = Later("streams.cli.commands")
demo = Later("streams.cli.demo")
publish = Later("streams.cli.publish")
rejects = Later("streams.cli.rejects")

_EPILOG = """\
Settings come from options, then TURNSTILE_KAFKA, TURNSTILE_REDIS, TURNSTILE_PREFIX,
TURNSTILE_PARTITIONS, TURNSTILE_REPLICATION, TURNSTILE_TIMEOUT and TURNSTILE_SNAPSHOT_SECONDS,
then the TOML file that --config or TURNSTILE_CONFIG names. A password belongs in the variable or
the file: other users of this machine can read options. The settings of TLS, logins and signatures
are variables and entries of the file alone: docs/security.md.

exit codes: 0 done; 1 refused, or verify or doctor found something; 2 unusable arguments or input;
69 Kafka, Redis or the workers do not answer, or status found a problem; 70 a bug or contradicting
decisions; 75 (worker only) start me again; 130 interrupted
"""

_MOST_WORKERS: Final = 100
_MOST_SEEDS: Final = 1000
_LOG_LEVELS: Final = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The options of one command; ends the process with exit code 2 where they make no sense."""
    parser = new_parser()
    options = parser.parse_args(arguments)
    for name, value in vars(options).items():
        if value in ([], [[]]):  # what argparse before Python 3.13 makes of `--name=--`
            parser.error(f"argument --{name.replace('_', '-')}: expected a value")
    return options


def new_parser() -> argparse.ArgumentParser:
    """Of all commands."""
    parser = argparse.ArgumentParser(
        prog="turnstile",
        description="Individual privacy accounting on Kafka: norms in, admissions and HALTs out.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {release()}")
    verbs = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    _add_local(verbs)
    _add_worker(verbs)
    _add_datasets(verbs)
    _add_runs(verbs)
    _add_erase(verbs)
    add_answer(verbs)
    _add_topics(verbs)
    add_security(verbs)
    add_operations(verbs)
    add_portal(verbs)
    add_offline(verbs)
    add_completion(verbs)
    return parser


def _add_local(verbs: Any) -> None:
    up = verb(
        verbs,
        "up",
        commands.up,
        "run a local broker, Redis and workers until Ctrl-C or SIGTERM",
        ("prefix", "config", "partitions"),
        "It starts a broker and a Redis of its own. To work on others, start `turnstile worker`.",
    )
    up.add_argument(
        "--workers", type=whole(0, _MOST_WORKERS), default=1, metavar="N", help="(default 1)"
    )
    up.add_argument(
        "--secure",
        action="store_true",
        help="with TLS, logins, rights and signed decisions; prints the settings of each role",
    )
    up.add_argument("--data", type=path_of, metavar="DIR", help="keep data and ports here")
    up.add_argument(
        "--free-ports",
        action="store_true",
        help="use other ports than 9092 and 6379, which the broker and Redis take if free",
    )

    shown = verb(
        verbs,
        "demo",
        demo.demo,
        "compare individual accounting with the strongest baselines",
        ("prefix", "timeout", "config"),
        "revenue answers the revenue of every day of a shop, as `turnstile answer` does; training "
        "trains a classifier on scikit-learn's digits. Both compare individual accounting with "
        "baselines at the same guarantee. The demo starts a broker, a Redis and workers, unless "
        "--kafka names a broker with running workers.",
    )
    shown.add_argument(
        "kind",
        choices=["revenue", "training", "all"],
        nargs="?",
        default="all",
        help="(default all)",
    )
    shown.add_argument(
        "--data",
        type=path_of,
        metavar="DIR",
        help="folder with the purchases of CDNOW (default: a simulated shop)",
    )
    shown.add_argument(
        "--out", type=path_of, default=Path("out"), help="folder for the plots (default out)"
    )
    shown.add_argument(
        "--seeds",
        type=whole(1, _MOST_SEEDS),
        default=5,
        metavar="N",
        help="number of noise seeds; results are means with standard errors (default 5)",
    )
    place = shown.add_mutually_exclusive_group()
    place.add_argument("--kafka", **SETTING["kafka"])
    place.add_argument("--workers", type=whole(1, _MOST_WORKERS), metavar="N", help="(default 2)")


def _add_worker(verbs: Any) -> None:
    worker = verb(
        verbs,
        "worker",
        commands.worker,
        "apply the log and answer it; start as many as you like",
        (*OBSERVER, "partitions", "health"),
        "Its log goes to standard error; with --json to standard output, one JSON object a line.",
    )
    worker.add_argument("--log-format", choices=LOG_FORMATS, help="of its log (default text)")
    worker.add_argument(
        "--log-level", type=str.upper, choices=_LOG_LEVELS, default="INFO", help="(default INFO)"
    )


def _add_datasets(verbs: Any) -> None:
    dataset = verbs.add_parser("dataset", help="create, show, list, withdraw or close datasets")
    verbs = dataset.add_subparsers(required=True, metavar="COMMAND")
    create = verb(verbs, "create", commands.dataset_create, "fix the policy of a dataset", CLIENT)
    create.add_argument("name", type=name_of)
    create.add_argument("--measure", default="zcdp", choices=get_args(Measure))
    create.add_argument("--epsilon", type=float)
    create.add_argument("--delta", type=float)
    create.add_argument(
        "--budget", type=float, nargs="+", help="rho (zcdp), mu (gdp), one per order (renyi)"
    )
    create.add_argument("--orders", type=float, nargs="+", help="Rényi orders")
    create.add_argument("--odometer-step", type=float, nargs="+", help="in the unit of the budget")
    create.add_argument("--on-exhaustion", default="halt", choices=get_args(OnExhaustion))
    create.add_argument(
        "--user-ids",
        choices=get_args(UserIds),
        help="which ids it has (default one-kind: integers or strings, whichever comes first)",
    )
    create.add_argument(
        "--parent",
        type=name_of,
        metavar="DATASET",
        help="another dataset of the same users, whose budget every step has to fit as well",
    )
    create.add_argument(
        "--share-of",
        type=name_of,
        metavar="DATASET",
        help="another dataset of the same users; this one has a fixed part of its budget",
    )
    create.add_argument("--share", type=float, help="that part, above 0 and at most 1")
    create.add_argument(
        "--assume-independent-timing",
        action="store_true",
        help="runs may charge it side by side; their timing must not depend on any user's data",
    )
    create.add_argument(
        "--sampled-levels",
        action=argparse.BooleanOptionalAction,
        help="norm levels may follow sampling coins, so only the whole budget has an epsilon "
        "(default: only if the measure is renyi)",
    )
    add_allow(create)
    access = verb(
        verbs,
        "access",
        commands.dataset_access,
        "replace the access list of a dataset",
        CLIENT,
        "Signed with the setting request_key, by a key that may manage the dataset. Give the whole "
        "new list. Doing it again completes what reached only some partitions.",
    )
    access.add_argument("name", type=name_of)
    add_allow(access, required=True)
    access.add_argument(
        "--copied-from",
        metavar="LOG",
        help="the id of the log that the dataset's requests were signed for before the log was "
        "copied to this topic",
    )
    show = verb(
        verbs, "show", commands.dataset_show, "the policy and the users of a dataset", OBSERVER
    )
    show.add_argument("name", type=name_of)
    listed = verb(verbs, "list", commands.dataset_list, "all datasets", OBSERVER)
    for command in (show, listed):
        add_delta(command)
    withdraw = verb(
        verbs,
        "withdraw",
        commands.dataset_withdraw,
        "take back a dataset of which no run was ever opened",
        CLIENT,
    )
    withdraw.add_argument("name", type=name_of)
    close = verb(
        verbs,
        "close",
        commands.dataset_close,
        "end a dataset for good, those nested in it and all their runs",
        CLIENT,
        "Nothing is charged to them any more, and their names are not used again. What was charged "
        "stays charged. Doing it again completes what reached only some partitions.",
    )
    close.add_argument("name", type=name_of)


def _add_runs(verbs: Any) -> None:
    run = verbs.add_parser("run", help="close runs")
    close = verb(
        run.add_subparsers(required=True, metavar="COMMAND"),
        "close",
        commands.run_close,
        "end a run for good: it can be charged or opened no more",
        CLIENT,
    )
    close.add_argument("dataset", type=name_of)
    close.add_argument("name", metavar="run", type=name_of)

    steps = verb(
        verbs,
        "publish",
        publish.publish,
        "charge the steps of a JSON-lines file, each once however often it is sent",
        CLIENT,
        "A line is one step: dataset, run, users, norms, noise_stddev, and optionally clip_norm, "
        "step and the min_separation of the run. Without step a line is the next one of its "
        "dataset and run in this file, from 0. Steps that were decided before are not charged "
        "again. - reads standard input.",
    )
    steps.add_argument("file", metavar="FILE.jsonl")
    add_take_over(steps)


def _add_erase(verbs: Any) -> None:
    erase = verb(
        verbs,
        "erase",
        commands.erase,
        "erase a user: what was spent stays spent, nothing more is admitted",
        CLIENT,
        "A keyed hash takes the place of the id in what workers keep. The log, and snapshots of "
        "it, have the id until they are trimmed: docs/erasure.md. Doing it again is fine.",
    )
    add_user(erase, "digits mean the integer and the string")
    erase.add_argument(
        "--dataset",
        type=name_of,
        default="all",
        help="in this one and those that share a budget with it, or all (default all)",
    )


def _add_topics(verbs: Any) -> None:
    halts = verb(
        verbs, "halts", commands.halts, "HALT events: who was left out of which step", CLIENT
    )
    halts.add_argument("--dataset", type=name_of)
    halts.add_argument("--run", type=name_of)
    odometer = verb(
        verbs,
        "odometer",
        commands.odometer,
        "odometer checkpoints: what users spent at most",
        OBSERVER,
        "Redis is asked for the policies alone, without which there are no epsilons.",
    )
    odometer.add_argument("--dataset", type=name_of)
    add_delta(odometer)
    add_user(odometer, "digits find the integer and the string", required=False)
    refused = verb(
        verbs,
        "rejects",
        rejects.rejects,
        "what was refused: why, when, from which run, and the record itself",
        CLIENT,
    )
    refused.add_argument("--dataset", type=name_of)
    refused.add_argument(
        "--reason",
        choices=[str(reason) for reason in Reason],
        metavar="REASON",
        help=", ".join(Reason),
    )
    for command in (halts, odometer, refused):
        command.add_argument("--follow", action="store_true", help="wait for more")
