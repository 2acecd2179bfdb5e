"""Break single operators of the product, and see which tests notice.

A mutant changes one operator, one integer or one statement. It is killed if one of the tests that
execute its line fails. What survives is code that no test protects, or a change without an effect:

    python -m bench.operator_mutants record --into DIR TESTS...     # which tests execute which line
    python -m bench.operator_mutants run --into DIR --results FILE --count 80 --seed 1 PACKAGES...
    python -m bench.operator_mutants run --into DIR --results NEW --again FILE   # the same mutants

`DIR` becomes a copy of this tree. A result names its mutant by file, function, statement and
operator, so that it is found again after other lines have changed. Results are appended one by
one, and mutants that have one are skipped. The package `coverage` is needed.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import resource
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from coverage import Coverage, CoverageData

CHECK = ("-m", "not process and not slow", "--hypothesis-profile", "check")
"""The tests of `make check`."""
SWAPS: dict[type, type] = {
    ast.Lt: ast.LtE, ast.Gt: ast.GtE, ast.Eq: ast.NotEq, ast.Is: ast.IsNot, ast.In: ast.NotIn,
    ast.And: ast.Or, ast.Add: ast.Sub,
}  # fmt: skip
NAMES = {"min": "max", "floor": "ceil", "minimum": "maximum", "any": "all"}
SWAPS |= {new: old for old, new in SWAPS.items()}
NAMES |= {new: old for old, new in NAMES.items()}
Key = tuple[str, str, str, str, int]
Change = Callable[[], Any]


class Mutant(NamedTuple):
    """One change of a tree; the tests of `lines` can notice it."""

    key: Key
    lines: range
    apply: Change


def _changes(node: ast.AST) -> Iterator[tuple[str, Change]]:
    """Yield the changes of one expression, each with its name."""
    match node:
        case ast.Compare(ops=[first, *rest]) if type(first) in SWAPS:
            swapped = SWAPS[type(first)]()
            yield f"to {type(swapped).__name__}", lambda: setattr(node, "ops", [swapped, *rest])
        case ast.BoolOp(op=op) | ast.BinOp(op=op) | ast.AugAssign(op=op) if type(op) in SWAPS:
            swapped = SWAPS[type(op)]()
            yield f"to {type(swapped).__name__}", lambda: setattr(node, "op", swapped)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield "drop not", lambda: setattr(node, "operand", ast.UnaryOp(ast.Not(), operand))
        case ast.Constant(value=int(value)) if not isinstance(value, bool):
            yield f"{value} + 1", lambda: setattr(node, "value", value + 1)
            yield f"{value} - 1", lambda: setattr(node, "value", value - 1)
        case ast.Call(func=ast.Name(id=name)) if name in NAMES:
            yield f"to {NAMES[name]}", lambda: setattr(node.func, "id", NAMES[name])
        case ast.Call(func=ast.Attribute(attr=name)) if name in NAMES:
            yield f"to {NAMES[name]}", lambda: setattr(node.func, "attr", NAMES[name])


def _own_nodes(statement: ast.stmt) -> Iterator[ast.AST]:
    """Yield a statement and its expressions, without the statements inside it."""
    waiting: list[ast.AST] = [statement]
    while waiting:
        yield (node := waiting.pop())
        children = ast.iter_child_nodes(node)
        inner = ast.stmt | ast.ExceptHandler | ast.match_case
        waiting += [child for child in children if not isinstance(child, inner)]


def _can_be_dropped(statement: ast.stmt, *, last: bool) -> bool:
    match statement:
        case ast.Expr(value=value):
            return not isinstance(value, ast.Constant)  # a docstring
        case ast.Assign(targets=[target, *_]):
            return isinstance(target, ast.Attribute | ast.Subscript)
    return isinstance(statement, ast.AugAssign | ast.Raise) or (
        isinstance(statement, ast.Return) and not last
    )


def mutants(file: str, tree: ast.Module) -> Iterator[Mutant]:
    """Yield every mutant of a module's functions."""
    seen: dict[tuple[str, str, str, str], int] = {}

    def named(function: str, statement: ast.stmt, name: str, apply: Change) -> Mutant:
        key = file, function, ast.unparse(statement).splitlines()[0], name
        seen[key] = seen.get(key, 0) + 1
        inner = [part[0].lineno for part in _bodies(statement) if part]
        end = min([(statement.end_lineno or 0) + 1, *inner])
        return Mutant((*key, seen[key]), range(statement.lineno, end), apply)

    def inside(body: list[Any], function: str, *, top: bool) -> Iterator[Mutant]:
        for place, statement in enumerate(body):
            if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                name = f"{function}.{statement.name}".lstrip(".")
                yield from inside(statement.body, name, top=not isinstance(statement, ast.ClassDef))
                continue
            # The words of an error are no behaviour.
            if function and not isinstance(statement, ast.Raise | ast.Assert | ast.AnnAssign):
                for node in _own_nodes(statement):
                    for name, apply in _changes(node):
                        yield named(function, statement, name, apply)
            if function and _can_be_dropped(statement, last=top and place == len(body) - 1):
                yield named(
                    function, statement, "drop", lambda at=place: body.__setitem__(at, ast.Pass())
                )
            for part in _bodies(statement):
                yield from inside(part, function, top=False)

    yield from inside(tree.body, "", top=False)


