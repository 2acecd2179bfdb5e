"""The arguments of the commands that read the log again: verify, explain, report, trim."""

from __future__ import annotations

from typing import Any, Final

from streams.cli.options import (
    CLIENT,
    OBSERVER,
    Later,
    add_delta,
    add_take_over,
    add_user,
    delta_of,
    name_of,
    number_above_0,
    path_of,
    verb,
)

explain = Later("streams.cli.explain")
report = Later("streams.cli.report")
trimming = Later("streams.cli.trim")
verify = Later("streams.cli.verify")

_METHODS: Final = ("tightest", "pld", "renyi", "saddlepoint")


def add_offline(verbs: Any) -> None:
    """Add them."""
    verified = verb(
        verbs,
        "verify",
        verify.verify,
        "apply the log once more and compare all that was kept and published",
        OBSERVER,
        "It needs no worker, writes nothing to Kafka or Redis, and may run while the service does. "
        "Findings name other people's data: they are for whoever runs the service. Exit code 0 "
        "only if everything was compared and fits, 1 otherwise.",
    )
    verified.add_argument(
        "--receipt",
        type=path_of,
        metavar="FILE",
        help="write a receipt of the log if all of it fits",
    )
    verified.add_argument(
        "--key",
        type=path_of,
        metavar="FILE",
        help="a key of `turnstile keys new` to sign it with",
    )
    verified.add_argument(
        "--against",
        type=path_of,
        metavar="RECEIPT",
        help="an earlier receipt: the log has to continue the one that it is of",
    )
    verified.add_argument(
        "--public-key",
        type=path_of,
        metavar="FILE",
        help="a file with the public key of whoever signed that receipt, as `turnstile keys new` "
        "prints it or in PEM",
    )
    explained = verb(
        verbs,
        "explain",
        explain.explain,
        "what happened to one user: every charge, every HALT and its reason",
        OBSERVER,
        "The log is replayed without a worker. It must have the heads of the hash chain that Redis "
        "and the last snapshot store, or the command shows nothing and exits with 1. The output "
        "is about this user alone. A user who was never charged and one who does not exist get "
        "the same answer.",
    )
    add_user(explained, "digits find the integer and the string")
    explained.add_argument(
        "--dataset", type=name_of, help="only what counts against the budget of this one"
    )
    add_delta(explained)
    explained.add_argument("--csv", action="store_true", help="one line for each budget")
    reported = verb(
        verbs,
        "report",
        report.report,
        "what every user's steps lose, as a fixed schedule and at any time",
        OBSERVER,
        "The log is replayed without a worker. It must have the heads of the hash chain that Redis "
        "and the last snapshot store, or the command shows nothing and exits with 1. Each row is "
        "for its own user, or goes out through a private release. The column epsilon bounds the "
        "loss of a fixed schedule of the same steps. It is no guarantee for steps, or a stop, that "
        "followed from outputs. any_time_epsilon is one; it is empty after sampled steps. No "
        "report is made if levels may have followed sampling coins (Roster.observe).",
    )
    reported.add_argument("--dataset", type=name_of, help="this one alone")
    add_delta(reported)
    reported.add_argument(
        "--method",
        default="tightest",
        choices=_METHODS,
        help="loss distributions (pld), Rényi divergences, the saddle point, or the smaller bound "
        "of the first two (default tightest)",
    )
    reported.add_argument(
        "--output",
        type=path_of,
        metavar="FILE",
        help="a .csv or .parquet file; without it the rows go to standard output",
    )
    reported.add_argument(
        "--aggregate",
        action="store_true",
        help="release, with noise, the mean and quantiles of what share of their budgets the users "
        "of --dataset have spent, and charge them for it",
    )
    reported.add_argument(
        "--rho", type=number_above_0, metavar="RHO", help="what that costs a user at most, in zCDP"
    )
    reported.add_argument(
        "--quantiles",
        type=delta_of,
        nargs="+",
        metavar="Q",
        help="which of them (default 0.1 0.5 0.9)",
    )
    add_take_over(reported)
    _add_trim(verbs)


def _add_trim(verbs: Any) -> None:
    trim = verb(
        verbs,
        "trim",
        trimming.trim_log,
        "delete the records of the log that a snapshot covers",
        CLIENT,
        "Of each partition the last snapshot is read and verified first; what it does not cover "
        "stays, and so does everything if anything is wrong with it. Exit code 1 says so.",
    )
    trim.add_argument("--dry-run", action="store_true", help="say what would be deleted, only")
