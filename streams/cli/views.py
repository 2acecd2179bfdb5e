"""The commands that show a service live: a terminal view, the dashboard and the portal."""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import secrets
import select
import shlex
import signal
import ssl
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from streams.cli.commands import MOST_DAYS
from streams.cli.output import Exit, UnusableInput, note, plain, show
from streams.cli.subjects import user_of
from streams.config import Config, ConfigurationError, lacking
from streams.http_server import HttpServer, is_https, is_loopback
from streams.ledger.outputs import Channel
from streams.operations.status import PartitionState
from streams.operations.watching import Watch
from streams.records import User
from streams.records.users import normal_form
from streams.sdk.layout import Pseudonyms
from streams.web.answers import AnswerReader
from streams.web.dashboard import Dashboard
from streams.web.links import Claims, LinkKeys, Visits, link_to
from streams.web.owner import Owners
from streams.web.portal import Portal
from streams.web.reading import RecordReader
from streams.web.sessions import Sessions

if TYPE_CHECKING:
    from rich.console import Group, RenderableType
    from rich.table import Table

_EVERY = 1.0  # seconds
_FIRST_WITHIN = 15.0
_SHOWN_RUNS = 12
_SHOWN_ALARMS = 6
_SHOWN_PARTITIONS = 16
_BARS = " ▁▂▃▄▅▆▇█"
_OF_A_RUN = ("dataset", "run", "state", "attempt", "step", "rate")
_OLD = "bright_black"
_LOOKS = {
    PartitionState.DECIDING: "green",
    PartitionState.RESTORING: "yellow",
    PartitionState.WAITING: "red",
    PartitionState.SUSPENDED: "bold red",
}


def top(options: argparse.Namespace, config: Config) -> int:
    """Show the state of the service until q or Ctrl-C; once without a terminal.

    Others may see a terminal or its recording, so runs are shown without halted users.
    """
    try:
        from rich.console import Console
        from rich.live import Live
    except ImportError as error:
        raise lacking("top", "terminal", error) from error
    addresses = options.worker or ([config.health] if config.health else [])
    with Watch(config, addresses, options.delta, (Channel.REJECTS,)) as watch:
        _wait(watch)
        if options.json:
            seen, people = watch.facts.service(), watch.facts.people()
            runs = [{name: run[name] for name in _OF_A_RUN} for run in people["runs"]]
            show("overview", {**seen, "users": people["users"], "runs": runs}, True)
            return _code(seen)
        console = Console(highlight=False)
        if options.once or not (sys.stdin.isatty() and console.is_terminal):
            seen = watch.facts.service()
            console.print(frame(seen, watch.facts.people(), config))
            return _code(seen)
        with (
            _keys() as pressed,
            Live(console=console, screen=True, auto_refresh=False) as live,
        ):
            while True:
                seen = watch.facts.service()
                live.update(frame(seen, watch.facts.people(), config), refresh=True)
                if pressed(_EVERY) in ("q", "Q", "\x03"):
                    return _code(seen)


