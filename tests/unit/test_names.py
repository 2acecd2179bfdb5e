"""One name, one thing: a class or a module is found by its name."""

import re
from collections import defaultdict

from tests.readme import TOP

MODULES = sorted(
    path
    for package in ("accounting", "streams")
    for path in (TOP / package).rglob("*.py")
    if path.name != "__init__.py"
)

CLASS = re.compile(r"^class ([A-Za-z]\w*)", re.MULTILINE)


def test_public_class_names_are_unique():
    places = defaultdict(set)
    for path in MODULES:
        for name in CLASS.findall(path.read_text(encoding="utf-8")):
            places[name].add(str(path.relative_to(TOP)))
    assert places
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


ENDING = re.compile(r"(?:ings?|ers?|ors?|ed|es|s|e)$")


def test_module_names_differ_by_more_than_an_ending():
    places = defaultdict(set)
    for path in MODULES:
        if path.stem != "__main__":
            places[ENDING.sub("", path.stem)].add(str(path.relative_to(TOP)))
    assert places
    assert {name: found for name, found in places.items() if len(found) > 1} == {}
