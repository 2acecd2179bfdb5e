"""The kinds of queries: each event's and each user's contribution, and the content of an answer.

Each kind is a sum over users of a vector, to which noise is added; the rest of the answer is
computed from the noisy sum. A user's vector depends only on that user's events and the file. So the
user is charged for the norm of that vector, whatever other users do (``bound`` is its maximum).

Bounds: with ``each``, a user's numbers are clipped to it, and all but the largest ``groups`` of
them are dropped; ties are broken by the order of the labels. With ``clip`` the vector is scaled
down. For means, variances and quantiles, the contribution of a user with more than ``each`` events
is scaled down to so many. None of this depends on the order of events.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Mapping
from functools import cached_property
from itertools import pairwise
from typing import Any, ClassVar, Final, NamedTuple, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import isotonic_regression

from accounting import InvalidInput
from accounting.release import KeySelection
from accounting.release.running_sums import ROOT_BITS, root_of_running_sums
from streams.answerer.keys import KeyUniverse
from streams.answerer.query_keys import (
    Label,
    Query,
    UnusableQueries,
    comparable,
    hold,
    number_of,
)
from streams.queries.continual_monitoring import KeyRelease, quantile_of_noise
from streams.records import User

Floats = NDArray[np.float64]
Columns: TypeAlias = Mapping[str, Any]
"""The columns of an event."""
Added: TypeAlias = list[tuple[int, int]]
"""An event's contribution by coordinate, in integers of a small unit."""
Content: TypeAlias = dict[User, dict[int, int]]
"""Each user's contribution to a window by coordinate, in integers of a small unit."""

_BITS: Final = 40  # of resolution below a bound
_LONGEST_BITS: Final = 300
_ABOVE: Final = 1.0 + 2.0**-40
"""Bounds of norms are larger by this factor, so that no rounding of a norm exceeds them."""


class Answered(NamedTuple):
    """The answer for a window. All of it follows from the noisy sum.

    Attributes:
        value: a number or one for each label; None where the noise allows no estimate.
        lower, upper: the interval of the true value of the admitted users; all intervals hold
            together with the confidence of the file. None where it has no ends.
        labels: of the values, if there are several.
        above: whether a threshold was passed.
    """

    value: float | list[float | None] | None
    lower: float | list[float | None] | None
    upper: float | list[float | None] | None
    labels: list[Label] | None = None
    above: bool | None = None


