"""Break single operators of the product, and see which tests notice.

A mutant changes one operator, one integer or one statement. It is killed if one of the tests that
execute its line fails. What survives is code that no test protects, or a change without an effect:

    python -m bench.operator_mutants record --into DIR TESTS...     # which tests execute which line
    python -m bench.operator_mutants run --into DIR --results FILE --count 80 --seed 1 PACKAGES...
    python -m bench.operator_mutants run --into DIR --results NEW --again FILE   # the same mutants

Tests are collected once. Each mutant is tried in a fork, in which the code of one function is
replaced, so nothing is written to the tree. A result names its mutant by file, function, statement
and operator, so that it is found again after other lines have changed. Results are appended one
by one, and mutants that have one are skipped. The package `coverage` is needed.
"""

from __future__ import annotations

import argparse
import ast
import gc
import json
import math
import os
import random
import resource
import time
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, NamedTuple

import pytest
from coverage import Coverage, CoverageData
from hypothesis.internal.conjecture.shrinker import Shrinker

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


class Recording:
    """Runs all tests, and keeps which of them execute which line, and for how long."""

    def __init__(self, into: Path) -> None:
        self.into = into
        source = ["accounting", "streams"]
        self.coverage = Coverage(data_file=into / "lines.coverage", source=source)
        self.coverage.start()
        self.seconds: dict[str, float] = {}

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.coverage.switch_context(nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        taken = self.seconds.get(report.nodeid, 0.0) + report.duration
        self.seconds[report.nodeid] = math.inf if report.failed else taken

    def pytest_sessionfinish(self) -> None:
        self.coverage.stop()
        self.coverage.save()
        (self.into / "seconds.json").write_text(json.dumps(self.seconds))


class Mutating:
    """Tries mutants instead of running all tests once."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.lines = CoverageData(str(options.into / "lines.coverage"))
        self.lines.read()
        self.seconds = json.loads((options.into / "seconds.json").read_text())
        self.failed: list[str] = []
        Shrinker.shrink = lambda _: None  # a failing example need not be small

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.failed += [report.nodeid] * report.failed

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        gc.unfreeze()  # tests/conftest.py hides from it what was imported
        self.items = {item.nodeid: item for item in session.items}
        results = self.options.results
        stored = results.read_text().splitlines() if results.exists() else []
        done = {tuple(json.loads(line)["mutant"]) for line in stored}
        for key in self.chosen():
            if key not in done:
                with results.open("a") as stream:
                    stream.write(json.dumps({"mutant": key, **self.outcome(key)}) + "\n")
        return True

    def chosen(self) -> list[Key]:
        if self.options.again:
            return [tuple(json.loads(line)["mutant"]) for line in self.options.again.open()]
        keys: list[Key] = []
        for package in self.options.paths:
            files = sorted(Path().glob(f"{package}/**/*.py")) or [Path(package)]
            trees = {str(file): ast.parse(file.read_text()) for file in files}
            all_keys = [one.key for file, tree in trees.items() for one in mutants(file, tree)]
            count = min(self.options.count, len(all_keys))
            keys += random.Random(self.options.seed).sample(all_keys, count)
        return keys

    def covering(self, file: str, lines: range) -> list[pytest.Item]:
        """Return the tests that execute these lines, quick ones first, up to `--seconds`."""
        executed = self.lines.contexts_by_lineno(str(Path(file).resolve()))
        tests = {test for line in lines for test in executed.get(line, ())} & self.items.keys()
        tests = {test for test in tests if self.seconds.get(test, math.inf) < math.inf}
        for given, keeps in ((self.options.only, True), (self.options.without, False)):
            if given:
                listed = set(given.read_text().split("\n"))
                tests = {test for test in tests if (test in listed) == keeps}
        chosen, left = [], self.options.seconds
        for test in sorted(tests, key=lambda test: (self.seconds[test], test)):
            left -= self.seconds[test]
            if left > 0 or not chosen:
                chosen.append(self.items[test])
        return chosen

    def outcome(self, key: Key) -> dict[str, Any]:
        if not (path := Path(key[0])).exists():
            return {"outcome": "gone"}
        tree = ast.parse(path.read_text())
        found = next((one for one in mutants(key[0], tree) if one.key == key), None)
        if found is None:
            return {"outcome": "gone"}
        if not (tests := self.covering(key[0], found.lines)):
            return {"outcome": "no test"}
        found.apply()
        code = compile(ast.fix_missing_locations(tree), str(path.resolve()), "exec")
        by = self.failing(code, tests)
        return {"outcome": "killed" if by else "survived", "tests": len(tests), "by": by}

    def failing(self, code: CodeType, tests: list[pytest.Item]) -> list[str]:
        """Run tests in a fork. Return the first that fails, or all; `["time"]` if it never ends."""
        reading, writing = os.pipe()
        allowed = int(5 * sum(self.seconds[test.nodeid] for test in tests) + 20)
        if not (child := os.fork()):
            resource.setrlimit(resource.RLIMIT_CPU, (allowed, allowed))
            try:
                _replace(code)
                for test, following in zip(tests, [*tests[1:], None], strict=True):
                    test.config.hook.pytest_runtest_protocol(item=test, nextitem=following)
                    if self.failed and not self.options.all:
                        break
            except BaseException as error:  # such as a closure that lost a name
                self.failed.append(repr(error))
            os.write(writing, json.dumps(self.failed[:100]).encode())
            os._exit(0)
        os.close(writing)
        until = time.monotonic() + 20 * allowed
        while os.waitpid(child, os.WNOHANG)[0] == 0:
            if time.monotonic() > until:
                os.kill(child, 9)
            time.sleep(0.01)
        with os.fdopen(reading, "rb") as stream:
            return json.loads(stream.read() or b'["time"]')


def _replace(module: CodeType) -> None:
    """Give the functions of a module that was changed the code that they have now."""
    codes, waiting = {}, [module]
    while waiting:
        code = waiting.pop()
        codes[code.co_qualname, code.co_firstlineno] = code
        waiting += [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    for function in gc.get_objects():
        if isinstance(function, FunctionType) and function.__code__.co_filename == code.co_filename:
            old = function.__code__
            function.__code__ = codes[old.co_qualname, old.co_firstlineno]


def main() -> None:
    """Record the tests of every line, or try mutants."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("command", choices=("record", "run"))
    parser.add_argument("paths", nargs="*", help="tests to record, or packages to break")
    parser.add_argument("--into", type=Path, required=True, help="where the recording is")
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
        options.into.mkdir(parents=True)
        plugin, tests = Recording(options.into), options.paths
    else:
        plugin = Mutating(options)
        files = {test.split("::")[0] for test in plugin.seconds}
        tests = sorted(file for file in files if Path(file).exists())
    quiet = ["-q", "-n0", "-p", "no:cacheprovider", "--no-header", "--no-summary"]
    with Path(os.devnull).open("w") as nowhere, redirect_stdout(nowhere):
        pytest.main([*quiet, *CHECK, *tests], [plugin])


if __name__ == "__main__":
    main()
