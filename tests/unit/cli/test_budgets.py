"""Commands on a budget file, without a service."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import numpy as np
import pytest

from streams import CollectTerms, InvalidRequest, Turnstile
from streams.cli.commands import commands_of
from streams.cli.main import main
from streams.config import Config, ConfigurationError
from streams.failures import Exit
from tests.integration.command import Done, turnstile
from tests.unit.sdk import files

USERS = 6


@pytest.fixture(params=[None, CollectTerms(clip_norm=1.0)], ids=["named", "collected"])
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Path:
    """Return a file in which user 5, named or by norm events, was halted once."""
    monkeypatch.setattr(sqlite3, "connect", files.connect)
    path = tmp_path / "budgets.db"
    with Turnstile.open(path, partitions=2) as t:
        terms = {"measure": "zcdp", "budget": 0.125, "odometer_step": 0.01}
        t.create_dataset("d", user_ids="integer", **terms)
        run = t.run("d", "r", collect=request.param)
        for step in range(5):
            norms = np.array([*np.full(USERS - 1, 0.5), 1.0])
            if request.param is None:
                run.charge(np.arange(USERS), norms, noise_stddev=4.0)
            else:
                t.send_norms("d", "r", step, np.arange(USERS), norms)
                run.charge_collected(noise_stddev=4.0)
        t.close_run("d", "r")
    return path


def on(path: Path, *arguments: str) -> Done:
    return turnstile(*arguments, "--json", environment={"TURNSTILE_BUDGETS": str(path)})


def test_verify_compares_everything_in_a_file_that_it_only_reads(path: Path) -> None:
    path.chmod(0o400)
    before = path.read_bytes()
    done = on(path, "verify")
    assert path.read_bytes() == before
    assert done.code == Exit.OK
    *parts, verdict = done.lines
    assert (verdict["fits"], verdict["users"]) == (True, USERS)
    assert [part["state_at"] for part in parts] == [part["to"] for part in parts]
    assert sum(part["odometers"] for part in parts) == USERS


@pytest.mark.parametrize(
    ("statement", "check"),
    [
        ("UPDATE norms SET value = zeroblob(9) WHERE offset = 2", "state"),
        ("DELETE FROM norms WHERE offset = 2", "log"),
        ("DELETE FROM halts WHERE offset = (SELECT max(offset) FROM halts)", "halts"),
        ("DELETE FROM odometer", "odometer"),
        ("UPDATE state SET pages = '{}'", "state"),
    ],
)
def test_verify_finds_what_was_changed(path: Path, statement: str, check: str) -> None:
    with sqlite3.connect(path) as database:
        database.execute(statement)
    database.close()
    done = on(path, "verify")
    assert done.code == Exit.REFUSED
    assert check in {line["check"] for line in done.lines if line["type"] == "mismatch"}


def test_restored_copy_is_known_to_be_older(path: Path, tmp_path: Path) -> None:
    copy, receipt, newer = (tmp_path / n for n in ("c.db", "c.db.receipt.json", "newer.json"))
    assert on(path, "backup", str(copy)).code == Exit.OK
    assert copy.stat().st_mode & 0o777 == 0o600
    with Turnstile.open(path) as t:
        run = t.run("d", "s")
        for step in range(2):
            assert run.charge([1], [0.1], noise_stddev=4.0).step == step
    against = on(path, "verify", "--against", str(receipt))
    assert against.lines[-1]["continues_receipt_of"] == json.loads(receipt.read_text())["time"]
    assert on(path, "verify", "--receipt", str(newer)).code == Exit.OK
    copy.replace(path)
    assert on(path, "verify", "--against", str(receipt)).code == Exit.OK
    assert on(path, "verify", "--against", str(newer)).code == Exit.REFUSED
    with Turnstile.open(path) as t, pytest.raises(InvalidRequest):
        t.run("d", "s", released=1)


def test_copy_replaces_no_file_and_needs_room(path: Path, tmp_path: Path) -> None:
    taken, before = tmp_path / "taken", path.read_bytes()
    taken.write_text("others'")
    assert on(path, "backup", str(taken)).code == Exit.UNAVAILABLE
    assert on(path, "backup", str(path)).code == Exit.UNAVAILABLE
    with files.limited(10_000):
        done = on(path, "backup", str(tmp_path / "copy"))
    assert (done.code, "make room" in done.said) == (Exit.UNAVAILABLE, True)
    assert (taken.read_text(), path.read_bytes()) == ("others'", before)
    assert {file.name for file in tmp_path.iterdir()} == {path.name, taken.name}


def test_copy_of_a_damaged_log_has_no_receipt(path: Path, tmp_path: Path) -> None:
    with sqlite3.connect(path) as database:
        database.execute("UPDATE norms SET value = zeroblob(9) WHERE offset = 2")
    database.close()
    copy = tmp_path / "copy.db"
    assert on(path, "backup", str(copy)).code == Exit.REFUSED
    assert not Path(f"{copy}.receipt.json").exists()


def test_explain_and_report_show_what_users_spent(path: Path) -> None:
    events = on(path, "explain", "--user", "5").lines
    assert [event["what"] for event in events] == [*["charged"] * 4, "halted"]
    heads = [event["compared"] for event in events]
    assert all(head.keys() == {"file"} and head["file"] for head in heads)
    losses = on(path, "report").lines
    assert sorted((loss["user"], loss["steps"]) for loss in losses) == [
        *((user, 5) for user in range(5)),
        (5, 4),
    ]


def test_records_and_datasets_are_shown(path: Path) -> None:
    (halt,) = on(path, "halts").lines
    (halted,) = on(path, "explain", "--decision", halt["decision"], "--user", "5").lines
    assert (halted["what"], halted["step"]) == ("halted", halt["step"])
    assert (halt["user"], halt["step"]) == (5, 4)
    odometers = on(path, "odometer").lines
    assert {line["user"] for line in odometers} == set(range(USERS))
    assert all(line["epsilon"] > 0 for line in odometers), "the policies are in the file"
    (dataset,) = on(path, "dataset", "list").lines
    assert (dataset["dataset"], dataset["users"], dataset["exhausted"]) == ("d", USERS, 1)
    assert on(path, "dataset", "show", "d").lines == [dataset]
    (run,) = on(path, "runs").lines
    assert (run["run"], run["state"], run["step"], run["users"]) == ("r", "closed", 4, None)
    assert on(path, "dataset", "show", "other").code == Exit.REFUSED


def test_status_shows_partitions_and_epsilons_only_at_a_delta(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for given in ([], ["--delta", "1e-6"]):
        assert main(["status", "--budgets", str(path), *given]) == Exit.OK
        assert ("epsilon" in capsys.readouterr().out) is bool(given)
    lines = on(path, "status").lines
    assert [line["state"] for line in lines] == ["deciding"] * 2
    assert sum(line["users"] for line in lines) == USERS


def test_commands_charge_and_change_a_file(tmp_path: Path) -> None:
    path = tmp_path / "budgets.db"
    assert on(path, "dataset", "create", "d", "--budget", "1").code == Exit.OK
    step = {"dataset": "d", "run": "r", "users": [1, 2], "norms": [1.0, 0.5], "noise_stddev": 4.0}
    steps = tmp_path / "steps.jsonl"
    steps.write_text(json.dumps(step))
    assert [line["admitted"] for line in on(path, "publish", str(steps)).lines] == [2]
    assert on(path, "publish", str(steps)).lines[0]["decided"] == "before"
    assert on(path, "erase", "--user", "1").lines[0]["dataset"] == "d"
    assert on(path, "dataset", "withdraw", "d").code == Exit.REFUSED
    (reject,) = on(path, "rejects").lines
    assert reject["reason"] == "dataset-in-use"
    assert on(path, "dataset", "create", "d", "--budget", "2").code == Exit.REFUSED
    assert on(path, "dataset", "create", "neither").code == Exit.USAGE
    assert on(path, "run", "close", "d/typo").code == Exit.REFUSED
    assert on(path, "run", "close", "d/r").code == Exit.OK
    assert on(path, "dataset", "close", "d").code == Exit.OK
    assert on(path, "verify").code == Exit.OK


def test_created_share_shows_its_epsilon_at_the_given_delta(tmp_path: Path) -> None:
    path = tmp_path / "budgets.db"
    whole = on(path, "dataset", "create", "d", "--epsilon", "1", "--delta", "1e-7")
    share = "dataset", "create", "part", "--share-of", "d", "--share", "1"
    (created,) = on(path, *share, "--delta", "1e-7").lines
    for field in ("epsilon", "delta"):
        assert created[field] == whole.lines[0][field]
    assert on(path, *share).lines[0]["epsilon"] < created["epsilon"]
    assert on(path, "dataset", "create", "x", *share[3:], "--delta", "2").code == 2
    assert on(path, "dataset", "show", "x").code == 1


@pytest.mark.parametrize("command", ["status", "halts", "verify", "publish -", "dataset list"])
def test_missing_file_is_not_created(tmp_path: Path, command: str) -> None:
    path = tmp_path / "budgets.db"
    assert on(path, *command.split()).code == Exit.UNAVAILABLE
    assert not path.exists()


def test_commands_for_a_service_reject_a_file(path: Path) -> None:
    for command in commands_of():
        if command.settings and "budgets" not in command.settings and not command.arguments:
            done = turnstile(*command.name.split(), environment={"TURNSTILE_BUDGETS": str(path)})
            assert done.code == Exit.USAGE


def test_address_of_a_service_replaces_the_file_in_the_settings() -> None:
    environment = {"TURNSTILE_BUDGETS": "budgets.db"}
    assert Config.load(environment=environment).budgets == "budgets.db"
    assert Config.load(environment=environment, kafka="localhost:9092").budgets == ""
    with pytest.raises(ConfigurationError):
        Config.load(environment={}, kafka="localhost:9092", budgets="budgets.db")


@pytest.mark.parametrize(("delta", "is_large"), [("0.1", True), ("0.002", True), ("1e-6", False)])
def test_a_large_delta_is_warned_of(path: Path, delta: str, is_large: bool) -> None:
    done = on(path, "dataset", "create", "new", "--epsilon", "1", "--delta", delta)
    assert done.code == Exit.OK
    assert bool(done.said) is is_large
