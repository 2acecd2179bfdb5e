"""Files of queries: valid ones are read, others are rejected with the key."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import pytest

from streams.answerer.kinds import KINDS
from streams.answerer.query_file import EventSource, read_query_file
from streams.answerer.query_keys import Query, UnusableQueries
from tests.readme import DOCS, TOP, page
from tests.unit.answerer.asking import COUNT, END, FILE, asked_of, zoned

BAD = {
    "dataset missing": ('dataset = "d"', "", "dataset"),
    "run no name": ('run = "r"', 'run = "a b"', "run"),
    "no input": ("[input]", "[source]", "source"),
    "topic no text": ('topic = "events"', "topic = 7", "topic"),
    "user missing": ('user = "u"\n', "", "user"),
    "users unknown": ('"integer"', '"float"', "users"),
    "time unit": ('"ms"\nstart', '"ns"\nstart', "time_unit"),
    "start missing": ("start = 1970-01-01", "", "start"),
    "start as text": ("1970-01-01", '"1970-01-01"', "start"),
    "end missing": ("end = ", "# ", "end"),
    "end as text": (END, '"1970-01-02"', "end"),
    "end before the start": (END, "1969-12-31", "end"),
    "end within the first window": (END, "1970-01-01T00:00:00.009Z", "end"),
    "end after a million windows": (END, "1970-01-02", "end"),
    "clock": ('"events"\n\n', '"mine"\n\n', "clock"),
    "unknown key": ('time = "t"', 'time = "t"\nfoo = 1', "foo"),
    "no query": ("[[query]]", "[other]", "other"),
    "kind": ('kind = "count"', 'kind = "median"', "kind"),
    "no kind": ('kind = "count"', "", "kind"),
    "window": ('"10ms"', "10", "window"),
    "every": ("each = 2", 'each = 2\nevery = "3ms"', "every"),
    "no bound": ("each = 2", "", "each"),
    "two bounds": ("each = 2", "each = 2\nclip = 1", "each"),
    "bound of nothing": ("each = 2", "each = 0", "each"),
    "no noise": ("noise = 1.0", "", "noise"),
    "two noises": ("noise = 1.0", "noise = 1.0\nactive_windows = 3", "noise"),
    "noise nan": ("noise = 1.0", "noise = nan", "noise"),
    "by without labels": ("each = 2", 'each = 2\nby = "c"', "labels"),
    "labels twice": ("each = 2", 'each = 2\nby = "c"\nlabels = [1, 1]', "labels"),
    "groups missing": ("each = 2", 'each = 2\nby = "c"\nlabels = [1, 2]', "groups"),
    "groups many": ("each = 2", 'each = 2\nby = "c"\nlabels = [1, 2]\ngroups = 3', "groups"),
    "no numerator": ('kind = "count"', 'kind = "ratio"', "numerator"),
    "no denominator": ('kind = "count"', 'kind = "ratio"\nnumerator = { each = 1 }', "denominator"),
    "term without a bound": (
        'kind = "count"',
        'kind = "ratio"\nnumerator = {}\ndenominator = {}',
        "each",
    ),
    "term of a sum": (
        'kind = "count"',
        'kind = "ratio"\nnumerator = { of = "sum", each = 1 }',
        "column",
    ),
    "term with a key": (
        'kind = "count"',
        'kind = "ratio"\nnumerator = { of = "distinct", each = 1 }',
        "each",
    ),
    "bound of a ratio": (
        'kind = "count"',
        'kind = "ratio"\nnumerator = { each = 1 }\ndenominator = { each = 1 }',
        "each",
    ),
    "variance without a range": (
        'kind = "count"',
        'kind = "variance"\ncolumn = "x"\nlower = 3\nupper = 3',
        "upper",
    ),
    "where": ("each = 2", "each = 2\nwhere = { x = 1.5 }", "where"),
    "where range": ("each = 2", "each = 2\nwhere = { x = { above = 1 } }", "above"),
    "share": ("noise = 1.0", "active_windows = 2\nshare = 1.5", "share"),
    "correct": ("noise = 1.0", "active_windows = 2\ncorrect = 1", "correct"),
    "correct a noise": ("each = 2", "each = 2\ncorrect = true", "correct"),
    "correct in the file": ('run = "r"', 'run = "r"\ncorrect = true', "correct"),
    "sums of a length": ("each = 2", 'each = 2\nsums = ["20ms"]', "sums"),
    "sums as text": ("each = 2", 'each = 2\nsums = "all"', "sums"),
    "sums of windows that overlap": (
        "each = 2",
        'each = 2\nevery = "5ms"\nsums = ["all"]',
        "sums",
    ),
    "keys without groups": ("each = 2", 'each = 2\nby = "c"\nkey_bytes = 8', "groups"),
    "long keys": ("each = 2", 'each = 2\nby = "c"\nkey_bytes = 65', "key_bytes"),
    "few keys": ("each = 2", 'each = 2\nby = "c"\nkeys_below = 1', "keys_below"),
    "two universes": ("each = 2", 'each = 2\nby = "c"\nkey_bytes = 8\nkeys_below = 9', "labels"),
    "labels and keys": ("each = 2", 'each = 2\nby = "c"\nkey_bytes = 8\nlabels = [1]', "labels"),
    "keys with a clip": ("each = 2", 'clip = 2\nby = "c"\nkey_bytes = 8', "clip"),
    "keys that are corrected": (
        "each = 2\nnoise = 1.0",
        'each = 2\nactive_windows = 2\ncorrect = true\nby = "c"\ngroups = 1\nkey_bytes = 8',
        "correct",
    ),
    "confidence": ('run = "r"', 'run = "r"\nconfidence = 95', "confidence"),
}


DAILY = 'window = "1d"'
BAD_TIMES = {
    "zone unknown": ('"Europe/Berlin"', '"Europe/Atlantis"', "timezone"),
    "zone a folder": ('"Europe/Berlin"', '"Europe"', "timezone"),
    "zone no text": ('"Europe/Berlin"', "1", "timezone"),
    "hours of a day": (DAILY, f'{DAILY}\nevery = "6h"', "every"),
    "days of a month": (DAILY, 'window = "1mo"\nevery = "1d"', "every"),
    "months of a month": (DAILY, 'window = "3mo"\nevery = "2mo"', "every"),
    "start in a day": ("2026-01-01", "2026-01-01T06:00:00", "start"),
    "start elsewhere": ("2026-01-01", "2026-01-01T00:00:00Z", "start"),
    "start in the first year": ("2026-01-01", "0001-01-01", "start"),
}
ZONED, MONTHLY, HOURLY = (zoned("Europe/Berlin", "2026-01-01", w) for w in ("1d", "1mo", "1h"))
FILES = {name: (FILE + COUNT, *row) for name, row in BAD.items()}
FILES |= {name: (ZONED, *row) for name, row in BAD_TIMES.items()}
FILES["start at the end of a month"] = (MONTHLY, "2026-01-01", "2026-01-31", "start")
FILES["start in the last year"] = (HOURLY, "2026-01-01", "9999-12-31T23:00:00Z", "start")


@pytest.mark.parametrize(("text", "old", "new", "key"), FILES.values(), ids=FILES)
def test_invalid_file_is_rejected_with_the_key(text: str, old: str, new: str, key: str) -> None:
    assert old in text
    with pytest.raises(UnusableQueries) as caught:
        asked_of(text.replace(old, new, 1))
    assert caught.value.key == key


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [("window =", "windw =", "is window meant"), ("window =", "topic =", "key of another table")],
)
def test_an_unknown_key_leads_to_the_one_that_is_meant(old: str, new: str, said: str) -> None:
    with pytest.raises(UnusableQueries, match=said):
        asked_of(FILE + COUNT.replace(old, new, 1))


@pytest.mark.parametrize(
    ("query", "is_corrected"), [("", False), ("correct = true", True), ("correct = false", False)]
)
def test_answers_are_corrected_only_if_the_query_asks_for_it(
    query: str, is_corrected: bool
) -> None:
    daily = COUNT.replace("10ms", "1d").replace("noise = 1.0", "active_windows = 60")
    year = FILE.replace(END, "1971-01-01")
    (found,) = asked_of(f"{year}{daily}{query}\n").blocks
    assert bool(found.size) is is_corrected


def test_a_topic_by_arrival_needs_no_end_but_a_file_does() -> None:
    by_arrival = FILE.replace('clock = "events"', "").replace(f"end = {END}", "")
    query_file = asked_of(by_arrival + COUNT)
    with pytest.raises(UnusableQueries) as caught:
        query_file.for_a_file()
    assert caught.value.key == "end"
    with pytest.raises(UnusableQueries) as caught:
        asked_of(by_arrival.replace('topic = "events"', "") + COUNT)
    assert caught.value.key == "end"
    with pytest.raises(UnusableQueries) as caught:
        asked_of(by_arrival + COUNT.replace("noise = 1.0", "active_windows = 2\ncorrect = true"))
    assert caught.value.key == "end"


def test_shares_and_names_are_checked_across_the_file() -> None:
    shared = COUNT.replace("noise = 1.0", "active_windows = 2\nshare = 0.6")
    with pytest.raises(UnusableQueries) as caught:
        asked_of(FILE + shared + shared.replace('"count"\nkind', '"other"\nkind'))
    assert caught.value.key == "share"
    with pytest.raises(UnusableQueries) as caught:
        asked_of(FILE + COUNT + COUNT)
    assert caught.value.key == "name"


def test_file_without_toml_is_rejected(tmp_path: Path) -> None:
    file = tmp_path / "q.toml"
    file.write_text('dataset = "d"\nrun = r\n')
    with pytest.raises(UnusableQueries):
        read_query_file(file)
    with pytest.raises(UnusableQueries):
        read_query_file(tmp_path / "none.toml")


def test_digest_depends_on_the_settings_alone() -> None:
    first = asked_of(FILE + COUNT)
    assert asked_of(FILE + "# a remark\n" + COUNT).digest == first.digest
    assert asked_of(FILE + COUNT.replace("each = 2", "each = 3")).digest != first.digest


def test_examples_in_the_docs_are_valid() -> None:
    pages = [path.read_text(encoding="utf-8") for path in DOCS if path.parent.name == "query"]
    blocks = [textwrap.dedent(one) for text in pages for one in text.split("```")[1::2]]
    examples = [one for one in blocks if "[[query]]" in one]
    assert examples
    for example in examples:
        asked_of(example if "[input]" in example else FILE.replace(END, "1980-01-01") + example)


def test_reference_has_every_key_of_every_kind() -> None:
    rows = re.findall(r"^\| `(.*?)` \|", page("reference/query-file"), re.MULTILINE)
    keys = {key for table in (EventSource, Query) for key in table.__struct_fields__}
    assert keys == {key for row in rows for key in row.split(", ")}
    asked = {"name", "window", "every", "where", "noise", "active_windows", "share"}
    assert set(Query.__struct_fields__) == asked.union(*(k.needs + k.takes for k in KINDS.values()))


def test_example_file_has_every_kind() -> None:
    example = read_query_file(TOP / "examples" / "answering" / "kinds.toml")
    assert {query.kind for query in example.queries} == set(KINDS)


@pytest.mark.parametrize(
    "content",
    [
        "x = " + "[" * 9000,
        "x = " + "9" * 6000,
        FILE + "[[query]]\n" * 20000,
        FILE + "query = [" + "1, " * 20000 + "]",
        FILE + COUNT.replace('"10ms"', '"' + "x" * 9000 + '"'),
        FILE + COUNT + "x" * 9000 + " = 1",
    ],
    ids=["deep", "huge integer", "many tables", "long list", "long value", "long key"],
)
def test_error_about_a_file_is_short(content: str, tmp_path: Path) -> None:
    file = tmp_path / "queries.toml"
    file.write_text(content)
    with pytest.raises(UnusableQueries) as refused:
        read_query_file(file)
    assert len(str(refused.value)) < 1000
