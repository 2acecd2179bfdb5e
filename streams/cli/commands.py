"""The table of commands: name, function, help, lines of ``--json``, and arguments.

The function of a command is imported when the command is called: `turnstile status`, which is
called every few seconds, does not import what other commands need. To add a command, add a row
here and write its function in the module that the row names. `make reference` updates the tables
in the documentation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Final

from streams.cli.options import (
    AT_DELTA,
    BROKER,
    CLIENT,
    DATASET_NAME,
    EPSILONS_AT_DELTA,
    FILE_CLIENT,
    FILE_OBSERVER,
    FOLLOW,
    OBSERVER,
    OF_DATASET,
    OF_RUN,
    PAGE_URL,
    TAKE_OVER,
    WORKERS,
    Argument,
    address_of,
    arg,
    delta_of,
    flag,
    hex_id_of,
    log_level,
    name_of,
    page_options,
    path_of,
    role_of,
    setting_option,
    term_option,
    user_option,
    whole,
)
from streams.kafka.access import ROLES
from streams.records import FALSE_POSITIVE_RATE, Reason
from streams.records.terms import TERMS

SIGNING_KEY: Final = arg(
    "--key FILE", "a key of `turnstile keys new`, which signs the receipt", path_of
)
MOST_DAYS: Final = 3660
"""Days for which a link to a user's page can be valid."""


@dataclass(frozen=True)
class Command:
    """One command.

    Attributes:
        name: its words, for example "dataset create".
        function: the module in ``streams.cli`` and the function, as "module:function".
        summary: one line about it; it continues a sentence.
        settings: the settings that it reads, and that options can replace.
        arguments: its other arguments.
        lines: the types of the lines that it prints with ``--json``. Without any it has no
            ``--json``.
        more: further sentences for its ``--help``.
    """

    name: str
    function: str
    summary: str
    settings: tuple[str, ...] = ()
    arguments: tuple[Argument, ...] = ()
    lines: tuple[str, ...] = ()
    more: str = ""

    def load(self) -> Callable[..., int]:
        """Import the function of the command."""
        module, name = self.function.split(":")
        function: Callable[..., int] = getattr(import_module(f"streams.cli.{module}"), name)
        return function


GROUPS: Final = {
    "dataset": "create, show, list, withdraw or close datasets, and set their access lists",
    "run": "close runs",
    "topics": "create the topics, if workers may not",
    "keys": "create keys for signatures",
}
"""The help of words that are followed by a command."""

_LOCAL: Final = (
    Command(
        "up",
        "local_commands:up",
        "run a local broker, Redis and workers until Ctrl-C or SIGTERM",
        ("prefix", "config", "partitions"),
        (
            arg("--workers N", "", whole(0, 100), default=1),
            flag(
                "--secure",
                "with TLS, logins, rights and signed decisions; prints the settings of each role",
            ),
            arg("--data DIR", "keep the data and the ports here", path_of),
            flag(
                "--free-ports",
                "use other ports than 9092 and 6379, which the broker and Redis use if they are "
                "free",
            ),
        ),
        ("service",),
        "It starts its own broker and Redis. To use others, start `turnstile worker`. The data are "
        "readable by their owner only.",
    ),
    Command(
        "demo",
        "local_commands:demo",
        "compare individual accounting with the strongest baselines",
        ("prefix", "timeout", "config"),
        (
            arg(
                "--data DIR",
                "the folder with the CDNOW purchase log (default: a simulated shop)",
                path_of,
            ),
            arg("--out DIR", "the folder for the plot", path_of, default=Path("out")),
            arg(
                "--seeds N",
                "the number of noise seeds; results are means with standard errors",
                whole(1, 1000),
                default=5,
            ),
            setting_option("kafka", rivals="place"),
            arg("--workers N", "(default 2)", whole(1, 100), rivals="place"),
        ),
        ("demo",),
        "It answers the daily revenue of a shop, as `turnstile answer` does, under individual "
        "accounting and under baselines with the same guarantee. The demo starts a broker, Redis "
        "and workers, unless --kafka names a broker with running workers.",
    ),
    Command(
        "worker",
        "local_commands:worker",
        "run one worker; start more to scale, at most one for each partition",
        (*OBSERVER, "partitions", "health", "log_format"),
        (log_level("INFO"),),
        more="Its log goes to standard error.",
    ),
    Command(
        "topics create",
        "local_commands:topics_create",
        "create the missing topics, if workers have no right to; may be repeated",
        BROKER,
        lines=("topics",),
    ),
)

