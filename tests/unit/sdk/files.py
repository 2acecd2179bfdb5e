"""Budget files of tests: SQL statements that fail, and clients that charge at random."""

from __future__ import annotations

import resource
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, ClassVar
from unittest.mock import patch

import numpy as np

from streams.sdk.client import Turnstile
from streams.sdk.errors import TurnstileError
from streams.sdk.roster import Roster
from streams.sdk.run import Run


class Database(sqlite3.Connection):
    """A connection that does not wait for the disk, and whose statements can fail.

    Attributes:
        around: given a statement, a generator that is advanced before it and after it.
    """

    around: ClassVar[Callable[[str], Iterator[None]]]

    def execute(self, sql: str, *arguments: Any) -> Any:
        return self._run(super().execute, sql, *arguments)

    def executemany(self, sql: str, *arguments: Any) -> Any:
        return self._run(super().executemany, sql, *arguments)

    def rollback(self) -> None:
        if self.in_transaction:
            self._run(lambda _: super(Database, self).rollback(), "ROLLBACK")

    def _run(self, method: Callable[..., Any], sql: str, *arguments: Any) -> Any:
        steps = Database.around(sql)
        next(steps, None)
        done = method("PRAGMA synchronous = OFF" if "synchronous" in sql else sql, *arguments)
        try:
            next(steps, None)
        except BaseException:
            if done is not None:
                done.close()  # the error would keep it alive
            raise
        return done


def unharmed(_: str) -> Iterator[None]:
    """Let no statement fail."""
    yield


Database.around = staticmethod(unharmed)
connect = partial(sqlite3.connect, factory=Database)


def error_of(code: int) -> sqlite3.Error:
    """Return an error of SQLite with this code."""
    error = sqlite3.OperationalError("injected")
    error.sqlite_errorcode = code
    return error


@contextmanager
def failing(error: BaseException, *, before: str = "-", after: str = "-") -> Iterator[None]:
    """Raise an error before or after each statement that begins like this."""

    def around(sql: str) -> Iterator[None]:
        if sql.startswith(before):
            raise error
        yield
        if sql.startswith(after):
            raise error

    with patch.object(Database, "around", staticmethod(around)):
        yield


@contextmanager
def limited(size: int) -> Iterator[None]:
    """Let no file of this process grow beyond this many bytes, as on a full disk."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


class Clients:
    """Several clients of one file, which charge at random and open what they use again.

    Attributes:
        decided: the decisions that were returned, as (dataset, run, step) -> admitted.
    """

    USERS = 12

    def __init__(self, path: Path, rng: Random, clients: int = 3, partitions: int = 2) -> None:
        self.path, self.rng, self.partitions = path, rng, partitions
        self.clients: list[Turnstile | None] = [None] * clients
        self.decided: dict[tuple[str, str, int], list[bool]] = {}
        self.runs: dict[tuple[int, str], Run] = {}
        self.rosters: dict[int, Roster] = {}
        self.closed = 0  # runs with a roster

    def act(self) -> None:
        """Do one thing; an error of the SDK ends the client, which is opened again later."""
        number = self.rng.randrange(len(self.clients))
        try:
            self._act(number)
        except TurnstileError:
            if self.rng.random() < 0.7:
                self.leave(number)

    def note(self, dataset: str, run: str, step: int, admitted: list[bool]) -> None:
        """Remember a decision that was returned."""
        key = dataset, run, step
        assert key not in self.decided, f"{key} was decided twice"
        self.decided[key] = admitted

    def leave(self, number: int) -> None:
        """Close a client, and forget what it has opened."""
        client, self.clients[number] = self.clients[number], None
        self.runs = {key: run for key, run in self.runs.items() if key[0] != number}
        self.rosters.pop(number, None)
        if client is not None:
            client.close()

    def leave_all(self) -> None:
        for number in range(len(self.clients)):
            self.leave(number)

    def _act(self, number: int) -> None:
        rng, client = self.rng, self.clients[number]
        if client is None:
            client = self.clients[number] = Turnstile.open(self.path, partitions=self.partitions)
            client.create_dataset("plain", measure="zcdp", budget=0.3, odometer_step=0.05)
            client.create_dataset("clips", measure="gdp", budget=0.5, on_exhaustion="clip")
            client.create_dataset("outer", measure="zcdp", budget=0.5)
            client.create_dataset("inner", measure="zcdp", budget=0.4, parents="outer")
        match rng.choices(range(7), (8, 5, 3, 1, 1, 1, 1))[0]:
            case 0:
                self._charge(number, rng.choice(["plain", "clips"]))
            case 1:
                self._charge_roster(number)
            case 2:
                name = rng.choice(["plain", "clips"])
                self.runs[number, name] = client.run(
                    name, "r", released=None, take_over=rng.random() < 0.5
                )
            case 3:
                client.erase(rng.randrange(self.USERS))
            case 4:
                for halt in client.halts(follow=False):
                    assert halt.dataset
            case 5:
                self.leave(number)
            case 6:
                client.create_dataset("unused", measure="gdp", budget=1.0)
                client.close_run("inner", f"r{self.closed}")
                self.closed += 1
                client.withdraw_dataset("unused")

    def _charge(self, number: int, name: str) -> None:
        client, rng = self.clients[number], self.rng
        assert client is not None
        run = self.runs.get((number, name))
        if run is None:
            run = self.runs[number, name] = client.run(name, "r", take_over=True)
        users = rng.sample(range(self.USERS), rng.randrange(self.USERS))
        norms = [rng.randrange(9) / 8 for _ in users]
        decision = run.charge(users, norms, noise_stddev=rng.choice([1.0, 2.0, 4.0]))
        self.note(name, run.name, decision.step, decision.admitted.tolist())

    def _charge_roster(self, number: int) -> None:
        client, rng = self.clients[number], self.rng
        assert client is not None
        roster = self.rosters.get(number)
        if roster is None:
            run = client.run("inner", f"r{self.closed}", take_over=True)
            self.runs[number, "inner"] = run
            roster = run.enrol(np.arange(self.USERS), clip_norm=1.0, levels=8)
            self.rosters[number] = roster
        roster.set_norms([rng.randrange(9) / 8], [rng.randrange(self.USERS)])
        decision = roster.charge(noise_stddev=4.0)
        run = self.runs[number, "inner"]
        self.note("inner", run.name, decision.step, decision.admitted.tolist())
