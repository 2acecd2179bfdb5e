"""Exact sums of clipped gradients on a grid.

The sum does not depend on the order of users, and one user changes it by at most that user's level.

Each row is multiplied by a factor that makes it no longer than its level, in exact arithmetic, and
rounded towards zero to the grid; the sum is over integers. float32 rows, as frameworks return them,
stay float32 until they are integers: copying a batch of gradients to float64 takes longer than all
other work.

**Outer products.** The gradient of a linear layer is the outer product of its inputs and its
backpropagated outputs. `Outer` keeps these factors and never writes the product out. The norms and
the clipped sum are exact, as those of written rows are.

This is ghost clipping with a bound that holds. Opacus computes norms and sums in float32, where one
user's part of the sum depends, by rounding, on which other users were drawn. Here the sum is one
product of integer matrices, which float64 holds exactly. For a user with the gradient l r^T, l (q,)
and r (p,), and a grid of spacing u:

1. N >= |l| |r| is rounded up: one part of the norm of the whole gradient.
2. f is the factor of ``clip_factors`` for that norm and the user's level c. Let l' = f l in
   float64; then |l'| |r| is no more than this part's share of c, as exact numbers: as is proven
   there for rows, since each entry of l' is rounded once.
3. 2^e is a power of two with max|r| in [2^(e-1), 2^e). R = trunc(r 2^(b-e)), b = ``_BITS``, and
   L = trunc(l' 2^(e-b) / u): scaling by powers of two is exact, both are integers.
4. The sum adds L R^T. Entry by entry u |L_j R_k| <= |l'_j r_k|, since truncation makes no number
   longer. So u |L R^T| <= |l'| |r|, and all parts together are no longer than c.
5. |L_j R_k| <= c / u. With k users at a time such that k c / u < 2^50, every partial sum of the
   product of the matrices is an integer that float64 holds, in whatever order it is computed (with
   a factor of 8 to spare, for algorithms that add terms which are subtracted again).

L and R depend on this user's data and level alone. The error of an entry is less than
2^(2-b) c + 2^b u: the grid has to be finer than that of written rows, by ``FINER_BITS``.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby, pairwise
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from accounting.release.clipping import clip_factors, row_norms

Floats: TypeAlias = NDArray[np.float64]
Rows: TypeAlias = NDArray[np.floating]
Added: TypeAlias = tuple[Rows, NDArray[np.int64]]
"""Rows, and the column totals to which they are added."""

FINER_BITS: Final = 12
_BITS: Final = 18
_EXACT_PRODUCTS: Final = 2.0**50
_BLOCK: Final = 2**17  # entries per block, so that they stay in the cache
_NARROW: Final = 1024  # parts with at most this many columns are processed together
_RUN: Final = 128  # squares that are summed in float32
_INTEGERS: Final = 2.0**31
_EXACT: Final = 2.0**53
_ABOVE: Final = 1.0 + 2.0**-50  # covers rounding two products of float64
_LARGEST_ENTRY: Final = 1e150  # of a float64 row whose norm is a float64
# Error bounds of a sum of squares, in float32 within runs and in float64 over runs and parts: 129
# nested roundings of 2**-24 each, 2**30 of 2**-53, and the underflow of processors that flush to
# zero.
_SQUARES: Final = 1.0 + 2.0**-16
_LOST: Final = 2.0**-125
_SHORTER: Final = 1.0 - 2.0**-22  # covers rounding a factor and a product to float32
_NORMAL: Final = 2.0**-126  # the smallest normal float32
_SMALLEST_SCALED: Final = -100  # 2**(_BITS + 100) is a float32


@dataclass(frozen=True, eq=False)
class Outer:
    """Rows (k, q p), each an outer product that is not written out.

    Attributes:
        left: float32 (k, q), the backpropagated outputs of a layer.
        right: float32 (k, p), its inputs.
    """

    left: NDArray[np.float32]
    right: NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.left)

    @property
    def shape(self) -> tuple[int, int]:
        """Return the shape of the rows."""
        return len(self.left), self.left.shape[1] * self.right.shape[1]

    def only(self, usable: NDArray[np.bool_]) -> Outer:
        """Return the rows with those that are not usable set to zero."""
        kept = usable[:, np.newaxis]
        return Outer(
            np.where(kept, self.left, np.float32(0)), np.where(kept, self.right, np.float32(0))
        )

    def clipped_sum(
        self, factors: Floats, exponent: int, units: float, scratch: Scratch
    ) -> NDArray[np.int64]:
        """Return the sum (q p,) of rows times their factors, in multiples of 2**exponent.

        Args:
            factors: (k,), from ``clip_factors``.
            exponent: from -120 to 120.
            units: an upper bound on a row times its factor, in grid spacings; below 2**50.
            scratch: reusable buffers.
        """
        total = np.zeros(self.shape[1], dtype=np.int64)
        at_once = max(1, int(_EXACT_PRODUCTS / (units + 1.0)) - 1)
        for start in range(0, len(self), at_once):
            rows = slice(start, start + at_once)
            left, right = self._integers(rows, factors[rows], exponent, scratch)
            total += (left.T @ right).astype(np.int64).ravel()  # Step 5.
        return total

    def _integers(
        self, rows: slice, factors: Floats, exponent: int, scratch: Scratch
    ) -> tuple[Floats, Floats]:
        """Do steps 2 and 3."""
        right = self.right[rows]
        integers = scratch.integers(*right.shape)
        largest = np.abs(right, out=integers.view(np.float32)).max(axis=1, initial=0.0)
        power = np.frexp(largest)[1][:, np.newaxis]
        left = np.multiply(self.left[rows], factors[:, np.newaxis], dtype=np.float64)
        left[largest == 0.0] = 0.0  # such a row is zero, but its left side has no bound
        left = np.trunc(np.ldexp(left, power - (_BITS + exponent)))
        whole = scratch.floats(*right.shape)
        if power.min(initial=0) < _SMALLEST_SCALED:  # float32 has no such power of two
            np.trunc(np.ldexp(right.astype(np.float64), _BITS - power), out=whole)
            return left, whole
        scale = np.ldexp(np.float32(1), _BITS - power)
        np.multiply(right, scale, out=integers, dtype=np.float32, casting="unsafe")
        np.copyto(whole, integers)
        return left, whole


def check_grid(largest: float, exponent: int) -> bool:
    """Return whether sums on this grid are exact, for contributions of up to so many spacings."""
    return -120 <= exponent <= 120 and math.isfinite(largest) and largest < _EXACT_PRODUCTS / 4.0


Part: TypeAlias = Rows | Outer


class Scratch:
    """Buffers that are reused from sum to sum, because memory that is new to the process is
    slow.
    """

    def __init__(self) -> None:
        self._integers = np.empty(0, dtype=np.int32)
        self._floats = np.empty(0, dtype=np.float64)

    def integers(self, rows: int, columns: int) -> NDArray[np.int32]:
        """Return an uninitialised array of this shape."""
        size = rows * columns
        if self._integers.size < size:
            self._integers = np.empty(size, dtype=np.int32)
        return self._integers[:size].reshape(rows, columns)

    def floats(self, rows: int, columns: int) -> Floats:
        """Return an uninitialised array of this shape."""
        size = rows * columns
        if self._floats.size < size:
            self._floats = np.empty(size, dtype=np.float64)
        return self._floats[:size].reshape(rows, columns)


class ClippedSum:
    """A sum over users of clipped rows. A row may be split into parts by columns.

    Args:
        exponent: the sum is in multiples of the grid spacing 2**exponent.
        outer: indices of the parts that may come as outer products. Their grid is finer in any
            case: a release reveals its grid, which must therefore not depend on data. Rows of these
            parts that are written out are rounded as those of other parts.
        scratch: a buffer shared by consecutive sums.
    """

    def __init__(
        self, exponent: int, outer: Collection[int] = (), scratch: Scratch | None = None
    ) -> None:
        self._exponent, self._outer = exponent, frozenset(outer)
        self._totals: list[NDArray[np.int64]] | None = None
        self._scratch = scratch or Scratch()

    @property
    def widths(self) -> list[int] | None:
        """Return the number of columns of each part; None before the first row."""
        return None if self._totals is None else [len(total) for total in self._totals]

    def begin(self, widths: Sequence[int]) -> None:
        """Set the number of columns of each part, for a sum that may stay empty."""
        self._totals = [np.zeros(width, dtype=np.int64) for width in widths]

    def totals(self) -> list[tuple[int, NDArray[np.int64]]]:
        """Return the sum: for each run of columns on one grid, its exponent and integers."""
        placed = list(enumerate(self._totals or []))
        return [
            (exponent, np.concatenate([total for _, total in run]))
            for exponent, run in groupby(placed, key=lambda one: self._exponent_of(one[0]))
        ]

    def add(self, parts: Sequence[Part], limits: Floats) -> Floats:
        """Add rows, clipped to their limits; return their norms, (k,), rounded up.

        A row that is not finite, or too long for a float64, counts as zero, with an infinite norm.

        Args:
            parts: at least one, (k, d_i) each: the columns of the rows.
            limits: (k,), the norms to clip to.
        """
        parts = [_native(part) for part in parts]
        if self._totals is None:
            self.begin([part.shape[1] for part in parts])
        totals = self._totals or []
        norms = _norms(parts)
        usable, lengths = np.isfinite(norms), norms
        if not usable.all():  # without a warning, which would tell that there is such a user
            parts = [_only(part, usable) for part in parts]
            lengths = np.where(usable, norms, 0.0)
        factors = clip_factors(lengths, limits)
        longest = float(limits.max(initial=0.0))
        written: dict[int, NDArray[np.int64]] = {}  # rounded more coarsely than their part's grid
        together: defaultdict[int, list[Added]] = defaultdict(list)
        for place, part in enumerate(parts):
            if isinstance(part, Outer):
                exponent = self._exponent_of(place)
                units = math.ldexp(longest, -exponent)
                totals[place] += part.clipped_sum(factors, exponent, units, self._scratch)
                continue
            total = totals[place]
            if place in self._outer:
                total = written.setdefault(place, np.zeros_like(total))
            if part.dtype == np.float32 and -120 < self._exponent < 120:
                alone = -1 if part.shape[1] <= _NARROW else place
                together[alone].append((part, total))
            else:
                units = math.ldexp(longest, -self._exponent)
                total += _whole(part, factors, units, self._exponent)
        for added in together.values():
            self._add_by_level(added, factors, limits)
        for place, total in written.items():
            totals[place] += total << FINER_BITS
        return norms

    def _exponent_of(self, place: int) -> int:
        return self._exponent - (FINER_BITS if place in self._outer else 0)

    def _add_by_level(self, parts: Sequence[Added], factors: Floats, limits: Floats) -> None:
        """Add float32 parts to their totals.

        The rounding of a row depends on its own level only, not on the other rows.
        """
        exponent, longest = self._exponent, float(limits.max(initial=0.0))
        bound = math.ldexp(_INTEGERS, exponent)
        if longest < bound:
            self._add_float32(parts, factors, math.ldexp(longest, -exponent), exponent)
            return
        short = limits < bound
        for chosen, add in ((short, self._add_float32), (~short, _add_float64)):
            units = math.ldexp(float(limits[chosen].max(initial=0.0)), -exponent)
            mine = [(rows[chosen], total) for rows, total in parts]
            add(mine, factors[chosen], units, exponent)

    def _add_float32(
        self, parts: Sequence[Added], factors: Floats, units: float, exponent: int
    ) -> None:
        """Add parts to their totals, where no row is longer than ``units`` spacings, an int32.

        Rows are summed in int32 in runs that are short enough not to overflow.
        """
        shorter = np.where(factors < 1.0, factors * _SHORTER, 1.0)
        exact = np.ldexp(shorter, -exponent)
        # A subnormal factor would be rounded by more than ``_SHORTER`` covers.
        scale = np.where(exact < _NORMAL, 0.0, exact).astype(np.float32)[:, np.newaxis]
        ends = list(accumulate((rows.shape[1] for rows, _ in parts), initial=0))
        columns = [slice(*ends) for ends in pairwise(ends)]
        for run in _blocks(len(factors), 1, at_most=_INTEGERS / (units + 1.0) - 1.0):
            added = np.zeros(ends[-1], dtype=np.int32)
            for block in _blocks(len(factors[run]), ends[-1]):
                whole = self._scratch.integers(len(factors[run][block]), ends[-1])
                for (rows, _), mine in zip(parts, columns, strict=True):
                    np.multiply(  # in float32, then towards zero
                        rows[run][block],
                        scale[run][block],
                        out=whole[:, mine],
                        dtype=np.float32,
                        casting="unsafe",
                    )
                added += np.add.reduce(whole, axis=0, dtype=np.int32)
            for (_, total), mine in zip(parts, columns, strict=True):
                total += added[mine]


def _add_float64(parts: Sequence[Added], factors: Floats, units: float, exponent: int) -> None:
    """Add parts to their totals, for rows of any length."""
    for rows, total in parts:
        total += _whole(rows, factors, units, exponent)


def _whole(rows: Rows, factors: Floats, units: float, exponent: int) -> NDArray[np.int64]:
    """Return the sum in grid spacings, where no row times its factor is longer than ``units``
    spacings.
    """
    total = np.zeros(rows.shape[1], dtype=np.int64)
    for block in _blocks(*rows.shape):
        scaled = np.multiply(rows[block], factors[block, np.newaxis], dtype=np.float64)
        scaled *= math.ldexp(1.0, -exponent)  # exact, unless the result is below one spacing
        whole = np.trunc(scaled, out=scaled)
        if units * len(whole) < _EXACT:  # sums of such floats are exact
            total += whole.sum(axis=0).astype(np.int64)
        else:
            total += whole.astype(np.int64).sum(axis=0)
    return total


def _blocks(rows: int, columns: int, at_most: float = math.inf) -> Iterator[slice]:
    at_once = max(1, int(min(_BLOCK // max(1, columns), at_most)))
    for start in range(0, rows, at_once):
        yield slice(start, start + at_once)


def _native(part: Part) -> Part:
    """Return the part in this machine's byte order.

    The type decides how rows are rounded. numpy counts the byte order as a part of the type in
    some operations and not in others.
    """
    if isinstance(part, Outer) or part.dtype.isnative:
        return part
    return part.astype(part.dtype.newbyteorder("="))


def _only(part: Part, usable: NDArray[np.bool_]) -> Part:
    """Return the part with the rows that are not usable set to zero."""
    if isinstance(part, Outer):
        return part.only(usable)
    return np.where(usable[:, np.newaxis], part, part.dtype.type(0))


def _norms(parts: Sequence[Part]) -> Floats:
    """Return the norms of rows, rounded up; infinite where a row is not finite or too long."""
    written: list[Rows] = []
    outer: list[Outer] = []
    norms: list[Floats] = []
    for part in parts:
        if isinstance(part, Outer):
            outer.append(part)
        elif part.dtype == np.float32:
            written.append(part)
        else:
            norms.append(_norms_float64(part))
    vectors = [[side] for part in outer for side in (part.left, part.right)]
    found = _norms_float32([*vectors, written] if written else vectors)
    for left, right in zip(found[0 : 2 * len(outer) : 2], found[1::2], strict=False):
        with np.errstate(invalid="ignore"):  # of a row with an infinite and a zero side
            products = left * right * _ABOVE
        finite = np.isfinite(products)
        norms.append(products if finite.all() else np.where(finite, products, np.inf))
    return _together([*norms, found[-1]] if written else norms)


def _together(norms: Sequence[Floats]) -> Floats:
    """Return the norms of rows from those of their parts; infinite where one of these is."""
    if len(norms) == 1:
        return norms[0]
    squares = np.zeros_like(norms[0])
    with np.errstate(over="ignore", under="ignore"):
        for one in norms:  # numpy's sum over parts would take another order for a single row
            squares += np.square(one)
    together: Floats = np.sqrt(squares) * (1.0 + (len(norms) + 4) * 2.0**-52)
    precise = (squares > 2.0**-900) & (squares < np.inf)
    if not precise.all():
        closely = np.stack([one[~precise] for one in norms], axis=1)
        finite = np.asarray(np.isfinite(closely).all(axis=1))
        usable = np.where(finite[:, np.newaxis], closely, 0.0)
        together[~precise] = np.where(finite, row_norms(usable), np.inf)
    return together


def _norms_float64(rows: Rows) -> Floats:
    norms = np.empty(len(rows))
    for block in _blocks(*rows.shape):
        norms[block] = _norms_of_block(rows[block])
    return norms


def _norms_of_block(rows: Rows) -> Floats:
    wide = rows.astype(np.float64, copy=False)
    usable = np.asarray(np.abs(wide).max(axis=1, initial=0.0) < _LARGEST_ENTRY)  # no NaN is
    norms = row_norms(wide if usable.all() else np.where(usable[:, np.newaxis], wide, 0.0))
    return np.asarray(np.where(usable, norms, np.inf))


def _norms_float32(vectors: Sequence[Sequence[Rows]]) -> Sequence[Floats]:
    """Return the norms of the rows of several vectors, (k,) each. A vector comes in parts, all of
    them float32.
    """
    if not vectors:
        return []
    squares = np.zeros((len(vectors), len(vectors[0][0])))
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        for sums, parts in zip(squares, vectors, strict=True):
            for rows in parts:  # numpy's sum over parts would take another order for a single row
                sums += _squares(rows)
    lost = [[_LOST * sum(rows.shape[1] for rows in parts)] for parts in vectors]
    norms: Floats = np.sqrt(squares * _SQUARES + lost)
    # Recompute sums of squares that are tiny or beyond float32 in float64.
    precise = (squares >= 2.0**-60) & (squares < np.inf)
    if not precise.all():
        for mine, is_precise, parts in zip(norms, precise, vectors, strict=True):
            if not is_precise.all():
                closely = ~is_precise
                mine[closely] = _together([_norms_float64(rows[closely]) for rows in parts])
    return list(norms)


def _squares(rows: Rows) -> Floats:
    """Return the sums of squares of rows, in float32 within runs and in float64 over runs.

    The order of summation within a run must not depend on the number of rows.
    """
    rows = np.ascontiguousarray(rows)
    whole = rows.shape[1] // _RUN * _RUN
    rest = rows[:, whole:]
    squares: Floats = np.einsum("ik,ik->i", rest, rest).astype(np.float64)
    if whole:
        runs = rows[:, :whole].reshape(len(rows), whole // _RUN, _RUN)
        squares += np.einsum("ijk,ijk->ij", runs, runs).sum(axis=1, dtype=np.float64)
    return squares