_DATASETS: Final = (
    Command(
        "dataset create",
        "dataset_commands:create",
        "create a dataset with a policy that never changes",
        FILE_CLIENT,
        (DATASET_NAME, *map(term_option, TERMS)),
        ("dataset",),
        "The same command again checks that the dataset has this policy.",
    ),
    Command(
        "dataset access",
        "dataset_commands:set_access",
        "replace the access list of a dataset",
        FILE_CLIENT,
        (
            DATASET_NAME,
            term_option("allow", required=True),
            arg(
                "--copied-from LOG",
                "the id of the log for which the dataset's requests were signed, if the log was "
                "copied to this topic",
            ),
        ),
        ("access_list",),
        "Give the whole new list. The request is signed with the setting request_key, by a key "
        "that may manage the dataset. Repeat the command to complete a request that reached only "
        "some partitions.",
    ),
    Command(
        "dataset show",
        "dataset_commands:show_one",
        "show the policy and the number of users of a dataset",
        FILE_OBSERVER,
        (DATASET_NAME, AT_DELTA),
        ("dataset",),
    ),
    Command(
        "dataset list",
        "dataset_commands:listed",
        "list all datasets",
        FILE_OBSERVER,
        (AT_DELTA,),
        ("dataset",),
    ),
    Command(
        "dataset withdraw",
        "dataset_commands:withdraw",
        "delete a dataset of which no run was ever opened",
        FILE_CLIENT,
        (DATASET_NAME,),
        ("withdrawn_dataset",),
    ),
    Command(
        "dataset close",
        "dataset_commands:close",
        "close a dataset permanently, with the datasets inside it and all their runs",
        FILE_CLIENT,
        (DATASET_NAME,),
        ("closed_dataset",),
        "They are never charged again, and their names are not used again. Their charges remain. "
        "Repeat the command to complete a request that reached only some partitions.",
    ),
    Command(
        "run close",
        "dataset_commands:close_run",
        "close a run permanently: it can no longer be charged or opened",
        FILE_CLIENT,
        (
            arg("dataset", "the name of the dataset", name_of),
            arg("name", "the name of the run", name_of, metavar="RUN"),
        ),
        ("closed_run",),
    ),
    Command(
        "runs",
        "dataset_commands:runs",
        "show the progress of each run, its state, and how many of its users are halted",
        FILE_OBSERVER,
        (OF_DATASET,),
        ("run",),
        "The owners of the partitions report this every two seconds; no state is read. Users are "
        "those of the last step, or of the roster. The number of halted users depends on the "
        "users' data: do not publish it.",
    ),
    Command(
        "publish",
        "dataset_commands:publish",
        "charge the steps of a JSON Lines file, each once even if the file is sent again",
        FILE_CLIENT,
        (arg("file", "the file, or - for standard input", metavar="FILE.jsonl"), TAKE_OVER),
        ("step",),
        "A line is one step: dataset, run, users, norms, noise_stddev, and optionally clip_norm, "
        "step and the min_separation of the run. A line without step is the next one of its "
        "dataset and run in this file, from 0. Steps that were decided before are not charged "
        "again.",
    ),
    Command(
        "erase",
        "dataset_commands:erase",
        "erase a user permanently: the spending remains, and the user is never admitted again",
        FILE_CLIENT,
        (
            user_option("digits mean the integer and the string"),
            arg(
                "--dataset",
                "this one and those that share a budget with it, or all",
                name_of,
                default="all",
            ),
        ),
        ("erased_user",),
        "A keyed hash replaces the id in the workers' state. The log and its snapshots contain "
        "the id until they are trimmed: docs/operate/erasure.md. The command may be repeated.",
    ),
)