class Kind(Query):
    """A kind of query: one number, or one for each label, of which a user's are clipped.

    The kinds that are not such numbers override what differs.
    """

    takes: ClassVar[tuple[str, ...]] = ("by", "labels", "groups", "each", "clip")
    is_linear: ClassVar[bool] = True
    """True if an answer is the noisy sum, with intervals of a fixed width."""
    bounds_events: ClassVar[bool] = False
    """True if ``each`` bounds the number of a user's events, not what they add up to."""

    @cached_property
    def keys(self) -> KeyUniverse | None:
        """Return the possible keys of the groups, if they are private."""
        return KeyUniverse(self) if self.has_private_keys else None

    @property
    def dimension(self) -> int:
        """Return the number of coordinates of the noisy sum; of a user's row for private keys.

        With private keys, a user has two numbers for each own key: ``each``, by whose noisy sum
        over the users keys are selected, and the value.
        """
        return 2 * self.groups if self.has_private_keys else self._numbers

    @cached_property
    def bound(self) -> float:
        """Return the largest L2 norm of a user's vector, with room for roundings."""
        return self._longest * _ABOVE

    def added(self, columns: Columns) -> Added | None:
        """Return an event's contribution; empty if it is not asked for.

        Returns:
            None if the event has no number where the query needs one.
        """
        if not hold(self.where, columns):
            return []
        group: int | None = 0
        if self.by:
            value = columns.get(self.by)
            group = self.keys.number(value) if self.keys else self._places.get(comparable(value))
        if group is None:
            return []
        number = number_of(columns.get(self.column)) if self.column else 0.0
        return None if number is None else self._added(columns, group, number)

    def rows(self, content: Content) -> tuple[list[User], Floats]:
        """Return the users of a window, sorted, and their contributions (n, d)."""
        users = sorted(content, key=order_of)
        rows = np.zeros((len(users), self.dimension))
        for row, user in zip(rows, users, strict=True):
            self._fill(row, content[user])
        return users, rows

    def sizes(self, content: Content, rows: Floats) -> Floats:
        """Return by user how much of a contribution there is without bounds and with them, (n, 2).

        These are sums of absolute numbers, or numbers of events if ``bounds_events``.

        Args:
            content: of a window.
            rows: what ``rows`` returns for it.
        """
        users = sorted(content, key=order_of)
        before = np.array([self._size(content[user]) for user in users]).reshape(-1)
        after = np.minimum(before, self.each) if self.bounds_events else np.abs(rows).sum(axis=1)
        return np.column_stack([before, after])

    def answered(self, value: Floats, stddev: float, confidence: float) -> Answered:
        """Return the answer for a noisy sum (d,)."""
        width = stddev * quantile_of_noise(confidence, self.dimension)
        return _around(value, width, self._names)

    @property
    def _names(self) -> list[Label] | None:
        """Return the labels of the numbers; None if there is one number."""
        return list(self.labels) or None

    @property
    def _longest(self) -> float:
        """Return the largest L2 norm of a user's vector, as a real number."""
        numbers = max(self.groups, 1) * (2 if self.has_private_keys else 1)
        return self.clip or self.cap * math.sqrt(numbers)

    @property
    def _numbers(self) -> int:
        return max(len(self.labels), 1)

    @cached_property
    def _places(self) -> dict[Any, int]:
        return {comparable(label): place for place, label in enumerate(self.labels)}

    @cached_property
    def _exponent(self) -> int:
        # 0 where events are counted, so that counts are integers.
        return math.frexp(self.each or self.clip)[1] - _BITS if self.adds == "sum" else 0

    def _added(self, columns: Columns, group: int, number: float) -> Added | None:
        """Return the contribution of an event with the number in ``column``."""
        is_sum = self.adds == "sum"
        return [(group, _units(max(number, self.lower), self._exponent) if is_sum else 1)]

    def _counted(self, sums: dict[int, int]) -> dict[int, int]:
        return dict.fromkeys(filter(sums.get, sums), 1) if self.adds == "distinct" else sums

    def _kept(self, sums: dict[int, int]) -> list[tuple[int, int]]:
        """Return the numbers of a user that count, the largest first."""
        ordered = sorted(self._counted(sums).items(), key=lambda one: (-abs(one[1]), one[0]))
        return ordered[: max(self.groups, 1)]

    def _size(self, sums: dict[int, int]) -> float:
        return sum(abs(math.ldexp(one, self._exponent)) for one in self._counted(sums).values())

    def _fill(self, row: Floats, sums: dict[int, int]) -> None:
        """Write a user's bounded vector."""
        if self.clip:
            for coordinate, amount in self._counted(sums).items():
                row[coordinate] = math.ldexp(amount, self._exponent)
            norm = float(np.linalg.norm(row))
            if norm > self.clip:
                row *= self.clip / norm
            return
        for place, (coordinate, amount) in enumerate(self._kept(sums)):
            number = _within(math.ldexp(amount, self._exponent), -self.cap, self.cap)
            if self.keys is None:
                row[coordinate] = number
            else:
                row[2 * place : 2 * place + 2] = self.cap, number

    def _of_groups(self, values: Floats, lower: Floats, upper: Floats) -> Answered:
        """Return an answer with one number, or one for each label; NaN becomes None."""
        # Rounding must not swap the ends of an interval.
        columns = values, np.minimum(lower, upper), upper
        shown, low, high = ([None if x != x else x for x in column.tolist()] for column in columns)
        if self._names is None:
            return Answered(shown[0], low[0], high[0])
        return Answered(shown, low, high, self._names)

    def selection(self, stddev: float) -> KeySelection | None:
        """Return the selection of private keys by sums with this noise; None without them.

        Raises:
            UnusableQueries: the noise is too large for ``each``.
        """
        try:
            return KeySelection(self.keys.size, self.cap, stddev) if self.keys else None
        except InvalidInput as error:
            raise UnusableQueries(
                f"query {self.name!r}: the noise is {stddev:g} and each is {self.cap:g}; "
                "private keys need a noise of at most a million times each",
                "noise",
            ) from error

    def keys_of(self, content: Content) -> list[list[int]]:
        """Return the private keys of each user that count, in the order of ``rows``."""
        users = sorted(content, key=order_of)
        return [[key for key, _ in self._kept(content[user])] for user in users]

    def answered_keys(self, found: KeyRelease, confidence: float) -> Answered:
        """Return the answer for the private keys that were selected."""
        assert self.keys is not None
        pairs = zip(map(self.keys.label, found.keys), found.value.tolist(), strict=True)
        named = {label: value for label, value in pairs if label is not None}
        labels: list[Label] = sorted(named, key=order_of)
        width = found.noise_stddev * quantile_of_noise(confidence, len(labels))
        return _around(np.array([named[label] for label in labels]), width, labels)


