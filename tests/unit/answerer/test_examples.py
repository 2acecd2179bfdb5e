"""The examples of the documentation of answerers give what its pages say."""

from __future__ import annotations

import runpy
from pathlib import Path

import msgspec
import pytest

from streams.cli.main import main
from tests.readme import TOP

HERE = TOP / "examples" / "answering"


@pytest.mark.slow
def test_the_simulated_year_is_planned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    runpy.run_path(str(HERE / "year.py"))["main"](2_000)
    events = tmp_path / "year.csv"
    events.write_text(capsys.readouterr().out)
    arguments = ["answer", str(HERE / "year.toml"), "--plan", "--events", str(events)]
    budget = ["--epsilon", "6", "--delta", "1e-6"]
    assert main([*arguments, *budget, "--json"]) == 0
    plan = msgspec.json.decode(capsys.readouterr().out)
    assert (plan["type"], plan["private"], plan["query"]) == ("plan", True, "buyers")
    assert plan["recommended"]["rmse"] < plan["worst_case"]["rmse"]
    assert plan["recommended"]["block_windows"] > 0


@pytest.mark.parametrize(
    "arguments",
    [
        ["--plan"],
        ["--plan", "--events", "none.csv", "--epsilon", "1", "--delta", "1e-6"],
        ["--check", "--epsilon", "1"],
    ],
)
def test_plans_without_events_or_a_budget_are_refused(arguments: list[str]) -> None:
    assert main(["answer", str(HERE / "year.toml"), *arguments]) == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("", 0),
        ("7,2025-12-31,1.0", 0),  # before the start, which is public
        ("7,9999-12-31,1.0", 0),
        ("7.0,2026-01-01,1.0", 2),
        ("7,01/31/2026,1.0", 2),
        ("7,2026-01-01", 2),
    ],
)
def test_a_row_that_cannot_be_read_needs_the_word_of_a_person(
    line: str, code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    events = tmp_path / "events.csv"
    events.write_text(f"user,day,amount\n1,2026-01-01,1.0\n{line}\n")
    queries = tmp_path / "queries.toml"  # a plan of few days is fast
    queries.write_text((HERE / "year.toml").read_text().replace("2027-01-01", "2026-01-11"))
    words = ["answer", str(queries), "--json", "--epsilon", "6", "--delta", "1e-6"]
    assert main([*words, "--check", "--input", str(events)]) == code
    capsys.readouterr()
    words += ["--plan", "--events", str(events)]
    assert main(words) == code
    shown = capsys.readouterr()
    assert (not shown.out, not shown.err) == (code != 0, not line)
    assert main([*words, "--accept-skipped"]) == 0
    assert (capsys.readouterr().err == "") == (not line)
    words.remove("--json")
    for public, is_shown in ((["--public"], False), ([], True)):
        assert main([*words, "--accept-skipped", *public]) == 0
        assert ("PRIVATE" in capsys.readouterr().out) is is_shown


@pytest.mark.parametrize(("days", "is_told"), [(1, True), (4, True), (5, False)])
def test_a_plan_tells_that_few_windows_have_events(
    days: int, is_told: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    events = tmp_path / "events.csv"
    rows = "".join(f"1,2026-01-{day:02},1.0\n" for day in range(1, days + 1))
    events.write_text(f"user,day,amount\n{rows}")
    queries = tmp_path / "queries.toml"
    queries.write_text((HERE / "year.toml").read_text().replace("2027-01-01", "2026-01-11"))
    budget = ["--epsilon", "6", "--delta", "1e-6"]
    assert main(["answer", str(queries), "--plan", "--events", str(events), *budget]) == 0
    assert (f"Events are in {days} of 10 windows only" in capsys.readouterr().out) is is_told


def test_check_shows_noise_and_interval(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--check", "--json", "--epsilon", "1", "--delta", "1e-6"]
    assert main(["answer", str(HERE / "year.toml"), *arguments]) == 0
    shown = msgspec.json.decode(capsys.readouterr().out)
    assert shown["interval_half_width"] == pytest.approx(1.959964 * shown["noise_stddev"])
    assert shown["noise_stddev"] == pytest.approx(40.6, rel=0.01)
    assert shown["block_windows"] == 73
    assert (shown["window"], shown["window_seconds"]) == ("1d", 86_400)
    assert 0.0 < shown["left_out"] < 0.5
    assert shown["correction_stddev"] > shown["noise_stddev"]


def test_check_shows_a_label_that_no_event_has(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    queries, events = tmp_path / "queries.toml", tmp_path / "events.csv"
    keys = 'by = "region"\nlabels = ["north", "soth"]\ngroups = 1\n'
    queries.write_text(f"{(HERE / 'year.toml').read_text()}\n{keys}")
    events.write_text("user,day,amount,region\n1,2026-01-01,1.0,north\n2,2026-01-01,1.0,south\n")
    words = ["answer", str(queries), "--epsilon", "6", "--delta", "1e-6", "--check"]
    assert main([*words, "--input", str(events)]) == 0
    shown = capsys.readouterr().out
    assert "PRIVATE" in shown
    assert " soth " in shown
    assert "'south': 1" in shown
    assert main([*words, "--input", str(events), "--json"]) == 0
    lines = [msgspec.json.decode(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["unused"] for line in lines if line["type"] == "labels"] == [["soth"]]
