"""`turnstile doctor`: what is wrong, what that means and what to do, one part after the other."""

from __future__ import annotations

import argparse
import os
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import asdict
from itertools import groupby
from shutil import get_terminal_size

from streams.cli.output import Exit, plain, say, show
from streams.cli.versions import release
from streams.config import Config
from streams.operations.doctor import examine
from streams.operations.findings import Finding, Level

_MARKS = {Level.OK: "ok", Level.WARNING: "warning", Level.WRONG: "WRONG"}
_COLOURS = {Level.OK: "32", Level.WARNING: "33", Level.WRONG: "1;31"}
_INDENT = 11  # where what is said begins
_WIDEST = 100


def doctor(options: argparse.Namespace, config: Config) -> int:
    """Ask everything, and say what is found; exit code 1 if something is wrong."""
    addresses = options.worker or ([config.health] if config.health else [])
    found = examine(config, addresses, release(), options.answerer or [])
    if options.json:
        for finding in found:
            show(asdict(finding), True)
    else:
        _say(found)
    return Exit.REFUSED if any(one.level is Level.WRONG for one in found) else Exit.OK


def _say(found: Sequence[Finding]) -> None:
    for area, findings in groupby(found, key=lambda finding: finding.area):
        say(_in_colour("1", area))
        for finding in findings:
            mark = _in_colour(_COLOURS[finding.level], f"{_MARKS[finding.level]:<7}")
            first, *rest = _wrapped(finding.what)
            say(f"  {mark}  {first}")
            for line in rest:
                say(f"{'':{_INDENT}}{line}")
            if finding.level is Level.OK:
                continue
            for line in _wrapped(finding.means):
                say(f"{'':{_INDENT}}{line}")
            for number, line in enumerate(_wrapped(finding.do)):
                say(f"{'':{_INDENT - 3}}{'->' if number == 0 else '  '} {line}")
        say("")
    say(_conclusion(found))


def _conclusion(found: Sequence[Finding]) -> str:
    wrong = sum(one.level is Level.WRONG for one in found)
    warnings = sum(one.level is Level.WARNING for one in found)
    if not wrong + warnings:
        return "Nothing is wrong."
    told = "Nothing is wrong" if not wrong else f"{wrong} wrong"
    return f"{told}, {warnings} {'warning' if warnings == 1 else 'warnings'}."


def _wrapped(text: str) -> list[str]:
    width = min(_WIDEST, get_terminal_size((_WIDEST, 24)).columns) - _INDENT
    # A command is copied from here: it is not broken.
    return textwrap.wrap(
        plain(text), max(20, width), break_long_words=False, break_on_hyphens=False
    ) or [""]


def _in_colour(code: str, text: str) -> str:
    is_shown = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    return f"\x1b[{code}m{text}\x1b[0m" if is_shown else text
