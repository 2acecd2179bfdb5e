"""The jars of a Kafka broker in a per-user cache: fetched once, checked at every start."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

from streams.local.errors import LocalStackError, how_to_install
from streams.local.kafka_jars import KAFKA_VERSION, TOTAL_BYTES, Jar, kafka_jars

Progress = Callable[[str], None]

_ATTEMPTS = 3
_CONNECTIONS = 4
_TIMEOUT = 30  # seconds without a byte


def cache_directory() -> Path:
    """Where downloads are kept: ``$XDG_CACHE_HOME/dp-turnstile``, or under ``~/.cache``."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG specification says to ignore a relative path.
    root = Path(base) if os.path.isabs(base) else Path.home() / ".cache"
    return root / "dp-turnstile"


def kafka_classpath(
    cache: Path | None = None,
    progress: Progress | None = None,
    jars: Sequence[Jar] | None = None,
) -> list[Path]:
    """The jars of a Kafka broker, downloading those that are missing or damaged.

    Every file is compared with its SHA-256 (0.05 s for all). Processes that need the download at
    the same time take turns: one fetches, the others find it done.

    Args:
        cache: the directory that keeps them; ``cache_directory()`` by default.
        progress: called with a line of text during a download.
        jars: the files wanted; Kafka's by default.

    Raises:
        LocalStackError: they cannot be fetched (no network, no jgo) or stored.
    """
    say = progress or (lambda _: None)
    wanted = kafka_jars() if jars is None else jars
    directory = (cache or cache_directory()) / f"kafka-{KAFKA_VERSION}"
    if _damaged(directory, wanted):
        try:
            directory.mkdir(parents=True, exist_ok=True)
            with _locked(directory / ".lock", say):
                missing = _damaged(directory, wanted)  # another process may have fetched them
                if missing:
                    _fetch(missing, directory, say)
        except OSError as error:
            raise LocalStackError(
                f"Kafka cannot be stored in {directory}: {error}. "
                "Make room or set XDG_CACHE_HOME to a directory that can be written."
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
            say("Waiting for another process that downloads Kafka")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield  # closing the file releases the lock


def _fetch(jars: Sequence[Jar], directory: Path, say: Progress) -> None:
    if find_spec("jgo") is None:
        raise LocalStackError(
            "Kafka has to be downloaded and jgo, which does that, is not installed: "
            f"{how_to_install('local')} brings it."
        )
    size = f", {TOTAL_BYTES / 1e6:.0f} MB" if len(jars) == len(kafka_jars()) else ""
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
    """Download one file beside its place, check it, and move it there in one step."""
    from jgo.maven import MavenContext

    reason = ""
    for attempt in range(_ATTEMPTS):
        # A repository of its own for each attempt: jgo takes a file that is there for whole.
        repository = staging / f"{jar.artifact}-{attempt}"
        context = MavenContext(repo_cache=repository, local_repos=[], timeout=_TIMEOUT)
        artifact = context.project(jar.group, jar.artifact).at_version(jar.version).artifact()
        try:
            path = Path(artifact.resolve())
        except (OSError, RuntimeError) as error:  # requests' exceptions are OSErrors
            reason = str(error)
        else:
            if _is_intact(path, jar):
                os.replace(path, directory / jar.filename)
                return
            reason = "what arrived does not have the expected SHA-256"
        shutil.rmtree(repository, ignore_errors=True)
    raise LocalStackError(
        f"Kafka could not be downloaded from Maven Central: {jar.filename}: {reason}. "
        "Connect to the internet once (HTTPS_PROXY is honoured), copy the directory "
        f"{directory} from a machine that has it, or give the address of a running broker."
    )