class Count(Kind, tag="count"):
    """The number of events."""

    takes = (*Kind.takes, "key_bytes", "keys_below", "correct", "sums")


class Distinct(Kind, tag="distinct"):
    """The number of users with an event."""

    takes = ("by", "labels", "groups", "clip", "key_bytes", "keys_below", "correct")


class Sum(Kind, tag="sum"):
    """The sum of a column, whose numbers below ``lower`` are raised to it."""

    needs = ("column",)
    takes = ("lower", *Count.takes)


class Top(Kind, tag="top"):
    """The labels with the largest counts or sums."""

    needs = ("by", "labels", "k")
    takes = ("of", "column", "lower", "groups", "each", "clip")

    def answered(self, value: Floats, stddev: float, confidence: float) -> Answered:
        """Return the ``k`` largest numbers with their labels."""
        width = stddev * quantile_of_noise(confidence, self.dimension)
        order = np.argsort(-value, kind="stable")[: self.k]
        return _around(value[order], width, [self.labels[place] for place in order])


class Threshold(Kind, tag="threshold"):
    """A comparison of a count or a sum with a number.

    The sparse vector technique (``examples/private_statistics.py``) would pay once for many
    windows. But its cost is fixed before the first comparison by a user's largest contribution to
    any window. That is unknown for a user who has not appeared yet, so there is no individual
    charge. Here, a user without events in a window pays nothing for it.
    """

    needs = ("threshold",)
    takes = ("of", "column", "lower", "each", "clip")

    def answered(self, value: Floats, stddev: float, confidence: float) -> Answered:
        """Return the noisy number, and whether it is above the threshold."""
        assert self.threshold is not None
        is_above = float(value[0]) > self.threshold
        return super().answered(value, stddev, confidence)._replace(above=is_above)


class Histogram(Kind, tag="histogram"):
    """The number of events by bins of a column."""

    needs = ("column", "edges")
    takes = ("groups", "each", "clip")

    @property
    def _numbers(self) -> int:
        return len(self.edges) - 1

    @property
    def _names(self) -> list[Label] | None:
        return [f"{lower:g} to {upper:g}" for lower, upper in pairwise(self.edges)]

    def _added(self, columns: Columns, group: int, number: float) -> Added | None:
        place = bisect.bisect_right(self.edges, number) - 1
        return [(place, 1)] if 0 <= place < self._numbers else []


class Mean(Kind, tag="mean"):
    """The mean of a column.

    A user's coordinates are the sum of the distances from the middle of the range, in units of half
    the range, and the number of events.
    """

    needs = ("column", "lower", "upper", "each")
    takes = ("by", "labels")
    is_linear = False
    bounds_events = True
    _powers: ClassVar[int] = 1

    @property
    def dimension(self) -> int:
        """Return the number of coordinates of the noisy sum."""
        return (self._powers + 1) * self._numbers

    @property
    def _longest(self) -> float:
        return self.each * math.sqrt(2.0)

    @property
    def _range(self) -> tuple[float, float]:
        """Return the middle of the range of values, and half its length."""
        half = (self.upper - self.lower) / 2.0
        return self.lower + half, half

    def _added(self, columns: Columns, group: int, number: float) -> Added | None:
        middle, half = self._range
        scaled = _within((number - middle) / half, -1.0, 1.0)
        numbers = [scaled, scaled**2 - 0.5][: self._powers]
        added = [int(math.ldexp(number, _BITS)) for number in numbers]
        return [*enumerate([*added, 1], start=group * (len(added) + 1))]

    def _is_count(self, coordinate: int) -> bool:
        return (coordinate + 1) % (self._powers + 1) == 0

    def _size(self, sums: dict[int, int]) -> float:
        return sum(number for coordinate, number in sums.items() if self._is_count(coordinate))

    def _fill(self, row: Floats, sums: dict[int, int]) -> None:
        factor = min(1.0, self.each / self._size(sums))
        for coordinate, amount in sums.items():
            scale = 0 if self._is_count(coordinate) else -_BITS
            row[coordinate] = math.ldexp(float(amount), scale) * factor

    def answered(self, value: Floats, stddev: float, confidence: float) -> Answered:
        """Return the quotient of both sums, within the range."""
        total, count = value.reshape(-1, 2).T
        middle, half = self._range
        low, high = _fieller(total, count, stddev * quantile_of_noise(confidence, len(count)))
        return self._of_groups(
            middle + half * np.clip(_quotient(total, count), -1.0, 1.0),
            middle + half * np.fmax(low, -1.0),
            middle + half * np.fmin(high, 1.0),
        )


