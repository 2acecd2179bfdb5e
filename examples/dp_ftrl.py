"""Linear regression with correlated noise (DP-FTRL), charged step by step.

    python dp_ftrl.py

Fixed groups of users take turns. docs/dp-ftrl.md says what such a training must keep to.
"""

import numpy as np

from accounting import square_root_column
from streams import Turnstile
from streams.trainers import CorrelatedSteps, Descent, PrivateTrainer, noise_for_steps

GROUPS, PASSES, RATE = 10, 6, 0.5
POPULATION = 1_000  # a public number of users; their true number is not public

data = np.random.default_rng(0)
truth = np.array([1.0, -2.0, 0.5])
features = data.normal(size=(990, 3))  # one row per user
targets = features @ truth + data.normal(size=990) / 4
users = np.arange(990)


def gradients(model, positions):
    """Return a row for each user at these positions, whichever other users are there."""
    rows = features[positions]
    return rows * ((rows * model).sum(axis=1) - targets[positions])[:, np.newaxis]


with Turnstile.in_memory() as t:  # or Turnstile("localhost:9092")
    policy = t.create_dataset("phones", measure="gdp", epsilon=3.0, delta=1e-6)
    run = t.run("phones", "night-7", min_separation=GROUPS)
    steps = CorrelatedSteps(
        run,
        users,
        column=square_root_column(GROUPS),
        clip_norm=1.0,
        noise_multiplier=noise_for_steps([policy], PASSES),  # a user takes part once per pass
        expected_batch=POPULATION / GROUPS,
        steps=GROUPS * PASSES,
    )
    trainer = PrivateTrainer(steps, gradients, Descent(RATE))  # with checkpoint= it can go on
    model = trainer.run(np.zeros(3), GROUPS * PASSES)

print("model:", *(f"{weight:.2f}" for weight in model))
