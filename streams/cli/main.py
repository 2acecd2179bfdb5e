"""The argument parser, and what becomes of errors."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from streams.cli import commands
from streams.cli.output import Exit, note
from streams.config import Config, ConfigurationError
from streams.demo.errors import DemoError
from streams.local.errors import LocalStackError
from streams.sdk.errors import (
    ConflictingDecisions,
    DecisionTimeout,
    InvalidCharge,
    Refusal,
    ServiceUnavailable,
)

_EPILOG = """\
Settings come from options, then TURNSTILE_KAFKA, TURNSTILE_REDIS, TURNSTILE_PREFIX,
TURNSTILE_PARTITIONS, TURNSTILE_REPLICATION and TURNSTILE_TIMEOUT, then the TOML file that --config
or TURNSTILE_CONFIG names.

exit codes: 0 done; 1 refused; 2 unusable arguments or input; 69 Kafka, Redis or the workers do not
answer; 70 a bug or contradicting decisions; 75 (worker only) start me again; 130 interrupted
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code."""
    options = _parser().parse_args(arguments)
    handler: Callable[[argparse.Namespace, Config], int] = options.handler
    try:
        config = Config.load(
            options.config,
            kafka=options.kafka,
            redis=options.redis,
            prefix=options.prefix,
            timeout=options.timeout,
            partitions=getattr(options, "partitions", None),
        )
        return handler(options, config)
    except (ConfigurationError, InvalidCharge, DemoError, commands.UnusableInput) as error:
        return _fail(Exit.USAGE, error)
    except Refusal as error:
        return _fail(Exit.REFUSED, error)
    except (ServiceUnavailable, DecisionTimeout, LocalStackError, commands.Unavailable) as error:
        return _fail(Exit.UNAVAILABLE, error)
    except ConflictingDecisions as error:
        return _fail(Exit.SOFTWARE, error)
    except KeyboardInterrupt:
        return Exit.INTERRUPTED
    except BrokenPipeError:
        # The reader went away (head, less): not an error, but nothing more can be written.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return Exit.OK


def _fail(code: Exit, error: Exception) -> int:
    note(f"turnstile: {error}")
    return code


def _parser() -> argparse.ArgumentParser:
    common = _common_options()
    parser = argparse.ArgumentParser(
        prog="turnstile",
        description="Individual privacy accounting on Kafka: norms in, admissions and HALTs out.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    verbs = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")

    def verb(name: str, handler: Any, summary: str, under: Any = verbs) -> argparse.ArgumentParser:
        command: argparse.ArgumentParser = under.add_parser(
            name,
            help=summary,
            description=summary,
            parents=[common],
        )
        command.set_defaults(handler=handler)
        return command

    up = verb("up", commands.up, "run a local broker, Redis and workers until Ctrl-C or SIGTERM")
    up.add_argument("--workers", type=int, default=1, metavar="N", help="workers (default 1)")
    up.add_argument("--partitions", type=int, metavar="P", help="partitions of new topics")
    up.add_argument("--data", type=Path, metavar="DIR", help="keep the data here between runs")

    demo = verb("demo", commands.demo, "a private training, or a stream of private queries")
    demo.add_argument(
        "kind",
        choices=["mnist", "cdnow", "all"],
        nargs="?",
        default="all",
        help="which (default all)",
    )
    demo.add_argument(
        "--data", type=Path, metavar="DIR", help="folder with the MNIST or CDNOW files"
    )
    demo.add_argument("--out", type=Path, default=Path("out"), help="for the plots (default out)")
    demo.add_argument("--workers", type=int, default=2, metavar="N", help="workers (default 2)")

    worker = verb(
        "worker", commands.worker, "fold the log and answer it; start as many as you like"
    )
    worker.add_argument("--partitions", type=int, metavar="P", help="partitions of new topics")
    worker.add_argument("--log-level", default="INFO", help="DEBUG, INFO, WARNING ...")

    dataset = verbs.add_parser("dataset", help="create, show or list datasets")
    dataset_verbs = dataset.add_subparsers(required=True, metavar="COMMAND")
    create = verb("create", commands.dataset_create, "fix the policy of a dataset", dataset_verbs)
    create.add_argument("name")
    create.add_argument("--measure", default="zcdp", choices=["renyi", "zcdp", "gdp", "approx-dp"])
    create.add_argument("--epsilon", type=float)
    create.add_argument("--delta", type=float)
    create.add_argument(
        "--budget", type=float, nargs="+", help="rho (zcdp), mu (gdp), one per order (renyi)"
    )
    create.add_argument("--orders", type=float, nargs="+", help="Renyi orders")
    create.add_argument("--odometer-step", type=float, nargs="+", help="in the unit of the budget")
    create.add_argument("--on-exhaustion", default="halt", choices=["halt", "clip"])
    show = verb(
        "show", commands.dataset_show, "the policy and the users of a dataset", dataset_verbs
    )
    show.add_argument("name")
    verb("list", commands.dataset_list, "all datasets", dataset_verbs)

    publish = verb(
        "publish",
        commands.publish,
        "charge the steps of a JSON-lines file: one step a line, with dataset, run, users, norms "
        "and noise_stddev, and optionally clip_norm; - reads standard input",
    )
    publish.add_argument("file", metavar="FILE.jsonl")

    halts = verb("halts", commands.halts, "HALT events: who was left out of which step")
    halts.add_argument("--dataset")
    halts.add_argument("--run")
    halts.add_argument("--follow", action="store_true", help="wait for more")

    odometer = verb("odometer", commands.odometer, "odometer checkpoints: what users spent at most")
    odometer.add_argument("--dataset")
    odometer.add_argument("--user", help="one user's id; an integer id as a number")
    odometer.add_argument("--follow", action="store_true", help="wait for more")

    verb("status", commands.status, "partitions, owners, lag, users")
    return parser


def _common_options() -> argparse.ArgumentParser:
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--kafka", metavar="HOST:PORT", help="bootstrap servers")
    common.add_argument("--redis", metavar="URL", help="redis://host:port/db")
    common.add_argument("--prefix", help="of the topics and Redis keys (default turnstile.)")
    common.add_argument("--timeout", type=float, metavar="S", help="seconds to wait (default 30)")
    common.add_argument("--config", type=Path, metavar="FILE", help="a TOML file with settings")
    common.add_argument("--json", action="store_true", help="one JSON object a line")
    return common
