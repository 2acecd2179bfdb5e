"""Programs that release something, run on two neighbouring datasets: with one user and without.

A program is a function of the data of all users. It yields public facts in order. Both runs have
the same noise and the same coins, from one seed. Then everything public must be the same: the
number of releases, their names, steps, grids, shapes and noise, errors and exit codes, warnings,
files and standard output. Only noisy values may differ. If the filter is right, and one user can
nevertheless decide whether a release exists, a comparison of charges and noise does not show it.
This one does.

Not compared: logs and standard error, which are for the operator; how long a run takes.
"""

from __future__ import annotations

import os
import random
import re
import secrets
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, chdir, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from itertools import zip_longest
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple, TypeAlias, TypeVar
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray

T = TypeVar("T")

SEED = 20
_NUMBERS = re.compile(r"[-+]?\d+(?:\.\d+)?(?:e[-+]?\d+|%)|[-+]?\d*\.\d+")


class Fact(NamedTuple):
    """One public thing."""

    what: str
    value: Any = None


@dataclass(frozen=True, eq=False)
class Noisy:
    """A noisy value. Its shape and type are compared.

    Attributes:
        value: numbers of any shape.
        most: the L2 norm of what one user can add to it, if both worlds have the same noise in it,
            so that this is compared, too; else None.
    """

    value: Any
    most: float | None = None

    def differs(self, other: Noisy) -> str:
        """Return how this differs in public from the value of the other world, or nothing."""
        one, two = np.asarray(self.value), np.asarray(other.value)
        if (one.shape, one.dtype) != (two.shape, two.dtype):
            return f"{one.dtype} {one.shape} became {two.dtype} {two.shape}"
        if self.most is None:
            return ""
        moved = float(np.linalg.norm(one.astype(np.float64) - two))
        return f"moved by {moved}, above {self.most}" if moved > self.most * (1.0 + 1e-6) else ""


Program: TypeAlias = Callable[[list[T]], Iterator[Fact]]


def check_neighbours(program: Program[T], others: Sequence[T], user: Sequence[T]) -> list[Fact]:
    """Check that nothing public tells whether a user is in the data; return what is public.

    Args:
        program: yields public facts. It runs in an empty folder.
        others: the data of all other users.
        user: the data of the user.
    """
    facts = _without(program, others)
    errors = [fact for fact in facts if fact.what == "raised" or _is_failure(fact)]
    assert not errors, f"the program fails without the user: {errors}"
    found = difference(facts, observed(program, [*others, *user]))
    assert not found, found
    return facts


_KNOWN: list[tuple[Any, Any, list[Fact]]] = []


def _without(program: Program[T], others: Sequence[T]) -> list[Fact]:
    """Return the facts of the world without the user, which many tests share."""
    for known, data, facts in _KNOWN:
        if known is program and data is others:
            return facts
    facts = observed(program, list(others))
    _KNOWN.append((program, others, facts))
    return facts


def _is_failure(fact: Fact) -> bool:
    return fact.what == "exit code" and fact.value != 0


def observed(program: Program[T], data: list[T]) -> list[Fact]:
    """Run a program; return what is public of it, the exception that ended it included."""
    facts: list[Fact] = []
    out = StringIO()
    with ExitStack() as stack:
        folder = stack.enter_context(TemporaryDirectory())
        stack.enter_context(chdir(folder))
        stack.enter_context(redirect_stdout(out))
        stack.enter_context(redirect_stderr(StringIO()))
        stack.enter_context(seeded())
        warned = stack.enter_context(warnings.catch_warnings(record=True))
        warnings.simplefilter("always")
        try:
            for fact in program(data):
                facts.append(fact)
        except (Exception, SystemExit) as error:
            facts.append(Fact("raised", f"{type(error).__name__}: {error}"[:300]))
        files = sorted(str(path.relative_to(folder)) for path in Path(folder).rglob("*"))
        facts.append(Fact("files", files))
    facts += [Fact("printed", _NUMBERS.sub("#", line)) for line in out.getvalue().splitlines()]
    shown = {f"{one.category.__name__}: {one.message}" for one in warned if _is_ours(one)}
    return [*facts, *(Fact("warned", text) for text in sorted(shown))]


def difference(without: Sequence[Fact], with_user: Sequence[Fact]) -> str:
    """Return the first public difference between two worlds, or nothing."""
    absent = Fact("nothing")
    for place, (one, two) in enumerate(zip_longest(without, with_user, fillvalue=absent)):
        if isinstance(one.value, Noisy) and isinstance(two.value, Noisy) and one.what == two.what:
            how = one.value.differs(two.value)
            if how:
                return f"fact {place}, {one.what}: {how}"
        elif one != two:
            return (
                f"fact {place} of {len(without)} without the user and of {len(with_user)} with "
                f"the user:\n  without: {one}\n  with:    {two}"
            )
    return ""


def public(record: Any, noisy: frozenset[str]) -> Any:
    """Return a record without noisy values: the fields of these names have their lengths only."""
    if isinstance(record, Mapping):
        return {
            name: _length(value) if name in noisy else public(value, noisy)
            for name, value in record.items()
        }
    return [public(one, noisy) for one in record] if isinstance(record, list) else record


def _length(value: Any) -> str:
    return f"{len(value)} numbers" if isinstance(value, list | tuple | np.ndarray) else "a number"


def _is_ours(warned: warnings.WarningMessage) -> bool:
    return not issubclass(warned.category, DeprecationWarning | ResourceWarning)


@contextmanager
def seeded() -> Iterator[None]:
    """Let all randomness follow from one seed, that of the operating system included."""
    source, made = random.Random(SEED), np.random.default_rng
    before = random.getstate(), np.random.get_state()
    random.seed(SEED)
    np.random.seed(SEED)

    def default_rng(seed: Any = None) -> np.random.Generator:
        return made(source.getrandbits(64) if seed is None else seed)

    with (
        patch.object(os, "urandom", source.randbytes),
        patch.object(secrets, "token_bytes", source.randbytes),
        patch.object(secrets, "randbits", source.getrandbits),
        patch.object(np.random, "default_rng", default_rng),
    ):
        try:
            yield
        finally:
            random.setstate(before[0])
            np.random.set_state(before[1])


def flat(tree: Sequence[Any]) -> NDArray[np.float64]:
    """Return all numbers of several arrays as one vector."""
    return np.concatenate([np.asarray(one, dtype=np.float64).ravel() for one in tree])
