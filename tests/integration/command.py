"""Run a command in this process; a new process would have to import everything."""

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
    """The exit code of a command, and both of its outputs."""

    code: int
    out: str
    said: str

    @property
    def lines(self) -> list[dict[str, Any]]:
        """Return the lines that were written with ``--json``."""
        return [json.loads(line) for line in self.out.splitlines()]


def turnstile(
    *arguments: str, environment: Mapping[str, str] | None = None, stdin: str = ""
) -> Done:
    """Run a command with these environment variables and this input."""
    written, said = io.BytesIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (environment or {}).items():
            patch.setenv(name, value)
        patch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(stdin.encode())))
        with redirect_stdout(io.TextIOWrapper(written)) as out, redirect_stderr(said):
            code = main(arguments)
            out.flush()
    done = Done(code, written.getvalue().decode(), said.getvalue())
    if "--json" in arguments:  # the table of commands has the expected lines
        assert {line["type"] for line in done.lines} <= set(parse(arguments).command.lines)
    return done
