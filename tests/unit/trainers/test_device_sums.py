"""Clipped sums of gradients that are not written out, against integers of any length.

`make test-torch`.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from fractions import Fraction
from math import isqrt
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from streams.sdk.errors import InvalidRequest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: make test-torch")
from streams.trainers import device_sums  # noqa: E402
from streams.trainers.device_sums import DeviceSum, Factored, Written  # noqa: E402

COUNTS = np.array([1, 3, 2, 1, 14, 1, 2])
EXAMPLES, ROWS = int(COUNTS.sum()), 5
EXPONENT = -23


class Data:
    """Gradients of users in parts of all kinds, with a hand computation."""

    def __init__(self, counts: Sequence[int], seed: int = 0, dtype: Any = torch.float32) -> None:
        self.counts, self._random = np.array(counts), np.random.default_rng(seed)
        self._examples, self._dtype = int(np.sum(counts)), dtype
        self.sides = [
            (self.normal(ROWS, 7), self.normal(ROWS, 4) * 10.0),
            (self.normal(1, 30), self.normal(1, 20)),  # as of a layer with one row per example
            (self.normal(3 * ROWS, 2), self.normal(3 * ROWS, 3)),  # more rows than entries
            (self.normal(ROWS, 5), torch.ones(self._examples, ROWS, 1)),  # as of a bias
            (None, self.normal(ROWS, 3)),
            (None, self.normal(ROWS, 2)),
            (self.normal(3, 9), self.normal(3 + ROWS, 4)),  # as of a linear layer and an embedding
            (self.normal(1, 100), self.normal(1 + ROWS, 20)),
        ]
        self.places = [None] * 4 + [self._places(ROWS, size) for size in (11, 400, 9, 100)]
        self.sizes = [(7, 4), (30, 20), (2, 3), (5, 1), (11, 3), (400, 2), (9, 4), (100, 20)]
        self.rows = [self.normal(9)[: len(counts)], self.normal(1500)[: len(counts)] * 0.01]

    def normal(self, *shape: int) -> Any:
        drawn = self._random.normal(size=(self._examples, *shape))
        return torch.tensor(drawn).to(self._dtype)

    def _places(self, rows: int, size: int) -> Any:
        return torch.tensor(self._random.integers(0, size, (self._examples, rows)))

    def parts(self, users: Sequence[int] | None = None) -> list[Any]:
        """Return the parts, of these users alone."""
        users = range(len(self.counts)) if users is None else users
        starts = np.cumsum(self.counts) - self.counts
        chosen = np.concatenate([np.arange(starts[u], starts[u] + self.counts[u]) for u in users])
        factored = [
            Factored(
                None if left is None else left[chosen],
                right[chosen],
                self.counts[list(users)],
                size,
                None if places is None else places[chosen],
            )
            for (left, right), places, size in zip(self.sides, self.places, self.sizes, strict=True)
        ]
        return [*factored, *(Written(rows[list(users)].clone()) for rows in self.rows)]

    def written(self) -> NDArray[np.float64]:
        """Return all gradients in float64."""
        columns = []
        owners = np.repeat(np.arange(len(self.counts)), self.counts)
        for (left, right), places, (p, q) in zip(self.sides, self.places, self.sizes, strict=True):
            ones = [] if places is None else [torch.nn.functional.one_hot(places, p)]
            left = torch.cat([*([] if left is None else [left]), *ones], dim=1)
            each = torch.einsum("ntp,ntq->npq", left.double(), right.double()).flatten(1).numpy()
            total = np.zeros((len(self.counts), p * q))
            np.add.at(total, owners, each)
            columns.append(total)
        return np.hstack([*columns, *(rows.double().numpy() for rows in self.rows)])


def added(
    data: Data, limits: Any, users: Sequence[int] | None = None, clip_norm: float = 1.0
) -> tuple[NDArray[np.int64], int, NDArray[np.float64]]:
    """Return the sum of these users, the exponent of its grid, and their norms."""
    made = DeviceSum(EXPONENT, clip_norm=clip_norm, expected=10.0)
    limits = np.broadcast_to(limits, len(data.counts) if users is None else len(users))
    norms = made.add(data.parts(users), np.array(limits))
    exponent, total = made.total()
    return total, exponent, norms


def square(total: NDArray[np.int64], exponent: int) -> Fraction:
    return Fraction(sum(int(one) ** 2 for one in total)) * Fraction(4) ** exponent


def margin(columns: int) -> Fraction:
    """Return by how much rounding to the grid of the release may change a sum."""
    return Fraction(isqrt(columns << 80), 1 << 40) * Fraction(2) ** EXPONENT


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_sums_are_those_of_clipped_gradients(dtype: Any) -> None:
    data = Data(COUNTS, dtype=dtype)
    rows = data.written()
    lengths = np.linalg.norm(rows, axis=1)
    limits = np.where(np.arange(len(COUNTS)) % 2, 0.7, 1.0) * 40.0
    total, exponent, norms = added(data, limits, clip_norm=40.0)
    wanted = (rows * np.minimum(1.0, limits / lengths)[:, None]).sum(axis=0)
    assert norms == pytest.approx(lengths, rel=1e-4)
    assert np.ldexp(total.astype(float), exponent) == pytest.approx(wanted, rel=1e-4, abs=1e-2)
    apart = np.linalg.norm(np.ldexp(total.astype(float), exponent) - wanted)
    assert apart < 1e-4 * np.linalg.norm(wanted)


def cancelling(scale: float, kind: str) -> Data:
    """Rows of one user that cancel each other, all but a little."""
    data = Data([2], seed=3)
    for place, (left, right) in enumerate(data.sides):
        if (places := data.places[place]) is not None:
            data.places[place] = places[:1].expand(2, -1)
            left = left if left is None else left[:1].expand(2, -1, -1)
            data.sides[place] = (left, torch.cat([right[:1], -right[:1]]))
            continue
        left, right = left[:1] * scale, right[:1]
        back = left * (1.0 + 1e-6) if kind == "nearly" else left
        data.sides[place] = (torch.cat([left, -back]), torch.cat([right, right]))
    if kind != "nearly":
        data.rows = [rows * 0.0 for rows in data.rows]
    return data


@pytest.mark.parametrize("kind", ["nearly", "wholly"])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e6, 1e15])
@pytest.mark.parametrize("level", [1.0, 0.01])
def test_rows_that_cancel_never_add_more_than_the_level(
    kind: str, scale: float, level: float
) -> None:
    total, exponent, _ = added(cancelling(scale, kind), level)
    assert square(total, exponent) <= (Fraction(level) - margin(len(total))) ** 2
    if kind == "wholly":
        assert not total.any()


@pytest.mark.parametrize("scale", [1e-30, 1e-6, 1.0, 1e6, 1e18])
@pytest.mark.parametrize("level", [1.0, 0.3, 0.01, 1e-12])
@pytest.mark.parametrize("clip_norm", [1.0, 1e-3, 1e4])
def test_one_user_adds_at_most_the_level(scale: float, level: float, clip_norm: float) -> None:
    data = Data(COUNTS, seed=1)
    data.sides = [(left, right * scale) for left, right in data.sides]
    for user in range(len(COUNTS)):
        total, exponent, norms = added(data, level * clip_norm, [user], clip_norm)
        room = max(Fraction(level * clip_norm) - margin(len(total)), Fraction(0))
        assert square(total, exponent) <= room**2
        assert square(total, exponent) <= Fraction(float(norms[0])) ** 2


@pytest.mark.parametrize("scale", [1.0, 1e6])
@pytest.mark.parametrize("has_one_entry", [True, False])
def test_a_gradient_that_is_too_long_is_shortened_to_its_level(
    scale: float, has_one_entry: bool
) -> None:
    data = Data(COUNTS, seed=1)
    if has_one_entry:
        starts = torch.tensor(np.cumsum(COUNTS) - COUNTS)
        one = torch.zeros(EXAMPLES, ROWS, 7)
        one[starts, 0, 2] = 1.01
        other = torch.zeros(EXAMPLES, ROWS, 4)
        other[:, 0, 1] = 1.01
        data.sides = [(one, other), *((left, right * 0.0) for left, right in data.sides[1:])]
        data.rows = [rows * 0.0 for rows in data.rows]
    data.sides = [(left, right * scale) for left, right in data.sides]
    for user in range(len(COUNTS)):
        total, exponent, _ = added(data, 1.0, [user])
        assert float(square(total, exponent)) ** 0.5 == pytest.approx(1.0, rel=3e-3)


def test_a_gradient_within_its_level_is_not_shortened() -> None:
    data = Data(COUNTS, seed=1)
    rows = data.written()
    for user in range(len(COUNTS)):
        total, exponent, _ = added(data, 1e4, [user], clip_norm=1e4)
        wanted = pytest.approx(np.linalg.norm(rows[user]), rel=1e-4)
        assert float(square(total, exponent)) ** 0.5 == wanted


@pytest.mark.parametrize("entries", [1, 200, 2**21], ids=str)
def test_integers_of_a_user_do_not_depend_on_other_users(
    entries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor do they depend on the blocks in which users are processed."""
    limits = np.linspace(0.3, 1.0, len(COUNTS))
    data = Data(COUNTS, seed=2)
    alone = [added(data, limits[[user]], [user])[0] for user in range(len(COUNTS))]
    monkeypatch.setattr(device_sums, "_ENTRIES", entries)
    monkeypatch.setattr(device_sums, "_BLOCK", entries)
    for users in ([0, 1], [4, 1, 2], [0, 3, 5], list(range(len(COUNTS)))):
        found = added(data, limits[users], users)[0]
        assert np.array_equal(found, sum(alone[user] for user in users))
    norms = [added(data, limits[[user]], [user])[2][0] for user in range(len(COUNTS))]
    assert added(data, limits)[2].tolist() == norms


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e300])
@pytest.mark.parametrize("place", range(10))
def test_a_gradient_that_is_not_finite_counts_as_zero(bad: float, place: int) -> None:
    data = Data(COUNTS, dtype=torch.float64)
    if place < len(data.sides):
        left, right = data.sides[place]
        side = left if left is not None and place % 2 else right
        side[2, 0, 0] = bad
    else:
        data.rows[place - len(data.sides)][1, 3] = bad
    total, _, norms = added(data, 1.0)
    others = [user for user in range(len(COUNTS)) if user != 1]
    without, _, theirs = added(data, 1.0, others)
    assert np.isinf(norms).tolist() == [user == 1 for user in range(len(COUNTS))]
    assert np.array_equal(total, without)
    assert np.delete(norms, 1).tolist() == theirs.tolist()


