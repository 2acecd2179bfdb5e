"""Exact sums of clipped gradients on the device that computed them, with PyTorch.

A user's gradient is rounded to integers once, and everything after that is exact: so the norm is
that of the integers which are added, however many rows of the user cancel. The gradient of a weight
is kept as the rows l_t (p,) and r_t (q,) of which it is the sum of outer products l_t r_t^T, one
for each token of each of the user's examples. It is not written out.

For a user with the level c, and sums on a grid of spacing v, coarser than which the sum is released
on a grid of spacing w:

1. Each part i of the gradient has a power of two 2^K_i, from the largest entries of the user's own
   rows, the user's own number of rows, c, and public numbers: v and the sizes of the model.
2. G_i is the integer matrix closest to 2^K_i times the part. For rows, G_i = sum_t L_t R_t^T with
   integer rows: each side is multiplied by a power of two and rounded, and the two powers of a row
   multiply to 2^K_i. Bits are limited so that every product of matrices below is exact in float64.
3. n_i >= |G_i|. For rows, |G_i|^2 is the sum over pairs of the user's own rows of
   (L_s . L_t) (R_s . R_t), or of the squares of G_i, whichever takes fewer operations for the
   user's own number of rows. Terms are rounded up to integers, so that their order has no effect.
4. N^2 = sum_i (2^-K_i n_i)^2, and f is at most 1 and at most (c - w sqrt(d)) / N, rounded down, for
   d columns in all. It is also so small that the entries of F_i L_t R_t^T are below 2^53. F_i =
   floor(f 2^-K_i / v), an integer.
5. The sum adds F_i G_i. In spacings, the square of all parts is sum_i F_i^2 |G_i|^2 <= (f / v)^2
   sum_i (2^-K_i n_i)^2 = (f N / v)^2. So the user adds at most c - w sqrt(d).
6. The total is rounded down to the grid of spacing w when it is released, and noise is drawn on
   that grid (``PrivateSteps.close_step``). An entry changes by less than w more with the user than
   the user adds, hence all entries together by at most w sqrt(d) more in norm: by at most c.

Steps 1 to 5 use floats in two ways. Single operations on one number are rounded as IEEE 754 says on
every device. Sums and products of matrices have integer values below 2^53, so they are exact in any
order. So the integers that a user adds are a function of that user's own gradient, bit for bit:
they depend neither on the other users, nor on batches, nor on the device. Gradients themselves may
be rounded differently by another device.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, Final, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from accounting.exact.invalid_input import quoted
from streams.sdk.errors import InvalidRequest

Floats: TypeAlias = NDArray[np.float64]
Integers: TypeAlias = NDArray[np.int64]

_LEVEL_BITS: Final = 50  # a level has at most so many bits, in spacings
_SUM_BITS: Final = 58  # as many users as are expected, all at the clip norm; 16 times as many fit
_FINEST: Final = 30  # powers of two between the two spacings, at most
_FACTOR_BITS: Final = 6, 20  # of F_i at least, even if all rows of the user have one direction
_PRODUCT_BITS: Final = 32  # of products of integers, before F_i gets more bits
_WRITTEN_BITS: Final = 19  # squares of 2**14 such integers add up to less than 2**53
_COLUMNS: Final = 2**14
_BLOCK: Final = 2**17  # entries per block, so that they stay in the cache
_ENTRIES: Final = 2**21  # entries per block of products
NARROW: Final = 1024  # parts with at most this many columns are processed together
_NONE: Final = -3000  # the exponent of a row of zeros
_UNUSABLE: Final = 9000  # the exponent of a row that is not finite, or too long
_FEW: Final = 2**16  # integers that are kept from step 3 to step 5
_LARGEST_ENTRY: Final = 2.0**400
_BELOW: Final = 1.0 - 2.0**-48  # covers the roundings of N, f and c - w sqrt(d) in step 4
_MOST: Final = 100  # an exponent of a scale, which float32 has
_EXACT: Final = 2.0**53


class Written:
    """A part of gradients that is written out.

    Args:
        rows: (k, d), one per user. They are overwritten by integers.
    """

    def __init__(self, rows: torch.Tensor) -> None:
        self.rows = rows if rows.dtype.itemsize >= 4 else rows.float()
        self.shape, self.device = (len(rows), rows.shape[1]), rows.device
        self.room = float(rows.shape[1])  # the square of the norm of a row of ones
        self.bits = _WRITTEN_BITS  # of an integer, so that sums of squares are exact

    def largest(self) -> torch.Tensor:
        """Return the largest absolute value of each row, (k,)."""
        return _largest(self.rows)

    def tops(self, exponents: Integers) -> Integers:
        """Return e, (k,), with 2**e above all entries of a user, from those of ``largest``."""
        return exponents

    def squares(self, powers: Integers) -> torch.Tensor:
        """Do steps 2 and 3: round to integers, and return the squares of n_i, (k,)."""
        scales = torch.from_numpy(np.ldexp(1.0, powers)[:, None]).to(self.device, self.rows.dtype)
        found = torch.zeros(len(self.rows), dtype=torch.float64, device=self.device)
        for users, columns in _blocks(*self.shape):
            integers = self.rows[users, columns].mul_(scales[users]).round_()
            found[users].add_(integers.to(torch.float64, copy=True).square_().sum(dim=1))
        # The sum of a block is exact; each sum of blocks is rounded by a relative 2**-53 at most.
        return found * (1.0 + self.shape[1] // _COLUMNS * 2.0**-51)

    def add_to(self, total: torch.Tensor, factors: Floats, _: Integers, at_once: int) -> None:
        """Do step 5, for at most so many users at once."""
        by = torch.from_numpy(factors).to(self.device)
        for users, columns in _blocks(*self.shape, at_once):
            added = by[users] @ self.rows[users, columns].double()
            total[columns].add_(added.long().to(total.device))

    def drop(self, unusable: NDArray[np.bool_]) -> None:
        """Set the gradients of these users to zero."""
        self.rows = _without(self.rows, unusable)


class Factored:
    """A part of gradients that are sums of outer products of rows.

    A weight that a linear layer and an embedding share has rows of both kinds.

    Args:
        left: (n, s, p), s rows of each example; None without such rows.
        right: (n, s + t, q).
        counts: (k,), the number of examples of each user, in order.
        sizes: (p, q).
        places: (n, t), integers below p: on the left, the last t rows of each example are 1 at this
            place and 0 elsewhere. They are not written out. None without such rows.
    """

    def __init__(
        self,
        left: torch.Tensor | None,
        right: torch.Tensor,
        counts: Integers,
        sizes: tuple[int, int],
        places: torch.Tensor | None = None,
    ) -> None:
        examples, (p, q) = len(right), sizes
        self._left = right.new_empty((examples, 0, p)) if left is None else left
        self._places = right.new_empty((examples, 0)) if places is None else places
        self._places = self._places.long()
        self._right, self._counts, self._sizes = right, counts, sizes
        self._split = self._left.shape[1], self._places.shape[1]  # s and t
        self._starts = np.cumsum(counts) - counts
        self._kept: tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None = None
        self.shape, self.device = (len(counts), p * q), right.device
        rows = counts * right.shape[1]
        # The square of the norm of a user's part if all rows are ones.
        self.room = np.square(rows.astype(np.float64)) * (q if left is None else p * q)
        # The bits of a product of two integers, so that all products of matrices are exact. A side
        # of a row with entries on the left has half of them, rounded up. A row that is 1 at a place
        # has ``_place_bits`` on the right, times a power of two. So scalar products of any two
        # rows, without these powers, are at most 2**51.
        self._place_bits = (51 - q.bit_length()) // 2
        if left is None:
            self.bits = self._place_bits
        else:
            self.bits = 50 - np.frexp(np.maximum(rows, max(sizes)))[1]

    def largest(self) -> torch.Tensor:
        """Return the largest absolute value of each side's rows, (2, n, s + t)."""
        of_left = _largest(self._left)
        if self._split[1]:  # half, since a product of 1 and an entry has the entry's exponent
            of_left = functional.pad(of_left, (0, self._split[1]), value=0.5)
        return torch.stack([of_left, _largest(self._right)])

    def tops(self, exponents: Integers) -> Integers:
        """Return e, (k,), with 2**e above all products of entries of a row of the user.

        Args:
            exponents: those of ``largest``.
        """
        self._exponents = exponents
        of_examples = exponents.sum(axis=0).max(axis=1)
        return np.asarray(np.maximum.reduceat(of_examples, self._starts))

    def squares(self, powers: Integers) -> torch.Tensor:
        """Do steps 2 and 3: return the squares of n_i, (k,)."""
        found = self._right.new_empty(len(powers), dtype=torch.float64)
        (p, q), (s, t) = self._sizes, self._split
        for count in np.flatnonzero(np.bincount(self._counts)).tolist():
            rows = count * (s + t)
            by_pairs = rows * (p + q) <= p * q if s else rows**2 <= 16 * p
            size = rows * (p + q) + (rows * rows if by_pairs else p * q)
            users = np.flatnonzero(self._counts == count)
            for first in range(0, len(users), _at_once(size)):
                some = users[first : first + _at_once(size)]
                chosen = (self._starts[some, None] + np.arange(count)).ravel()
                left, places, right = self._integers(chosen, np.repeat(powers[some], count))
                is_all = len(some) == len(found)
                if is_all and (s + t == 1 or left.numel() + right.numel() <= _FEW):
                    self._kept = left, places, right  # for the sum
                left = left.reshape(len(some), count * s, p)
                places = places.reshape(len(some), count * t)
                of_left, of_places = right.split([s, t], dim=1)
                of_left = of_left.reshape(len(some), count * s, q)
                of_places = of_places.reshape(len(some), count * t, q)
                if rows == s == 1:
                    each = _sums_of_squares(left) * _sums_of_squares(of_left)
                else:
                    terms = self._pairs if by_pairs else self._entries
                    each = _sums(terms(left, places, of_left, of_places))
                if is_all:
                    return each
                found[torch.from_numpy(some)] = each
        return found

    def _pairs(
        self,
        left: torch.Tensor,
        places: torch.Tensor,
        of_left: torch.Tensor,
        of_places: torch.Tensor,
    ) -> torch.Tensor:
        """Return the terms (k, m) of the squared norm, by pairs of rows."""
        terms = []
        if left.shape[1]:
            terms.append((of_left @ of_left.mT).mul_(left @ left.mT))
        if places.shape[1]:
            is_same = places[:, :, None] == places[:, None]
            terms.append((of_places @ of_places.mT).mul_(is_same))
        if len(terms) == 2:  # L_s . L_t is the entry of L_s at the place of L_t
            entries = left.gather(2, places[:, None].expand(-1, left.shape[1], -1))
            terms.append((of_left @ of_places.mT).mul_(entries).mul_(2.0))
        return torch.cat([one.flatten(1) for one in terms], dim=1)

    def _entries(
        self,
        left: torch.Tensor,
        places: torch.Tensor,
        of_left: torch.Tensor,
        of_places: torch.Tensor,
    ) -> torch.Tensor:
        """Return the terms (k, p q) of the squared norm, by entries."""
        written = left.mT @ of_left  # zeros without rows
        if places.shape[1]:
            for one, at, rows in zip(written, places, of_places, strict=True):
                one.index_add_(0, at, rows)
        return written.square_().flatten(1)

    def add_to(self, total: torch.Tensor, factors: Floats, powers: Integers, at_once: int) -> None:
        """Do step 5, for at most so many rows at once."""
        (p, q), view = self._sizes, total.view(self._sizes)
        by_example, powers = np.repeat(factors, self._counts), np.repeat(powers, self._counts)
        examples, columns = _at_once(self._right.shape[1] * (p + q)), _at_once(q)
        if self._kept:
            examples = len(by_example)
        for start in range(0, len(by_example), examples):
            chosen = np.arange(start, min(start + examples, len(by_example)))
            left, places, right = self._kept or self._integers(chosen, powers[chosen])
            by = torch.from_numpy(by_example[chosen]).to(self.device)[:, None, None]
            of_left, of_places = right.split(self._split, dim=1)
            if places.shape[1]:
                added = of_places.mul_(by).flatten(0, 1).long()
                view.index_add_(0, places.flatten().to(total.device), added.to(total.device))
            (left if p < q else of_left).mul_(by)
            left, of_left = left.flatten(0, 1), of_left.flatten(0, 1)
            for row in range(0, len(left), at_once):
                some = slice(row, row + at_once)
                for first in range(0, p, columns):
                    block = slice(first, first + columns)
                    added = left[some, block].T @ of_left[some]
                    view[block].add_(added.long().to(total.device))

    def _integers(
        self, chosen: Integers, powers: Integers
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Do step 2 for some examples: return their left sides, places and right sides.

        A row that is 1 at a place is kept so, and its right side is R = 2^a R', with the least a
        for which R' has at most ``_place_bits``.
        """
        s, t = self._split
        at: Any = chosen
        if len(chosen) == chosen[-1] - chosen[0] + 1:
            at = slice(int(chosen[0]), int(chosen[-1]) + 1)
        power, (lefts, rights) = powers[:, None], self._exponents[:, at]
        of_left = (power + rights - lefts) >> 1
        if t:
            of_left[:, s:] = np.maximum(power + rights[:, s:] - self._place_bits, 0)
        scales = np.stack([of_left, power - of_left])
        # Both sides become zero where float32 does not have both scales, as if one side is zero.
        used = (np.abs(scales) < 126).all(axis=0)
        by = torch.from_numpy(np.ldexp(used + 0.0, scales)[..., None]).to(self.device)
        at = at if isinstance(at, slice) else torch.from_numpy(at).to(self.device)
        right = _rounded(self._right[at], by[1])
        if s and t:
            right[:, s:] *= by[0, :, s:]
        return _rounded(self._left[at], by[0, :, :s]), self._places[at], right

    def drop(self, unusable: NDArray[np.bool_]) -> None:
        """Set the gradients of these users to zero."""
        by_example = np.repeat(unusable, self._counts)
        self._right = _without(self._right, by_example)
        self._left = _without(self._left, by_example)


Part: TypeAlias = Written | Factored


class DeviceSum:
    """A sum over users of clipped gradients, in parts by parameter.

    Args:
        exponent: the sum is released in multiples of 2**exponent, the w of the proof.
        clip_norm: the largest level.
        expected: a public number of users of a step.
        scratch: memory that consecutive sums share, since memory that is new to a process is slow.
    """

    def __init__(
        self,
        exponent: int,
        *,
        clip_norm: float,
        expected: float,
        scratch: list[torch.Tensor] | None = None,
    ) -> None:
        bits = min(_LEVEL_BITS, _SUM_BITS - math.ceil(math.log2(max(1.0, expected))))
        fine = math.frexp(clip_norm)[1] - bits
        self._exponent, self._fine = exponent, min(exponent, max(fine, exponent - _FINEST))
        self._scratch = [] if scratch is None else scratch
        self.columns: int | None = None

    def begin(self, columns: int, device: torch.device | None = None) -> None:
        """Set the number of columns, for a sum that may stay empty."""
        self.columns = columns
        kept = self._scratch[:1]
        if not kept or len(kept[0]) != columns or device not in (None, kept[0].device):
            self._scratch[:] = [torch.empty(columns, dtype=torch.int64, device=device)]
        self._total = self._scratch[0].zero_()

    def check(self, parts: Sequence[Part], users: int) -> None:
        """Check that parts are the gradients of so many users.

        Raises:
            InvalidRequest: they are not.
        """
        shapes = [part.shape for part in parts]
        columns = sum(width for _, width in shapes)
        if any(rows != users for rows, _ in shapes) or self.columns not in (None, columns):
            raise InvalidRequest(
                f"parts have shapes {quoted(shapes)}; they must have {users} rows, and "
                f"{self.columns or 'any number of'} columns in all"
            )

    def total(self) -> tuple[int, Integers]:
        """Return the exponent of the spacing v, and the sum in multiples of it."""
        return self._fine, self._total.cpu().numpy()

    def add(self, parts: Sequence[Part], limits: Floats) -> Floats:
        """Add gradients, clipped to their limits; return their norms, (k,), rounded up.

        A gradient that is not finite, or too long, counts as zero, with an infinite norm.

        Args:
            parts: of all parameters of the model.
            limits: (k,), the norms to clip to.
        """
        if self.columns is None:
            self.begin(sum(part.shape[1] for part in parts), parts[0].device)
        room = math.nextafter(math.sqrt(self._total.numel()), math.inf)
        limits = limits - math.ldexp(room, self._exponent)
        limits = np.maximum(limits, 0.0) * _BELOW
        together = self._together(parts)
        columns = [part for part, _ in together]
        # Step 1.
        tops = _tops(columns)
        unusable = tops.max(axis=0) > _UNUSABLE // 2
        if unusable.any():
            for part in columns:
                part.drop(unusable)
            tops = _tops(columns)
        powers = self._powers(columns, tops, limits)
        # Steps 2 and 3.
        found = [part.squares(one) for part, one in zip(columns, powers, strict=True)]
        squares = _joined([one[None] for one in found]).cpu().numpy()
        factors, norms = self._factors(squares, tops, powers, limits)
        # Step 5.
        sizes = np.ldexp(factors, np.maximum(tops + powers, 0)).max(axis=1, initial=1.0)
        for (part, views), by, one, size in zip(together, factors, powers, sizes, strict=True):
            total = views[0] if len(views) == 1 else views[0].new_zeros(part.shape[1])
            part.add_to(total, by, one, int(_EXACT / size))
            if len(views) > 1:
                for view, added in zip(views, total.split([len(v) for v in views]), strict=True):
                    view += added
        return np.where(unusable, np.inf, norms)

    def _together(self, parts: Sequence[Part]) -> list[tuple[Part, list[torch.Tensor]]]:
        """Return parts and their places in the sum, narrow written parts as one part."""
        narrow: list[tuple[torch.Tensor, torch.Tensor]] = []
        found: list[tuple[Part, list[torch.Tensor]]] = []
        for part, view in zip(parts, self._total.split([p.shape[1] for p in parts]), strict=True):
            if isinstance(part, Written) and part.shape[1] <= NARROW:
                narrow.append((part.rows, view))
            else:
                found.append((part, [view]))
        if narrow:
            device = narrow[0][0].device
            rows = [rows.to(device) for rows, _ in narrow]
            joined = rows[0] if len(rows) == 1 else torch.cat(rows, dim=1)
            found.append((Written(joined), [view for _, view in narrow]))
        return found

    def _powers(self, parts: Sequence[Part], tops: Integers, limits: Floats) -> Integers:
        """Return the K_i, (parts, k)."""
        room = sum(part.room for part in parts)
        bits = np.frexp(limits)[1] - 1 - self._fine - (np.frexp(room)[1] + 1) // 2
        least, most = _FACTOR_BITS
        bits -= np.minimum(np.maximum(bits - _PRODUCT_BITS, least), most)
        of_user = np.minimum(bits - tops.max(axis=0), min(-self._fine, _MOST))
        found = [
            np.minimum(of_user, part.bits - top) for part, top in zip(parts, tops, strict=True)
        ]
        return np.maximum(found, -1000, dtype=np.int64)

    # Without a warning of numpy, which would tell that there is a user with such a gradient.
    @np.errstate(all="ignore")
    def _factors(
        self, squares: Floats, tops: Integers, powers: Integers, limits: Floats
    ) -> tuple[Floats, Floats]:
        """Do step 4: return the F_i, (parts, k), and N, (k,)."""
        used = tops > _NONE // 2
        total = np.zeros(len(limits))
        for one in np.where(used, np.ldexp(squares, -2 * powers), 0.0):
            total += one  # numpy's sum over parts would take another order for a single user
        norms = np.sqrt(total) * (1.0 + (len(squares) + 6) * 2.0**-52)
        # Products of a single row have to be exact. They are, unless the user's rows cancel: n_i is
        # at least a quarter of the bound on a product, and F_i n_i is below 2**50.
        exact = np.ldexp(_EXACT / 2.0, powers + self._fine - np.maximum(tops + powers, 0))
        wanted = np.where(norms > 0.0, limits / norms, 1.0)
        f = np.minimum(np.minimum(1.0, wanted), np.where(used, exact, 1.0).min(axis=0))
        return np.where(used, np.floor(np.ldexp(f, -powers - self._fine)), 0.0), norms


# Without a warning of numpy, which would tell that there is a user with such a gradient.
@np.errstate(all="ignore")
def _tops(parts: Sequence[Part]) -> Integers:
    """Return the exponents of the largest entries, (parts, users)."""
    largest = [part.largest() for part in parts]
    found = _joined([one.flatten() for one in largest]).double().cpu().numpy()
    exponents = np.where(found > 0.0, np.frexp(found)[1], _NONE)
    exponents = np.where(found < _LARGEST_ENTRY, exponents, _UNUSABLE)  # NaN is not below
    tops, start = [], 0
    for part, one in zip(parts, largest, strict=True):
        mine = exponents[start : start + one.numel()]
        tops.append(part.tops(mine.reshape(one.shape)))
        start += one.numel()
    return np.array(tops)


def _joined(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the rows of all tensors, on the device of the first one."""
    if len(tensors) == 1:
        return tensors[0]
    return torch.cat([one.to(tensors[0].device) for one in tensors])


def _largest(rows: torch.Tensor) -> torch.Tensor:
    """Return the largest absolute value along the last axis; NaN if there is one."""
    return torch.maximum(rows.amax(dim=-1), -rows.amin(dim=-1))


def _two_to(exponents: torch.Tensor) -> torch.Tensor:
    """Return exact powers of two, which ``torch.exp2`` does not promise on every device."""
    return (exponents.clamp(-1022, 1022) + 1023 << 52).view(torch.float64)


def _rounded(rows: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Return rows times powers of two, rounded to integers in float64."""
    rows = rows if rows.dtype.itemsize >= 4 else rows.float()
    return (rows * scales.to(rows.dtype)).round_().double()


def _sums_of_squares(rows: torch.Tensor) -> torch.Tensor:
    """Return the sums (k,) of squares of integers (k, 1, d), which are below 2**53."""
    return rows.square().sum(dim=(1, 2))


def _sums(terms: torch.Tensor) -> torch.Tensor:
    """Return the sums of the rows of terms (k, m), rounded up, in whatever order they are added.

    The terms are rounded to 53 bits, and each row has a sum that is not negative.
    """
    count = terms.shape[1]
    bits = 51 - count.bit_length()
    top = torch.frexp(_largest(terms))[1].long()
    whole = (terms * _two_to(bits - top)[:, None]).ceil_().sum(dim=1)  # integers below 2**51
    return (whole + count) * _two_to(top - bits)


def _without(rows: torch.Tensor, unusable: NDArray[np.bool_]) -> torch.Tensor:
    """Return rows with zeros in place of those that are not usable."""
    mask = torch.from_numpy(unusable).to(rows.device)
    return rows.masked_fill(mask.view(-1, *[1] * (rows.dim() - 1)), 0.0)


def _at_once(entries: int) -> int:
    """Return how many blocks of so many entries are processed at once."""
    return max(1, _ENTRIES // entries)


def _blocks(rows: int, columns: int, at_most: int = _BLOCK) -> Iterator[tuple[slice, slice]]:
    at_once = max(1, min(_BLOCK // max(1, min(columns, _COLUMNS)), at_most))
    for first in range(0, columns, _COLUMNS):
        for start in range(0, rows, at_once):
            yield slice(start, start + at_once), slice(first, first + _COLUMNS)
