"""Pages about the Python packages, in Markdown: public names with signatures and docstrings.

Sources are parsed and not imported, so that pages about PyTorch and JAX need neither.
"""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import cast

TOP = Path(__file__).parents[1]
_SECTION = re.compile(r"^(Args|Attributes|Returns|Yields|Raises[^:\n]*):$")
_ENTRY = re.compile(r"^(\*{0,2}[\w.]+(?:, \*{0,2}[\w.]+)*): ")
_WIDTH = 88


@dataclass(frozen=True)
class PythonPage:
    """A page about one package.

    Attributes:
        title: its title.
        package: its public names are those in ``__all__``.
        more: further public names, as "module:name".
        without: names in ``__all__`` that another page has.
        first: the headings that come first.
        members: the shown members of a class, by its name; by default all public ones.
    """

    title: str
    package: str
    more: tuple[str, ...] = ()
    without: frozenset[str] = frozenset()
    first: tuple[str, ...] = ()
    members: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def names(self) -> list[tuple[str, str]]:
        """Return the module and the name of every public name, in the order of the page."""
        found = [
            _home(self.package, name)
            for name in _exported(self.package)
            if name not in self.without
        ]
        found += [(module, name) for module, _, name in (one.partition(":") for one in self.more)]
        return sorted(found, key=self._place)

    def _place(self, one: tuple[str, str]) -> tuple[int, str, str, int]:
        module, name = one
        group = _group(module)
        rank = self.first.index(group) if group in self.first else len(self.first)
        return rank, group, module, _definition(module, name)[0].lineno

    def text(self) -> str:
        """Return the page without its title."""
        parts, group = [_prose(_docstring(_tree(self.package)))], ""
        parts.append(f"Import these names from `{self.package}`, unless a module is given.")
        if self.without:
            links = (_elsewhere(name, self.package) for name in sorted(self.without))
            parts.append(f"On other pages: {', '.join(links)}.")
        public = set(_exported(self.package))
        for module, name in self.names():
            if _group(module) != group:
                group = _group(module)
                parts.append(f"## {group}")
            parts += self._entry(module, name, name in public)
        return "\n\n".join(part for part in parts if part) + "\n"

    def _entry(self, module: str, name: str, is_exported: bool) -> Iterator[str]:
        node, below = _definition(module, name)
        yield f"### {name}"
        if not is_exported:
            yield f"From `{module}`."
        if isinstance(node, ast.ClassDef):
            yield from _class(module, node, self.members.get(name))
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield _code(_signature(module, node))
            yield _prose(_docstring(node))
        else:
            yield _code(_shortened(ast.unparse(node)))
            yield _prose(below)


def _elsewhere(name: str, package: str) -> str:
    """Return a link to the entry of a name on another page."""
    for path, page in PAGES.items():
        if page.package != package and name in _exported(page.package) and name not in page.without:
            return f"[`{name}`]({Path(path).name}#{name.lower()})"
    raise LookupError(f"no other page has {name}")


