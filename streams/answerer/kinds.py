"""The kinds of queries: each event's and each user's contribution, and the content of an answer.

Each kind is a sum over users of a vector, to which noise is added; the rest of the answer is
computed from the noisy sum. A user's vector depends only on that user's events and the file. So the
user is charged for the norm of that vector, whatever other users do (``bound`` is its maximum).

    count, sum, distinct      a number, or one for each label
    histogram                 events by bins of a column
    top                       the labels with the largest counts or sums
    threshold                 whether a count or sum is above a number
    mean                      of a column: the sum of the distances from the middle of its range, in
                              units of half the range, and the count
    variance                  of a column: as a mean, and the sum of the squares minus 1/2
    ratio                     of two numbers, each a count, a sum or distinct users, and each in
                              units of its own ``each``
    quantiles                 of a column: events by levels of the range, times the square root of
                              the matrix of running sums (``accounting.release.running_sums``)

A count, distinct or sum by a column without labels has private keys (``keys``). A user has two
numbers for each own key: ``each``, by whose noisy sum over the users keys are selected, and the
value.

Bounds: with ``each``, a user's numbers are clipped to it, and all but the largest ``groups`` of
them are dropped; ties are broken by the order of the labels. With ``clip`` the vector is scaled
down. For means, variances and quantiles, the contribution of a user with more than ``each`` events
is scaled down to so many. None of this depends on the order of events.

A threshold compares a noisy sum. The sparse vector technique (``examples/private_statistics.py``)
would pay once for many windows. But its cost is fixed before the first comparison by a user's
largest contribution to any window. That is unknown for a user who has not appeared yet, so there is
no individual charge. Here, a user without events in a window pays nothing for it.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import isotonic_regression

from accounting import InvalidInput
from accounting.release import KeySelection
from accounting.release.running_sums import ROOT_BITS, root_of_running_sums
from streams.answerer.events import UserEvent, number_of
from streams.answerer.keys import KeyUniverse
from streams.answerer.query_file import Condition, Label, Query, UnusableQueries
from streams.queries.continual_monitoring import KeyRelease, quantile_of_noise
from streams.records import User

Floats = NDArray[np.float64]
Added: TypeAlias = dict[int, int]
"""A user's contribution by coordinate, in integers of a small unit."""
Content: TypeAlias = dict[User, Added]
"""Each user's contribution to a window."""

_BITS: Final = 40  # of resolution below a bound
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


