"""Linear regression with correlated noise (DP-FTRL), charged step by step.

    python dp_ftrl.py

Step t releases row t of x + C^-1 Z; docs/dp-ftrl.md says what such a training must keep to.
"""

from collections import deque

import numpy as np

from accounting import banded_steps
from accounting.release.clipping import clip_rows, row_norms
from streams import Turnstile
from streams.trainers import sampled_cohort

BANDS, STEPS, NOISE, CLIP, RATE = 4, 60, 6.0, 1.0, 1.0
POPULATION, ASKED = 1_000, 0.1  # public: the number of users, and the probability of each coin
COLUMN = np.array([1.0, 1 / 2, 3 / 8, 5 / 16])  # C is Toeplitz: the root of a prefix sum, cut off
PRICES = banded_steps(COLUMN, NOISE, min_separation=BANDS, steps=STEPS)

data = np.random.default_rng(0)
truth = np.array([1.0, -2.0, 0.5])
features = data.normal(size=(1_000, 3))  # one row per user
targets = features @ truth + data.normal(size=1_000) / 4
users = np.arange(1_000)

with Turnstile.in_memory() as t:  # or Turnstile("localhost:9092")
    t.create_dataset("phones", measure="gdp", epsilon=1.5, delta=1e-6)
    run = t.run("phones", "night-7", min_separation=BANDS)
    model = np.zeros(3)
    correlated = deque(maxlen=BANDS - 1)  # the last rows of C^-1 Z: as secret as the data
    noise = np.random.default_rng()
    for step in range(run.step, STEPS):
        cohort = users[sampled_cohort(users, ASKED)]  # an independent coin per user
        residuals = features[cohort] @ model - targets[cohort]
        gradients = features[cohort] * residuals[:, np.newaxis]
        norms = row_norms(gradients)  # rounded up
        d = run.charge(cohort, np.minimum(norms, CLIP), mechanism=PRICES[step], clip_norm=CLIP)
        # Only now: the admitted users, each clipped to the granted norm; halted users have 0.
        summed = clip_rows(gradients, d.granted).sum(axis=0)
        row = noise.normal(scale=NOISE, size=3)  # of Z; then forward substitution
        for back, earlier in enumerate(reversed(correlated), start=1):
            row -= COLUMN[back] * earlier
        correlated.append(row / COLUMN[0])
        model -= RATE * (summed + correlated[-1]) / (ASKED * POPULATION)

    halts = list(t.halts("phones", follow=False))
    too_soon = sum(halt.reason == "too-soon" for halt in halts)  # the others cannot pay

print("model:", *(f"{weight:.2f}" for weight in model))  # halts are private: print none of them