_RECORDS: Final = (
    Command(
        "halts",
        "topic_commands:halts",
        "show HALT events: which users were halted at which step",
        FILE_CLIENT,
        (OF_DATASET, OF_RUN, FOLLOW),
        ("halt",),
    ),
    Command(
        "odometer",
        "topic_commands:odometer",
        "show odometer records: upper bounds on what users have spent",
        FILE_OBSERVER,
        (
            OF_DATASET,
            AT_DELTA,
            user_option("digits find the integer and the string", required=False),
            FOLLOW,
        ),
        ("odometer",),
        "Each record is for its own user. Without Redis, which has the policies, epsilons are "
        "missing.",
    ),
    Command(
        "balance",
        "dataset_commands:balance",
        "show what a user has spent and has left, as Redis has it: needs no Kafka and no worker",
        ("redis", "prefix", "config"),
        (DATASET_NAME, user_option("digits find the integer and the string")),
        ("balance",),
        "A line for each budget that a charge draws on. It includes the records of the user's "
        "partition before `offset`. All state of the partition is read and verified.",
    ),
    Command(
        "rejects",
        "topic_commands:rejects",
        "show rejected requests: why, when, from which run, and the record itself",
        FILE_CLIENT,
        (
            OF_DATASET,
            arg("--reason REASON", ", ".join(Reason), choices=[str(reason) for reason in Reason]),
            FOLLOW,
        ),
        ("reject",),
        "A request that several partitions rejected is one line; with --follow, each rejection is.",
    ),
    Command(
        "answer",
        "topic_commands:answer",
        "answer the queries of a file privately, as windows of events close",
        (*CLIENT, "health", "log_format"),
        (
            arg("file", "the queries", path_of, metavar="QUERIES.toml"),
            arg("--input FILE", "past events: .csv, .jsonl or .parquet", path_of),
            flag(
                "--check",
                "show the queries and their noise, and what of --input cannot be read; charge "
                "nothing",
                rivals="events",
            ),
            flag(
                "--accept-skipped",
                "go on without the rows of a file that cannot be read; without it, their number by "
                "reason is shown, and nothing is charged",
            ),
            flag(
                "--plan",
                "show the error of answers for several active_windows, computed from public "
                "or simulated --events; charge nothing",
                rivals="events",
            ),
            arg("--events FILE", "the events of --plan: .csv, .jsonl or .parquet", path_of),
            arg("--query NAME", "the query of --plan (default: the first that can be planned)"),
            arg("--epsilon", "for --plan and --check, instead of the dataset's budget", float),
            arg("--delta", "the delta of --epsilon", float),
            arg("--plot FILE", "draw the plan: .png, .svg or .pdf; needs the extra plot", path_of),
            flag("--public", "the events of --plan are public, so do not mark it as private"),
            flag(
                "--charge-again",
                "answer windows that another run has answered; their users are charged again",
            ),
            TAKE_OVER,
            log_level("WARNING"),
        ),
        ("answer", "correction", "query", "plan"),
        "Events come from the topic that the file names, or from --input. Every window is charged "
        "for each user and released once, to the topic `answers`. After a crash, start the command "
        "again and it continues. docs/query/file.md describes the file.",
    ),
    Command(
        "answers",
        "answer_commands:answers",
        "show the private answers that were published, each once, or write them to files",
        CLIENT,
        (
            OF_DATASET,
            OF_RUN,
            arg("--query NAME", "only this query"),
            FOLLOW,
            arg("--csv FILE", "write a row for each number of each window", path_of),
            arg(
                "--parquet FILE",
                "the same rows, with their types; needs the extra report",
                path_of,
            ),
            arg(
                "--plot FILE",
                "draw each query over time: .svg, .png or .pdf; needs the extra plot",
                path_of,
            ),
        ),
        ("answer", "correction", "file"),
        "Answers are public, and so are these files. In the table and the files, corrections "
        "replace the answers of their windows; --json and --follow show every record. With the "
        "setting answer_keys, only those that an answerer signed: docs/operate/security.md.",
    ),
)