@pytest.mark.parametrize("scale", [1e60, 1e110])
def test_the_length_of_a_gradient_gives_no_warning(scale: float) -> None:
    """A warning would tell that there is such a user."""
    data = Data([1, 1], dtype=torch.float64)
    left, right = data.sides[0]
    data.sides[0] = (left * scale, right * scale)
    with warnings.catch_warnings(), np.errstate(all="raise"):
        warnings.simplefilter("error")
        total, exponent, _ = added(data, 1.0, [1])
    assert square(total, exponent) <= 1


def test_the_norm_of_a_large_part_is_rounded_up() -> None:
    """Its sum of squares has more than 53 bits, and the lower ones of each block would be lost."""
    block = [2.0**19 - 1] * (2**14 - 3) + [4.0, 1.0, 1.0]
    rows = torch.tensor(block * 64)[None]
    found = Written(rows).squares(np.array([0]))
    assert int(found[0]) >= 64 * sum(int(one) ** 2 for one in block)


def test_the_grid_follows_no_data() -> None:
    empty = DeviceSum(EXPONENT, clip_norm=1.0, expected=10.0)
    empty.begin(7)
    exponent, total = empty.total()
    assert (exponent, total.tolist()) == (added(Data([1]), 1.0)[1], [0] * 7)
    for expected, clip_norm in ((1e9, 1.0), (1.0, 1e-9), (1.0, 1e9)):
        made = DeviceSum(EXPONENT, clip_norm=clip_norm, expected=expected)
        made.begin(1)
        assert EXPONENT - 30 <= made.total()[0] <= EXPONENT


