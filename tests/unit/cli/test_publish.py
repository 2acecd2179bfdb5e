"""A file of steps is charged once, even if it is sent again or was interrupted."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from streams.cli.main import main
from streams.failures import Exit
from streams.records import Decision, Reason
from tests.unit.sdk.partitions import Partitions

USERS = [1, 2, 3, 4]  # of both partitions


@pytest.fixture
def partitions(monkeypatch: pytest.MonkeyPatch) -> Partitions:
    service = Partitions(2)
    service.create("d", budget=100.0, assume_independent_timing=True)
    client = nullcontext(service.turnstile)
    monkeypatch.setattr("streams.cli.step_commands.client_of", lambda _: client)
    return service


def line(norm: float, run: str = "r", **more: object) -> dict[str, object]:
    step = {"dataset": "d", "run": run, "users": USERS, "norms": [norm] * 4, "noise_stddev": 1}
    return {**step, **more}


def rho(*norms: float) -> dict[int | str, float]:
    """What every user has spent who was charged these norms, once each."""
    return dict.fromkeys(USERS, sum(norm * norm / 2 for norm in norms))


@pytest.fixture
def publish(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    def publish(
        *lines: dict[str, object] | str, options: tuple[str, ...] = ()
    ) -> tuple[int, list[tuple[int, str]], str]:
        """The exit code, (step, decided) of each line, and what was said."""
        file = tmp_path / "steps.jsonl"
        text = "".join(f"{x if isinstance(x, str) else json.dumps(x)}\n" for x in lines)
        file.write_bytes(text.encode("utf-8", "surrogateescape"))
        code = main(["publish", str(file), "--json", *options])
        captured = capsys.readouterr()
        shown = [json.loads(text) for text in captured.out.splitlines()]
        return code, [(one["step"], one["decided"]) for one in shown], captured.err

    return publish


def test_file_sent_twice_is_charged_once(partitions: Partitions, publish) -> None:
    lines = [line(1), line(2), line(3)]
    assert publish(*lines) == (Exit.OK, [(0, "now"), (1, "now"), (2, "now")], "")
    code, shown, said = publish(*lines)
    assert (code, shown) == (Exit.OK, [(0, "before"), (1, "before"), (2, "before")])
    assert said
    assert partitions.spent() == rho(1, 2, 3)
    assert partitions.rejects == []


@pytest.mark.parametrize("lost", [{0}, {1}, {0, 1}])
@pytest.mark.parametrize("what", ["mute", "deaf"])
def test_repeated_line_without_an_answer_is_charged_once(
    partitions: Partitions, publish, what: str, lost: set[int]
) -> None:
    publish(line(1))

    def break_down_after_step_0(decision: Decision) -> list[Decision]:
        if decision.partition == 1:
            setattr(partitions, what, lost)
        return [decision]

    partitions.heard = break_down_after_step_0
    code, shown, said = publish(line(1), line(2), line(3))
    assert (code, shown) == (Exit.UNAVAILABLE, [(0, "before")])
    assert "steps.jsonl, line 2: " in said
    partitions.heard = lambda decision: [decision]
    setattr(partitions, what, set())
    code, shown, _ = publish(line(1), line(2), line(3))
    assert (code, [step for step, _ in shown]) == (Exit.OK, [0, 1, 2])
    assert partitions.spent() == rho(1, 2, 3)


def test_other_content_for_an_interrupted_step_is_not_charged(
    partitions: Partitions, publish
) -> None:
    publish(line(1))
    run = partitions.open("r")
    partitions.deaf = {1}
    with pytest.raises(TimeoutError):
        run.charge(USERS, [2.0] * 4, noise_stddev=1.0)
    partitions.deaf = set()
    before = partitions.spent()
    code, _, said = publish(line(1), line(9))
    assert code == Exit.REFUSED
    assert "steps.jsonl, line 2: " in said
    assert partitions.rejects[-1] is Reason.STEP_CONTENT_CHANGED
    assert partitions.spent() == before
    assert publish(line(1), line(2))[0] == Exit.OK
    assert partitions.spent() == rho(1, 2)


def test_lines_may_have_a_step(partitions: Partitions, publish) -> None:
    publish(line(1, step=0), line(2, step=1))
    code, shown, _ = publish(line(2, step=1), line(3, step=2))
    assert (code, shown) == (Exit.OK, [(1, "before"), (2, "now")])
    # Twice in one file is the same step as well.
    code, shown, _ = publish(line(4, step=3), line(4, step=3), line(5, step=4))
    assert (code, shown) == (Exit.OK, [(3, "now"), (3, "before"), (4, "now")])
    assert partitions.spent() == rho(1, 2, 3, 4, 5)


def test_held_budget_is_taken_only_with_take_over(partitions: Partitions, publish) -> None:
    partitions.create("e", budget=100.0)
    assert publish(line(1, dataset="e"))[0] == Exit.OK
    code, shown, _ = publish(line(2, dataset="e", run="s"))
    assert (code, shown) == (Exit.REFUSED, [])
    assert partitions.rejects[-1] is Reason.BUDGET_HELD
    assert partitions.spent("e") == rho(1)
    later = line(2, dataset="e", run="s"), line(3, dataset="e", run="s")
    assert publish(*later, options=("--take-over",))[0] == Exit.OK
    assert partitions.spent("e") == rho(1, 2, 3)


def test_lines_may_have_a_min_separation(
    partitions: Partitions, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "steps.jsonl"
    lines = [line(1, min_separation=2), line(2, users=[4, 5, 6, 7]), line(3, min_separation=2)]
    file.write_text("".join(f"{json.dumps(one)}\n" for one in lines))
    assert main(["publish", str(file), "--json"]) == Exit.OK
    first, second, third = map(json.loads, capsys.readouterr().out.splitlines())
    assert (first["halted"], first["too_soon"]) == (0, 0)
    assert (first["halted_users"], first["too_soon_users"]) == ([], [])
    assert (second["halted"], second["too_soon"]) == (1, 1)
    assert (second["halted_users"], second["too_soon_users"]) == ([4], [4])
    assert third["too_soon_users"] == []
    assert partitions.spent() == {**rho(1, 3), 4: 5.0, **dict.fromkeys([5, 6, 7], 2.0)}
    file.write_text(json.dumps(line(1, min_separation=3)))
    assert main(["publish", str(file)]) == Exit.REFUSED


# Sent after two lines of the run r; the run closed is closed.
WRONG: dict[str, tuple[list[Any], Exit, int]] = {
    "gap": ([line(1, step=0), line(3, step=4)], Exit.USAGE, 2),
    "gap at first": ([line(1, run="new", step=7)], Exit.USAGE, 1),
    "some numbered": ([line(1), line(2, step=1)], Exit.USAGE, 2),
    "negative": ([line(1, step=-1)], Exit.USAGE, 1),
    "no JSON": (["", " ", "{"], Exit.USAGE, 3),
    "unknown field": ([line(1, colour="red")], Exit.USAGE, 1),
    "deep": (["[" * 100_000], Exit.USAGE, 1),
    "not UTF-8": (['{"dataset": "\udcff"}'], Exit.USAGE, 1),
    "no norms": ([line(1), line(2), line(3, norms=[])], Exit.USAGE, 3),
    "other content": ([line(1), line(9)], Exit.REFUSED, 2),
    "closed": ([line(1, run="closed")], Exit.REFUSED, 1),
    "no dataset": ([line(1, dataset="no")], Exit.REFUSED, 1),
    "no separation": ([line(1, min_separation=1)], Exit.USAGE, 1),
    "another separation": (
        [line(0, run="new", min_separation=3), line(2, run="new", min_separation=4)],
        Exit.USAGE,
        2,
    ),
    "a separation later": ([line(1), line(2, min_separation=3)], Exit.USAGE, 2),
    "no name": ([line(1, run="a/b")], Exit.USAGE, 1),
}


@pytest.mark.parametrize("case", WRONG)
def test_errors_contain_file_and_line(partitions: Partitions, publish, case: str) -> None:
    assert main(["publish", "/nowhere"]) == Exit.USAGE
    publish(line(1), line(2))
    partitions.open("closed").close()
    lines, expected, number = WRONG[case]
    code, _, said = publish(*lines)
    assert code == expected, said
    assert f"steps.jsonl, line {number}: " in said
    assert partitions.spent() == rho(1, 2)
