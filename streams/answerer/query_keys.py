"""The keys of a query in the file, with their constraints, and the rules between them."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from functools import cached_property
from itertools import pairwise
from typing import Annotated, Any, ClassVar, Final, Literal, TypeAlias, get_args

import msgspec
from msgspec import Meta

from streams.answerer.spacing import Unit
from streams.failures import Exit, Failure

MOST_LABELS: Final = 1024

Label: TypeAlias = str | int
Of: TypeAlias = Literal["count", "distinct", "sum"]
"""The amounts that are added up: events, distinct users, or the numbers of a column."""
Name = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}\Z")]
Text = Annotated[str, Meta(min_length=1)]
Number = Annotated[float, Meta(gt=-(2.0**200), lt=2.0**200)]
Positive = Annotated[float, Meta(gt=0.0, lt=2.0**200)]

_PERIOD: Final = re.compile(r"([0-9]{1,9})(ms|s|m|h|d|w|mo)")
_UNIT_MS: Final = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


class UnusableQueries(Failure, ValueError):
    """The file of queries cannot be answered as it is. Nothing was charged.

    Attributes:
        key: the key in the file with the problem, if there is one.
    """

    exit_code = Exit.USAGE

    def __init__(self, message: str, key: str | None = None) -> None:
        super().__init__(message)
        self.key = key


class RuleBroken(ValueError):
    """The value of a key does not fit the other keys of its table.

    Attributes:
        key: the key to change.
    """

    def __init__(self, key: str, rule: str) -> None:
        super().__init__(rule)
        self.key = key


class Period:
    """A length of time as the file has it: a number and a unit."""

    def __init__(self, text: str) -> None:
        if not isinstance(text, str) or not _PERIOD.fullmatch(text):
            raise ValueError('it must be a number and a unit, as "90s", "6h", "1d", "1w", "1mo"')
        self.text = text

    def within(self, zone: str | None) -> tuple[int, Unit]:
        """Return the length and its unit; days and weeks are those of a time zone, if given."""
        found = _PERIOD.fullmatch(self.text)
        assert found is not None
        number, unit = int(found[1]), found[2]
        if unit == "w":
            number, unit = number * 7, "d"
        if unit == "mo":
            return number, "mo"
        return (number, "d") if unit == "d" and zone else (number * _UNIT_MS[unit], "ms")


class Duration(Period):
    """A fixed length of time."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        if text.endswith("mo"):
            raise ValueError("it must be a fixed length of time, as 30d: months differ")

    @property
    def ms(self) -> int:
        """Return the length in ms."""
        return self.within(None)[0]


class FileTable(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, dict=True):
    """A table of the file."""


class Range(FileTable):
    """A condition on a number: ``at_least`` is inclusive, and ``below`` exclusive."""

    at_least: Number = -math.inf
    below: Number = math.inf


Wanted: TypeAlias = Label | Annotated[tuple[Label, ...], Meta(min_length=1)] | Range
"""A condition on a column: its value, its allowed values, or a range of numbers."""
Conditions: TypeAlias = dict[str, Wanted]
"""Conditions by column; all of them must hold."""


def labels_in(wanted: Wanted) -> Sequence[Label]:
    """Return the values that a condition allows; none for a range."""
    if isinstance(wanted, Range):
        return ()
    return wanted if isinstance(wanted, tuple) else (wanted,)


def hold(conditions: Conditions, columns: Mapping[str, Any]) -> bool:
    """Return whether an event fulfils all conditions."""
    return all(_holds(wanted, columns.get(column)) for column, wanted in conditions.items())


def _holds(wanted: Wanted, value: Any) -> bool:
    if not isinstance(wanted, Range):
        return comparable(value) in map(comparable, labels_in(wanted))
    number = number_of(value)
    return number is not None and wanted.at_least <= number < wanted.below


def comparable(label: Any) -> Any:
    """Return a label in comparable form: 1, "1" and true are different."""
    return (type(label), label) if isinstance(label, str | int) else None


def number_of(value: Any) -> float | None:
    """Return a finite number; None if the value is not one.

    A decimal number becomes the nearest float, as the same digits in text do.
    """
    if not isinstance(value, int | float | Decimal) or isinstance(value, bool):
        return None
    try:
        number = float(value)
    except (OverflowError, ValueError):  # a signalling NaN is a ValueError
        return None
    return number if math.isfinite(number) else None


class Term(FileTable):
    """The numerator or the denominator of a ratio, with the keys of a query."""

    of: Of | None = None
    column: Text = ""
    where: Conditions = {}
    each: Positive = 0.0

    def __post_init__(self) -> None:
        _check_sum(self.adds, self.column)
        if (self.adds == "distinct") == bool(self.each):
            raise RuleBroken("each", _NO_EACH if self.each else "it is missing: give a number")

    @cached_property
    def adds(self) -> Of:
        """Return what is added up: a sum if there is a column, else events."""
        return self.of or ("sum" if self.column else "count")

    @cached_property
    def cap(self) -> float:
        """Return the largest contribution of a user."""
        return self.each or 1.0


