"""The loader and the simulated shop."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import numpy as np
import pytest

from streams.config import ConfigurationError
from streams.demo.purchases import PURCHASES_FILE, load_purchases, simulated_purchases


def test_purchases_are_added_up_by_customer_and_day(tmp_path: Path) -> None:
    path = tmp_path / "log.txt"
    lines = [
        " customer_id  date number_of_cds  dollar_value",
        " 00002 19970103  1   12.00",
        " 00001 19970101  1   11.75",
        " 00002 19970101  2   77.00",
        " 00001 19970101  5    9.25",
        "",
    ]
    path.write_bytes("\r\n".join(lines).encode())
    purchases = load_purchases(path)
    assert purchases.users == 2
    assert purchases.customers.tolist() == [1, 2, 2]
    assert purchases.day.tolist() == [0, 0, 2]
    assert purchases.values.tolist() == [21.0, 77.0, 12.0]
    assert purchases.totals[:3].tolist() == [98.0, 0.0, 12.0]
    assert load_purchases(path, "CDs").values.tolist() == [6.0, 2.0, 1.0]


def test_no_purchase_moves_the_first_or_the_last_day(tmp_path: Path) -> None:
    path = tmp_path / "log.txt"
    for outside in ("", "3 19961231 1 1.0\n", "3 19980701 1 1.0\n"):
        path.write_text("header\n1 19970102 1 1.0\n" + outside)
        purchases = load_purchases(path)
        assert (purchases.first_day, purchases.days) == (date(1997, 1, 1), 546)
        assert (purchases.customers.tolist(), purchases.day.tolist()) == ([1], [1])


GOOD = "header\n1 19970101 1 1.0\n"
BAD = ["1 19970101 1", "x 19970101 1 1.0", "1 19971301 1 1.0", "1 19970101 1 x", "1 19970101 1 1 1"]
TEXTS = [None, "", "header\n", "header\n1 19960101 1 1.0\n", *(f"{GOOD}{bad}\n" for bad in BAD)]


@pytest.mark.parametrize("text", TEXTS)
def test_files_without_purchases_or_with_bad_lines_are_refused(
    text: str | None, tmp_path: Path
) -> None:
    file = tmp_path / "deep" / PURCHASES_FILE
    file.parent.mkdir()
    places = tmp_path, file.parent, file
    if text is not None:
        file.write_text(text)
    for path in places:
        with pytest.raises(ConfigurationError):
            load_purchases(path)
    file.write_text(GOOD)
    assert [load_purchases(path).users for path in places] == [1, 1, 1]


def test_the_simulated_shop_is_always_the_same_and_like_cdnow() -> None:
    """CDNOW: 123.8 buyers and 4,579 dollars per day; half of a day's purchases exceed 27 dollars.
    51 % of the customers bought on one day only, 0.8 % on more than 20.
    """
    shop, again = simulated_purchases(), simulated_purchases()
    np.testing.assert_array_equal(shop.values, again.values)
    np.testing.assert_array_equal(shop.day, again.day)
    assert (shop.users, shop.days) == (23_570, 546)
    assert len(shop.values) / 546 == pytest.approx(123.8, rel=0.1)
    assert shop.totals.mean() == pytest.approx(4_579, rel=0.1)
    assert np.median(shop.values) == pytest.approx(26.7, rel=0.1)
    days = np.unique(shop.customers, return_counts=True)[1]
    assert np.mean(days == 1) == pytest.approx(0.51, abs=0.03)
    assert np.mean(days > 20) == pytest.approx(0.008, abs=0.003)