_SECURITY: Final = (
    Command(
        "acl",
        "operator_commands:acl",
        "print or grant the rights of each role on Kafka and Redis",
        ("kafka", "prefix", "timeout", "config"),
        (
            arg(
                "--principal ROLE=User:NAME",
                "a principal with this role; may be given several times. Roles: "
                + ", ".join(ROLES),
                role_of,
                action="append",
            ),
            arg(
                "--format",
                "",
                choices=("table", "strimzi", "redis"),
                default="table",
                rivals="what",
            ),
            flag("--apply", "grant the rights on Kafka", rivals="what"),
        ),
        ("right", "granted_rights"),
        "Without --principal, each role has one principal with the name of the role. --apply "
        "grants the rights as the user in the settings, who must be a super user.",
    ),
    Command(
        "keys new",
        "operator_commands:new_keys",
        "create a private key, and the public key for those who check its signatures",
        (),
        (
            arg(
                "--for",
                "what it signs: workers' decisions, an answerer's answers or a client's requests",
                dest="purpose",
                choices=("decisions", "answers", "requests"),
                default="decisions",
            ),
            arg(
                "--out FILE", "a new file for the private key, readable by its owner only", path_of
            ),
        ),
        ("keys",),
        "An existing file is not overwritten.",
    ),
)

