"""The arguments of every command: their names, their help, and which values they take.

A command has only the options that it heeds; an odd value ends here, before anything is started.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final, get_args

import msgspec

from streams.cli import acl, commands, demo, explain, keys, publish, rejects, report, verify
from streams.cli import trim as trimming
from streams.schemas import Measure, Name, OnExhaustion, Reason, UserIds
from streams.topics.access import ROLES

_EPILOG = """\
Settings come from options, then TURNSTILE_KAFKA, TURNSTILE_REDIS, TURNSTILE_PREFIX,
TURNSTILE_PARTITIONS, TURNSTILE_REPLICATION, TURNSTILE_TIMEOUT and TURNSTILE_CHECKPOINT_SECONDS,
then the TOML file that --config or TURNSTILE_CONFIG names. A password belongs in the variable or
the file: other users of this machine can read options. The settings of TLS, logins and signatures
are variables and entries of the file alone: docs/security.md.

exit codes: 0 done; 1 refused, or verify found something; 2 unusable arguments or input; 69 Kafka,
Redis or the workers do not answer, or status found a problem; 70 a bug or contradicting decisions;
75 (worker only) start me again; 130 interrupted
"""

_SETTINGS: Final[dict[str, dict[str, Any]]] = {
    "kafka": {"metavar": "HOST:PORT", "help": "bootstrap servers"},
    "redis": {"metavar": "URL", "help": "redis://host:port/db"},
    "prefix": {"help": "of the topics and Redis keys (default turnstile.)"},
    "timeout": {"type": float, "metavar": "S", "help": "seconds to wait (default 30)"},
    "config": {"type": str, "metavar": "FILE", "help": "a TOML file with settings"},
    "partitions": {"metavar": "P", "help": "partitions of new topics (default 4)"},
    "health": {
        "metavar": "HOST:PORT",
        "help": "answer /healthz, /metrics and the like there",
    },
}
SETTINGS: Final = tuple(_SETTINGS)
"""What an option may set in place of a variable or a file."""

_CLIENT: Final = ("kafka", "prefix", "timeout", "config")
_OBSERVER: Final = ("kafka", "redis", "prefix", "timeout", "config")
_MOST_WORKERS: Final = 100
_MOST_BROKERS: Final = 9
_MOST_SEEDS: Final = 1000
_DELTA: Final = 1e-5
_METHODS: Final = ("tightest", "pld", "renyi", "saddlepoint")
_LOG_LEVELS: Final = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The options of one command; ends the process with exit code 2 where they make no sense."""
    parser = _new_parser()
    options = parser.parse_args(arguments)
    for name, value in vars(options).items():
        if value == []:  # what argparse makes of `--name=--`
            parser.error(f"argument --{name.replace('_', '-')}: expected a value")
    return options


def _new_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="turnstile",
        description="Individual privacy accounting on Kafka: norms in, admissions and HALTs out.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {_version()}")
    verbs = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    _add_local(verbs)
    _add_worker(verbs)
    _add_datasets(verbs)
    _add_runs(verbs)
    _add_topics(verbs)
    _add_security(verbs)
    _verb(verbs, "status", commands.status, "partitions, owners, lag, users", _OBSERVER)
    _add_offline(verbs)
    _add_trim(verbs)
    return parser


def _add_local(verbs: Any) -> None:
    up = _verb(
        verbs,
        "up",
        commands.up,
        "run a local broker, Redis and workers until Ctrl-C or SIGTERM",
        ("prefix", "config", "partitions"),
        "It starts a broker and a Redis of its own. To work on others, start `turnstile worker`.",
    )
    up.add_argument(
        "--workers", type=_whole(0, _MOST_WORKERS), default=1, metavar="N", help="(default 1)"
    )
    up.add_argument(
        "--secure",
        action="store_true",
        help="with TLS, logins, rights and signed decisions; prints the settings of each role",
    )
    up.add_argument(
        "--brokers",
        type=_whole(1, _MOST_BROKERS),
        default=1,
        metavar="N",
        help="(default 1); with 3, one may be lost",
    )
    up.add_argument("--data", type=_path, metavar="DIR", help="keep the data here between runs")

    shown = _verb(
        verbs,
        "demo",
        demo.demo,
        "private trainings, and a stream of private queries",
        ("prefix", "timeout", "config"),
        "It starts a broker, a Redis and workers of its own, unless --kafka names a broker whose "
        "workers are running.",
    )
    shown.add_argument(
        "kind",
        choices=["mnist", "dpsgd", "cdnow", "all"],
        nargs="?",
        default="all",
        help="(default all)",
    )
    shown.add_argument(
        "--data", type=_path, metavar="DIR", help="folder with the MNIST or CDNOW files"
    )
    shown.add_argument("--out", type=_path, default=Path("out"), help="for the plots (default out)")
    shown.add_argument(
        "--seeds",
        type=_whole(1, _MOST_SEEDS),
        default=1,
        metavar="N",
        help="repeat with N seeds of the noise: means, with standard errors (default 1)",
    )
    place = shown.add_mutually_exclusive_group()
    place.add_argument("--kafka", **_SETTINGS["kafka"])
    place.add_argument("--workers", type=_whole(1, _MOST_WORKERS), metavar="N", help="(default 2)")


