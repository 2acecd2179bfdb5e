"""Policies in words, for people: what a dataset has, and what was asked for in its place."""

from __future__ import annotations

import ast
from typing import Any

import msgspec
from msgspec import UNSET
from msgspec.structs import asdict

from accounting.exact.units import from_units_down
from streams.schemas import DELTA, Policy, Reason
from streams.sdk.errors import PolicyChanged

_SAID_BY_THE_BUDGET = ("dataset", "partitions", "measure", "budget", "orders", "own_order")
_QUOTED = "exists with another policy ("


def changed(error: PolicyChanged, asked: Policy, delta: float | None) -> PolicyChanged:
    """The refusal of a policy, with what is there and what was asked for in people's words.

    A partition quotes the policy that it holds, as far as there is room; one that does not fit, as
    that of many orders, is only said to be another one.
    """
    held = _quoted(error.detail)
    show = f"`turnstile dataset show {asked.dataset}`"
    if held is None:
        detail = (
            f"dataset {asked.dataset!r} exists with another policy, which {show} tells; you asked "
            f"for {_budget(asked, delta)}"
        )
    else:
        there, wanted = _differences(held, asked, delta)
        detail = (
            f"dataset {asked.dataset!r} exists with another policy: it has {there}; you asked for "
            f"{wanted}: {show}"
        )
    return PolicyChanged(Reason.POLICY_CHANGED, detail, error.partition)


def terms(policy: Policy) -> str:
    """A policy in the words of ``create_dataset``; budgets rounded down, for gdp mu squared."""
    said = {name: value for name, value in _terms(policy).items() if value not in ([], UNSET)}
    return ", ".join(f"{name}={value!r}" for name, value in said.items())


def _terms(policy: Policy) -> dict[str, Any]:
    found = asdict(policy)
    del found["own_exhaustion"]  # which follows from the others
    for field in ("budget", "odometer_step"):
        found[field] = [float(from_units_down(units)) for units in found[field]]
    if policy.user_ids is UNSET:
        found["user_ids"] = "as in version 1"
    if policy.allow is not UNSET:
        found["allow"] = asdict(policy.allow)
    return found


def _differences(held: Policy, asked: Policy, delta: float | None) -> tuple[str, str]:
    """What differs, as it is there and as it was asked for; all of it if words are too coarse."""
    there, wanted = [], []
    if any(getattr(held, name) != getattr(asked, name) for name in _SAID_BY_THE_BUDGET):
        there.append(_budget(held, delta))
        wanted.append(_budget(asked, delta))
    held_terms, asked_terms = _terms(held), _terms(asked)
    for name in held_terms:
        skipped = _SAID_BY_THE_BUDGET + (("odometer_step",) if there else ())
        unsaid = name == "user_ids" and asked.user_ids is UNSET
        if name not in skipped and not unsaid and held_terms[name] != asked_terms[name]:
            there.append(f"{name} {_value(held_terms[name])}")
            wanted.append(f"{name} {_value(asked_terms[name])}")
    if there == wanted:
        return terms(held), terms(asked)
    return ", ".join(there), ", ".join(wanted)


def _value(value: object) -> str:
    return "none" if value is UNSET else repr(value)


def _budget(policy: Policy, delta: float | None) -> str:
    """The budget in the unit of its measure, and the epsilon that it implies."""
    first = float(from_units_down(policy.budget[0]))
    if policy.measure == "pure-dp":
        return f"pure-dp epsilon {first:.6g}"
    at = DELTA if delta is None else delta
    implied = f"(epsilon {policy.epsilon(at):.6g} at delta {at:g})"
    match policy.measure:
        case "renyi":
            own = ", each user its own" if policy.own_order is not UNSET else ""
            return f"renyi of {len(policy.orders)} orders{own} {implied}"
        case "gdp":
            return f"gdp mu {first**0.5:.6g} {implied}"
    return f"{policy.measure} rho {first:.6g} {implied}"


def _quoted(detail: str) -> Policy | None:
    """The policy that a refusal quotes; None if it does not, or not all of it."""
    begin = detail.find(_QUOTED)
    try:
        end = detail.rindex("); a policy never changes")
        parsed = ast.parse(detail[begin + len(_QUOTED) : end].strip(), mode="eval")
        return msgspec.convert(_fields(parsed.body), Policy) if begin >= 0 else None
    except (ValueError, SyntaxError, msgspec.ValidationError):
        return None


def _fields(node: ast.expr) -> Any:
    """Names and values of a struct as Python writes it; values of any other literal."""
    if isinstance(node, ast.Call):
        return {word.arg or "": _fields(word.value) for word in node.keywords}
    return ast.literal_eval(node)
