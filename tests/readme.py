"""The Python of the README, as it stands there."""

from __future__ import annotations

import re
from pathlib import Path

TOP = Path(__file__).parents[1]
README = (TOP / "README.md").read_text(encoding="utf-8")


def blocks() -> list[str]:
    """Every block of Python, in order."""
    return re.findall(r"```python\n(.*?)```", README, re.DOTALL)


def blocks_of_the_library() -> list[str]:
    """Those that need nothing but the library; the tests of the library run them."""
    return [block for block in blocks() if "from accounting import" in block]


def blocks_of_the_service() -> list[str]:
    """Those that need a broker; the tests of the pipeline run them on a real one."""
    return [block for block in blocks() if "Turnstile(" in block]