class Variance(Mean, tag="variance"):
    """The variance of a column: as a mean, and the sum of the squares minus 1/2."""

    _powers = 2

    @property
    def _longest(self) -> float:
        return self.each * 1.5  # y^2 + (y^2 - 1/2)^2 + 1 is at most 9/4

    def answered(self, value: Floats, stddev: float, confidence: float) -> Answered:
        """Return the mean of the squares minus the square of the mean.

        The intervals of both hold together: the noise of each is within a band (Sidak 1967).
        """
        total, squares, count = value.reshape(-1, 3).T
        width = stddev * quantile_of_noise(confidence, 2 * len(count))
        unit = self._range[1] ** 2
        mean = np.clip(_quotient(total, count), -1.0, 1.0)
        variance = np.clip(_quotient(squares, count) + 0.5, 0.0, 1.0) - mean**2
        least, most = (np.clip(end, -1.0, 1.0) for end in _fieller(total, count, width))
        low, high = (np.clip(end + 0.5, 0.0, 1.0) for end in _fieller(squares, count, width))
        nearest = np.where(least * most < 0.0, 0.0, np.minimum(least**2, most**2))
        return self._of_groups(
            unit * np.maximum(variance, 0.0),
            unit * np.fmax(low - np.maximum(least**2, most**2), 0.0),
            unit * np.fmin(np.maximum(high - nearest, 0.0), 1.0),
        )


class Ratio(Kind, tag="ratio"):
    """The quotient of two numbers, each in units of its own ``each``."""

    needs = ("numerator", "denominator")
    takes = ("by", "labels", "groups")
    is_linear = False

    @property
    def dimension(self) -> int:
        """Return two for each group."""
        return 2 * self._numbers

    @property
    def _longest(self) -> float:
        return math.sqrt(2.0 * max(self.groups, 1))

    @cached_property
    def _exponents(self) -> list[int]:
        return [
            math.frexp(term.each)[1] - _BITS if term.adds == "sum" else 0 for term in self.terms
        ]

    def _added(self, columns: Columns, group: int, number: float) -> Added | None:
        found = []
        for place, (term, exponent) in enumerate(zip(self.terms, self._exponents, strict=True)):
            if not hold(term.where, columns):
                continue
            summed = number_of(columns.get(term.column)) if term.column else 0.0
            if summed is None:
                return None
            amount = _units(summed, exponent) if term.column else 1
            found.append((2 * group + place, amount))
        return found

    def _in_caps(self, coordinate: int, amount: int) -> float:
        """Return a user's number in units of its cap."""
        term, exponent = self.terms[coordinate % 2], self._exponents[coordinate % 2]
        number = math.ldexp(amount, exponent)
        return min(number, 1.0) if term.adds == "distinct" else number / term.cap

    def _size(self, sums: dict[int, int]) -> float:
        return sum(abs(self._in_caps(*one)) for one in sums.items())

    def _fill(self, row: Floats, sums: dict[int, int]) -> None:
        """Write a user's part of both numbers in units of their bounds, for the largest groups."""
        for coordinate, amount in sums.items():
            row[coordinate] = _within(self._in_caps(coordinate, amount), -1.0, 1.0)
        sizes = np.abs(row).reshape(-1, 2).sum(axis=1)
        dropped = np.argsort(-sizes, kind="stable")[max(self.groups, 1) :]
        row.reshape(-1, 2)[dropped] = 0.0

    def answered(self, value: Floats, stddev: float, confidence: float) -> Answered:
        """Return the quotient, without ends if the denominator may be 0."""
        above, below = value.reshape(-1, 2).T
        width = stddev * quantile_of_noise(confidence, len(below))
        numerator, denominator = self.terms
        unit = numerator.cap / denominator.cap
        low, high = _fieller(above, below, width)
        return self._of_groups(unit * _quotient(above, below), unit * low, unit * high)


