"""Processes that share a budget file, and are killed while they charge it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from pathlib import Path
from random import Random
from time import sleep

import numpy as np
import pytest

from streams import Turnstile
from streams.ledger.ledger import Ledger
from streams.ledger.outputs import Output
from streams.sdk.errors import Unusable
from tests.audit.budget_file import audit_file
from tests.unit.sdk.files import Clients
from tests.waiting import HANGS_AFTER

pytestmark = pytest.mark.process

ALONE = """
import sys, threading
from streams import Turnstile

with Turnstile.open(*sys.argv[1:]) if sys.argv[1:] else Turnstile.in_memory() as turnstile:
    turnstile.create_dataset("d", measure="zcdp", budget=1.0)
    assert turnstile.run("d", "r").charge([1], [1.0], noise_stddev=4.0).admitted.all()
    assert list(turnstile.halts(follow=False)) == []
heavy = {"kafka", "redis", "faust", "aiokafka", "scipy.special"}
print(heavy & set(sys.modules), threading.active_count())
"""


@pytest.mark.parametrize("file", [[], ["budgets.db"]], ids=["in memory", "file"])
def test_local_budgets_need_no_client_and_no_thread(tmp_path: Path, file: list[str]) -> None:
    command = [sys.executable, "-c", ALONE, *(str(tmp_path / name) for name in file)]
    found = subprocess.run(command, check=True, capture_output=True, text=True)
    assert found.stdout == "set() 1\n"


class NotingClients(Clients):
    """Clients that write each decision to a file before they do anything else."""

    notes: int

    def note(self, dataset: str, run: str, step: int, admitted: list[bool]) -> None:
        super().note(dataset, run, step, admitted)
        os.write(self.notes, json.dumps([dataset, run, step, admitted]).encode() + b"\n")


def work(path: Path, notes: Path, seed: int, actions: int) -> None:
    """Charge a file at random, as a process of its own."""
    clients = NotingClients(path, Random(seed), clients=2)
    clients.notes = os.open(notes, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    for _ in range(actions):
        clients.act()
    clients.leave_all()


def start(*work_arguments: object) -> BaseProcess:
    process = get_context("fork").Process(target=work, args=work_arguments)
    process.start()
    return process


def decisions(notes: list[Path]) -> dict[tuple[str, str, int], list[bool]]:
    """Return what all processes were told, each step once."""
    told: dict[tuple[str, str, int], list[bool]] = {}
    for file in notes:
        for line in file.read_text().splitlines() if file.exists() else ():
            dataset, run, step, admitted = json.loads(line)
            assert (dataset, run, step) not in told, "a step was decided for two processes"
            told[dataset, run, step] = admitted
    return told


def assert_told_is_stored(path: Path, notes: list[Path]) -> int:
    """Assert that every decision that a process received is in the file, and return how many."""
    auditor, told = audit_file(path), decisions(notes)
    for dataset, run, step in told:
        assert all(step <= runs[dataset, run].step for runs in auditor.runs)
    return len(told)


@pytest.mark.slow
def test_killed_processes_lose_nothing_and_double_nothing(tmp_path: Path) -> None:
    path, notes, rng = tmp_path / "budgets.db", [], Random(1)
    for life in range(10):
        notes += [tmp_path / f"{life}-{number}.jsonl" for number in range(2)]
        processes = [start(path, file, life * 2 + n, 10_000) for n, file in enumerate(notes[-2:])]
        try:
            while not any(file.exists() and file.stat().st_size for file in notes[-2:]):
                assert all(process.is_alive() for process in processes)
                sleep(0.01)
            sleep(rng.random() / 5)  # so that all moments of a charge are equally likely
        finally:
            for process in processes:
                process.kill()
                process.join(HANGS_AFTER)
        assert_told_is_stored(path, notes)
    assert assert_told_is_stored(path, notes) >= 10


@pytest.mark.slow
def test_processes_that_charge_at_once_charge_as_one(tmp_path: Path) -> None:
    path = tmp_path / "budgets.db"
    notes = [tmp_path / f"{number}.jsonl" for number in range(3)]
    processes = [start(path, file, number, 40) for number, file in enumerate(notes)]
    for process in processes:
        process.join(HANGS_AFTER)
    assert [process.exitcode for process in processes] == [0, 0, 0]
    assert assert_told_is_stored(path, notes) > 20


def test_fork_waits_for_a_charge_and_its_copy_cannot_charge(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "budgets.db"
    inside, go_on = threading.Event(), threading.Event()
    apply = Ledger.apply

    def slow(self: Ledger, offset: int, value: bytes | None) -> list[Output]:
        inside.set()
        go_on.wait(HANGS_AFTER)
        return apply(self, offset, value)

    with Turnstile.open(path, partitions=1) as turnstile:
        turnstile.create_dataset("d", measure="zcdp", budget=1.0)
        run = turnstile.run("d", "r")
        monkeypatch.setattr(Ledger, "apply", slow)
        users = np.arange(10)
        charging = threading.Thread(target=lambda: run.charge(users, np.ones(10), noise_stddev=4.0))
        charging.start()
        inside.wait(HANGS_AFTER)
        threading.Timer(0.1, go_on.set).start()  # the fork waits until then
        child = os.fork()
        if child == 0:
            code = 1
            try:
                turnstile.close_run("d", "r")
            except Unusable:
                turnstile.close()
                code = 0 if go_on.is_set() else 2
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        charging.join(HANGS_AFTER)
        assert run.charge(users, np.ones(10), noise_stddev=4.0).step == 1
    audit_file(path)