_OPERATIONS: Final = (
    Command(
        "status",
        "operator_commands:status",
        "show each partition's state, owner, lag and users, and the datasets",
        FILE_OBSERVER,
        (EPSILONS_AT_DELTA, flag("--watch", "show it again every two seconds, until Ctrl-C")),
        ("partition",),
        "Exit code 69 if a partition is not decided. `turnstile dataset list --json` has the "
        "datasets.",
    ),
    Command(
        "doctor",
        "operator_commands:doctor",
        "find problems and risks of the service, with remedies",
        OBSERVER,
        (
            WORKERS,
            arg(
                "--answerer HOST:PORT",
                "the --health address of an answerer; may be given several times",
                address_of,
                action="append",
            ),
        ),
        ("finding",),
        "It asks Kafka, Redis, the workers and this machine, and changes nothing. Exit code 1 if "
        "something is wrong; warnings do not count.",
    ),
    Command(
        "trim",
        "operator_commands:trim_log",
        "delete the records of the log that a snapshot covers",
        CLIENT,
        (flag("--dry-run", "only show what would be deleted"),),
        ("trim",),
        "The last snapshot of each partition is read and verified first. Records that it does "
        "not cover remain. If anything is wrong with it, nothing is deleted, and the exit code is "
        "1.",
    ),
    Command(
        "dashboard",
        "page_commands:dashboard",
        "serve live, read-only pages about the service and its answers until Ctrl-C or SIGTERM",
        OBSERVER,
        (*page_options("127.0.0.1:8480"), AT_DELTA, WORKERS),
        ("page",),
        "All users of this machine see the state of the service and, at /answers, the published "
        "answers. Numbers of users, runs, spending and rejected records need the password in "
        "TURNSTILE_DASHBOARD_PASSWORD_FILE. Without one the command creates a password and prints "
        "it. If other machines can reach the pages, they need a password for everything, and TLS.",
    ),
    Command(
        "gateway",
        "gateway_command:gateway",
        "serve an HTTP API for callers without a Kafka client, until Ctrl-C or SIGTERM",
        FILE_OBSERVER,
        (
            *page_options("127.0.0.1:8482"),
            arg(
                "--most N",
                "the requests that are handled at the same time; others get status 429",
                whole(1, 1024),
                default=32,
            ),
            arg(
                "--largest BYTES",
                "the largest body of a request",
                whole(1024, 2**30),
                default=2**23,
            ),
        ),
        ("page",),
        "It holds no state and no key: any number of gateways can run side by side. A caller sends "
        "its private key with each request, and the gateway signs the request with it. If other "
        "machines can reach the gateway, it needs TLS, and the callers' public keys in "
        "TURNSTILE_GATEWAY_KEYS_FILE. docs/gateway.md has the paths and the errors.",
    ),
    Command(
        "portal",
        "page_commands:portal",
        "serve a page that shows users what was spent of their budgets, until Ctrl-C or SIGTERM",
        OBSERVER,
        (
            *page_options("127.0.0.1:8481"),
            arg(
                "--most N",
                "the records that the portal can hold, about 100 bytes of disk each",
                whole(2**10, 2**32),
                default=2**24,
            ),
            AT_DELTA,
        ),
        ("page",),
        "A user opens the page with a link from `turnstile portal link`, which is valid for one "
        "visit. Links are signed with the key in TURNSTILE_PORTAL_KEY_FILE. The file in "
        "TURNSTILE_PORTAL_STATE stores opened and revoked links. The portal reads the topics "
        "odometer and halts, and policies from Redis.",
    ),
    Command(
        "portal link",
        "page_commands:portal_link",
        "print a link with which one user opens the page",
        ("prefix", "config"),
        (
            user_option("--user-ids says what digits mean"),
            arg(
                "--user-ids",
                "the kind of an id of digits; no default",
                choices=("integer", "string"),
            ),
            arg(
                "--dataset",
                "show this one; may be given several times (default: all with records of the user)",
                name_of,
                action="append",
            ),
            arg(
                "--days N",
                "the days for which the link and its session are valid",
                whole(1, MOST_DAYS),
                default=7,
            ),
            PAGE_URL,
        ),
        ("link",),
        "The link is the user's secret. It is valid for one visit: only the browser that opens it "
        "first sees the page. The command needs only the key in TURNSTILE_PORTAL_KEY_FILE.",
    ),
    Command(
        "portal revoke",
        "page_commands:portal_revoke",
        "end a link and its session",
        ("config",),
        (arg("id", "as `portal link` printed it", hex_id_of, metavar="ID"),),
        ("revoked_link",),
        "The portal need not run. The file in TURNSTILE_PORTAL_STATE must be the portal's.",
    ),
)

_PROVEN: Final = (
    "The command replays the log without a worker. The log must have the heads of the hash chain "
    "that Redis and the last snapshot store; otherwise nothing is shown, and the exit code is 1."
)