def _add_worker(verbs: Any) -> None:
    worker = _verb(
        verbs,
        "worker",
        commands.worker,
        "apply the log and answer it; start as many as you like",
        (*_OBSERVER, "partitions", "health"),
        "With --json its log is one JSON object a line.",
    )
    worker.add_argument(
        "--log-level", type=str.upper, choices=_LOG_LEVELS, default="INFO", help="(default INFO)"
    )


def _add_datasets(verbs: Any) -> None:
    dataset = verbs.add_parser("dataset", help="create, show, list or withdraw datasets")
    verbs = dataset.add_subparsers(required=True, metavar="COMMAND")
    create = _verb(verbs, "create", commands.dataset_create, "fix the policy of a dataset", _CLIENT)
    create.add_argument("name", type=_name)
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
        "--within",
        type=_name,
        metavar="DATASET",
        help="another dataset of the same users, whose budget every step has to fit as well",
    )
    show = _verb(
        verbs, "show", commands.dataset_show, "the policy and the users of a dataset", _OBSERVER
    )
    show.add_argument("name", type=_name)
    _verb(verbs, "list", commands.dataset_list, "all datasets", _OBSERVER)
    withdraw = _verb(
        verbs,
        "withdraw",
        commands.dataset_withdraw,
        "take back a dataset of which no run was ever opened",
        _CLIENT,
    )
    withdraw.add_argument("name", type=_name)


def _add_runs(verbs: Any) -> None:
    run = verbs.add_parser("run", help="close runs")
    close = _verb(
        run.add_subparsers(required=True, metavar="COMMAND"),
        "close",
        commands.run_close,
        "end a run for good: it can be charged or opened no more",
        _CLIENT,
    )
    close.add_argument("dataset", type=_name)
    close.add_argument("name", metavar="run", type=_name)

    steps = _verb(
        verbs,
        "publish",
        publish.publish,
        "charge the steps of a JSON-lines file, each once however often it is sent",
        _CLIENT,
        "A line is one step: dataset, run, users, norms, noise_stddev, and optionally clip_norm, "
        "step and the min_separation of the run. Without step a line is the next one of its "
        "dataset and run in this file, from 0. Steps that were decided before are not charged "
        "again. - reads standard input.",
    )
    steps.add_argument("file", metavar="FILE.jsonl")


def _add_topics(verbs: Any) -> None:
    halts = _verb(
        verbs, "halts", commands.halts, "HALT events: who was left out of which step", _CLIENT
    )
    halts.add_argument("--dataset", type=_name)
    halts.add_argument("--run", type=_name)
    odometer = _verb(
        verbs,
        "odometer",
        commands.odometer,
        "odometer checkpoints: what users spent at most",
        _CLIENT,
    )
    odometer.add_argument("--dataset", type=_name)
    odometer.add_argument("--user", help="one user's id; digits find the integer and the string")
    refused = _verb(
        verbs,
        "rejects",
        rejects.rejects,
        "what was refused: why, when, from which run, and the record itself",
        _CLIENT,
    )
    refused.add_argument("--dataset", type=_name)
    refused.add_argument(
        "--reason",
        choices=[str(reason) for reason in Reason],
        metavar="REASON",
        help=", ".join(Reason),
    )
    for command in (halts, odometer, refused):
        command.add_argument("--follow", action="store_true", help="wait for more")


def _add_offline(verbs: Any) -> None:
    verified = _verb(
        verbs,
        "verify",
        verify.verify,
        "apply the log once more and compare all that was kept and published",
        _OBSERVER,
        "It needs no worker, writes nothing to Kafka or Redis, and may run while the service does. "
        "Findings name other people's data: they are for whoever runs the service. Exit code 0 "
        "only if everything was compared and fits, 1 otherwise.",
    )
    verified.add_argument(
        "--receipt", type=_path, metavar="FILE", help="write a receipt of the log if all of it fits"
    )
    verified.add_argument(
        "--key",
        type=_path,
        metavar="FILE",
        help="a key of `turnstile keys new` to sign it with",
    )
    verified.add_argument(
        "--against",
        type=_path,
        metavar="RECEIPT",
        help="an earlier receipt: the log has to continue the one that it is of",
    )
    verified.add_argument(
        "--public-key",
        type=_path,
        metavar="FILE",
        help="the public key of whoever signed that receipt",
    )
    explained = _verb(
        verbs,
        "explain",
        explain.explain,
        "what happened to one user: every charge, every denial and its reason",
        _CLIENT,
        "It is told from the log, needs no worker, and has nothing of anybody else in it: it is "
        "for that user's eyes. A user who was never charged and one who does not exist get the "
        "same answer.",
    )
    explained.add_argument(
        "--user", required=True, help="the id; digits find the integer and the string"
    )
    explained.add_argument(
        "--dataset", type=_name, help="only what counts against the budget of this one"
    )
    explained.add_argument(
        "--delta",
        type=_delta,
        default=_DELTA,
        metavar="D",
        help=f"at which epsilons are told (default {_DELTA:g})",
    )
    explained.add_argument("--csv", action="store_true", help="one line for each budget")
    reported = _verb(
        verbs,
        "report",
        report.report,
        "what every user has lost, from the history that the log has",
        _CLIENT,
        "A row is for its own user's eyes, or goes out through a private release. Where levels may "
        "have followed coins, as Roster.observe has them, no report would hold, and none is made.",
    )
    reported.add_argument("--dataset", type=_name, help="this one alone")
    reported.add_argument(
        "--delta",
        type=_delta,
        default=_DELTA,
        metavar="D",
        help=f"of the epsilons (default {_DELTA:g})",
    )
    reported.add_argument(
        "--method",
        default="tightest",
        choices=_METHODS,
        help="Rényi divergences, loss distributions, the saddle point, or the least of the three "
        "(default tightest)",
    )
    reported.add_argument(
        "--output",
        type=_path,
        metavar="FILE",
        help="a .csv or .parquet file; without it the rows go to standard output",
    )
    reported.add_argument(
        "--levels-public",
        action="store_true",
        help="you know that no level, and nobody's part in a step, ever followed a coin",
    )


