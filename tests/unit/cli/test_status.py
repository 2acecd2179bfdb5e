"""`turnstile status --watch` shows the present state again and again."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from streams.cli.main import main
from streams.config import Config, Unavailable
from streams.failures import Exit
from streams.operations.status import Overview, PartitionState, PartitionStatus


def test_partitions_with_the_same_problem_share_one_text(
    capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    (well,) = overview(7).partitions
    gone = replace(well, state=PartitionState.WAITING, problem="its owner is silent", remedy="look")
    hole = replace(gone, partition=9, state=PartitionState.SUSPENDED, problem="a hole")
    seen = Overview([well, *(replace(gone, partition=p) for p in (1, 2)), hole], {})
    monkeypatch.setattr("streams.cli.operator_commands.read_overview", lambda _: seen)
    assert main(["status"]) == Exit.UNAVAILABLE
    said = capfdbinary.readouterr().out.decode()
    assert said.count("its owner is silent") == 1
    assert said.count("a hole") == 1
    assert "1, 2" in said


def overview(next_offset: int) -> Overview:
    """One partition that is decided up to this offset."""
    return Overview(
        [
            PartitionStatus(
                partition=0,
                state=PartitionState.DECIDING,
                owner="host:1",
                next=next_offset,
                lag=0,
                users=3,
                unpublished=0,
                changes=0,
                seen=1,
                head=None,
                snapshot=None,
            )
        ],
        {},
    )


def test_watch_continues_after_an_outage(
    capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = iter([overview(7), Unavailable("Redis is away"), overview(9), KeyboardInterrupt()])

    def look(_: Config) -> Overview:
        found = next(looks)
        if isinstance(found, BaseException):
            raise found
        return found

    monkeypatch.setattr("streams.cli.operator_commands.read_overview", look)
    monkeypatch.setattr("streams.cli.operator_commands.time.sleep", lambda _: None)
    assert main(["status", "--watch", "--json"]) == Exit.INTERRUPTED
    shown = capfdbinary.readouterr()
    assert [json.loads(line)["next"] for line in shown.out.splitlines()] == [7, 9]
    assert b"away" in shown.err