class Query(FileTable, tag_field="kind"):
    """One query, answered for every window. Each kind is a subclass (``kinds``).

    A key that a kind does not have, or that is not given, has its default here.

    Attributes:
        name: unique in the file.
        window: the length of a window.
        every: from the start of one window to the next, in the unit of ``window``, of which it is
            at least a 1,024th; ``window`` by default.
        where: conditions on columns: a value, a list of values, or a range of numbers with
            ``at_least`` and ``below``.
        noise: the standard deviation of the noise, instead of ``active_windows``.
        active_windows: how many windows, at the full bound, one user's budget pays for.
        share: the fraction of the budget planned for the query, which sets the noise with
            ``active_windows``; an equal part of the rest by default.
        of: what is added up: ``"count"`` (by default), ``"distinct"`` or ``"sum"``.
        column: the column with numbers.
        lower: the least number; lower ones are moved to it. A sum of numbers that are never
            negative has more accurate corrections with ``lower = 0``.
        upper: the largest number; higher ones are moved to it.
        by: the column with labels.
        labels: texts or integers, at most 1,024: the labels that are counted and published.
        key_bytes: private keys of at most so many bytes, 1 to 64, instead of ``labels``.
        keys_below: private keys that are integers from 0 to below this, instead of ``labels``.
        groups: the most labels or bins to which a user adds, of which the largest numbers count;
            required with several numbers.
        each: the cap on one user's contribution to each number. For means, variances and quantiles,
            the cap on the number of events, of which more count in the same proportions.
        clip: instead of ``each`` and ``groups``, the largest L2 norm of a user's numbers, which are
            scaled down together.
        edges: the ends of the bins: 2 to 1,025 rising numbers.
        levels: the number of steps between ``lower`` and ``upper``: 2 to 1,024.
        quantiles: rising numbers between 0 and 1; 0.5 is the median.
        k: how many labels are published.
        threshold: the value to compare with.
        numerator, denominator: two numbers with ``of``, ``column``, ``where`` and ``each``, as
            ``{ column = "amount", each = 100 }``. ``noise`` is in units of ``each``.
        correct: whether answers are corrected for users whose budgets are exhausted.
        sums: ``["all"]`` adds a running total to each answer.
    """

    name: Name
    window: Period
    every: Period | None = None
    where: Conditions = {}
    noise: Positive = 0.0
    active_windows: Annotated[float, Meta(ge=1.0, lt=2.0**200)] = 0.0
    share: Annotated[float, Meta(gt=0.0, le=1.0)] = 0.0
    of: Of | None = None
    column: Text = ""
    lower: Number = -math.inf
    upper: Number = math.inf
    by: Text = ""
    labels: Annotated[tuple[Label, ...], Meta(min_length=1, max_length=MOST_LABELS)] = ()
    key_bytes: Annotated[int, Meta(ge=1, le=64)] = 0
    keys_below: Annotated[int, Meta(ge=2, le=2**53)] = 0
    groups: Annotated[int, Meta(ge=1, le=MOST_LABELS)] = 0
    each: Positive = 0.0
    clip: Positive = 0.0
    edges: Annotated[tuple[Number, ...], Meta(min_length=2, max_length=MOST_LABELS + 1)] = ()
    levels: Annotated[int, Meta(ge=2, le=MOST_LABELS)] = 64
    quantiles: Annotated[
        tuple[Annotated[float, Meta(gt=0.0, lt=1.0)], ...], Meta(min_length=1, max_length=100)
    ] = ()
    k: Annotated[int, Meta(ge=1, le=MOST_LABELS)] = 0
    threshold: Number | None = None
    numerator: Term | None = None
    denominator: Term | None = None
    correct: bool = False
    sums: tuple[Literal["all"]] | None = None

    needs: ClassVar[tuple[str, ...]] = ()
    """The keys that a query of this kind must have, besides those of all kinds."""
    takes: ClassVar[tuple[str, ...]] = ()
    """Further keys of this kind."""

    def __post_init__(self) -> None:
        self._check_labels()
        self._check_keys()
        self._check_bounds()
        for key in ("edges", "quantiles"):
            if any(a >= b for a, b in pairwise(getattr(self, key))):
                raise RuleBroken(key, "it must be a list of numbers that rise")
        if "upper" in self.needs and self.lower >= self.upper:
            raise RuleBroken("upper", f"it must be a number above lower, {self.lower:g}")
        if self.k > len(self.labels):
            raise RuleBroken("k", f"it must be at most the number of labels, {len(self.labels)}")
        if "of" in self.takes:
            _check_sum(self.adds, self.column, self.lower)

    @property
    def kind(self) -> Any:
        """Return the name of the kind."""
        return self.__struct_config__.tag

    @cached_property
    def adds(self) -> Of:
        """Return what is added up."""
        return self.of or (self.kind if self.kind in get_args(Of) else "count")

    @property
    def panes(self) -> int:
        """Return the number of panes in a window; one window begins with each pane."""
        # Both lengths have the same unit, with and without a time zone.
        return self.window.within(None)[0] // (self.every or self.window).within(None)[0]

    @cached_property
    def terms(self) -> list[Term]:
        """Return the numerator and the denominator of a ratio."""
        return [term for term in (self.numerator, self.denominator) if term]

    @property
    def number_columns(self) -> list[str]:
        """Return the columns that must have numbers."""
        return [name for name in (self.column, *(term.column for term in self.terms)) if name]

    @property
    def conditions(self) -> list[tuple[str, Wanted]]:
        """Return the conditions of the query and of its terms, by column."""
        wheres = self.where, *(term.where for term in self.terms)
        return [condition for where in wheres for condition in where.items()]

    @property
    def has_private_keys(self) -> bool:
        """Return whether the keys of the groups are private."""
        return bool(self.key_bytes or self.keys_below)

    @property
    def is_never_negative(self) -> bool:
        """Return whether no user can add a negative number to a sum or a count."""
        return self.adds != "sum" or self.lower >= 0.0

    @cached_property
    def cap(self) -> float:
        """Return the largest contribution of a user to one number; 0 if ``clip`` is given."""
        return 1.0 if self.adds == "distinct" and not self.clip else self.each

    def _check_labels(self) -> None:
        found = [self.labels, self.key_bytes, self.keys_below]
        is_distinct = len(set(map(comparable, self.labels))) == len(self.labels)
        if sum(map(bool, found)) != bool(self.by) or not is_distinct:
            raise RuleBroken(
                "labels" if self.by else "by",
                f"give by, the column with the labels, and labels, 1 to {MOST_LABELS:,} distinct "
                "strings or integers. They are published, whether any event has them or not, so do "
                "not take them from the events. If the keys are not known, give key_bytes, the "
                "longest key in bytes, or keys_below for integers, with a count, a distinct or a "
                "sum",
            )

    def _check_keys(self) -> None:
        fields = msgspec.structs.fields(self)
        given = {one.name for one in fields if getattr(self, one.name) != one.default}
        known = (*_OF_ALL, *self.needs, *self.takes)
        if missing := [key for key in self.needs if key not in given]:
            raise RuleBroken(missing[0], "it is required")
        if others := given - set(known):
            raise RuleBroken(
                min(others),
                f"it has no effect here: remove it. The keys of a {self.kind} are kind, "
                + ", ".join(known),
            )
        if bool(self.noise) == bool(self.active_windows):
            raise RuleBroken(
                "noise",
                "give either noise, a standard deviation in the units of the answer, or "
                "active_windows, the number of full windows that each user's budget pays for",
            )
        if self.noise and (self.share or self.correct):
            key = "share" if self.share else "correct"
            raise RuleBroken(key, "it has no effect with noise: give active_windows instead")
        if self.has_private_keys and (self.correct or self.sums):
            key = "correct" if self.correct else "sums"
            raise RuleBroken(key, "private keys have no corrections and no running total")
        if self.sums and self.panes != 1:
            raise RuleBroken("sums", "windows that overlap have no running total")

    def _check_bounds(self) -> None:
        """Check the bounds on one user's contribution."""
        if "clip" in self.takes and self.adds == "distinct":
            if self.each:
                raise RuleBroken("each", _NO_EACH)
        elif "clip" in self.takes and bool(self.each) == bool(self.clip):
            raise RuleBroken(
                "each",
                "give one bound on a user's contribution to a window: either each, the maximum per "
                "number, or clip, the largest L2 norm",
            )
        if self.clip and self.has_private_keys:
            raise RuleBroken("clip", "private keys need the bounds each and groups instead")
        numbers = MOST_LABELS if self.has_private_keys else len(self.labels or self.edges[1:])
        if not numbers or self.clip or "groups" not in self.takes:
            if self.groups:
                raise RuleBroken("groups", "it has no effect without several numbers, or with clip")
        elif not 1 <= self.groups <= numbers:
            raise RuleBroken("groups", f"it must be a whole number from 1 to {numbers:,}")


_OF_ALL: Final = ("name", "window", "every", "where", "noise", "active_windows", "share")
_NO_EACH: Final = "a user counts once, so each has no effect: remove it"


def _check_sum(adds: Of, column: str, lower: float = -math.inf) -> None:
    if adds == "sum" and not column:
        raise RuleBroken("column", "a sum needs the column with its numbers")
    if adds != "sum" and (column or lower > -math.inf):
        key = "column" if column else "lower"
        raise RuleBroken(key, 'it has no effect without of = "sum": remove it, or add that')
