"""A command of the command line, run in this process: another one would first import everything."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from typing import Any

import pytest

from streams.cli.main import main, parse


@dataclass(frozen=True)
class Done:
    """What a command has left: its exit code, and what it wrote to both outputs."""

    code: int
    out: str
    said: str

    @property
    def lines(self) -> list[dict[str, Any]]:
        """What was written with ``--json``."""
        return [json.loads(line) for line in self.out.splitlines()]


def turnstile(
    *arguments: str, environment: Mapping[str, str] | None = None, stdin: str = ""
) -> Done:
    """Run a command with these variables and this input."""
    written, said = io.BytesIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (environment or {}).items():
            patch.setenv(name, value)
        patch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(stdin.encode())))
        with redirect_stdout(io.TextIOWrapper(written)) as out, redirect_stderr(said):
            code = main(arguments)
            out.flush()
    done = Done(code, written.getvalue().decode(), said.getvalue())
    if "--json" in arguments:  # the table of commands says which lines there are
        assert {line["type"] for line in done.lines} <= set(parse(arguments).command.lines)
    return done