_REPLAY: Final = (
    Command(
        "verify",
        "log_commands:verify",
        "replay the log and compare it with all that was stored and published",
        FILE_OBSERVER,
        (
            arg("--receipt FILE", "write a receipt of the log if everything fits", path_of),
            SIGNING_KEY,
            arg("--against RECEIPT", "an earlier receipt, which the log must continue", path_of),
            arg(
                "--public-key FILE",
                "the public key of that receipt's signer, as `turnstile keys new` prints it",
                path_of,
            ),
        ),
        ("mismatch", "verified_partition", "verdict"),
        "It needs no worker, writes nothing to Kafka or Redis, and may run beside the service. "
        "Mismatches contain other people's data: they are for the operator. Exit code 0 only if "
        "everything was compared and fits, 1 otherwise.",
    ),
    Command(
        "backup",
        "log_commands:backup",
        "copy a budget file as of one moment, verify the copy, and write its receipt",
        ("timeout", "config", "budgets"),
        (
            arg("copy", "the new file; its receipt is COPY.receipt.json", path_of, metavar="COPY"),
            SIGNING_KEY,
        ),
        ("mismatch", "verified_partition", "verdict"),
        "Charges wait while the file is copied, and not while the copy is verified. If something "
        "does not fit, there is no receipt, and the exit code is 1. docs/operate/backup.md has the "
        "steps of a restore.",
    ),
    Command(
        "statement",
        "statement_command:statement",
        "state the guarantee of a dataset for model cards and registries, backed by verify",
        FILE_OBSERVER,
        (
            DATASET_NAME,
            AT_DELTA,
            SIGNING_KEY,
            arg(
                "--verified RECEIPT",
                "the receipt of an earlier `turnstile verify`, instead of verifying now",
                path_of,
            ),
            arg("--public-key FILE", "the public key of that receipt's signer", path_of),
        ),
        ("statement",),
        "The log is replayed and compared with all that was stored and published. If anything "
        "differs, nothing is stated, and the exit code is 1. The statement has the heads of the "
        "log's hash chain. It has no number of users, and may be published.",
    ),
    Command(
        "import",
        "log_commands:import_file",
        "move a budget file into a service that has no log yet",
        CLIENT,
        (
            arg("budgets", "the file", path_of, metavar="FILE"),
            arg(
                "--instead-of LOG",
                "the log of an earlier import that failed, whose topics were deleted",
                hex_id_of,
            ),
        ),
        ("moved_partition", "moved_file"),
        "The service needs the number of partitions of the file, and no clients until the command "
        "has ended. The file then refuses every charge. The command reads the log of the service "
        "and compares its hash chain with the file. If it is interrupted, run it again. Datasets "
        "with an access list then need `turnstile dataset access --copied-from` with the id that "
        "this command prints as from.",
    ),
    Command(
        "explain",
        "log_commands:explain",
        "explain what happened to one user: every charge, and every HALT with its reason",
        FILE_OBSERVER,
        (
            user_option("digits find the integer and the string"),
            arg("--dataset", "only charges to the budget of this one", name_of),
            EPSILONS_AT_DELTA,
        ),
        ("event",),
        f"{_PROVEN} The output is about this user alone. A user who was never charged and one who "
        "does not exist get the same answer.",
    ),
    Command(
        "report",
        "log_commands:report",
        "report the loss of every user's steps, as a fixed schedule and at any time",
        FILE_OBSERVER,
        (
            OF_DATASET,
            AT_DELTA,
            arg(
                "--false-positive-rate RATE",
                "of the membership attacks whose risk is reported",
                delta_of,
                default=FALSE_POSITIVE_RATE,
            ),
            arg(
                "--method",
                "loss distributions (pld), Rényi divergences, the saddle point (refused where it "
                "proves no bound), or the smaller bound of the first two",
                default="tightest",
                choices=("tightest", "pld", "renyi", "saddlepoint"),
            ),
            arg("--output FILE", "a .csv or .parquet file (default: standard output)", path_of),
        ),
        ("loss", "report"),
        f"{_PROVEN} Each row is for its own user alone. The column epsilon "
        "bounds the loss of a fixed schedule of the same steps. It is no guarantee if steps, or "
        "the end of a run, followed from outputs; any_time_epsilon is one, and is empty after "
        "sampled steps. true_positive_rate and advantage are the success of an attack that tests "
        "whether the user's data was used, for the same schedule; the columns that begin with "
        "budget bound it for the whole budget, and are a guarantee. No report is made if levels "
        "may have followed sampling coins (Roster.observe).",
    ),
)

_COMPLETION: Final = Command(
    "completion",
    "main:completion",
    "print a script that completes commands and options in a shell",
    (),
    (arg("shell", "the shell", choices=("bash", "zsh", "fish")),),
    more="bash: `turnstile completion bash > "
    "~/.local/share/bash-completion/completions/turnstile`. zsh: into a file _turnstile in a "
    "directory of fpath. fish: `turnstile completion fish > "
    "~/.config/fish/completions/turnstile.fish`.",
)

COMMANDS: Final[tuple[Command, ...]] = (
    *_LOCAL,
    *_DATASETS,
    *_RECORDS,
    *_SECURITY,
    *_OPERATIONS,
    *_REPLAY,
    _COMPLETION,
)
"""All commands, in the order of ``--help``."""
