"""The private names of other packages that this release uses are listed, and checked at start."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
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


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def is_theirs(module: str) -> bool:
    return module.split(".")[0] in PACKAGES


def trees() -> Iterator[tuple[str, ast.Module]]:
    for path in sorted(HERE.rglob("*.py")):
        name = ".".join(("streams", *path.relative_to(HERE).with_suffix("").parts))
        yield name, ast.parse(path.read_text())


def imports_theirs(tree: ast.Module) -> bool:
    modules = [n.module or "" for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)]
    modules += [a.name for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names]
    return any(map(is_theirs, modules))


def is_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id == "self"


def own_names() -> set[str]:
    """Return the names of the methods and attributes that this project defines."""
    found = set()
    for _, tree in trees():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                found.add(node.name)
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                found |= {node.attr} if is_self(node.value) else set()
    return found


def overridden(module: str) -> Iterator[str]:
    """Yield the private names of their classes that classes of a module of ours override."""
    for kind in vars(import_module(module)).values():
        if isinstance(kind, type) and kind.__module__ == module:
            bases = [base for base in kind.__mro__ if is_theirs(base.__module__)]
            for name in filter(is_private, vars(kind).keys() - OTHERS):
                if any(name in vars(base) for base in bases):
                    yield name


def used() -> set[str]:
    """Return the private names of theirs that this project uses or overrides."""
    ours, found = own_names(), set()
    for module, tree in trees():
        if imports_theirs(tree):
            found |= set(overridden(module))
            for node in ast.walk(tree):
                if isinstance(node, ast.Attribute) and is_private(node.attr):
                    is_ours = node.attr in ours and is_self(node.value)
                    if not is_ours and node.attr not in OTHERS:
                        found.add(node.attr)
    return found


def test_every_private_name_is_listed() -> None:
    listed = {name for _, _, names in PRIVATE_NAMES for name in names.split()}
    assert set(filter(is_private, listed)) == used()


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
    requirements = {one.name: one.specifier for one in map(Requirement, project["dependencies"])}
    for package in {package for package, _, _ in PRIVATE_NAMES}:
        assert any(bound.operator == "<" for bound in requirements[package]), package
