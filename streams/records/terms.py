"""The terms of a new dataset: how people state a policy, whatever they create it with.

``PolicyTerms`` is the one table of them. The keyword arguments of ``create_dataset``, the options
of ``turnstile dataset create`` and the body of the HTTP request are made from it. A term with the
name of a field of ``Policy`` becomes that field. ``streams.sdk.dataset_requests.policy_from``
converts the terms that people state in another form than records have.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from inspect import Parameter, signature
from typing import (
    Annotated,
    Any,
    Final,
    NamedTuple,
    TypedDict,
    TypeVar,
    get_args,
    get_type_hints,
)

from streams.records.fields import DELTA, Measure, OnExhaustion, Right, UserIdKind
from streams.records.requests import Policy

Function = TypeVar("Function", bound=Callable[..., Any])


class PolicyTerm(NamedTuple):
    """The facts about a term that programs need besides its type in Python."""

    help: str
    """The help of the option."""
    default: Any = None
    """The value if the term is not given. None, as always, counts as not given."""
    option: str = ""
    """The option and its placeholder, if not ``--the-name``."""


class PolicyTerms(TypedDict, total=False):
    """The keyword arguments of ``Turnstile.create_dataset``, which describes them."""

    measure: Annotated[
        Measure,
        PolicyTerm(
            "how losses add up; gdp is exact for Gaussian steps, and sampled steps need renyi or "
            "steps",
            default="gdp",
        ),
    ]
    epsilon: Annotated[float | None, PolicyTerm("the budget as an epsilon, at --delta")]
    delta: Annotated[
        float | None,
        PolicyTerm(
            "the delta of --epsilon; with --share-of, of the epsilon that is shown (default: "
            f"{DELTA:g}, because a policy has no delta)",
            option="--delta D",
        ),
    ]
    budget: Annotated[
        float | Sequence[float] | None,
        PolicyTerm(
            "the budget in the unit of the measure: mu (gdp), rho (zcdp), epsilon (pure-dp), one "
            "for each order (renyi), a number of steps (steps)"
        ),
    ]
    orders: Annotated[Sequence[float] | None, PolicyTerm("the Rényi orders")]
    sampling_rate: Annotated[
        float | None, PolicyTerm("the largest sampling rate of a step (steps)")
    ]
    noise_multiplier: Annotated[
        float | None,
        PolicyTerm("the smallest noise of a step, as a multiple of the clip norm (steps)"),
    ]
    odometer_step: Annotated[
        float | Sequence[float] | None,
        PolicyTerm("the size of an odometer tick, in the unit of the budget"),
    ]
    on_exhaustion: Annotated[
        OnExhaustion,
        PolicyTerm("halt a user whose norm does not fit, or clip the norm", default="halt"),
    ]
    user_ids: Annotated[
        UserIdKind | None,
        PolicyTerm(
            "the kind of ids (default one-kind: integers or strings, as in the first charge)"
        ),
    ]
    parents: Annotated[
        str | Sequence[str],
        PolicyTerm(
            "another dataset of the same users; every step is charged to its budget as well; may "
            "be given several times",
            default=(),
            option="--parent DATASET",
        ),
    ]
    share_of: Annotated[
        Policy | None,
        PolicyTerm(
            "another dataset of the same users; the new dataset has a fixed share of its budget",
            option="--share-of DATASET",
        ),
    ]
    share: Annotated[float | None, PolicyTerm("this share, above 0 and at most 1")]
    assume_independent_timing: Annotated[
        bool,
        PolicyTerm(
            "runs may charge the dataset side by side; their timing must not depend on any user's "
            "data",
            default=False,
        ),
    ]
    sampled_levels: Annotated[
        bool | None,
        PolicyTerm(
            "norm levels may follow sampling coins, so only the whole budget has an epsilon "
            "(default: for renyi and steps)"
        ),
    ]
    allow: Annotated[
        Mapping[str, Sequence[Right]] | None,
        PolicyTerm(
            "a public key and its rights, as KEY:charge,manage; requests about the dataset must be "
            "signed by one of these keys",
            option="--allow KEY:RIGHTS",
        ),
    ]


TERMS: Final[Mapping[str, tuple[Any, PolicyTerm]]] = {
    name: (hint.__origin__, hint.__metadata__[0])
    for name, hint in get_type_hints(PolicyTerms, include_extras=True).items()
}
"""The type in Python and the row of each term."""


def choices_of(kind: Any) -> tuple[str, ...]:
    """Return the strings of a literal type, or of one that may be left out; otherwise nothing."""
    words = [word for one in get_args(kind) for word in get_args(one) or (one,)]
    return tuple(word for word in words if isinstance(word, str))


def takes_terms(function: Function) -> Function:
    """Show the terms in the signature of a function, for ``help`` and the completion of notebooks.

    Type checkers know them by ``Unpack[PolicyTerms]``, which programs that run do not look at.
    """
    shown = signature(function)
    *others, _ = shown.parameters.values()
    terms = [
        Parameter(term, Parameter.KEYWORD_ONLY, default=row.default, annotation=kind)
        for term, (kind, row) in TERMS.items()
    ]
    function.__signature__ = shown.replace(parameters=[*others, *terms])  # type: ignore[attr-defined]
    return function
