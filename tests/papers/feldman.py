"""Feldman and Zrnic, Theorem 4.9: their (epsilon, delta) filter against that of Rogers et al."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from accounting import ApproxDPFilter, PureDP, RogersFilter, zcdp_cost
from tests.papers.rows import BLUE, ORANGE, Row, figure, save

_EPSILON, _DELTA = 1.0, 1e-6
_STEP_EPSILONS = np.geomspace(0.003, 0.3, 25)
_LISTED = (0.01, 0.05, 0.1)


def filters(out: Path) -> list[Row]:
    """How many eps-DP steps each filter admits before (1, 1e-6) is spent."""
    ours, theirs = (
        np.array([admitted_steps(rule, eps) for eps in _STEP_EPSILONS]) for rule in ("FZ", "Rogers")
    )
    drawing = figure()
    axes = drawing.subplots()
    axes.plot(_STEP_EPSILONS, ours, color=BLUE, label="Feldman and Zrnic, Thm 4.9")
    axes.plot(_STEP_EPSILONS, theirs, color=ORANGE, label="Rogers et al.")
    axes.set(xscale="log", yscale="log", xlabel="ε of a step", ylabel="steps admitted")
    save(drawing, out / "feldman-zrnic-thm49.png")
    return [
        Row(
            "FZ Thm 4.9",
            f"steps of ε = {eps:g} within ({_EPSILON:g}, {_DELTA:g}): FZ, Rogers et al.",
            "FZ larger",
            f"{admitted_steps('FZ', eps):,}, {admitted_steps('Rogers', eps):,}",
        )
        for eps in _LISTED
    ]


def admitted_steps(rule: str, eps: float) -> int:
    """Steps of the same eps that a filter admits, one after the other."""
    chosen = ApproxDPFilter(_EPSILON, _DELTA) if rule == "FZ" else RogersFilter(_EPSILON, _DELTA)
    one = zcdp_cost(PureDP(), [eps]) if rule == "FZ" else np.array([eps])
    state = chosen.initial_state(1)
    steps = 0
    while True:
        state, admitted = chosen.admit(state, one)
        if not admitted[0]:
            return steps
        steps += 1
