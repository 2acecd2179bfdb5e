"""Policies as text, for error messages: the one that a dataset has, and the one requested."""

from __future__ import annotations

from typing import Any

from msgspec import UNSET
from msgspec.structs import asdict

from accounting.exact.units import from_units_down
from streams.records import DELTA, Policy, Reason
from streams.records.signatures import public_text
from streams.sdk.errors import PolicyChanged

_SAID_BY_THE_BUDGET = ("dataset", "partitions", "measure", "budget", "orders", "per_user_order")


def changed(error: PolicyChanged, asked: Policy, delta: float | None) -> PolicyChanged:
    """Return the error with a text that states how the two policies differ."""
    if error.held is None:
        return error
    there, wanted = _differences(error.held, asked, delta)
    detail = (
        f"dataset {asked.dataset!r} exists with another policy: it has {there}, but the request "
        f"has {wanted}. See `turnstile dataset show {asked.dataset}`"
    )
    return PolicyChanged(Reason.POLICY_CHANGED, detail, error.partition, held=error.held)


def terms(policy: Policy) -> str:
    """Return a policy as arguments of ``create_dataset``; budgets rounded down, for gdp mu
    squared.
    """
    said = {name: value for name, value in _terms(policy).items() if value not in ([], UNSET)}
    return ", ".join(f"{name}={value!r}" for name, value in said.items())


def _terms(policy: Policy) -> dict[str, Any]:
    found = asdict(policy)
    for field in ("budget", "odometer_step"):
        found[field] = [float(from_units_down(units)) for units in found[field]]
    if policy.allow is not UNSET:
        found["allow"] = {public_text(entry.key): entry.rights for entry in policy.allow}
    return found


def _differences(held: Policy, asked: Policy, delta: float | None) -> tuple[str, str]:
    """Return the differing terms, held and requested; all terms if the short form hides the
    difference.
    """
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
    """Return the budget in the unit of its measure, with the epsilon that it implies."""
    first = float(from_units_down(policy.budget[0]))
    if policy.measure == "pure-dp":
        return f"pure-dp epsilon {first:.6g}"
    at = DELTA if delta is None else delta
    implied = f"(epsilon {policy.epsilon(at):.6g} at delta {at:g})"
    match policy.measure:
        case "renyi":
            own = ", each user its own" if policy.per_user_order is not UNSET else ""
            return f"renyi of {len(policy.orders)} orders{own} {implied}"
        case "gdp":
            return f"gdp mu {first**0.5:.6g} {implied}"
    return f"{policy.measure} rho {first:.6g} {implied}"
