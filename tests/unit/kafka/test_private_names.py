"""The private names of other packages that this release uses are listed, and checked at start."""

from __future__ import annotations

import ast
import re
import tomllib
from importlib import import_module
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import streams
from streams.config import Config, ConfigurationError
from streams.kafka import private_names
from streams.kafka.private_names import PRIVATE_NAMES, check_private_names
from streams.worker.app import run_worker
from tests.readme import TOP

HERE = Path(streams.__file__).parent
PACKAGES = ("aiokafka", "faust", "kafka", "mode")
OTHERS = {"_exit", "_abc_impl", "_replace"}  # of os, abc and NamedTuple


def is_theirs(module: str | None) -> bool:
    return (module or "").split(".")[0] in PACKAGES


def is_own(attribute: ast.Attribute) -> bool:
    is_self = isinstance(attribute.value, ast.Name) and attribute.value.id == "self"
    return is_self and isinstance(attribute.ctx, ast.Store)


def names_used() -> set[str]:
    """Return the private names that our modules use or override of the packages they import."""
    used, overridden, own = set(), set(), set()
    for path in HERE.rglob("*.py"):
        nodes = list(ast.walk(ast.parse(path.read_text())))
        attributes = [node for node in nodes if isinstance(node, ast.Attribute)]
        functions = [n for n in nodes if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
        imported = [node.module for node in nodes if isinstance(node, ast.ImportFrom)]
        imported += [a.name for node in nodes if isinstance(node, ast.Import) for a in node.names]
        own |= {node.name for node in functions} | {n.attr for n in attributes if is_own(n)}
        if any(map(is_theirs, imported)):
            used |= {node.attr for node in attributes}
            name = ".".join(path.relative_to(HERE.parent).with_suffix("").parts)
            for kind in vars(import_module(name)).values():
                if isinstance(kind, type) and kind.__module__ == name:
                    bases = [base for base in kind.__mro__ if is_theirs(base.__module__)]
                    overridden |= vars(kind).keys() & {n for base in bases for n in vars(base)}
    return {name for name in (used - own) | overridden if re.match("_[^_]", name)} - OTHERS


def test_every_private_name_is_listed() -> None:
    listed = {name for _, _, names in PRIVATE_NAMES for name in names.split()}
    assert names_used() <= listed


def test_installed_packages_have_every_name() -> None:
    check_private_names()


@pytest.mark.parametrize(("package", "owner", "names"), PRIVATE_NAMES)
def test_a_name_that_a_release_renames_ends_the_worker(
    package: str, owner: str, names: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    renamed = package, owner, f"{names}_of_another_release"
    monkeypatch.setattr(private_names, "PRIVATE_NAMES", (renamed,))
    with pytest.raises(ConfigurationError, match=package):
        run_worker(Config())


def test_packages_with_private_names_have_upper_bounds() -> None:
    project = tomllib.loads((TOP / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lines = [*project["dependencies"], *project["optional-dependencies"]["service"]]
    requirements = {one.name: one.specifier for one in map(Requirement, lines)}
    for package in {package for package, _, _ in PRIVATE_NAMES}:
        assert any(bound.operator == "<" for bound in requirements[package]), package