def _add_security(verbs: Any) -> None:
    rights = _verb(
        verbs,
        "acl",
        acl.acl,
        "the rights of each role on Kafka and Redis, printed or given",
        ("kafka", "prefix", "timeout", "config"),
        "Without --principal, one principal of each role is named like the role. --apply gives the "
        "rights on Kafka, as the user that the settings name, who has to be a super user.",
    )
    rights.add_argument(
        "--principal",
        type=acl.principal,
        action="append",
        metavar="ROLE=User:NAME",
        help=f"who has a role; again for more. Roles: {', '.join(ROLES)}",
    )
    what = rights.add_mutually_exclusive_group()
    what.add_argument("--format", choices=acl.FORMATS, default="table", help="(default table)")
    what.add_argument("--apply", action="store_true", help="give the rights on Kafka")

    topics = verbs.add_parser("topics", help="create the topics, where workers may not")
    _verb(
        topics.add_subparsers(required=True, metavar="COMMAND"),
        "create",
        commands.topics_create,
        "create the topics that are missing; doing it again is fine",
        ("kafka", "prefix", "timeout", "config", "partitions"),
    )

    pairs = verbs.add_parser("keys", help="keys by which decisions are signed")
    made = _verb(
        pairs.add_subparsers(required=True, metavar="COMMAND"),
        "new",
        keys.new,
        "make a private key for workers, and the public key for those who read what they say",
        (),
        "A file that is there already is not overwritten.",
    )
    made.add_argument(
        "--out", type=_path, metavar="FILE", help="for the private key, readable by its owner alone"
    )


def _add_trim(verbs: Any) -> None:
    trim = _verb(
        verbs,
        "trim",
        trimming.trim_log,
        "delete the records of the log that a checkpoint covers",
        _CLIENT,
        "Of each partition the last checkpoint is read and verified first; what it does not cover "
        "stays, and so does everything if anything is wrong with it. Exit code 1 says so.",
    )
    trim.add_argument("--dry-run", action="store_true", help="say what would be deleted, only")


def _verb(
    verbs: Any,
    name: str,
    handler: Callable[..., int],
    summary: str,
    settings: tuple[str, ...],
    more: str = "",
) -> argparse.ArgumentParser:
    command: argparse.ArgumentParser = verbs.add_parser(
        name,
        help=summary,
        description=f"{summary[0].upper()}{summary[1:]}. {more}".strip(),
        allow_abbrev=False,
    )
    command.set_defaults(handler=handler)
    for setting in settings:
        command.add_argument(f"--{setting}", **_SETTINGS[setting])
    command.add_argument("--json", action="store_true", help="one JSON object a line")
    return command


def _whole(least: int, most: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        number = int(text) if re.fullmatch(r"-?[0-9]{1,18}", text) else None
        if number is None or not least <= number <= most:
            raise argparse.ArgumentTypeError(f"{text!r} is no whole number from {least} to {most}")
        return number

    return parse


def _delta(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0.0 < number < 1.0:
        raise argparse.ArgumentTypeError(f"{text!r} is no number above 0 and below 1")
    return number


def _path(text: str) -> Path:
    if not text.strip():  # a variable that is not set, and not the folder that one is in
        raise argparse.ArgumentTypeError("it is empty; give a path")
    return Path(text)


def _name(text: str) -> str:
    try:
        return msgspec.convert(text, Name)
    except msgspec.ValidationError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no name: 1 to 128 letters, digits, dots, dashes and underscores, "
            "the first a letter or a digit"
        ) from None


def _version() -> str:
    try:
        return version("dp-turnstile")
    except PackageNotFoundError:
        return "(not installed)"
