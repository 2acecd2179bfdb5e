"""The examples of docs/answering.md give what the page says."""

from __future__ import annotations

import re
import runpy
import sys
from datetime import timedelta
from pathlib import Path

import msgspec
import numpy as np
import pytest

from streams import Turnstile
from streams.answerer.answering import Answering, answer_file
from streams.answerer.events import EventFile
from streams.answerer.queries import read_query_file
from streams.demo.purchases import simulated_purchases
from tests.doubles.memory_journal import MemoryJournal, MemoryTopics
from tests.readme import TOP, page

HERE = TOP / "examples" / "answering"
DAYS = 113  # four windows of four weeks, and who came first in each of six fortnights


def run(script: str, monkeypatch: pytest.MonkeyPatch, *arguments: Path) -> None:
    monkeypatch.setattr(sys, "argv", [script, *map(str, arguments)])
    runpy.run_path(str(HERE / script), run_name="__main__")


@pytest.mark.slow
def test_the_page_shows_what_the_choice_of_active_windows_gives() -> None:
    example = runpy.run_path(str(HERE / "active_windows.py"))
    rows = {row.active_windows: row for row in example["compare"](example["simulated_year"]())}
    worst = rows[365]
    assert rows[60].error > 1.3 * worst.error
    assert rows[60].covered < 0.5
    assert rows[60].covered_in_december < 0.01
    assert rows[150].error < 0.7 * worst.error
    assert rows[150].covered > 0.9
    assert (worst.left_out, worst.bias) == (0, 0.0)
    assert worst.covered == pytest.approx(0.95)
    shown = re.findall(r"^\| (\d+(?: \| [-\d.,%]+){6}) \|$", page("answering"), re.MULTILINE)
    table = [[float(re.sub("[,%]", "", cell)) for cell in line.split(" | ")] for line in shown]
    assert [line[0] for line in table] == list(rows)
    for line in table:
        *numbers, covered, in_december = rows[int(line[0])]
        assert line == pytest.approx(
            [*numbers, 100 * covered, 100 * in_december], rel=0.02, abs=1.5
        )


@pytest.mark.slow
def test_the_example_answers_the_log_and_tells_how_far_it_is_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("pandas")
    shop = simulated_purchases(2_000, DAYS)
    log, events, answers = (tmp_path / name for name in ("log.txt", "events.csv", "answers.jsonl"))
    lines = [
        f" {buyer:05d} {shop.first_day + timedelta(day):%Y%m%d}  1   20.00"
        for buyer, day in zip(shop.customers.tolist(), shop.day.tolist(), strict=True)
    ]
    log.write_text("\n".join(["header", *lines]))
    run("cdnow.py", monkeypatch, log)
    events.write_text(capsys.readouterr().out)

    query_file = read_query_file(HERE / "queries.toml").for_a_file()
    published: list[bytes] = []
    with Turnstile.in_memory() as turnstile:
        turnstile.create_dataset(query_file.dataset, epsilon=2.0, delta=1e-5, user_ids="integer")
        file = EventFile(events, query_file)
        answering = Answering(
            query_file,
            file.source,
            lambda released: turnstile.run(query_file.dataset, query_file.run, released=released),
            MemoryJournal(MemoryTopics(), query_file.dataset, query_file.run),
            lambda answer: published.append(msgspec.json.encode(answer)),
            text=file.text,
            noise=np.random.default_rng(5),
        )
        answer_file(answering, file)
    assert len(published) == DAYS + 4 + 4
    answers.write_bytes(b"\n".join(published))

    run("errors.py", monkeypatch, events, answers)
    told = capsys.readouterr().out
    said = re.search(r"individual accounting: (\d+) days, mean error ([\d.]+)", told)
    assert said is not None
    days, off = said.groups()
    assert int(days) == DAYS
    # Noise of 12.6, whose mean without its sign is 10.1; few have run out by then.
    assert float(off) == pytest.approx(10.1, rel=0.2)
    assert "worst case, the same noise: 20 days, mean error 10.1" in told
    assert "against bounded sums" in told
