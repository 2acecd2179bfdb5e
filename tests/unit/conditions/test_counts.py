"""Which counts of users only ever rise."""

from __future__ import annotations

from streams import Turnstile


def test_only_the_number_of_exhausted_users_never_falls() -> None:
    """A halted user may be admitted to a later, cheaper step; an exhausted one may not."""
    halted, exhausted = [], []
    with Turnstile.in_memory() as turnstile:
        turnstile.create_dataset("d", measure="zcdp", budget=0.5)
        run = turnstile.run("d", "r")
        for norms in ([0.0, 0.5], [3.0, 4.0], [1.0, 0.1], [0.1, 3.0], [0.1, 0.1]):
            decision = run.charge([1, 2], norms, noise_stddev=1.0)
            halted.append(int((~decision.admitted).sum()))
            exhausted.append(int(decision.exhausted.sum()))
    assert halted == [0, 2, 0, 2, 1]
    assert exhausted == [0, 0, 1, 1, 1]