def frame(seen: Mapping[str, Any], people: Mapping[str, Any], config: Config) -> Group:
    """Return one frame: alarms, partitions, runs, workers and rejected records.

    Args:
        seen: the state of the service, as ``ServiceFacts.service`` returns it.
        people: data about users, as ``ServiceFacts.people`` returns it.
        config: where the service is.
    """
    from rich.console import Group
    from rich.text import Text

    head = Text.assemble(
        ("turnstile", "bold"),
        f"  {config.kafka}  {config.prefix}*  ",
        time.strftime("%H:%M:%S", time.localtime(seen["time"])),
        ("   q ends", "dim"),
    )
    rate = Text.assemble(
        (f"{seen['rate']:,.1f}", "bold"),
        " records decided a second  ",
        (_spark(seen["rates"]), "cyan"),
        f"  {seen['lag']:,} wait",
    )
    parts: list[RenderableType] = [head, rate, Text("")]
    for alarm in seen["alarms"][:_SHOWN_ALARMS]:
        style = "bold red" if alarm["level"] == "wrong" else "yellow"
        parts += [
            Text(f"{alarm['level'].upper()}  {plain(alarm['what'])}", style=style),
            Text(f"       {plain(alarm['do'])}"),
        ]
    if more := seen["alarms"][_SHOWN_ALARMS:]:
        parts.append(
            Text(f"{len(more):,} more alarms: `turnstile status` has them", style="yellow")
        )
    if not seen["alarms"]:
        parts.append(Text("Nothing is wrong.", style="green"))
    parts += [Text(""), _partition_table(seen, people["users"]["partitions"])]
    if rest := _by_need(seen["partitions"])[_SHOWN_PARTITIONS:]:
        well = sum(one["state"] == PartitionState.DECIDING for one in rest)
        waiting = sum(one["lag"] for one in rest)
        parts.append(
            Text(f"{len(rest):,} more partitions: {well:,} are deciding, {waiting:,} records wait")
        )
    parts.append(Text(""))
    if people["runs"]:
        parts += [_run_table(people["runs"][:_SHOWN_RUNS]), Text("")]
    if seen["workers"]:
        parts += [_worker_table(seen["workers"]), Text("")]
    refused = "  ".join(f"{plain(reason)} {count}" for reason, count in seen["rejects"].items())
    parts.append(Text(f"rejected lately: {refused or 'none'}", style="" if refused else "dim"))
    return Group(*parts)


def _by_need(partitions: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    """Return partitions; if they are many, those that are not decided or have a lag come first."""
    if len(partitions) <= _SHOWN_PARTITIONS:
        return partitions
    return sorted(
        partitions, key=lambda one: (one["state"] == PartitionState.DECIDING, -one["lag"])
    )


def _partition_table(seen: Mapping[str, Any], users: Mapping[int, int | None]) -> Table:
    table = _table("partition", "<owner", "decided/s", "lag", "users", "snapshot", "seen", "<state")
    # While Kafka or Redis does not answer, the rows are as old as the last answer.
    is_old = any(side["away"] for side in seen["sides"].values())
    age = seen["sides"]["Redis"]["age"] or 0.0
    for one in _by_need(seen["partitions"])[:_SHOWN_PARTITIONS]:
        count, state = users.get(one["partition"]), one["state"]
        table.add_row(
            str(one["partition"]),
            plain(one["owner"]),
            f"{one['rate']:,.1f}",
            f"{one['lag']:,}",
            "-" if count is None else f"{count:,}",
            "-" if one["snapshot"] is None else f"{one['snapshot']:,}",
            "-" if one["seen"] is None else f"{one['seen'] + age:,.0f} s",
            f"[{_OLD}]{state}, before[/]" if is_old else f"[{_LOOKS[state]}]{state}[/]",
            style=_OLD if is_old else "",
        )
    return table


def _run_table(runs: Sequence[Mapping[str, Any]]) -> Table:
    table = _table("<run", "<dataset", "step", "steps/s", "attempt", "<state")
    for one in runs:
        table.add_row(
            plain(one["run"]),
            plain(one["dataset"]),
            f"{one['step']:,}",
            f"{one['rate']:.2f}",
            str(one["attempt"]),
            one["state"],
        )
    return table


def _worker_table(workers: Sequence[Mapping[str, Any]]) -> Table:
    table = _table("<worker", "release", "partitions", "applied", "<health")
    for one in workers:
        health = f"[red]{_safe(one['problem'])}[/]" if one["problem"] else "[green]healthy[/]"
        table.add_row(
            one["address"],
            plain(one["release"]),
            plain(one["partitions"]),
            f"{one['records']:,.0f}",
            health,
        )
    return table


def _table(*names: str) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="dim")
    for name in names:
        table.add_column(name.lstrip("<"), justify="left" if name.startswith("<") else "right")
    return table


def _safe(text: object) -> str:
    from rich.markup import escape

    return escape(plain(text))


