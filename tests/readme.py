"""What the documents say to run, as it stands there."""

from __future__ import annotations

import importlib.util
import re
import shlex
from pathlib import Path
from typing import Any

TOP = Path(__file__).parents[1]
README = (TOP / "README.md").read_text(encoding="utf-8")
DOCS = sorted(set((TOP / "docs").glob("**/*.md")) - set((TOP / "docs" / "wire").iterdir()))
BLOCKS = {
    "budgets/datasets": "tests/unit/sdk",
    "budgets/epochs": "tests/unit/sdk",
    "budgets/file": "tests/unit/sdk",
    "budgets/following": "tests/integration, tests/unit/sdk",
    "budgets/norm-events": "tests/integration",
    "budgets/whole-data-set": "tests/unit/sdk, tests/unit",
    "dp-ftrl": "tests/unit/sdk",
    "gateway": "tests/unit/gateway",
    "get-started/service": "tests/integration",
    "library": "tests/unit/accounting",
    "query/python": "tests/unit/docs, tests/unit/queries",
    "query/run": "tests/unit/answerer",
    "train/huggingface": "tests/unit/trainers",
    "train/loop": "tests/integration, tests/unit/trainers",
    "train/pytorch": "tests/unit/trainers",
}
"""Pages with blocks of Python that need more than the page has, and the tests that run them."""
PAGES = "\n".join(
    (TOP / "docs" / f"{page}.md").read_text(encoding="utf-8")
    for page in BLOCKS
    if page.startswith(("budgets/", "library", "train/loop")) and page != "budgets/norm-events"
)
"""The pages whose blocks the functions below find by what they contain."""
DOCUMENTS = sorted(
    path
    for pattern in ("*.md", "docs/**/*.md", "accounting/*.md", "deploy/*.md")
    for path in TOP.glob(pattern)
    if path.is_file()
)


def example(name: str) -> Any:
    """The module of a script of ``examples``."""
    spec = importlib.util.spec_from_file_location(name, TOP / "examples" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def page(name: str) -> str:
    """The text of a page of ``docs``."""
    return (TOP / "docs" / f"{name}.md").read_text(encoding="utf-8")


def blocks(text: str = PAGES) -> list[str]:
    """Every block of Python, in order."""
    return list(dict.fromkeys(re.findall(r"```python\n(.*?)```", text, re.DOTALL)))


def code(text: str, language: str) -> list[str]:
    """Every block in a language, or with none, in order."""
    every = re.findall(r"```(\w*)\n(.*?)```", text, re.DOTALL)
    return [block for found, block in every if found == language]


def commands(text: str) -> list[list[str]]:
    """Every command of every block for a shell, in order, as its words.

    A backslash continues a line.
    """
    lines = "".join(code(text, "sh")).replace("\\\n", "").splitlines()
    return [words for line in lines if (words := shlex.split(line, comments=True))]


def blocks_of_the_library() -> list[str]:
    """Those that need nothing but the library; the tests of the library run them."""
    return [block for block in blocks() if "from accounting import" in block]


def blocks_of_the_service() -> list[str]:
    """Those that need a broker; the tests of the pipeline run them on a real one."""
    return [block for block in blocks() if 'Turnstile("localhost:9092"' in block]


def blocks_of_an_example() -> list[str]:
    """One that imports a script of ``examples``; the tests of that script run it."""
    return [block for block in blocks() if "from dataset_ledger import" in block]


def blocks_of_a_subscriber() -> list[str]:
    """HALTs after a restart; the tests of the SDK run it."""
    return [block for block in blocks() if "since=" in block]


def blocks_of_several_datasets() -> list[str]:
    """One budget over several datasets, and shares of one; the tests of the SDK run them."""
    return [block for block in blocks() if "parents=" in block or "share_of=" in block]


def blocks_of_a_file() -> list[str]:
    """Budgets in a file; the tests of the SDK run them."""
    return [block for block in blocks() if "Turnstile.open(" in block]


def blocks_of_epochs() -> list[str]:
    """A release over two epochs, and how its runs are opened; the tests of the SDK run them."""
    return [block for block in blocks() if "clicks.{week}" in block]


def blocks_of_sampled_training() -> list[str]:
    """A loop over a roster; the tests of the trainers run it."""
    return [block for block in blocks() if "roster" in block]
