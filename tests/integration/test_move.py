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


def charge(t: Turnstile) -> bool:
    run = t.run("d", "r")
    return bool(run.charge(np.arange(10), np.ones(10), noise_stddev=4.0).admitted.all())


def test_killed_import_is_continued_and_the_service_has_the_same_log(
    servers: LocalStack, tmp_path: Path
) -> None:
    path = tmp_path / "budgets.db"
    with Turnstile.open(path, partitions=2) as t:
        t.create_dataset("d", measure="zcdp", budget=0.125)
        assert [charge(t) for _ in range(2)] == [True, True]
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
            assert [charge(t) for _ in range(3)] == [True, True, False]
    assert turnstile("status", "--json", environment={"TURNSTILE_BUDGETS": str(path)}).code == 69
