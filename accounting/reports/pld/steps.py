"""The losses of one step at each level of a report, from its mechanism and norm."""

from __future__ import annotations

from typing import Final, NamedTuple, TypeAlias

import numpy as np

from accounting.exact.validation import BoolArray, FloatArray
from accounting.reports.histories import LossParameters, Mechanisms, per_level, step_of
from accounting.reports.pld.bounded_losses import LaplaceShift, RandomisedResponse
from accounting.reports.pld.losses import LARGEST_RATIO, SampledGaussian

StepSource: TypeAlias = SampledGaussian | LaplaceShift | RandomisedResponse
_SMALLEST: Final = 1e-150  # smaller sizes count as this


class Steps(NamedTuple):
    """The losses of the levels, shape (levels,).

    `unbounded`: whether the losses are only valid as a lower bound; `free`: whether nothing is
    lost.
    """

    sources: tuple[StepSource, ...]
    unbounded: BoolArray
    free: BoolArray

    def mirrored(self) -> BoolArray:
        """Return whether each level loses the same when a user is added or removed."""
        return np.array([is_mirrored(source) for source in self.sources], dtype=np.bool_)


def is_mirrored(source: StepSource) -> bool:
    """Return whether the step loses the same in both directions."""
    return not isinstance(source, SampledGaussian) or source.sampling_rate == 1.0


def steps_of(mechanisms: Mechanisms, norms: FloatArray) -> Steps:
    """Return the steps of `norms`, shape (levels,), > 0."""
    each = per_level(mechanisms, norms.size)
    steps = [step_of(*pair) for pair in zip(each, norms.tolist(), strict=True)]
    sizes = np.array([step.size for step in steps])
    clipped = np.clip(sizes, _SMALLEST, LARGEST_RATIO)
    return Steps(
        tuple(_source(*pair) for pair in zip(steps, clipped.tolist(), strict=True)),
        np.asarray(sizes > LARGEST_RATIO),
        np.array([step.kind == "nothing" for step in steps], dtype=np.bool_),
    )


def _source(step: LossParameters, size: float) -> StepSource:
    match step.kind:
        case "gaussian" | "sampled" | "nothing":
            return SampledGaussian(size, step.sampling_rate)
        case "laplace":
            return LaplaceShift(size)
        case "pure":
            return RandomisedResponse(size)
