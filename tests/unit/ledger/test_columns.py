"""Rows of users grow, change, are packed and put back; and a new number of every user."""

from typing import Annotated

import numpy as np
import pytest

from streams.ledger.columns import PER_ORDER, Column, Columns, Numbers, RowDelta
from streams.ledger.partition_errors import UnknownState


class Toy(Columns):
    spent: Annotated[Numbers, PER_ORDER]
    ticks: Annotated[Numbers, Column(initial=1)]


def written(columns: Columns, slots: np.ndarray, name: str, numbers: np.ndarray) -> RowDelta:
    getattr(columns, name)[slots] = numbers
    return columns.note(slots, name)


def test_a_column_of_a_later_release_is_named_and_not_left_out():
    class Later(Toy):
        noise: Annotated[Numbers, Column()]

    later, toy = Later(), Toy()
    for columns in (later, toy):
        columns.grow(3)
    with pytest.raises(UnknownState):
        toy.apply_delta(written(later, np.arange(2), "noise", np.arange(2)))
    with pytest.raises(UnknownState):
        toy.load_page(0, later.take_page(0))


# --- a new number of every user -------------------------------------------------------------------
