"""The command line as scripts see it: JSON lines, exit codes, a clean end."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

COMMAND = [sys.executable, "-m", "streams.cli"]


def turnstile(*arguments, environment=None, stdin=None):
    done = subprocess.run(
        [*COMMAND, *arguments],
        capture_output=True,
        text=True,
        input=stdin,
        env={**os.environ, **(environment or {})},
        timeout=120,
        check=False,
    )
    lines = done.stdout.splitlines() if "--json" in arguments else []
    return done.returncode, [json.loads(line) for line in lines], done.stderr


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


@pytest.fixture(scope="module")
def up():
    """`turnstile up`, as a user would start it."""
    process = subprocess.Popen(
        [*COMMAND, "up", "--json", "--workers", "2", "--partitions", "3"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    line = process.stdout.readline()
    if not line:
        pytest.fail(process.communicate()[1])
    addresses = json.loads(line)
    assert addresses["workers"] == 2
    yield {"TURNSTILE_KAFKA": addresses["kafka"], "TURNSTILE_REDIS": addresses["redis"]}
    children = subprocess.run(
        ["ps", "-o", "pid=", "--ppid", str(process.pid)], capture_output=True, text=True, check=True
    )
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=60) == 0
    deadline = time.monotonic() + 30
    while not all(gone(int(pid)) for pid in children.stdout.split()):
        assert time.monotonic() < deadline, "children outlive `turnstile up`"
        time.sleep(0.1)


def test_from_a_norm_to_its_halt(up):
    code, created, _ = turnstile(
        "dataset", "create", "cli", "--budget", "0.5", "--json", environment=up
    )
    assert (code, created[0]["dataset"], created[0]["budget"]) == (0, "cli", 0.5)
    step = {"dataset": "cli", "run": "r", "users": [1, "ü"], "norms": [3, 1], "noise_stddev": 3}
    lines = (json.dumps(step) + "\n") * 2
    code, decisions, _ = turnstile("publish", "-", "--json", environment=up, stdin=lines)
    assert code == 0
    assert [d["admitted"] for d in decisions] == [2, 1]
    assert decisions[1]["halted"] == [1]
    code, halts, _ = turnstile("halts", "--dataset", "cli", "--json", environment=up)
    assert [(h["user"], h["step"], h["exhausted"]) for h in halts] == [(1, 1, True)]
    code, rises, _ = turnstile("odometer", "--user", "1", "--json", environment=up)
    assert [(r["user"], r["bound"]) for r in rises] == [(1, [0.5])]
    code, datasets, _ = turnstile("dataset", "show", "cli", "--json", environment=up)
    assert (datasets[0]["users"], datasets[0]["exhausted"]) == (2, 1)
    code, listed, _ = turnstile("dataset", "list", "--json", environment=up)
    assert "cli" in [dataset["dataset"] for dataset in listed]
    code, partitions, _ = turnstile("status", "--json", environment=up)
    assert code == 0
    assert [p["lag"] for p in partitions] == [0, 0, 0]
    assert len({p["owner"] for p in partitions}) == 2


def test_refusals_and_mistakes_have_their_own_exit_codes(up, tmp_path):
    assert turnstile("dataset", "create", "once", "--budget", "1", environment=up)[0] == 0
    code, _, message = turnstile("dataset", "create", "once", "--budget", "2", environment=up)
    assert (code, "another policy" in message) == (1, True)
    assert turnstile("dataset", "show", "absent", environment=up)[0] == 1
    code, _, message = turnstile("dataset", "create", "neither", environment=up)
    assert (code, "epsilon and delta" in message) == (2, True)
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"dataset": "once"}\n')
    code, _, message = turnstile("publish", str(bad), environment=up)
    assert (code, "line 1" in message) == (2, True)
    assert turnstile("publish", str(tmp_path / "absent"), environment=up)[0] == 2


def test_a_broker_that_is_not_there_is_unavailable():
    nowhere = {"TURNSTILE_KAFKA": "127.0.0.1:1", "TURNSTILE_TIMEOUT": "1"}
    code, _, message = turnstile("halts", environment=nowhere)
    assert (code, "127.0.0.1:1" in message) == (69, True)
    code, _, message = turnstile("status", environment=nowhere)
    assert (code, "127.0.0.1:1" in message) == (69, True)


@pytest.mark.parametrize("command", ["", "up", "demo", "worker", "dataset create", "publish"])
def test_every_command_explains_itself(command):
    done = subprocess.run(
        [*COMMAND, *command.split(), "--help"], capture_output=True, text=True, check=True
    )
    assert "usage: turnstile" in done.stdout