def _bodies(statement: Any) -> list[list[Any]]:
    parts = [*getattr(statement, "handlers", []), *getattr(statement, "cases", [])]
    fields = [getattr(statement, field, []) for field in ("body", "orelse", "finalbody")]
    return fields + [part.body for part in parts]


class Plugin:
    """Selects and sorts tests, and keeps each one's outcome and duration."""

    def __init__(self, seconds: dict[str, float] | None, coverage: Any = None) -> None:
        self.seconds, self.coverage = seconds, coverage
        self.took: dict[str, float] = {}
        self.failed: list[str] = []

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        if (seconds := self.seconds) is not None:
            items[:] = [item for item in items if item.nodeid in seconds]
            files: dict[Path, list[float]] = {}
            for item in items:
                files.setdefault(item.path, []).append(seconds[item.nodeid])
            # Modules stay together, so that their fixtures are made once; the quick ones are first.
            items.sort(key=lambda item: (sum(files[item.path]) / len(files[item.path]), item.path))

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        if self.coverage is not None:
            self.coverage.switch_context(nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.took[report.nodeid] = self.took.get(report.nodeid, 0.0) + report.duration
        self.failed += [report.nodeid] * report.failed

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self.failed += [report.nodeid] * report.failed


def _pytest(into: Path, plugin: Plugin, *arguments: str) -> None:
    os.chdir(into)
    sys.path.insert(0, str(into))
    silent = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silent, 1)
    os.dup2(silent, 2)
    pytest.main(["-q", "-n0", "-p", "no:cacheprovider", *CHECK, *arguments], [plugin])


def record(into: Path, tests: list[str]) -> None:
    """Run tests in a fresh copy. Store the tests of every line, and their seconds."""
    ignored = shutil.ignore_patterns(".git", ".venv", "out", ".hypothesis", "__pycache__", ".mypy*")
    shutil.copytree(Path.cwd(), into, ignore=ignored)
    source = [str(into / "accounting"), str(into / "streams")]
    measured = Coverage(data_file=into / "lines.coverage", source=source)
    plugin = Plugin(None, measured)
    measured.start()
    _pytest(into, plugin, *tests)
    measured.stop()
    measured.save()
    taken = {test: took for test, took in plugin.took.items() if test not in plugin.failed}
    (into / "seconds.json").write_text(json.dumps(taken))
    (into / "failed.json").write_text(json.dumps(plugin.failed))


def failing(into: Path, seconds: dict[str, float], *, stop: bool) -> list[str]:
    """Run tests in a process of their own. Return those that fail; `["time"]` if it never ends."""
    reading, writing = os.pipe()
    allowed = int(4 * sum(seconds.values()) + 60)
    if not (child := os.fork()):
        resource.setrlimit(resource.RLIMIT_CPU, (allowed, allowed))
        plugin = Plugin(seconds)
        _pytest(into, plugin, *["-x"] * stop, *sorted({test.split("::")[0] for test in seconds}))
        os.write(writing, json.dumps(plugin.failed[:100]).encode())
        os._exit(0)
    os.close(writing)
    until = time.monotonic() + 5 * allowed
    while os.waitpid(child, os.WNOHANG)[0] == 0:
        if time.monotonic() > until:
            os.kill(child, 9)
        time.sleep(0.05)
    with os.fdopen(reading, "rb") as stream:
        return json.loads(stream.read() or b'["time"]')