def test_parts_of_another_model_are_refused() -> None:
    made = DeviceSum(EXPONENT, clip_norm=1.0, expected=10.0)
    data = Data(COUNTS)
    with pytest.raises(InvalidRequest):
        made.check(data.parts([0, 1]), 3)
    made.add(data.parts([0]), np.ones(1))
    with pytest.raises(InvalidRequest):
        made.check(data.parts([0])[1:], 1)


@pytest.mark.parametrize("sizes", [(9, 4), (100, 20)], ids=["by entries", "by pairs"])
def test_a_weight_of_a_linear_layer_and_an_embedding_is_added_exactly(
    sizes: tuple[int, int],
) -> None:
    """Both kinds of rows have integers, and the user's whole gradient is below the level."""
    (p, q), random = sizes, np.random.default_rng(4)
    left, right = random.integers(-8, 9, (2, 3, p)), random.integers(-8, 9, (2, 8, q))
    places = random.integers(0, p, (2, 5))
    wanted = np.einsum("ntp,ntq->pq", left, right[:, :3])
    np.add.at(wanted, places, right[:, 3:])
    made = DeviceSum(EXPONENT, clip_norm=1e5, expected=1.0)
    sides = torch.tensor(left).float(), torch.tensor(right).float()
    part = Factored(*sides, np.array([2]), sizes, torch.tensor(places))
    norms = made.add([part], np.array([1e5]))
    exponent, total = made.total()
    assert total.tolist() == [int(one) << -exponent for one in wanted.ravel()]
    square = sum(int(one) ** 2 for one in wanted.ravel())
    assert square <= Fraction(float(norms[0])) ** 2 <= square * (1 + Fraction(1, 2**30))
