"""The checkpoint of a training: a file with the model and the step that was released last.

The two are written together, before anything of a step leaves, so that neither exists without the
other. The file is replaced atomically: after a crash it is the old one or the new one.

The file also contains the attempt of the run that wrote it. So a trainer that was paused, while its
successor continued, cannot replace the newer model by its older one.
"""

from __future__ import annotations

import glob
import json
import os
import socket
import zipfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from streams.records import Reason
from streams.sdk.errors import Fenced, InvalidRequest, ReleasedTwice

_HEADER: Final = "turnstile"
_FORMAT: Final = 1
_OTHER: Final = (
    "another trainer wrote the file, or the run's charges are in another budget file or service: "
    "use that one, or another checkpoint file for a new training"
)


@dataclass(frozen=True, eq=False)
class Saved:
    """The content of a checkpoint.

    Attributes:
        released: the last step that was released or given up.
        arrays: the model, and all other state of the training.
    """

    released: int
    arrays: dict[str, NDArray[np.generic]]


class Checkpoint:
    """A checkpoint file of one run.

    Attributes:
        path: of the file.
        is_secret: the file is as secret as the data, so that only its owner may read it
            (``CorrelatedSteps`` sets it). Otherwise it holds released values, and nothing more
            secret.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.is_secret = False

    def released(self) -> int:
        """Return the last step that was released or given up; -1 if there is no file.

        For ``Turnstile.run(released=)`` of a training without sampling, whose last step is then
        handed back. A training that samples opens its run without ``released``.

        Raises:
            InvalidRequest: the file is not a checkpoint.
        """
        header = self._header()
        return -1 if header is None else header.released

    def load(self, name: tuple[str, str]) -> Saved | None:
        """Return what was saved for this dataset and run; None if there is no file.

        Raises:
            InvalidRequest: the file is not a checkpoint, or belongs to another run.
        """
        header = self._header_of(name)
        if header is None:
            return None
        with np.load(self.path, allow_pickle=False) as content:
            arrays = {key: content[key] for key in content.files if key != _HEADER}
        return Saved(header.released, arrays)

    def save(
        self,
        name: tuple[str, str],
        attempt: int,
        released: int,
        arrays: Mapping[str, NDArray[np.generic]],
    ) -> None:
        """Replace the file, durably.

        Comparing with the existing file and replacing it are two operations, so another trainer can
        interfere. ``Run.check_attempt`` and this comparison narrow that race; the operator is
        responsible for ending the older trainer.

        Args:
            name: the dataset and the run.
            attempt: the attempt of the run that released the step.
            released: the last step that was released or given up.
            arrays: the model, and all other state of the training.

        Raises:
            Fenced: the file is of a later attempt. Release nothing.
            ReleasedTwice: the file has a later step. Release nothing.
            InvalidRequest: the file is not a checkpoint, or belongs to another run.
            OSError: the file cannot be written; the previous one is intact.
        """
        there = self._header_of(name)
        if there is not None and there.attempt > attempt:
            detail = f"{self.path} is of attempt {there.attempt}, this is {attempt}; {_OTHER}"
            raise Fenced(Reason.OLDER_ATTEMPT, detail, None, there.attempt)
        if there is not None and there.released > released:
            raise ReleasedTwice(
                f"{self.path} has step {there.released} of run {name[1]!r}, whose next step would "
                f"be {released + 1}; {_OTHER}"
            )
        header = json.dumps([_FORMAT, *name, attempt, released])
        content = BytesIO()
        np.savez(content, allow_pickle=False, **{_HEADER: np.array(header), **arrays})
        beside = self.path.with_name(f"{self._beside}{os.getpid()}")
        try:
            with open(beside, "wb", opener=_owner_only if self.is_secret else None) as file:
                file.write(content.getbuffer())
                file.flush()
                os.fsync(file.fileno())
            beside.replace(self.path)
        finally:
            beside.unlink(missing_ok=True)
        folder = os.open(self.path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
        self._remove_unfinished()

    @property
    def _beside(self) -> str:
        """Return the name of the file that a process of this machine writes, without its pid."""
        return f".{self.path.name}.{socket.gethostname()}."

    def _remove_unfinished(self) -> None:
        """Remove the files of processes of this machine that were killed during a write."""
        for file in self.path.parent.glob(f"{glob.escape(self._beside)}*"):
            pid = file.name.removeprefix(self._beside)
            with suppress(OSError, OverflowError):  # not allowed, or not a file of a process
                if pid.isdecimal() and not _is_running(int(pid)):
                    file.unlink()

    def _header_of(self, name: tuple[str, str]) -> _Header | None:
        header = self._header()
        if header is not None and (header.dataset, header.run) != name:
            raise InvalidRequest(
                f"{self.path} is the checkpoint of run {header.run!r} of dataset "
                f"{header.dataset!r}, not of run {name[1]!r} of dataset {name[0]!r}: use another "
                "file"
            )
        return header

    def _header(self) -> _Header | None:
        if not self.path.exists():
            return None
        try:
            with np.load(self.path, allow_pickle=False) as content:
                header = _Header(*json.loads(str(content[_HEADER])))
        except (KeyError, TypeError, ValueError, zipfile.BadZipFile, EOFError) as error:
            raise InvalidRequest(
                f"{self.path} is not a checkpoint of a training: {error}"
            ) from error
        if header.format != _FORMAT:
            raise InvalidRequest(f"{self.path} has format {header.format}, not {_FORMAT}")
        return header


def _owner_only(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


class _Header(NamedTuple):
    format: int
    dataset: str
    run: str
    attempt: int
    released: int
