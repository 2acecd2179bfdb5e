"""Finds phrases that plain English avoids in the product's Python and in the documentation.

    python -m tests.plain_english            fails if a file has such a phrase

The check is a reminder: it finds words, not unclear sentences.
"""

from __future__ import annotations

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

TOP = Path(__file__).parents[1]

PHRASES = re.compile(
    r"""
    \b(?: whoever | whomever | anew | comes\ of | came\ of | put\ back | mend(?:s|ed|ing)? )\b
    | \b(?: no\ \w+ | nothing | nobody )\ that\ there\ is\b
    | \bthere\ is\ not\b(?!\ )
    | \bfor\ good\b(?!\ reason)
    | \bfor\ ever\b
    | \bstands?\ twice\b
    | \b(?: nobody | somebody | everybody | anybody )\b
    | \b(?: is | are | was | be )\ told\b
    """,
    re.VERBOSE | re.IGNORECASE,
)
DOCSTRING_STARTS = re.compile(r"(?:Of|What|Who|Whose|Whom|Whether|Have|Let)\b")
SENTENCE_STARTS = re.compile(
    r"(?:^|(?<=[.:;!] ))(?:Who|What|Whose|Whom)\ [^.?!]*[.!;]", re.MULTILINE
)


class Found(NamedTuple):
    """A phrase and its place."""

    path: str
    line: int
    phrase: str


def phrases_of(path: Path) -> Iterator[Found]:
    """Yield the phrases in one file."""
    name, text = path.relative_to(TOP).as_posix(), path.read_text(encoding="utf-8")
    texts = _python(text) if path.suffix == ".py" else _markdown(text)
    for line, piece, is_docstring in texts:
        if is_docstring and (start := DOCSTRING_STARTS.match(piece)):
            yield Found(name, line, f"docstring starts with {start[0]!r}")
        for found in (*PHRASES.finditer(piece), *SENTENCE_STARTS.finditer(piece)):
            yield Found(name, line + piece[: found.start()].count("\n"), _short(found[0]))


def _short(text: str) -> str:
    return " ".join(text.split())[:60]


def _python(source: str) -> Iterator[tuple[int, str, bool]]:
    """Yield the line, the text and the kind of each docstring, string and comment."""
    tree = ast.parse(source)
    # A string that is a statement documents what it is in, or what it follows.
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value, id(node) in docstrings
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string.lstrip("# "), False


def _markdown(text: str) -> Iterator[tuple[int, str, bool]]:
    """Yield the lines outside of code blocks, one by one."""
    is_code = False
    for number, line in enumerate(text.splitlines(), start=1):
        if line.lstrip().startswith("```"):
            is_code = not is_code
        elif not is_code:
            yield number, re.sub(r"`[^`]*`", "", line), False


def checked_files() -> list[Path]:
    """Return the product's Python and the documentation."""
    patterns = ["streams/*.py", "accounting/*.py", "*.md"]
    listed = subprocess.run(
        ["git", "ls-files", "--", *patterns], cwd=TOP, capture_output=True, text=True, check=True
    )
    found = sorted({TOP / name for name in listed.stdout.split()})
    return [path for path in found if path.exists()]


def main() -> int:
    """Check all files, and return the exit code."""
    found = [phrase for path in checked_files() for phrase in phrases_of(path)]
    for one in found:
        print(f"{one.path}:{one.line}: {one.phrase}")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
