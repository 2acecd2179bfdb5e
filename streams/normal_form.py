"""One way to write a name: Unicode's composed normal form, NFC, by the tables of Unicode 3.2.

A log is applied again for years, on machines with other versions of Python, and must be applied
the same. For characters that Unicode 3.2 knows, normalisation is stable. What becomes of later ones
depends on the tables that a Python came with, even under ``unicodedata.ucd_3_2_0``. So they are
left alone here: a character that Unicode 3.2 does not know is as it is, and nothing is composed
with it.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from itertools import groupby
from unicodedata import ucd_3_2_0 as unicode

_UNASSIGNED = "Cn"


def normal_form(name: str) -> str:
    """The one way to write this name; it is its own normal form."""
    if name.isascii():
        return name
    later = _later_characters(name)
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
    while len(names) > 1:  # by halves: one by one, a million names took seconds
        half = len(names) // 2
        names = names[half:] if _is_regular("\n".join(names[:half])) else names[:half]
    return names[0]


def _is_regular(text: str) -> bool:
    """Whether a text is its own normal form, without making that.

    Newer tables say the same of characters that Unicode 3.2 knows: of five ideographs only the
    normal form was mended later, and they are not their own by any table.
    """
    ends = dict.fromkeys(map(ord, _later_characters(text)), "\n")
    return unicodedata.is_normalized("NFC", text.translate(ends) if ends else text)


def _later_characters(text: str) -> set[str]:
    return {character for character in set(text) if unicode.category(character) == _UNASSIGNED}
