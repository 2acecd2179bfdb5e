"""A file with a model and the step that was released last: one cannot be there without the other.

A trainer that writes it before anything of a step leaves can be started again and gets what it
paid for:

    checkpoint = Checkpoint("night-7.npz")
    run = t.run("mnist", "night-7", released=checkpoint.released())

hands back a step that was decided and did not go out. The file takes the place of the one before at
once, so that after a crash it is either.
"""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from streams.sdk.errors import InvalidRequest

_HEADER: Final = "turnstile"
_FORMAT: Final = 1


@dataclass(frozen=True, eq=False)
class Saved:
    """What a checkpoint holds.

    Attributes:
        released: the last step that was released.
        arrays: model, and whatever else is needed to go on.
    """

    released: int
    arrays: dict[str, NDArray[np.generic]]


class Checkpoint:
    """A checkpoint file of one run. It holds what was released, and nothing more secret."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    def released(self) -> int:
        """The last step that was released, or given up; -1 if there is no file: for
        ``Turnstile.run``.

        Raises:
            InvalidRequest: the file is no checkpoint.
        """
        if not self.path.exists():
            return -1
        return self._header().released

    def load(self, name: tuple[str, str]) -> Saved | None:
        """What was saved for this dataset and run; None if nothing was.

        Raises:
            InvalidRequest: the file is no checkpoint, or that of another run.
        """
        if not self.path.exists():
            return None
        header = self._header()
        if (header.dataset, header.run) != name:
            raise InvalidRequest(
                f"{self.path} is the checkpoint of run {header.run!r} of dataset "
                f"{header.dataset!r}, not of {name[1]!r} of {name[0]!r}: use another file"
            )
        with np.load(self.path, allow_pickle=False) as content:
            arrays = {key: content[key] for key in content.files if key != _HEADER}
        return Saved(header.released, arrays)

    def save(
        self, name: tuple[str, str], released: int, arrays: Mapping[str, NDArray[np.generic]]
    ) -> None:
        """Put this in the place of what was saved before, durably.

        Raises:
            OSError: the file cannot be written; the one before is still there.
        """
        header = json.dumps([_FORMAT, *name, released])
        content = BytesIO()
        np.savez(content, allow_pickle=False, **{_HEADER: np.array(header), **arrays})
        beside = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        try:
            with beside.open("wb") as file:
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

    def _header(self) -> _Header:
        try:
            with np.load(self.path, allow_pickle=False) as content:
                header = _Header(*json.loads(str(content[_HEADER])))
        except (KeyError, TypeError, ValueError, zipfile.BadZipFile, EOFError) as error:
            raise InvalidRequest(f"{self.path} is no checkpoint of a training: {error}") from error
        if header.format != _FORMAT:
            raise InvalidRequest(f"{self.path} has format {header.format}, not {_FORMAT}")
        return header


class _Header(NamedTuple):
    format: int
    dataset: str
    run: str
    released: int
