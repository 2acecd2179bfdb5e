"""The normal form of a name is the same with every version of Python."""

from __future__ import annotations

import unicodedata
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams.records.users import first_irregular, normal_form

OLD = unicodedata.ucd_3_2_0
characters = st.characters(exclude_categories=["Cs"])
accents = st.characters(min_codepoint=0x300, max_codepoint=0x36F)
names = st.lists(characters | accents | st.sampled_from("aeouAEOU\u1100\u1161\u11a8")).map("".join)

FORMS = [
    # a name, its normal form
    ("plain ASCII", "user-7", "user-7"),
    ("empty", "", ""),
    ("composed", "Zo\u00eb", "Zo\u00eb"),
    ("decomposed", "Zoe\u0308", "Zo\u00eb"),
    ("accents in another order", "a\u0301\u0323", "\u1ea1\u0301"),
    ("Hangul", "\u1112\u1161\u11ab", "\ud55c"),
    ("a sign that stands for a letter", "\u212b", "\u00c5"),
    ("Kelvin", "\u212a", "K"),
    ("compatible is not equal", "\ufb01\u00b2", "\ufb01\u00b2"),
    ("upper case is not lower case", "É", "É"),
    # A pair that composes since Unicode 6.1, an accent of 4.1 that sorts before others, an emoji.
    ("characters after Unicode 3.2", "\U00011131\U00011127", "\U00011131\U00011127"),
    ("an accent after Unicode 3.2", "a\u0301\u0358", "\u00e1\u0358"),
    ("accents on both sides of one", "e\u0308\u0358e\u0308", "\u00eb\u0358\u00eb"),
    ("an emoji", "\U0001f9eee\u0308", "\U0001f9ee\u00eb"),
    ("what it cannot be composed with", "\U0001f9ee\u0308", "\U0001f9ee\u0308"),
]


@pytest.mark.parametrize(("what", "name", "form"), FORMS, ids=[row[0] for row in FORMS])
def test_names_have_the_composed_form_of_unicode_3_2(what: str, name: str, form: str) -> None:
    assert normal_form(name) == form
    assert first_irregular(["a", name, 7]) == (None if name == form else name)


@given(names)
def test_normal_form_is_idempotent(name: str) -> None:
    regular = normal_form(name)
    assert normal_form(regular) == regular
    assert (first_irregular([name]) is None) == (regular == name)
    assert normal_form("".join(parts(name))) == regular


def parts(name: str) -> list[str]:
    """The characters that Unicode 3.2 knows, decomposed one by one."""
    return [c if OLD.category(c) == "Cn" else OLD.normalize("NFD", c) for c in name]


@given(names.filter(lambda name: all(OLD.category(c) != "Cn" for c in name)))
def test_characters_of_unicode_3_2_have_the_standard_form(name: str) -> None:
    """Normalisation is stable, but for a few ideographs whose mistakes were mended later."""
    if all(OLD.normalize("NFC", c) == unicodedata.normalize("NFC", c) for c in name):
        assert normal_form(name) == unicodedata.normalize("NFC", name)


@given(st.lists(names | st.integers(), max_size=20))
def test_the_first_irregular_name_is_found(ids: list[Any]) -> None:
    irregular = [i for i in ids if isinstance(i, str) and normal_form(i) != i]
    assert first_irregular(ids) == (irregular[0] if irregular else None)


MENDED = "\U0002f868\U0002f874\U0002f91f\U0002f95f\U0002f9bf"


@pytest.mark.parametrize("ideograph", MENDED)
def test_corrected_ideographs_keep_the_form_of_unicode_3_2(ideograph: str) -> None:
    assert normal_form(ideograph) == OLD.normalize("NFC", ideograph) != ideograph
    assert unicodedata.normalize("NFC", ideograph) != normal_form(ideograph)
    assert first_irregular([ideograph]) == ideograph


@pytest.mark.slow
def test_first_irregular_agrees_with_the_normal_form() -> None:
    for code in (*range(0xD800), *range(0xE000, 0x30000)):
        character = chr(code)
        assert (first_irregular([character]) is None) == (normal_form(character) == character)