def _class(module: str, node: ast.ClassDef, shown: tuple[str, ...] | None) -> Iterator[str]:
    members = {
        member.name: member
        for owner in reversed(_lineage(module, node))
        for member in owner.body
        if isinstance(member, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    start = members.get("__init__")
    bases = [ast.unparse(base) for base in node.bases if not ast.unparse(base).startswith("_")]
    head = f"class {node.name}" + (f"({', '.join(bases)})" if bases else "")
    if start is not None:
        head = _signature(module, start, name=f"class {node.name}", skip=1)
    elif _is_dataclass(node):
        fields = [one for one in node.body if isinstance(one, ast.AnnAssign)]
        given = [ast.unparse(one) for one in fields if not ast.unparse(one.target).startswith("_")]
        head = _wrapped(f"class {node.name}", given, "")
    yield _code(head)
    yield _prose(_docstring(node))
    if start is not None:
        yield _prose(_docstring(start))
    for name, member in members.items():
        wanted = not name.startswith("_") if shown is None else name in shown
        decorators = {ast.unparse(one) for one in member.decorator_list}
        if not wanted or any(one.endswith(".setter") for one in decorators):
            continue
        is_property = bool(decorators & {"property", "cached_property"})
        title = name if is_property else f"{name}()"
        yield f"#### {node.name}.{title}"
        returns = f": {ast.unparse(member.returns)}" if member.returns else ""
        is_static = "staticmethod" in decorators
        yield _code(
            f"{name}{returns}" if is_property else _signature(module, member, skip=not is_static)
        )
        yield _prose(_docstring(member))


def _lineage(module: str, node: ast.ClassDef) -> list[ast.ClassDef]:
    """Return a class and its private bases, whose members are documented with it."""
    found = [node]
    for base in node.bases:
        name = ast.unparse(base)
        if name.startswith("_"):
            home, _ = _home(module, name)
            definition, _ = _definition(home, name)
            assert isinstance(definition, ast.ClassDef)
            found += _lineage(home, definition)
    return found


def _is_dataclass(node: ast.ClassDef) -> bool:
    names = [ast.unparse(one) for one in (*node.decorator_list, *node.bases)]
    return any(name.startswith("dataclass") or name.endswith("NamedTuple") for name in names)


# --- signatures ---------------------------------------------------------------------------------


def _signature(
    module: str,
    node: ast.FunctionDef | ast.AsyncFunctionDef,
    name: str = "",
    skip: int | bool = 0,
) -> str:
    """Return a signature without its first ``skip`` arguments, in lines that fit a page.

    Default values that are constants of the module are shown as their values.
    """
    given = node.args
    plain = [*given.posonlyargs, *given.args]
    defaults = [None] * (len(plain) - len(given.defaults)) + list(given.defaults)
    words = []
    for position, (argument, default) in enumerate(zip(plain, defaults, strict=True)):
        if position >= skip:
            words.append(_argument(argument, _value(module, default)))
    if given.vararg:
        words.append(f"*{_argument(given.vararg, None)}")
    elif given.kwonlyargs:
        words.append("*")
    values = [_value(module, default) for default in given.kw_defaults]
    words += map(_argument, given.kwonlyargs, values)
    if given.kwarg and ast.unparse(given.kwarg.annotation or given.kwarg).startswith("Unpack["):
        words += _unpacked(module, given.kwarg)
    elif given.kwarg:
        words.append(f"**{_argument(given.kwarg, None)}")
    kind = "async " if isinstance(node, ast.AsyncFunctionDef) else ""
    is_class = name.startswith("class")
    returns = "" if is_class or not node.returns else f" -> {ast.unparse(node.returns)}"
    return _wrapped(f"{kind}{name or node.name}", words, returns)


def _unpacked(module: str, argument: ast.arg) -> Iterator[str]:
    """Yield the arguments of a table, whose types are ``Annotated`` with a row."""
    assert isinstance(argument.annotation, ast.Subscript)
    home, name = _home(module, ast.unparse(argument.annotation.slice))
    table, _ = _definition(home, name)
    assert isinstance(table, ast.ClassDef)
    for term in table.body:
        if isinstance(term, ast.AnnAssign):
            assert isinstance(term.annotation, ast.Subscript)
            kind, row = cast("ast.Tuple", term.annotation.slice).elts
            words = cast("ast.Call", row).keywords
            default = next((ast.unparse(one.value) for one in words if one.arg == "default"), None)
            yield f"{ast.unparse(term.target)}: {ast.unparse(kind)} = {default}"


def _argument(argument: ast.arg, default: ast.expr | None) -> str:
    text = argument.arg
    if argument.annotation:
        text += f": {ast.unparse(argument.annotation)}"
    if default is not None:
        text += f" = {ast.unparse(default)}" if argument.annotation else f"={ast.unparse(default)}"
    return text


def _value(module: str, default: ast.expr | None) -> ast.expr | None:
    """Return the value of a default that names a constant, or the default itself."""
    if not isinstance(default, ast.Name):
        return default
    home, name = _home(module, default.id)
    try:
        value = getattr(_definition(home, name)[0], "value", None)
    except LookupError:
        return default
    return value if isinstance(value, ast.Constant) else default


def _wrapped(head: str, words: list[str], tail: str) -> str:
    line = f"{head}({', '.join(words)}){tail}"
    if len(line) <= _WIDTH or not words:
        return line
    return f"{head}(\n" + "".join(f"    {word},\n" for word in words) + f"){tail}"


def _shortened(line: str) -> str:
    return line if len(line) <= _WIDTH else f"{line[: _WIDTH - 4]} ..."


def _code(text: str) -> str:
    return f"```\n{text}\n```"


# --- docstrings ---------------------------------------------------------------------------------


def _prose(docstring: str) -> str:
    """Return a docstring as Markdown: lists for its sections, code for indented paragraphs."""
    text = re.sub(r"\n((?:Args|Attributes|Returns|Yields|Raises[^:\n]*):\n)", r"\n\n\1", docstring)
    blocks = re.split(r"\n\s*\n", text.strip()) if text.strip() else []
    parts, title = [], ""
    for block in blocks:
        first, _, rest = block.partition("\n")
        if _SECTION.match(first.strip()) and not first.startswith(" "):
            title = first.strip().rstrip(":").replace("Args", "Arguments")
            parts.append(f"**{title}**\n\n{items(rest)}")
        elif block.startswith("    ") and title and parts[-1].startswith("**"):
            parts[-1] += f"\n\n{items(block)}"
        elif block.startswith("    "):
            parts.append(_code(textwrap.dedent(block)))
        elif re.match(r"[-*0-9]", block):
            parts.append(_markdown(block))
        else:
            title = ""
            parts.append(_markdown(" ".join(line.strip() for line in block.split("\n"))))
    return "\n\n".join(parts)


def items(lines: str) -> str:
    """Return the entries of a section as a list; text without names as it is.

    An indented first line continues an entry that a blank line has divided.
    """
    items: list[str] = []
    for line in (line.removeprefix("    ") for line in lines.split("\n")):
        if (entry := _ENTRY.match(line)) is not None:
            items.append(f"- `{entry[1]}`: {_markdown(line[entry.end() :])}")
        elif line.startswith(" ") and items:
            items[-1] += f" {_markdown(line.strip())}"
        else:
            items.append(("  " if line.startswith(" ") else "") + _markdown(line.strip()))
    return "\n".join(items)


def _markdown(text: str) -> str:
    text = re.sub(r"``([^`]+)``", r"`\1`", text)
    pieces = re.split(r"(`[^`]*`)", text)
    return "".join(
        piece if piece.startswith("`") else re.sub(r"([*<|])", r"\\\1", piece) for piece in pieces
    )


def _docstring(node: ast.AST) -> str:
    assert isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
    return ast.get_docstring(node) or ""


# --- where names are defined --------------------------------------------------------------------


@cache
def _tree(module: str) -> ast.Module:
    return ast.parse(_path(module).read_text(encoding="utf-8"))


def _path(module: str) -> Path:
    path = TOP.joinpath(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def _exported(module: str) -> list[str]:
    for node in _tree(module).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return [str(name) for name in ast.literal_eval(node.value)]
    raise LookupError(f"{module} has no __all__")


def _home(module: str, name: str) -> tuple[str, str]:
    """Return the module in which a name is defined."""
    for node in ast.walk(_tree(module)):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for one in node.names:
                if (one.asname or one.name) == name:
                    return _home(node.module, one.name)
    return module, name


def _definition(module: str, name: str) -> tuple[ast.stmt, str]:
    """Return the statement that defines a name, and the string below it.

    Raises:
        LookupError: the module does not define it.
    """
    body = _tree(module).body
    for node, after in zip(body, [*body[1:], ast.Pass()], strict=True):
        named = getattr(node, "name", None)
        if isinstance(node, ast.Assign):
            named = ast.unparse(node.targets[0])
        elif isinstance(node, ast.AnnAssign):
            named = ast.unparse(node.target)
        if named == name and not _is_overload(node):
            text = after.value if isinstance(after, ast.Expr) else None
            below = str(text.value) if isinstance(text, ast.Constant) else ""
            return node, textwrap.dedent(below)
    raise LookupError(f"{module} does not define {name}")


def _is_overload(node: ast.stmt) -> bool:
    return "overload" in [ast.unparse(one) for one in getattr(node, "decorator_list", [])]


def _group(module: str) -> str:
    """Return the heading under which a module's names are: its package or module."""
    words = module.split(".")
    if words[0] == "accounting":
        found = words[2] if words[1:2] in (["reports"], ["research"]) else words[1]
    else:
        found = words[-1]
    title = {"exact": "units and errors", "followers": "halts"}
    text = title.get(found, found.replace("_", " "))
    return text[0].upper() + text[1:]


PAGES = {
    "docs/reference/service.md": PythonPage(
        "Python: the service",
        "streams",
        first=("Client", "Run", "Decisions", "Halts", "Roster", "Roster steps"),
        more=(
            "streams.sdk.roster:Roster",
            "streams.sdk.roster_steps:RosterStep",
            "streams.records.requests:Policy",
            "streams.records.answers:OdometerRecord",
            "streams.sdk.observing:measure",
        ),
        members={
            "Policy": ("epsilon", "first_epsilon", "spent_epsilon", "spent_share"),
            "OdometerRecord": ("epsilon", "share"),
        },
    ),
    "docs/reference/trainers.md": PythonPage(
        "Python: trainers",
        "streams.trainers",
        more=(
            "streams.trainers.huggingface:HuggingFaceTrainer",
            "streams.trainers.jax:private_grad",
            "streams.trainers.loader:Settings",
            "streams.trainers.torch:restore",
            "streams.trainers.torch:save",
        ),
    ),
    "docs/reference/queries.md": PythonPage(
        "Python: queries",
        "streams.queries",
        more=(
            "streams.answerer.event_table:answer_table",
            "streams.answerer.answer_table:AnswerRow",
        ),
        without=frozenset({"ReleasedTwice"}),
    ),
    "docs/reference/accounting.md": PythonPage(
        "Python: accounting",
        "accounting",
        without=frozenset(_exported("accounting"))
        & {*_exported("accounting.release"), *_exported("accounting.reports")},
    ),
    "docs/reference/release.md": PythonPage("Python: private releases", "accounting.release"),
    "docs/reference/reports.md": PythonPage("Python: reports", "accounting.reports"),
    "docs/reference/research.md": PythonPage("Python: research", "accounting.research"),
}
"""The pages about packages, by their files."""