def _spark(rates: Sequence[float]) -> str:
    highest = max(rates, default=0.0)
    if highest <= 0:
        return ""
    last = rates[-40:]
    return "".join(_BARS[min(8, int(8 * rate / highest + 0.999))] for rate in last)


def _code(seen: Mapping[str, Any]) -> int:
    wrong = any(alarm["level"] == "wrong" for alarm in seen["alarms"])
    return Exit.UNAVAILABLE if wrong else Exit.OK


def _wait(watch: Watch) -> None:
    """Wait until every source was read, so that the first frame is complete."""
    deadline = time.monotonic() + _FIRST_WITHIN
    while not watch.is_complete() and time.monotonic() < deadline:
        time.sleep(0.05)


@contextmanager
def _keys() -> Iterator[Any]:
    """Read keys as they are pressed, and restore the terminal afterwards."""
    before = termios.tcgetattr(sys.stdin)
    tty.setcbreak(sys.stdin)

    def pressed(within: float) -> str:
        ready, _, _ = select.select([sys.stdin], [], [], within)
        return os.read(sys.stdin.fileno(), 1).decode(errors="replace") if ready else ""

    try:
        yield pressed
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def dashboard(options: argparse.Namespace, config: Config) -> int:
    """Serve the dashboard; print its address and, if none is set, a new password."""
    certificate = certificate_of(options)
    if is_reached_from_elsewhere(options) and not config.dashboard_password:
        raise ConfigurationError(
            f"other machines can reach {options.url or options.listen}: set "
            "TURNSTILE_DASHBOARD_PASSWORD_FILE to a file with a password of 12 characters or more, "
            "or listen on 127.0.0.1 without --url"
        )
    addresses = options.worker or ([config.health] if config.health else [])
    asyncio.run(_serve_dashboard(options, config, certificate, addresses))
    return Exit.OK


async def _serve_dashboard(
    options: argparse.Namespace,
    config: Config,
    certificate: ssl.SSLContext | None,
    addresses: Sequence[str],
) -> None:
    password = config.dashboard_password or secrets.token_urlsafe(9)
    watch = Watch(config, addresses, options.delta)
    answers = AnswerReader(config)
    served = Dashboard(
        watch.facts, answers, Sessions(password), options.listen, certificate, page=options.url
    )

    def started() -> None:
        watch.start()
        answers.start()
        show("page", {"page": options.url or served.url}, options.json)
        if not config.dashboard_password:
            note(f"The password until this command ends: {password}")

    def closed() -> None:
        answers.close()
        watch.close()

    await serve_until_stopped(served, options.listen, started, closed)


_DAY = 24 * 60 * 60


def portal(options: argparse.Namespace, config: Config) -> int:
    """Serve the portal."""
    keys = LinkKeys(config.portal_key, config.prefix)
    certificate = certificate_of(options)
    reader = RecordReader(config, options.most)
    owners = Owners(reader, options.delta)
    with closing(_visits(config)) as visits:
        served = Portal(owners, keys, visits, options.listen, certificate, page=options.url)

        def started() -> None:
            reader.start()
            show("page", {"page": options.url or served.url}, options.json)
            if not options.json:
                note(f"for example: {_example(options, served.url)}")
                note("then type the id of a user and Ctrl-D")
                note("an id of digits needs --user-ids integer or --user-ids string as well")

        asyncio.run(serve_until_stopped(served, options.listen, started, reader.close))
    return Exit.OK


def portal_link(options: argparse.Namespace, config: Config) -> int:
    """Print a link and its id."""
    keys = LinkKeys(config.portal_key, config.prefix)
    ends = int(time.time()) + options.days * _DAY
    datasets = tuple(dict.fromkeys(options.dataset or ()))
    given = user_of(options)
    if config.pseudonym_key:
        names = Pseudonyms(config.pseudonym_key)
        claims = Claims.new(
            user=names.of_user(given),
            ends=ends,
            datasets=datasets,
            pseudonyms=names.fingerprint,
        )
    else:
        claims = Claims.new(user=_linked_user(given, options), ends=ends, datasets=datasets)
    page = options.url or f"http://{options.listen}/"
    made = {"link": link_to(page, keys.sign(claims)), "id": claims.id, "days": options.days}
    show("link", made, options.json)
    return Exit.OK


