"""How many examples a property is tried with: as many as it says, and in `make check` fewer."""

from hypothesis import settings


def examples(most: int) -> settings:
    """For a property that is dear to compute: at most so many, and never more than the profile."""
    return settings(max_examples=min(most, settings.default.max_examples))
