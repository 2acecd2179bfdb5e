"""A budget file is moved into a real service, by a command that is killed on the way."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from uuid import uuid4

import numpy as np

from streams import Turnstile
from streams.local import LocalStack
from tests.integration.command import turnstile
from tests.waiting import HANGS_AFTER

IMPORT = """
import os, sys
from streams.cli.main import main
from streams.replay import service

append = service.append
count = int(sys.argv.pop(1))

def dying(config, partition, records):
    global count
    for record in records:
        append(config, partition, [record])
        count -= 1
        if count == 0:
            os.kill(os.getpid(), 9)

service.append = dying
sys.exit(main(sys.argv[1:]))
"""


QUERIES = """
dataset = "shop"
run = "daily"
[input]
user = "user"
users = "integer"
time = "day"
start = 2026-01-01
end = 2026-01-06
[[query]]
name = "users"
kind = "distinct"
window = "1d"
noise = 100.0
"""


def charge(t: Turnstile) -> bool:
    run = t.run("d", "r")
    return bool(run.charge(np.arange(10), np.ones(10), noise_stddev=4.0).admitted.all())


def answer_command(folder: Path, run: str = "daily") -> list[str]:
    """Return the command that answers a query about a file, under the name of a run."""
    queries, events = folder / f"{run}.toml", folder / "events.csv"
    queries.write_text(QUERIES.replace('"daily"', f'"{run}"'))
    events.write_text("user,day\n" + "".join(f"{n},2026-01-0{n}\n" for n in range(1, 5)))
    return ["answer", str(queries), "--input", str(events)]


def test_killed_import_is_continued_and_the_service_has_the_same_log(
    servers: LocalStack, tmp_path: Path
) -> None:
    path = tmp_path / "budgets.db"
    with Turnstile.open(path, partitions=2) as t:
        t.create_dataset("d", measure="zcdp", budget=0.125)
        t.create_dataset("shop", measure="zcdp", budget=1.0, user_ids="integer")
        assert [charge(t) for _ in range(2)] == [True, True]
    answer = answer_command(tmp_path)
    answered = turnstile(*answer, "--budgets", str(path), "--json").lines
    assert len(answered) == 5
    where = {"kafka": servers.kafka, "redis": servers.redis, "prefix": f"t{uuid4().hex[:8]}."}
    settings = [word for name, value in where.items() for word in (f"--{name}", value)]
    with LocalStack(workers=1, partitions=2, **where):
        Turnstile(where["kafka"], prefix=where["prefix"], timeout=HANGS_AFTER).close()  # has topics
        command = ["import", str(path), *settings[:2], *settings[4:], "--json"]
        words = [sys.executable, "-c", IMPORT, "3", *command]
        assert subprocess.run(words, check=False, timeout=HANGS_AFTER).returncode == -9
        done = turnstile(*command)
        assert done.code == 0, done.said
        *parts, logs = done.lines
        verified = turnstile("verify", *settings, "--json")
        assert verified.code == 0, verified.said
        heads = {line["partition"]: (line["to"], line["head"]) for line in verified.lines[:-1]}
        assert heads == {part["partition"]: (part["records"], part["head"]) for part in parts}
        assert logs["from"] != logs["to"]
        with Turnstile(where["kafka"], prefix=where["prefix"], timeout=HANGS_AFTER) as t:
            again = turnstile(*answer, *command[2:])
            assert (again.code, again.out) == (0, "")
            assert turnstile("answers", *command[2:]).lines == answered
            other = answer_command(tmp_path, run="other")
            repeated = turnstile(*other, "--take-over", *command[2:])
            assert (repeated.code, "has answered" in repeated.said) == (2, True)
            assert [charge(t) for _ in range(3)] == [True, True, False]
    assert turnstile("status", "--json", environment={"TURNSTILE_BUDGETS": str(path)}).code == 69