def portal_revoke(options: argparse.Namespace, config: Config) -> int:
    """End a link and its session."""
    with closing(_visits(config)) as visits:
        was_opened = visits.end(options.id, int(time.time()) + MOST_DAYS * _DAY)
    show(
        "revoked_link", {"id": options.id, "revoked": True, "was_opened": was_opened}, options.json
    )
    return Exit.OK


def _visits(config: Config) -> Visits:
    """Open the file of opened and revoked links.

    Raises:
        ConfigurationError: no file is named, or it cannot be used.
    """
    if not config.portal_state:
        raise ConfigurationError(
            "portal_state is not set: set TURNSTILE_PORTAL_STATE to a file that stores opened and "
            "revoked links"
        )
    return Visits(config.portal_state)


def _example(options: argparse.Namespace, listens: str) -> str:
    """Return a command that prints a link to this page."""
    prefix = f" --prefix {shlex.quote(options.prefix)}" if options.prefix else ""
    page = shlex.quote(options.url or listens)
    return f"turnstile portal link{prefix} --url {page} --user -"


def _linked_user(text: str, options: argparse.Namespace) -> User:
    """Return the user of a link, with the kind of the id, so that it is no other user.

    Raises:
        UnusableInput: digits without their kind.
    """
    is_integer = re.fullmatch(r"-?[0-9]{1,19}", text) and -(2**63) <= int(text) < 2**63
    if options.user_ids is None and is_integer:
        raise UnusableInput(
            f"--user {text} can be an integer or a string, and these can be two users: add "
            "--user-ids integer or --user-ids string (`turnstile dataset show` has user_ids)"
        )
    if options.user_ids == "integer":
        if not is_integer:
            raise UnusableInput(f"--user {text!r} is not an integer of 64 bits")
        return int(text)
    return normal_form(text)


def certificate_of(options: argparse.Namespace) -> ssl.SSLContext | None:
    """Return the TLS settings of a page that other machines may reach, None without TLS.

    Raises:
        ConfigurationError: other machines reach the address without TLS, or a file is unusable.
    """
    if options.certificate is None:
        if options.key is not None:
            raise ConfigurationError("--key belongs to a certificate: give --certificate as well")
        if not is_https(options.url) and is_reached_from_elsewhere(options):
            raise ConfigurationError(
                f"other machines can reach {options.url or options.listen} without TLS, so an "
                "observer of the network could read the page and take over a session. Give "
                "--certificate or, behind a proxy with TLS, the https --url of the page"
            )
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(options.certificate, options.key)
    except OSError as error:
        raise ConfigurationError(f"--certificate {options.certificate}: {error}") from error
    return context


def is_reached_from_elsewhere(options: argparse.Namespace) -> bool:
    """Return whether browsers on other machines reach a page."""
    hosts = [options.listen.rpartition(":")[0]]
    if options.url is not None:
        hosts.append(urlsplit(options.url).hostname)
    return not all(map(is_loopback, hosts))


async def serve_until_stopped(
    served: HttpServer, listen: str, started: Callable[[], None], closed: Callable[[], None]
) -> None:
    """Serve a page until SIGINT or SIGTERM.

    Args:
        served: the page.
        listen: its address.
        started: called when the server listens.
        closed: called at the end; it may block.

    Raises:
        ConfigurationError: the server cannot listen at this address.
    """
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)
    try:
        await served.start()
    except OSError as error:
        raise ConfigurationError(f"cannot listen on {listen}: {error}") from error
    started()
    try:
        await stopped.wait()
    finally:
        await served.stop()
        await asyncio.to_thread(closed)
