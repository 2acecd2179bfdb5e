"""Files of queries that cannot be answered are refused, with the key and what to do."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from streams.answerer.queries import KINDS, UnusableQueries, read_query_file
from tests.readme import TOP
from tests.unit.answerer.asking import COUNT, FILE, asked_of

BAD = {
    "dataset missing": ('dataset = "d"', "", "the file: dataset is missing"),
    "run no name": ('run = "r"', 'run = "a b"', "run is 'a b'; it must be 1 to 128 letters"),
    "no input": ("[input]", "[source]", "input is missing"),
    "topic no text": ('topic = "events"', "topic = 7", r"\[input\]: topic is 7"),
    "user missing": ('user = "u"\n', "", r"\[input\]: user is missing"),
    "users unknown": ('"integer"', '"float"', "one of string, integer"),
    "time unit": ('"ms"\nstart', '"ns"\nstart', "one of iso, s, ms"),
    "start missing": ("start = 1970-01-01", "", "start is missing; it must be a date"),
    "start as text": ("1970-01-01", '"1970-01-01"', "without quotes"),
    "clock": ('"events"\n\n', '"mine"\n\n', "one of arrival, events"),
    "unknown key": ('time = "t"', 'time = "t"\nfoo = 1', "foo has no effect"),
    "no query": ("[[query]]", "[other]", "0 queries"),
    "kind": ('kind = "count"', 'kind = "median"', r"\[\[query\]\] 1 \(count\): kind is 'median'"),
    "no kind": ('kind = "count"', "", "kind is missing"),
    "window": ('"10ms"', "10", 'window is 10; it must be a number and a unit, as "90s"'),
    "every": ("each = 2", 'each = 2\nevery = "3ms"', "every is '3ms'"),
    "no bound": ("each = 2", "", "each, .* clip"),
    "two bounds": ("each = 2", "each = 2\nclip = 1", "either each"),
    "bound of nothing": ("each = 2", "each = 0", "each is 0; it must be a number above 0"),
    "no noise": ("noise = 1.0", "", "give either noise"),
    "two noises": ("noise = 1.0", "noise = 1.0\nactive_windows = 3", "give either noise"),
    "noise nan": ("noise = 1.0", "noise = nan", "noise is nan"),
    "by without labels": ("each = 2", 'each = 2\nby = "c"', "labels is missing"),
    "labels twice": ("each = 2", 'each = 2\nby = "c"\nlabels = [1, 1]', "distinct"),
    "groups missing": ("each = 2", 'each = 2\nby = "c"\nlabels = [1, 2]', "groups is missing"),
    "groups many": (
        "each = 2",
        'each = 2\nby = "c"\nlabels = [1, 2]\ngroups = 3',
        "groups is 3; it must be a whole number from 1 to 2",
    ),
    "where": ("each = 2", "each = 2\nwhere = { x = 1.5 }", "where.x is 1.5"),
    "where range": ("each = 2", "each = 2\nwhere = { x = { above = 1 } }", "at_least"),
    "share": ("noise = 1.0", "active_windows = 2\nshare = 1.5", "share is 1.5"),
    "confidence": ('run = "r"', 'run = "r"\nconfidence = 95', "confidence is 95"),
}


@pytest.mark.parametrize(("old", "new", "said"), BAD.values(), ids=BAD)
def test_a_file_that_cannot_be_asked_is_refused_with_its_key(old: str, new: str, said: str) -> None:
    text = FILE + COUNT
    assert old in text
    with pytest.raises(UnusableQueries, match=said):
        asked_of(text.replace(old, new, 1))


def test_shares_and_names_are_of_the_whole_file() -> None:
    shared = COUNT.replace("noise = 1.0", "active_windows = 2\nshare = 0.6")
    with pytest.raises(UnusableQueries, match=r"sum to 1\.2"):
        asked_of(FILE + shared + shared.replace('"count"\nkind', '"other"\nkind'))
    with pytest.raises(UnusableQueries, match="two queries are named 'count'"):
        asked_of(FILE + COUNT + COUNT)


def test_a_file_that_is_no_toml_is_refused_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "q.toml"
    file.write_text('dataset = "d"\nrun = r\n')
    with pytest.raises(UnusableQueries, match="line 2"):
        read_query_file(file)
    with pytest.raises(UnusableQueries, match="cannot read"):
        read_query_file(tmp_path / "none.toml")


def test_the_digest_is_of_what_is_asked_and_not_of_how_it_is_written() -> None:
    first = asked_of(FILE + COUNT)
    assert asked_of(FILE + "# a remark\n" + COUNT).digest == first.digest
    assert asked_of(FILE + COUNT.replace("each = 2", "each = 3")).digest != first.digest


def test_the_file_on_the_page_can_be_asked() -> None:
    page = (TOP / "docs" / "answering.md").read_text(encoding="utf-8")
    (file,) = re.findall(r"```\n(dataset = .*?)```", page, re.DOTALL)
    assert asked_of(file).queries[0].noise == 10.0
    kinds = re.findall(r"^\| `([a-z]+)` \| ", page, re.MULTILINE)
    assert set(KINDS) <= set(kinds)


def test_the_example_can_be_asked() -> None:
    example = read_query_file(TOP / "examples" / "answering" / "queries.toml")
    assert [query.name for query in example.queries] == ["buyers", "spending", "basket"]
