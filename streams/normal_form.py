"""One way to write a name: Unicode's composed normal form, NFC, by the tables of Unicode 3.2.

A log is applied again for years, on machines with other versions of Python, and must be applied
the same. ``unicodedata.ucd_3_2_0`` answers for characters that Unicode 3.2 knows, and for those
normalisation is stable; to later ones it applies whatever tables it came with. So they are left
alone here: a character that Unicode 3.2 does not know is as it is, and ends what can be composed.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from itertools import groupby
from unicodedata import ucd_3_2_0 as unicode

import numpy as np

_UNASSIGNED = "Cn"


def normal_form(name: str) -> str:
    """The one way to write this name; it is its own normal form."""
    if name.isascii():
        return name
    later = {character for character in set(name) if unicode.category(character) == _UNASSIGNED}
    if not later:
        return unicode.normalize("NFC", name)
    runs = ((known, "".join(run)) for known, run in groupby(name, lambda c: c not in later))
    return "".join(unicode.normalize("NFC", run) if known else run for known, run in runs)


def first_irregular(ids: Iterable[int | str]) -> str | None:
    """The first string among these ids that is not in normal form, in time linear in their length.

    Integers are passed over.
    """
    names = [name for name in ids if isinstance(name, str) and not name.isascii()]
    if not names or _is_regular("\n".join(names)):  # nothing is composed over the end of a line
        return None
    return next(name for name in names if not _is_regular(name))


def _is_regular(text: str) -> bool:
    # Sorting long rows of accents takes time quadratic in their length, so only those that are
    # in order are normalised; the others are not in normal form.
    return _accents_in_order(text) and normal_form(text) == text


def _accents_in_order(text: str) -> bool:
    """Whether the combining classes of the characters between two bases never decrease."""
    accents = {c: k for c in set(text) if (k := unicode.combining(c))}
    if not accents:
        return True
    classes = np.zeros(sys.maxunicode + 1, dtype=np.uint8)
    classes[[ord(accent) for accent in accents]] = list(accents.values())
    row = classes[np.frombuffer(text.encode("utf-32-le"), dtype="<u4")]
    return not np.any((row[1:] < row[:-1]) & (row[1:] > 0))