class AskedQuery:
    """A query with everything that is computed from it once.

    Args:
        query: the query.

    Attributes:
        query: the query.
        bound: the largest L2 norm of a user's vector.
        dimension: the number of coordinates of the noisy sum; with private keys, of the row of a
            user.
        keys: the possible keys, if they are private; else None.
    """

    def __init__(self, query: Query) -> None:
        self.query = query
        self._places = {_key(label): n for n, label in enumerate(query.labels)}
        self.keys = KeyUniverse(query) if query.has_private_keys else None
        groups = max(len(query.labels), 1)
        match query.kind:
            case _ if self.keys is not None:
                self.dimension = 2 * query.groups
            case "histogram":
                self.dimension = len(query.edges) - 1
            case "mean" | "ratio":
                self.dimension = 2 * groups
            case "variance":
                self.dimension = 3 * groups
            case "quantiles":
                self.dimension = query.levels
            case _:
                self.dimension = groups
        # 0 where events are counted, so that counts are integers.
        self._exponent = math.frexp(query.each or query.clip)[1] - _BITS if self._sums else 0
        self._exponents = [
            math.frexp(term.each)[1] - _BITS if term.of == "sum" else 0 for term in query.terms
        ]
        match query.kind:
            case "variance":  # y^2 + (y^2 - 1/2)^2 + 1 is at most 9/4
                longest = query.each * 1.5
            case "ratio":
                longest = math.sqrt(2.0 * query.groups)
            case "mean":
                longest = query.each * math.sqrt(2.0)
            case "quantiles":
                longest = query.each * float(np.linalg.norm(self._root[:, 0]))
            case _:
                numbers = query.groups * (1 if self.keys is None else 2)
                longest = query.clip or query.each * math.sqrt(numbers)
        self.bound = longest * _ABOVE

    @property
    def _sums(self) -> bool:
        return self.query.of == "sum"

    @cached_property
    def _root(self) -> Floats:
        """Return the square root of the matrix of running sums, lower triangular."""
        levels = self.query.levels
        root = np.zeros((levels, levels))
        column = np.array(root_of_running_sums(levels)) / 2.0**ROOT_BITS
        for row in range(levels):
            root[row, : row + 1] = column[row::-1]
        return root

    def added(self, event: UserEvent) -> list[tuple[int, int]] | None:
        """Return an event's contribution by coordinate, in small integer units; empty if it is not
        asked for.

        Returns:
            None if the event has no number where the query needs one.
        """
        query, columns = self.query, event.columns
        for condition in query.where:
            if not _holds(condition, columns.get(condition.column)):
                return []
        group = 0
        if query.by:
            value = columns.get(query.by)
            found = self._places.get(_key(value)) if self.keys is None else self.keys.number(value)
            if found is None:
                return []
            group = found
        if query.terms:
            return self._added_terms(columns, group)
        if not query.column:
            return [(group, 1)]
        number = number_of(columns.get(query.column))
        if number is None:
            return None
        match query.kind:
            case "histogram":
                place = bisect.bisect_right(query.edges, number) - 1
                return [(place, 1)] if 0 <= place < self.dimension else []
            case "quantiles":
                return [(self._level(number), 1)]
            case "mean" | "variance":
                half = (query.upper - query.lower) / 2.0
                middle = query.lower + half
                scaled = min(max((number - middle) / half, -1.0), 1.0)
                numbers = [scaled] if query.kind == "mean" else [scaled, scaled**2 - 0.5]
                added = [int(math.ldexp(number, _BITS)) for number in numbers]
                first = group * (len(added) + 1)
                return [*enumerate([*added, 1], start=first)]
        return [(group, _whole(max(number, query.lower), self._exponent))]

    def _added_terms(self, columns: Mapping[str, Any], group: int) -> list[tuple[int, int]] | None:
        """Return an event's contribution to the numerator and the denominator of a ratio."""
        found = []
        for place, (term, exponent) in enumerate(
            zip(self.query.terms, self._exponents, strict=True)
        ):
            if not all(_holds(one, columns.get(one.column)) for one in term.where):
                continue
            amount = 1
            if term.of == "sum":
                number = number_of(columns.get(term.column))
                if number is None:
                    return None
                amount = _whole(number, exponent)
            found.append((2 * group + place, amount))
        return found

    def rows(self, content: Content) -> tuple[list[User], Floats]:
        """Return the users of a window, sorted, and their contributions (n, d)."""
        users = sorted(content, key=lambda user: (isinstance(user, str), user))
        rows = np.zeros((len(users), self.dimension))
        for row, user in zip(rows, users, strict=True):
            self._fill(row, content[user])
        return users, rows

    def selection(self, stddev: float) -> KeySelection | None:
        """Return the selection of private keys by sums with this noise; None without them.

        Raises:
            UnusableQueries: the noise is too large for ``each``.
        """
        query = self.query
        try:
            return KeySelection(self.keys.size, query.each, stddev) if self.keys else None
        except InvalidInput as error:
            raise UnusableQueries(
                f"query {query.name!r}: the noise is {stddev:g} and each is {query.each:g}; "
                "private keys need a noise of at most a million times each",
                "noise",
            ) from error

    def keys_of(self, content: Content) -> list[list[int]]:
        """Return the private keys of each user that count, in the order of ``rows``."""
        users = sorted(content, key=lambda user: (isinstance(user, str), user))
        return [[key for key, _ in self._kept(content[user])] for user in users]

    def _kept(self, sums: dict[int, int]) -> list[tuple[int, int]]:
        """Return the numbers of a user that count, the largest first."""
        if self.query.of == "distinct":
            sums = {coordinate: 1 for coordinate, amount in sums.items() if amount}
        ordered = sorted(sums.items(), key=lambda one: (-abs(one[1]), one[0]))
        return ordered[: self.query.groups]

    def _fill(self, row: Floats, sums: dict[int, int]) -> None:
        query = self.query
        if query.kind in ("mean", "variance", "quantiles"):
            numbers = {"mean": 2, "variance": 3}.get(query.kind, 1)  # the last one is the count
            counted = sum(n for c, n in sums.items() if (c + 1) % numbers == 0)
            factor = min(1.0, query.each / counted) if counted else 0.0
            for coordinate, amount in sums.items():
                scale = 0 if (coordinate + 1) % numbers == 0 else -_BITS
                row[coordinate] = math.ldexp(float(amount), scale) * factor
            if query.kind == "quantiles":
                row[:] = self._root @ row
            return
        if query.kind == "ratio":
            self._fill_terms(row, sums)
            return
        if query.clip:
            if query.of == "distinct":
                sums = {coordinate: 1 for coordinate, amount in sums.items() if amount}
            _scale_to(row, sums, self._exponent)
            norm = float(np.linalg.norm(row))
            if norm > query.clip:
                row *= query.clip / norm
            return
        for place, (coordinate, amount) in enumerate(self._kept(sums)):
            number = min(max(_ldexp(amount, self._exponent), -query.each), query.each)
            if self.keys is None:
                row[coordinate] = number
            else:
                row[2 * place : 2 * place + 2] = query.each, number

    def _fill_terms(self, row: Floats, sums: dict[int, int]) -> None:
        """Write a user's part of both numbers in units of their bounds, for the largest groups."""
        for coordinate, amount in sums.items():
            term, exponent = self.query.terms[coordinate % 2], self._exponents[coordinate % 2]
            number = _ldexp(min(amount, 1) if term.of == "distinct" else amount, exponent)
            row[coordinate] = min(max(number, -term.each), term.each) / term.each
        sizes = np.abs(row).reshape(-1, 2).sum(axis=1)
        dropped = np.argsort(-sizes, kind="stable")[self.query.groups :]
        row.reshape(-1, 2)[dropped] = 0.0

    def answered_keys(self, found: KeyRelease, confidence: float) -> Answered:
        """Return the answer for the private keys that were selected."""
        assert self.keys is not None
        pairs = zip(map(self.keys.label, found.keys), found.value.tolist(), strict=True)
        named = {label: value for label, value in pairs if label is not None}
        labels: list[Label] = sorted(named, key=lambda label: (isinstance(label, str), label))
        width = found.noise_stddev * quantile_of_noise(confidence, len(labels))
        values = np.array([named[label] for label in labels])
        lower, upper = (values - width).tolist(), (values + width).tolist()
        return Answered(values.tolist(), lower, upper, labels)

    def answered(self, value: Floats, stddev: float, confidence: float) -> Answered:
        """Return the answer for a noisy sum (d,)."""
        query = self.query
        width = stddev * quantile_of_noise(confidence, self.dimension)
        if query.kind == "mean":
            return self._means(value, stddev, confidence)
        if query.kind == "variance":
            return self._variances(value, stddev, confidence)
        if query.kind == "ratio":
            return self._ratios(value, stddev, confidence)
        if query.kind == "quantiles":
            return self._quantiles(value, stddev, confidence)
        labels = self._labels
        if query.kind == "top":
            order = np.argsort(-value, kind="stable")[: query.most]
            value, labels = value[order], [query.labels[place] for place in order]
        if labels is None:
            number = float(value[0])
            above = number > query.threshold if query.kind == "threshold" else None
            return Answered(number, number - width, number + width, None, above)
        return Answered(value.tolist(), (value - width).tolist(), (value + width).tolist(), labels)

    @property
    def _labels(self) -> list[Label] | None:
        query = self.query
        if query.kind == "histogram":
            ends = zip(query.edges, query.edges[1:], strict=False)
            return [f"{lower:g} to {upper:g}" for lower, upper in ends]
        return list(query.labels) or None

    def _means(self, value: Floats, stddev: float, confidence: float) -> Answered:
        rows = value.reshape(-1, 2)
        width = stddev * quantile_of_noise(confidence, len(rows))
        middle, half = self._range
        means: list[float | None] = []
        ends: list[tuple[float, float]] = []
        for total, count in rows.tolist():
            means.append(middle + half * _within(total / count, -1.0, 1.0) if count > 0 else None)
            low, high = _fieller(total, count, width) or (-1.0, 1.0)
            ends.append((middle + half * max(low, -1.0), middle + half * min(high, 1.0)))
        return self._of_groups(means, ends)

    def _variances(self, value: Floats, stddev: float, confidence: float) -> Answered:
        """Return the mean of the squares minus the square of the mean.

        The intervals of both hold together: the noise of each is within a band (Sidak 1967).
        """
        rows = value.reshape(-1, 3)
        width = stddev * quantile_of_noise(confidence, 2 * len(rows))
        _, half = self._range
        variances: list[float | None] = []
        ends: list[tuple[float, float]] = []
        for total, squares, count in rows.tolist():
            if count <= 0:
                variances.append(None)
            else:
                mean = _within(total / count, -1.0, 1.0)
                variances.append(
                    half**2 * max(_within(squares / count + 0.5, 0.0, 1.0) - mean**2, 0.0)
                )
            means = _fieller(total, count, width)
            of_squares = _fieller(squares, count, width)
            if means is None or of_squares is None:
                ends.append((0.0, half**2))
                continue
            least, most = (_within(one, -1.0, 1.0) ** 2 for one in means)
            nearest = 0.0 if means[0] < 0.0 < means[1] else min(least, most)
            low = _within(of_squares[0] + 0.5, 0.0, 1.0) - max(least, most)
            high = _within(of_squares[1] + 0.5, 0.0, 1.0) - nearest
            ends.append((half**2 * max(low, 0.0), half**2 * max(high, 0.0)))
        return self._of_groups(variances, ends)

    def _ratios(self, value: Floats, stddev: float, confidence: float) -> Answered:
        rows = value.reshape(-1, 2)
        width = stddev * quantile_of_noise(confidence, len(rows))
        numerator, denominator = self.query.terms
        unit = numerator.each / denominator.each
        ratios: list[float | None] = []
        ends: list[tuple[float, float] | None] = []
        for above, below in rows.tolist():
            ratios.append(unit * above / below if below > 0 else None)
            found = _fieller(above, below, width)
            ends.append(None if found is None else (unit * found[0], unit * found[1]))
        return self._of_groups(ratios, ends)

    @property
    def _range(self) -> tuple[float, float]:
        """Return the middle of the range of values, and half its length."""
        half = (self.query.upper - self.query.lower) / 2.0
        return self.query.lower + half, half

    def _of_groups(
        self, values: list[float | None], ends: Sequence[tuple[float, float] | None]
    ) -> Answered:
        """Return an answer with one number, or one for each label."""
        # Rounding must not swap the ends of an interval.
        lower = [None if pair is None else min(pair) for pair in ends]
        upper = [None if pair is None else pair[1] for pair in ends]
        if not self.query.labels:
            return Answered(values[0], lower[0], upper[0])
        return Answered(values, lower, upper, list(self.query.labels))

    def _level(self, number: float) -> int:
        query = self.query
        part = (number - query.lower) / (query.upper - query.lower)
        return min(max(math.ceil(part * query.levels) - 1, 0), query.levels - 1)

    def _quantiles(self, value: Floats, stddev: float, confidence: float) -> Answered:
        query = self.query
        edges = np.linspace(query.lower, query.upper, query.levels + 1)
        noisy = self._root @ value
        cumulative = np.maximum(isotonic_regression(noisy).x, 0.0)
        weights = np.linalg.norm(self._root, axis=1)
        # All running counts together lie within these widths of the noisy ones.
        widths = stddev * weights * quantile_of_noise(confidence, query.levels)
        least = np.maximum.accumulate(np.maximum(noisy - widths, 0.0))
        most = np.minimum.accumulate((noisy + widths)[::-1])[::-1]
        total = float(cumulative[-1])
        values: list[float | None] = []
        lower: list[float | None] = []
        upper: list[float | None] = []
        for part in query.quantiles:
            at = int(np.searchsorted(cumulative, part * total)) if total > 0 else None
            values.append(None if at is None else _inside(cumulative, edges, at, part * total))
            first = int(np.searchsorted(most, part * max(least[-1], 0.0)))
            last = int(np.searchsorted(least, part * max(most[-1], 0.0)))
            lower.append(float(edges[min(first, query.levels)]))
            upper.append(float(edges[min(last + 1, query.levels)]))
        return Answered(values, lower, upper, [f"{part:g}" for part in query.quantiles])


