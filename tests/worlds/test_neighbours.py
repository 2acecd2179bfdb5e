"""The comparison of two worlds finds what one user decides, and nothing else."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.worlds.neighbours import Fact, Noisy, check_neighbours, public

OTHERS, USER = [3.0, 4.0], [1.0]


def sound(data: list[float]) -> Iterator[Fact]:
    noise = np.random.default_rng().normal()
    yield Fact("step", 0)
    yield Fact("sum", Noisy(sum(data) + noise, 1.0))
    print(f"the sum is {sum(data) + noise}")
    Path("sum.txt").write_text("")


def one_more(data: list[float]) -> Iterator[Fact]:
    return (Fact("step", step) for step in range(len(data)))


def raises(data: list[float]) -> Iterator[Fact]:
    yield Fact("step", 0)
    if len(data) > len(OTHERS):
        raise ValueError("too much")


def exits(data: list[float]) -> Iterator[Fact]:
    yield Fact("step", 0)
    sys.exit(len(data))


def warns(data: list[float]) -> Iterator[Fact]:
    if len(data) > len(OTHERS):
        warnings.warn("an odd number", RuntimeWarning, stacklevel=1)
    yield Fact("step", 0)


def writes(data: list[float]) -> Iterator[Fact]:
    Path(f"{len(data)}.txt").write_text("")
    yield Fact("step", 0)


def prints(data: list[float]) -> Iterator[Fact]:
    print(f"of {len(data)} users")
    yield Fact("step", 0)


def another_shape(data: list[float]) -> Iterator[Fact]:
    yield Fact("values", Noisy(data))


def another_type(data: list[float]) -> Iterator[Fact]:
    yield Fact("sum", Noisy(np.float32(1.0) if len(data) > len(OTHERS) else 1.0))


def too_far(data: list[float]) -> Iterator[Fact]:
    yield Fact("mean", Noisy(sum(data) / len(data), 0.5))


UNSOUND = [one_more, raises, warns, writes, prints, another_shape, another_type, too_far]


def test_noisy_values_may_differ() -> None:
    facts = check_neighbours(sound, OTHERS, USER)
    assert [fact.what for fact in facts] == ["step", "sum", "files", "printed"]
    assert facts[2:] == [Fact("files", ["sum.txt"]), Fact("printed", "the sum is #")]


@pytest.mark.parametrize("program", UNSOUND, ids=lambda program: program.__name__)
def test_public_difference_is_found(program: Callable[[list[float]], Iterator[Fact]]) -> None:
    with pytest.raises(AssertionError, match=r"user|became|moved"):
        check_neighbours(program, OTHERS, USER)


def test_program_that_fails_in_both_worlds_proves_nothing() -> None:
    with pytest.raises(AssertionError, match="SystemExit: 2"):
        check_neighbours(exits, OTHERS, USER)


def test_noisy_fields_of_records_are_left_out() -> None:
    record = {"step": 1, "value": [0.5, 1.5], "windows": [{"raw": 2.5, "end": "x"}]}
    assert public(record, frozenset({"value", "raw"})) == {
        "step": 1,
        "value": "2 numbers",
        "windows": [{"raw": "a number", "end": "x"}],
    }
