"""``QueryAnswerer`` does the same with one user and without."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pytest

from accounting.release import KeySelection
from streams import Turnstile
from streams.queries.continual_monitoring import QueryAnswerer, Release
from tests.worlds.neighbours import SEED, Fact, Noisy, check_neighbours

USER = "the user"
DAYS = 4
NOISE, CLIP = 2.0, 1.5
SELECTION = KeySelection(50, 1.0, NOISE)


class Asked(NamedTuple):
    """A user's contributions on a day: to a number, to a vector, and by private keys."""

    day: int
    user: str
    number: float
    vector: tuple[float, float] = (0.5, -0.5)
    keys: tuple[int, ...] = (7,)


def shown(name: str, release: Release, most: float | None = None) -> Iterator[Fact]:
    yield Fact(f"{name} step", (release.step, release.noise_stddev))
    yield Fact(name, Noisy(release.value, most))
    yield Fact(f"{name} interval", Noisy(release.interval()[0]))


def answer(data: list[Asked]) -> Iterator[Fact]:
    """Ask every kind of query on every day, also on days without users."""
    with Turnstile.in_memory(partitions=2) as turnstile:
        turnstile.create_dataset("d", measure="zcdp", budget=3.0)
        run = turnstile.run("d", "r")
        # Which keys get noise is noisy, so the noise of other answers comes from another source.
        answerer, keyed = (
            QueryAnswerer(
                run, noise_stddev=NOISE, clip_norm=CLIP, noise=np.random.default_rng(SEED)
            )
            for _ in range(2)
        )
        for day in range(DAYS):
            today = [one for one in data if one.day == day]
            users = [one.user for one in today]
            numbers, vectors = [one.number for one in today], [one.vector for one in today]
            yield from shown("number", answerer.answer(users, numbers), CLIP)
            yield from shown("vector", answerer.answer(users, vectors, dimension=2), CLIP)
            values, keys = [[one.number] for one in today], [list(one.keys) for one in today]
            found = keyed.answer_keys(users, values, keys, SELECTION)
            yield Fact(
                "keys", (found.step, found.noise_stddev, len(found.keys) == len(found.value))
            )


# On the last day there are no other users.
OTHERS = [
    Asked(day, f"user {user}", user / 4, (user / 8, 0.25), (user % 5,))
    for day in range(DAYS - 1)
    for user in range(8)
]
HOSTILE = {
    "usual": [Asked(1, USER, 1.0)],
    "every day": [Asked(day, USER, 1.0) for day in range(DAYS)],
    "the only user of a day": [Asked(DAYS - 1, USER, 1.0)],
    "nothing": [Asked(1, USER, 0.0, (0.0, 0.0), ())],
    "the largest numbers": [Asked(1, USER, 1e308, (1e308, -1e308))],
    "the largest number of all": [Asked(0, USER, float(np.finfo(float).max))],
    "not a number": [Asked(0, USER, float("nan"), (float("nan"), 0.5))],
    "infinite": [Asked(0, USER, float("inf"), (0.5, float("-inf")))],
    "the smallest number": [Asked(0, USER, 5e-324, (5e-324, 0.0))],
    "an id in an odd form": [Asked(1, "A\u030a\0\u202e", 1.0)],
    "a long id": [Asked(1, "x" * 256, 1.0)],
    "a key of nobody else": [Asked(1, USER, 1.0, keys=(49,))],
}


@pytest.mark.parametrize("name", HOSTILE)
def test_one_user_of_a_query_decides_nothing(name: str) -> None:
    check_neighbours(answer, OTHERS, HOSTILE[name])