def _within(number: float, least: float, most: float) -> float:
    return min(max(number, least), most)


def _fieller(total: float, count: float, width: float) -> tuple[float, float] | None:
    """Return the interval of a ratio of two sums with independent noise of the same size.

    It has the ratios r with abs(total - r count) <= width sqrt(1 + r^2), where the left side has
    the noise of a sum times the root (Fieller 1954). So it holds exactly as often as one band of
    noise of this width does.

    Returns:
        None if the noise leaves open whether the denominator is positive: then there are no ends.
    """
    if count <= width:
        return None
    ratio, share = total / count, width / count
    root, rest = share * math.hypot(ratio, math.sqrt(1.0 - share**2)), 1.0 - share**2
    return (ratio - root) / rest, (ratio + root) / rest


def _inside(cumulative: Floats, edges: Floats, at: int, wanted: float) -> float:
    """Return the value at which a running count is reached, interpolating linearly within a
    level.
    """
    before = float(cumulative[at - 1]) if at else 0.0
    rise = float(cumulative[at]) - before
    part = min(max((wanted - before) / rise, 0.0), 1.0) if rise > 0 else 1.0
    return float(edges[at] + part * (edges[at + 1] - edges[at]))


def _holds(condition: Condition, value: Any) -> bool:
    if condition.among is not None:
        return _key(value) in {_key(label) for label in condition.among}
    number = number_of(value)
    return number is not None and condition.at_least <= number < condition.below


def _key(label: Any) -> Any:
    """Return a label in comparable form: 1, "1" and true are different."""
    return (type(label), label) if isinstance(label, str | int) else None


def _whole(number: float, exponent: int) -> int:
    """Return a number in units of 2**exponent, rounded towards zero."""
    mantissa, power = math.frexp(number)
    shift = power - exponent - 53
    whole = int(math.ldexp(mantissa, 53))
    return whole << shift if shift >= 0 else int(math.copysign(abs(whole) >> -shift, number))


def _ldexp(amount: int, exponent: int) -> float:
    try:
        return math.ldexp(float(amount), exponent)
    except OverflowError:
        return math.inf if amount > 0 else -math.inf


def _scale_to(row: Floats, sums: dict[int, int], exponent: int) -> None:
    """Write integer units as numbers; huge ones are scaled down together."""
    longest = max((abs(amount).bit_length() for amount in sums.values()), default=0)
    shift = max(0, longest - 500)
    for coordinate, amount in sums.items():
        length = math.ldexp(float(abs(amount) >> shift), exponent)
        row[coordinate] = length if amount > 0 else -length
