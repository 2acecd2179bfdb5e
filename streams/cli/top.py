"""`turnstile top`: the present state of the service in a terminal.

Others may see a terminal or what a script keeps of it. So runs are shown without halted users.
"""

from __future__ import annotations

import argparse
import os
import select
import sys
import termios
import time
import tty
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from streams.cli.extras import extra
from streams.cli.output import Exit, plain, show
from streams.config import Config
from streams.ledger.outputs import Channel
from streams.operations.status import PartitionState
from streams.operations.watching import Watch

if TYPE_CHECKING:
    from rich.console import Group, RenderableType
    from rich.table import Table

_EVERY = 1.0  # seconds
_FIRST_WITHIN = 15.0
_SHOWN_RUNS = 12
_BARS = " ▁▂▃▄▅▆▇█"
_OF_A_RUN = ("dataset", "run", "attempt", "step", "rate", "closed", "moved")
_OLD = "bright_black"
_LOOKS = {
    PartitionState.DECIDING: "green",
    PartitionState.RESTORING: "yellow",
    PartitionState.WAITING: "red",
    PartitionState.SUSPENDED: "bold red",
}


def top(options: argparse.Namespace, config: Config) -> int:
    """Show it until q or Ctrl-C; once, where that is asked for or nobody can press a key."""
    with extra("terminal", "top"):
        from rich.console import Console
        from rich.live import Live
    addresses = options.worker or ([config.health] if config.health else [])
    with Watch(config, addresses, options.delta, (Channel.HALTS, Channel.REJECTS)) as watch:
        _wait(watch)
        if options.json:
            seen, people = watch.service(), watch.people()
            runs = [{name: run[name] for name in _OF_A_RUN} for run in people["runs"]]
            show({**seen, "users": people["users"], "runs": runs}, True)
            return _code(seen)
        console = Console(highlight=False)
        if options.once or not (sys.stdin.isatty() and console.is_terminal):
            seen = watch.service()
            console.print(frame(seen, watch.people(), config))
            return _code(seen)
        with (
            _keys() as pressed,
            Live(console=console, screen=True, auto_refresh=False) as live,
        ):
            while True:
                seen = watch.service()
                live.update(frame(seen, watch.people(), config), refresh=True)
                if pressed(_EVERY) in ("q", "Q", "\x03"):
                    return _code(seen)


def frame(seen: Mapping[str, Any], people: Mapping[str, Any], config: Config) -> Group:
    """Return one frame: alarms, partitions, runs, workers and rejected records.

    Args:
        seen: the state of the service, as ``Watch.service`` returns it.
        people: data about users, as ``Watch.people`` returns it.
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
    for alarm in seen["alarms"]:
        style = "bold red" if alarm["level"] == "wrong" else "yellow"
        parts += [
            Text(f"{alarm['level'].upper()}  {plain(alarm['what'])}", style=style),
            Text(f"       {plain(alarm['do'])}"),
        ]
    if not seen["alarms"]:
        parts.append(Text("Nothing is wrong.", style="green"))
    parts += [Text(""), _partitions(seen, people["users"]["partitions"]), Text("")]
    if people["runs"]:
        parts += [_runs(people["runs"][:_SHOWN_RUNS]), Text("")]
    if seen["workers"]:
        parts += [_workers(seen["workers"]), Text("")]
    refused = "  ".join(f"{plain(reason)} {count}" for reason, count in seen["rejects"].items())
    parts.append(Text(f"refused lately: {refused or 'nothing'}", style="" if refused else "dim"))
    return Group(*parts)


def _partitions(seen: Mapping[str, Any], users: Mapping[int, int | None]) -> Table:
    table = _table("partition", "<owner", "decided/s", "lag", "users", "snapshot", "seen", "<state")
    # While Kafka or Redis does not answer, the rows are as old as the last answer.
    is_old = any(side["away"] for side in seen["sides"].values())
    age = seen["sides"]["Redis"]["age"] or 0.0
    for one in seen["partitions"]:
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


def _runs(runs: Sequence[Mapping[str, Any]]) -> Table:
    table = _table("<run", "<dataset", "step", "steps/s", "attempt", "<state")
    for one in runs:
        table.add_row(
            plain(one["run"]),
            plain(one["dataset"]),
            f"{one['step']:,}",
            f"{one['rate']:.2f}",
            str(one["attempt"]),
            "closed" if one["closed"] else "open",
        )
    return table


def _workers(workers: Sequence[Mapping[str, Any]]) -> Table:
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
    """Until every side was looked at, so that the first frame has all of it."""
    deadline = time.monotonic() + _FIRST_WITHIN
    while not watch.is_complete() and time.monotonic() < deadline:
        time.sleep(0.05)


@contextmanager
def _keys() -> Iterator[Any]:
    """Reads keys as they are pressed; the terminal is as it was afterwards."""
    before = termios.tcgetattr(sys.stdin)
    tty.setcbreak(sys.stdin)

    def pressed(within: float) -> str:
        ready, _, _ = select.select([sys.stdin], [], [], within)
        return os.read(sys.stdin.fileno(), 1).decode(errors="replace") if ready else ""

    try:
        yield pressed
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)