class Quantiles(Kind, tag="quantiles"):
    """Quantiles of a column: the number of events by levels of the range, times the square root of
    the matrix of running sums (``accounting.release.running_sums``).
    """

    needs = ("column", "lower", "upper", "quantiles", "each")
    takes = ("levels",)
    is_linear = False
    bounds_events = True

    @property
    def _numbers(self) -> int:
        return self.levels

    @property
    def _names(self) -> list[Label] | None:
        return [f"{part:g}" for part in self.quantiles]

    @property
    def _longest(self) -> float:
        return self.each * float(np.linalg.norm(self._root[:, 0]))

    @cached_property
    def _root(self) -> Floats:
        """Return the square root of the matrix of running sums, lower triangular."""
        root = np.zeros((self.levels, self.levels))
        column = np.array(root_of_running_sums(self.levels)) / 2.0**ROOT_BITS
        for row in range(self.levels):
            root[row, : row + 1] = column[row::-1]
        return root

    def _added(self, columns: Columns, group: int, number: float) -> Added | None:
        # Limited first: the quotient of a huge number is infinite, which no integer is.
        part = _within((number - self.lower) / (self.upper - self.lower), 0.0, 1.0)
        return [(max(math.ceil(part * self.levels) - 1, 0), 1)]

    def _size(self, sums: dict[int, int]) -> float:
        return sum(sums.values())

    def _fill(self, row: Floats, sums: dict[int, int]) -> None:
        factor = min(1.0, self.each / self._size(sums))
        for level, count in sums.items():
            row[level] = float(count) * factor
        row[:] = self._root @ row

    def answered(self, value: Floats, stddev: float, confidence: float) -> Answered:
        """Return the values at which the rising fit of the noisy running counts is reached."""
        edges = np.linspace(self.lower, self.upper, self.levels + 1)
        noisy = self._root @ value
        cumulative = np.maximum(isotonic_regression(noisy).x, 0.0)
        weights = np.linalg.norm(self._root, axis=1)
        # All running counts together lie within these widths of the noisy ones.
        widths = stddev * weights * quantile_of_noise(confidence, self.levels)
        least = np.maximum.accumulate(np.maximum(noisy - widths, 0.0))
        most = np.minimum.accumulate((noisy + widths)[::-1])[::-1]
        total = float(cumulative[-1])
        values, ends = [], []
        for part in self.quantiles:
            at = int(np.searchsorted(cumulative, part * total)) if total > 0 else None
            found = math.nan if at is None else _inside(cumulative, edges, at, part * total)
            first = np.searchsorted(most, part * max(least[-1], 0.0))
            last = np.searchsorted(least, part * max(most[-1], 0.0)) + 1
            values.append(found)
            ends.append(edges[np.minimum([first, last], self.levels)])
        return self._of_groups(np.array(values), *np.array(ends).T)


AnyQuery: TypeAlias = (
    Count | Distinct | Sum | Mean | Variance | Ratio | Histogram | Quantiles | Top | Threshold
)
KINDS: Final = {one.__struct_config__.tag: one for one in get_args(AnyQuery)}
"""The kinds by their names."""


def _around(value: Floats, width: float, labels: list[Label] | None) -> Answered:
    """Return noisy numbers with intervals of one width; without labels, there is one number."""
    numbers = [value.tolist(), (value - width).tolist(), (value + width).tolist()]
    shown, lower, upper = numbers if labels is not None else [one[0] for one in numbers]
    return Answered(shown, lower, upper, labels)


def order_of(user: User) -> tuple[bool, User]:
    """Return the key by which users and labels are sorted."""
    return isinstance(user, str), user


def _within(number: float, least: float, most: float) -> float:
    return min(max(number, least), most)


def _quotient(total: Floats, count: Floats) -> Floats:
    """Return the ratio of two noisy sums; NaN where the denominator is not positive."""
    return total / np.where(count > 0.0, count, np.nan)


def _fieller(total: Floats, count: Floats, width: float) -> tuple[Floats, Floats]:
    """Return the ends of the interval of a ratio of two sums with noise of the same size.

    It has the ratios r with abs(total - r count) <= width sqrt(1 + r^2), where the left side has
    the noise of a sum times the root (Fieller 1954). So it holds exactly as often as one band of
    noise of this width does.

    Returns:
        NaN where the noise leaves open whether the denominator is positive: there are no ends.
    """
    clear = np.where(count > width, count, np.nan)
    ratio, share = total / clear, width / clear
    rest = 1.0 - share**2
    root = share * np.hypot(ratio, np.sqrt(rest))
    return (ratio - root) / rest, (ratio + root) / rest


def _inside(cumulative: Floats, edges: Floats, at: int, wanted: float) -> float:
    """Return the value at which a running count is reached, interpolating linearly within a
    level.
    """
    before = float(cumulative[at - 1]) if at else 0.0
    rise = float(cumulative[at]) - before
    part = _within((wanted - before) / rise, 0.0, 1.0) if rise > 0 else 1.0
    return float(edges[at] + part * (edges[at + 1] - edges[at]))


def _units(number: float, exponent: int) -> int:
    """Return a number in units of 2**exponent, rounded towards zero.

    A number beyond 2**300 units counts as this, so that no sum and no norm overflows.
    """
    most = math.ldexp(1.0, exponent + _LONGEST_BITS)
    return int(math.ldexp(_within(number, -most, most), -exponent))
