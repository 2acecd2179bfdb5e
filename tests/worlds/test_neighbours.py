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


def exits(data: list[float]) -> Iterator[Fact]:
    yield Fact("step", 0)
    sys.exit(len(data))


def does(action: Callable[[int], object]) -> Callable[[list[float]], Iterator[Fact]]:
    """Return a program that does something with the number of users more than the others."""

    def program(data: list[float]) -> Iterator[Fact]:
        yield Fact("step", 0)
        yield Fact("done", action(len(data) - len(OTHERS)) and None)

    return program


def warn(more: int) -> None:
    if more:
        warnings.warn("an odd number", RuntimeWarning, stacklevel=1)


UNSOUND: dict[str, Callable[[list[float]], Iterator[Fact]]] = {
    "one more": lambda data: (Fact("step", step) for step in range(len(data))),
    "raises": does(lambda more: 1 // (1 - more)),
    "warns": does(warn),
    "writes": does(lambda more: Path(f"{more}.txt").write_text("")),
    "prints": does(lambda more: print(f"of {more} users")),
    "another shape": lambda data: iter([Fact("values", Noisy(data))]),
    "another type": lambda data: iter([Fact("sum", Noisy([1, 1.0][len(data) > len(OTHERS)]))]),
    "too far": lambda data: iter([Fact("mean", Noisy(sum(data) / len(data), 0.5))]),
}


def test_noisy_values_may_differ() -> None:
    facts = check_neighbours(sound, OTHERS, USER)
    assert [fact.what for fact in facts] == ["step", "sum", "files", "printed"]
    assert facts[2:] == [Fact("files", ["sum.txt"]), Fact("printed", "the sum is #")]


@pytest.mark.parametrize("program", UNSOUND.values(), ids=UNSOUND)
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
