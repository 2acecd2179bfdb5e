"""The command line as scripts see it: JSON lines, exit codes, a clean end."""

import base64
import json
import os
import signal
import subprocess
import sys
from datetime import UTC, datetime
from urllib.request import urlopen

import pytest
from kafka import KafkaProducer

from tests.integration import command
from tests.integration.demos import small_demo
from tests.integration.service import eventually
from tests.waiting import HANGS_AFTER

COMMAND = [sys.executable, "-m", "streams.cli"]


def turnstile(*arguments, **settings):
    """Return the exit code of a command, its JSON lines, and its error output."""
    done = command.turnstile(*arguments, **settings)
    return done.code, done.lines if "--json" in arguments else [], done.said


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


@pytest.fixture(scope="module")
def up():
    """Start `turnstile up` as a user would."""
    process = subprocess.Popen(
        [*COMMAND, "up", "--free-ports", "--json", "--workers", "2", "--partitions", "3"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    line = process.stdout.readline()
    if not line:
        pytest.fail(process.communicate()[1])
    addresses = json.loads(line)
    assert addresses["workers"] == len(addresses["health"]) == 2
    for address in addresses["health"]:
        with urlopen(f"http://{address}/healthz", timeout=HANGS_AFTER) as answer:
            assert answer.status == 200
    yield {"TURNSTILE_KAFKA": addresses["kafka"], "TURNSTILE_REDIS": addresses["redis"]}
    children = subprocess.run(
        ["ps", "-o", "pid=", "--ppid", str(process.pid)], capture_output=True, text=True, check=True
    )
    process.send_signal(signal.SIGTERM)
    assert process.wait(HANGS_AFTER) == 0
    eventually(lambda: all(gone(int(pid)) for pid in children.stdout.split()))


def test_from_a_norm_to_its_halt(up):
    policy = ["--budget", "1", "--user-ids", "mixed"]
    code, created, _ = turnstile("dataset", "create", "cli", *policy, "--json", environment=up)
    assert (code, created[0]["measure"], created[0]["budget_mu_squared"]) == (0, "gdp", 1.0)
    assert (created[0]["dataset"], created[0]["user_ids"]) == ("cli", "mixed")
    step = {"dataset": "cli", "run": "r", "users": [1, "1", "ü"], "norms": [3, 3, 1]}
    lines = (json.dumps({**step, "noise_stddev": 3}) + "\n") * 2
    for when in ("now", "before"):
        code, decisions, _ = turnstile("publish", "-", "--json", environment=up, stdin=lines)
        assert code == 0
        assert {d["decided"] for d in decisions} == {when}
        assert decisions[1]["admitted"] == 1
        assert (decisions[1]["halted"], decisions[1]["halted_users"]) == (2, [1, "1"])
    code, halts, _ = turnstile("halts", "cli", "--json", environment=up)
    assert [(h["user"], h["step"], h["exhausted"]) for h in halts if h["user"] == 1] == [
        (1, 1, True)
    ]
    # Owners write the figures of a dataset to Redis with their heartbeats.
    shown = ("dataset", "show", "cli", "--json")
    eventually(lambda: [d["users"] for d in turnstile(*shown, environment=up)[1]] == [3])
    # Digits find the integer and the string: the caller may not know which one the trainer used.
    code, rises, _ = turnstile("odometer", "--user", "1", "--json", environment=up)
    assert [str(r["user"]) for r in rises] == ["1", "1"]
    assert all(1.0 <= r["bound"][0] == pytest.approx(1.0) for r in rises)  # rounded up
    assert {type(r["user"]) for r in rises} == {int, str}
    epsilons = {(r["budget_epsilon"], r["delta"]) for r in rises}
    assert all(r["epsilon"] > r["budget_epsilon"] for r in rises)  # at any time of the run
    code, datasets, _ = turnstile("dataset", "show", "cli", "--json", environment=up)
    assert (datasets[0]["users"], datasets[0]["exhausted"]) == (3, 2)
    assert epsilons == {(datasets[0]["epsilon"], datasets[0]["delta"])}
    code, listed, _ = turnstile("dataset", "list", "--json", environment=up)
    assert "cli" in [dataset["dataset"] for dataset in listed]
    code, partitions, _ = turnstile("status", "--json", environment=up)
    assert code == 0
    assert [p["lag"] for p in partitions] == [0, 0, 0]
    assert len({p["owner"] for p in partitions}) == 2


def test_closed_reader_is_no_error(up):
    assert turnstile("dataset", "create", "read", "--budget", "1", environment=up)[0] == 0
    with subprocess.Popen(
        [*COMMAND, "dataset", "list", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **up},
    ) as process:
        process.stdout.close()
        assert process.wait(HANGS_AFTER) == 0
        assert process.stderr.read() == ""


def test_rejects_can_be_read(up):
    charge = {"type": "charge", "dataset": "d", "run": "r", "attempt": 7, "step": 3}
    records = [b"\xff\xfe", json.dumps({**charge, "users": [1], "norms": [1.0]}).encode()]
    producer = KafkaProducer(bootstrap_servers=up["TURNSTILE_KAFKA"])
    for record in records:
        producer.send("turnstile.norms", record, partition=0).get(timeout=HANGS_AFTER)
    producer.close()

    def rejects(*options):
        found = turnstile("rejects", "--json", *options, environment=up)[1]
        return found if len(found) >= 1 else None

    (refused,) = eventually(lambda: rejects("d", "--reason", "unknown-dataset"))
    assert refused["record"] == json.loads(records[1])
    assert (refused["run"], refused["attempt"], refused["step"]) == ("r", 7, 3)
    assert datetime.fromisoformat(refused["time"]) <= datetime.now(UTC)
    (garbage,) = eventually(lambda: rejects("--reason", "malformed"))
    assert base64.b64decode(garbage["bytes"]) == records[0]
    assert garbage["record"] is None
    assert turnstile("rejects", "absent", "--json", environment=up)[:2] == (0, [])


def test_demo_prints_json_lines(up, tmp_path):
    """Start a service with running workers."""
    out = tmp_path / "out"
    where = ["--kafka", up["TURNSTILE_KAFKA"], "--out", str(out)]
    with small_demo():
        code, summaries, said = turnstile("demo", *where, "--seeds", "2", "--json")
    assert code == 0, said
    (revenue,) = summaries
    assert (revenue["data"], revenue["steps"]) == ("a simulated shop", 30)
    assert all(row["root_mean_square_error_standard_error"] > 0 for row in revenue["results"])
    assert [revenue["plot"]] == [str(path) for path in out.glob("*.svg")]
    asked = ("answer", str(out / "revenue-queries.toml"), "--check", "--json")
    assert turnstile(*asked)[1][0]["query"] == "revenue"
