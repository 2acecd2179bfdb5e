"""User ids that come again: step after step the same list, or the same and more at its end.

Reading ids, finding out where they live and packing them takes seconds for a million strings, and
nothing of it changes from one step to the next. What was read last is kept, and held against what
comes: every id, so that a list that was changed in between is noticed. Only ids that are not known
are read again.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from streams.sdk.arguments import Ids, elements_of, read_users


class KnownUsers:
    """The ids that were read last.

    Attributes:
        ids: they, which nobody changes; None before the first.
    """

    def __init__(self) -> None:
        self.ids: Ids | None = None
        self._text: NDArray[Any] | None = None  # the numpy array of strings that they came in

    def read(self, users: object) -> Ids:
        """As ``read_users``; the very same object as the last time for the same ids.

        Raises:
            InvalidRequest: they are no ids, or have no order.
        """
        text = users if type(users) is np.ndarray and users.dtype.kind == "U" else None
        if text is None or not _is_same(text, self._text):
            self.ids = self._read(users if text is None else text.tolist())
            self._text = None if text is None else text.copy()
        assert self.ids is not None
        return self.ids

    def _read(self, users: object) -> Ids:
        known = self.ids
        elements = elements_of("users", users)
        if isinstance(elements, list):
            # Equal to an id, and of no type that equals ids of another one: the id itself.
            plain = set(map(type, elements)) <= {int, str}
            if isinstance(known, list) and plain:
                more = elements[len(known) :]
                if not more and elements == known:
                    return known
                if more and elements[: len(known)] == known:
                    ids = read_users(more)
                    return known + (ids if isinstance(ids, list) else ids.tolist())
            ids = read_users(elements)
            return ids.copy() if ids is elements else ids
        ids = read_users(elements)
        return known if isinstance(known, np.ndarray) and np.array_equal(ids, known) else ids


def _is_same(text: NDArray[Any], known: NDArray[Any] | None) -> bool:
    return known is not None and text.dtype == known.dtype and np.array_equal(text, known)
