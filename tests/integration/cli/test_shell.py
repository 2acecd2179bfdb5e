"""Completion in a shell, and logs as JSON lines."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.command import turnstile
from tests.waiting import HANGS_AFTER

COMPLETED = """
turnstile sta                    | status
turnstile dataset sh             | show
turnstile odometer --fol         | --follow
turnstile dataset create x --measure re | renyi
"""
CASES = [tuple(map(str.strip, line.split("|"))) for line in COMPLETED.strip().splitlines()]


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("shell") / "turnstile"
    done = turnstile("completion", "bash")
    assert (done.code, done.said) == (0, "")
    path.write_text(done.out)
    return path


@pytest.mark.parametrize(("typed", "completed"), CASES)
def test_bash_completes_commands_options_and_values(
    script: Path, typed: str, completed: str
) -> None:
    words = typed.split()
    asks = (
        f"source {script}; COMP_WORDS=({typed}); COMP_CWORD={len(words) - 1}; "
        '_shtab_turnstile; echo "${COMPREPLY[@]}"'
    )
    done = subprocess.run(["bash", "-c", asks], capture_output=True, text=True, check=True)
    assert completed in done.stdout.split()


def test_failing_worker_logs_json_lines() -> None:
    settings = {"KAFKA": "127.0.0.1:1", "TIMEOUT": "0.1", "LOG_FORMAT": "json"}
    done = subprocess.run(
        [sys.executable, "-m", "streams.cli", "worker"],
        env={**os.environ, **{f"TURNSTILE_{name}": value for name, value in settings.items()}},
        capture_output=True,
        text=True,
        check=False,
        timeout=HANGS_AFTER,
    )
    assert (done.returncode, done.stdout) == (75, "")
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert lines[-1]["level"] == "CRITICAL"
    assert set(lines[-1]) == {"time", "level", "logger", "message"}
