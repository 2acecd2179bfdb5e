"""The generated files of the repository: ``make reference`` writes them, and a test compares them.

A file is one row of ``FILES``. ``TABLES`` has the tables within pages that are otherwise written
by hand.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from docs import service_pages
from docs.markdown import page
from docs.python_pages import PAGES, PythonPage
from docs.wire import asyncapi, openapi
from docs.wire.pages import HttpPage, WirePage

TOP = Path(__file__).parents[1]

PROJECT = tomllib.loads((TOP / "pyproject.toml").read_text(encoding="utf-8"))["project"]
RUNBOOKS = f"{PROJECT['urls']['Documentation']}/docs/operate/runbooks.html"
"""The published page with the runbooks. The site has the folders of the repository."""


def contact() -> str:
    """Return the address for reports of vulnerabilities."""
    (maintainer,) = PROJECT["maintainers"]
    return f"[{maintainer['email']}](mailto:{maintainer['email']})\n"


TABLES: Mapping[str, Mapping[str, Callable[[], str]]] = {
    "SECURITY.md": {"contact": contact},
    "docs/reference/commands.md": {
        "commands": service_pages.commands,
        "exit codes": service_pages.exit_codes,
        "options": service_pages.options,
    },
    "docs/reference/query-file.md": {
        "input keys": service_pages.input_keys,
        "query keys": service_pages.query_keys,
    },
    "docs/reference/settings.md": {"settings": service_pages.settings},
    "docs/reference/metrics.md": {
        "worker": service_pages.worker_metrics,
        "answerer": service_pages.answerer_metrics,
        "client": service_pages.client_metrics,
    },
    "docs/reference/reasons.md": {
        "halts": service_pages.halts,
        "rejections": service_pages.rejections,
        "suspensions": service_pages.suspensions,
        "endings": service_pages.endings,
    },
    "docs/reference/topics.md": {"topics": service_pages.topics},
    "docs/reference/limits.md": {"limits": service_pages.limits},
    "docs/reference/measures.md": {"mechanisms": service_pages.mechanisms},
}
"""The tables of each page, by their names."""


def with_tables(name: str) -> str:
    """Return a page with current tables in the places of the old ones.

    A table stands between the comments ``<!-- reference: NAME -->`` and ``<!-- end -->``.

    Raises:
        ValueError: the page has no place, or several, for a table.
    """
    text = (TOP / name).read_text(encoding="utf-8")
    for title, content in TABLES[name].items():
        begin, end = f"<!-- reference: {title} -->\n", "<!-- end -->"
        before, found, after = text.partition(begin)
        _, is_ended, rest = after.partition(end)
        if not (found and is_ended) or begin in rest:
            raise ValueError(f"{name} must have one place for the table {title!r}")
        text = f"{before}{begin}\n{content()}\n{end}{rest}"
    return text


def protocol() -> str:
    """Return the page about the records of the service."""
    text = (
        "Any Kafka client can charge a run. This page has every record and field. "
        "[`deploy/asyncapi.yaml`](../../deploy/asyncapi.yaml) has the same for programs, with "
        "examples. `examples/go` and `examples/java` are clients written from it alone; `make "
        "examples` runs them on a real broker and compares the result with that of the SDK.\n\n"
        "![A charge, from the client to the release](../pictures/charge.svg)\n"
    )
    return page("Protocol", text, WirePage(asyncapi.document()).text())


def answers() -> str:
    """Return the page about the records of answerers."""
    text = (
        "Any Kafka client can read the private answers that "
        "[`turnstile answer`](../query/run.md) publishes. "
        "[`deploy/asyncapi-answers.yaml`](../../deploy/asyncapi-answers.yaml) has the same for "
        "programs.\n"
    )
    return page("Private answers", text, WirePage(asyncapi.answers_document()).text())


def http() -> str:
    """Return the page about the gateway's HTTP API."""
    text = "[`deploy/openapi.json`](../../deploy/openapi.json) has the same for programs.\n"
    return page("HTTP API", text, HttpPage(openapi.document()).text())


def python(shown: PythonPage) -> str:
    """Return the page about a Python package."""
    return page(shown.title, shown.text())


ALERTS = "deploy/prometheus/turnstile.rules.yaml", "deploy/prometheus/turnstile.test.yaml"


def with_runbooks(name: str) -> str:
    """Return a file of Prometheus whose alerts lead to the published runbooks."""
    text = (TOP / name).read_text(encoding="utf-8")
    return re.sub(r"(?<=runbook_url: )\S+(?=#)", RUNBOOKS, text)


FILES: Mapping[str, Callable[[], str]] = {
    "deploy/asyncapi.yaml": asyncapi.text,
    "deploy/asyncapi-answers.yaml": asyncapi.answers_text,
    "deploy/openapi.json": openapi.text,
    **{name: partial(with_runbooks, name) for name in ALERTS},
    "docs/reference/protocol.md": protocol,
    "docs/reference/answers.md": answers,
    "docs/reference/http.md": http,
    **{name: partial(python, shown) for name, shown in PAGES.items()},
    **{name: partial(with_tables, name) for name in TABLES},
}
"""Each generated file, and the function that returns its content."""

if __name__ == "__main__":
    for name, content in FILES.items():
        (TOP / name).write_text(content(), encoding="utf-8")
