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


def test_module_names_are_unique_in_a_package():
    places = defaultdict(set)
    for path in MODULES:
        room, *parts = path.relative_to(TOP).parts
        package = (room, parts[0]) if len(parts) > 1 else (room,)
        places[package, path.name].add(str(path.relative_to(TOP)))
    assert {name: found for name, found in places.items() if len(found) > 1} == {}
