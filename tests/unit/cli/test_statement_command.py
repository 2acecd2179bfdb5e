"""`turnstile statement` states the outermost budget, and only if the log fits."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import msgspec
import pytest

from streams import Turnstile
from streams.failures import Exit
from streams.operations.statement import rounded_up, statement_of
from streams.replay.receipts import Receipt, check_signature
from tests.integration.command import Done, turnstile
from tests.unit.sdk import files


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a file with a dataset, one nested in another, and a share."""
    monkeypatch.setattr(sqlite3, "connect", files.connect)
    path = tmp_path / "budgets.db"
    with Turnstile.open(path, partitions=2) as t:
        whole = t.create_dataset("person", epsilon=4.0, delta=1e-6)
        t.create_dataset("ads", measure="renyi", epsilon=3.0, delta=1e-6, parents="person")
        t.create_dataset("d", measure="zcdp", epsilon=1.0, delta=1e-5)
        t.create_dataset("pure", measure="pure-dp", epsilon=1.5)
        t.run("d", "r").charge(range(6), [0.1] * 6, noise_stddev=4.0)
        everybody = t.create_dataset("everybody", epsilon=2.0, delta=1e-5)
        t.create_dataset("part", share_of=everybody, share=0.5)
        t.create_dataset("site", epsilon=3.5, delta=1e-6)
        t.create_dataset("both", epsilon=1.0, delta=1e-6, parents=["ads", "site"])
        assert whole.epsilon(1e-6) <= 4.0
    return path


def on(path: Path, *arguments: str) -> Done:
    return turnstile(*arguments, "--json", environment={"TURNSTILE_BUDGETS": str(path)})


def state(path: Path, *arguments: str) -> dict:
    done = on(path, "statement", *arguments)
    assert done.code == Exit.OK, done.said
    (line,) = done.lines
    return line


def test_statement_names_the_least_of_several_outermost_budgets(path: Path) -> None:
    stated = state(path, "both", "--delta", "1e-6")
    names = [budget["dataset"] for budget in stated["parents"]]
    assert names == ["both", "ads", "site", "person"]
    assert stated["budget"] == stated["parents"][2]
    assert len(stated["assumed"]) == 1 + len(state(path, "site")["assumed"])
    assert stated["epsilon"] == pytest.approx(3.5, rel=1e-6)


def test_statement_has_the_guarantee_and_the_verified_heads(path: Path) -> None:
    stated = state(path, "d", "--delta", "1e-5")
    assert stated["epsilon"] == pytest.approx(1.0, rel=1e-6)
    assert (stated["delta"], stated["unit"], stated["measure"]) == (1e-5, "user", "zcdp")
    assert stated["budget"] == stated["parents"][-1]
    assert (stated["budget"]["unit"], stated["budget"]["orders"]) == ("rho", [])
    parts = [line for line in on(path, "verify").lines if line["type"] == "verified_partition"]
    heads = [(part["partition"], part["to"], part["head"]) for part in parts]
    found = stated["receipt"]["heads"]
    assert [(head["partition"], head["next"], head["head"]) for head in found] == heads
    loss = stated["registry"]["privacy_loss"]["privacy_parameters"]
    assert loss == {
        "epsilon": stated["epsilon"],
        "delta": 1e-5,
        "rho": stated["budget"]["amounts"][0],
    }


def test_the_outermost_budget_has_the_guarantee(path: Path) -> None:
    for name, outermost, epsilon, delta in (
        ("ads", "person", 4.0, 1e-6),
        ("person", "person", 4.0, 1e-6),
        ("part", "everybody", 2.0, 1e-5),
        ("pure", "pure", 1.5, 0.0),
    ):
        stated = state(path, name, *(["--delta", str(delta)] if delta else []))
        assert stated["epsilon"] == pytest.approx(epsilon, rel=1e-6)
        assert (stated["budget"]["dataset"], stated["delta"]) == (outermost, delta)
        parameters = stated["registry"]["privacy_loss"]["privacy_parameters"]
        assert ("delta" in parameters) == bool(delta)


def test_nothing_is_stated_if_the_log_was_changed(path: Path) -> None:
    with sqlite3.connect(path) as database:
        database.execute("DELETE FROM halts")
    database.close()
    done = on(path, "statement", "d")
    assert (done.code, done.lines) == (Exit.REFUSED, [])
    assert on(path, "statement", "other").code == Exit.REFUSED


def test_signed_receipt_is_in_the_statement(path: Path, tmp_path: Path) -> None:
    key, public = tmp_path / "key", tmp_path / "public"
    (made,) = on(path, "keys", "new", "--out", str(key)).lines
    public.write_text(made["trusted_keys"])
    receipt = msgspec.convert(state(path, "d", "--key", str(key))["receipt"], Receipt)
    check_signature(receipt, public)


def test_text_never_shows_less_than_epsilon(path: Path) -> None:
    assert float(rounded_up(1.0000001)) >= 1.0000001
    assert rounded_up(2.999999999999847) == "3"
    assert rounded_up(4.0) == "4"
    with Turnstile.open(path) as t:
        policy = t.create_dataset("d", measure="zcdp", epsilon=1.0, delta=1e-5)
    for delta in (1e-5, 1e-6, 1e-9):
        stated = statement_of([policy], delta)
        assert float(rounded_up(stated.epsilon)) >= stated.epsilon == policy.epsilon(delta)


def test_independent_timing_is_assumed_and_not_ensured(path: Path) -> None:
    with Turnstile.open(path) as t:
        policy = t.create_dataset("timed", budget=1.0, assume_independent_timing=True)
        other = t.create_dataset("d", measure="zcdp", epsilon=1.0, delta=1e-5)
    timed, plain = statement_of([policy], 1e-5), statement_of([other], 1e-5)
    assert set(plain.ensured) - set(timed.ensured)
    assert set(timed.assumed) - set(plain.assumed)