class Mutated:
    """A copy of the tree in which mutants are tried."""

    def __init__(self, into: Path, options: argparse.Namespace) -> None:
        self.into, self.options = into, options
        self.lines = CoverageData(str(into / "lines.coverage"))
        self.lines.read()
        self.seconds = json.loads((into / "seconds.json").read_text())

    def chosen(self) -> list[Key]:
        if self.options.again:
            return [tuple(json.loads(line)["mutant"]) for line in self.options.again.open()]
        keys: list[Key] = []
        for package in self.options.paths:
            files = sorted(self.into.glob(f"{package}/**/*.py")) or [self.into / package]
            trees = {str(f.relative_to(self.into)): ast.parse(f.read_text()) for f in files}
            all_keys = [one.key for file, tree in trees.items() for one in mutants(file, tree)]
            keys += random.Random(self.options.seed).sample(all_keys, self.options.count)
        return keys

    def covering(self, file: Path, lines: range) -> dict[str, float]:
        """Return the tests that execute these lines, quick ones first, up to `--seconds`."""
        executed = self.lines.contexts_by_lineno(str(file))
        tests = {test for line in lines for test in executed.get(line, ()) if test in self.seconds}
        if self.options.only:
            tests &= set(self.options.only.read_text().splitlines())
        if self.options.without:
            tests -= set(self.options.without.read_text().splitlines())
        chosen: dict[str, float] = {}
        for test in sorted(tests, key=lambda test: (self.seconds[test], test)):
            if chosen and sum(chosen.values()) + self.seconds[test] > self.options.seconds:
                break
            chosen[test] = self.seconds[test]
        return chosen

    def outcome(self, key: Key, number: int) -> dict[str, Any]:
        path = self.into / key[0]
        original = path.read_text() if path.exists() else ""
        tree = ast.parse(original)
        result: dict[str, Any] = {"mutant": key, "outcome": "gone", "tests": 0, "by": []}
        found = next((one for one in mutants(key[0], tree) if one.key == key), None)
        if found is None:
            return result
        tests = self.covering(path, found.lines)
        if not tests:
            return result | {"outcome": "no test"}
        stat = path.stat()
        found.apply()
        path.write_text(ast.unparse(ast.fix_missing_locations(tree)))
        os.utime(path, (1, number + 1))  # no compiled file has this time
        try:
            by = failing(self.into, tests, stop=not self.options.all)
        finally:
            path.write_text(original)
            os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
        return result | {"tests": len(tests), "by": by, "outcome": "killed" if by else "survived"}


def main() -> None:
    """Record the tests of every line, or try mutants."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("command", choices=("record", "run"))
    parser.add_argument("paths", nargs="*", help="tests to record, or packages to break")
    parser.add_argument("--into", type=Path, required=True, help="where the copy is")
    parser.add_argument("--results", type=Path)
    parser.add_argument("--again", type=Path, help="results whose mutants are tried again")
    parser.add_argument("--count", type=int, default=80, help="mutants of each package")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=60, help="of tests for each mutant")
    parser.add_argument("--all", action="store_true", help="find every test that fails")
    parser.add_argument("--only", type=Path, help="a file with the tests to run, one a line")
    parser.add_argument("--without", type=Path, help="a file with tests that are left out")
    options = parser.parse_intermixed_args()
    if options.command == "record":
        record(options.into.resolve(), options.paths)
        return
    sys.dont_write_bytecode = True
    import hypothesis  # noqa: F401  # once, and not in every child
    import scipy.stats  # noqa: F401

    copy, results = Mutated(options.into.resolve(), options), options.results.resolve()
    done = (
        {tuple(json.loads(line)["mutant"]) for line in results.open()}
        if results.exists()
        else set()
    )
    for number, key in enumerate(copy.chosen()):
        if key not in done:
            outcome = copy.outcome(key, number)
            with results.open("a") as stream:
                stream.write(json.dumps(outcome) + "\n")


if __name__ == "__main__":
    main()
