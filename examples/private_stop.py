"""A training that ends when a noisy count of the users who can pay is below a public threshold.

    python private_stop.py

The counts are charged to every user before the training (docs/train/loop.md).
"""

import numpy as np

from streams import Turnstile
from streams.trainers import Descent, PrivateSteps, PrivateStop, PrivateTrainer

random = np.random.default_rng(0)  # replace this with your data: one row per user
users = list(range(2_000))
rows = 0.2 + random.normal(size=(2_000, 4)) * random.uniform(0.1, 0.5, size=(2_000, 1))

with Turnstile.in_memory() as t:
    t.create_dataset("faces", measure="gdp", epsilon=2.0, delta=1e-5)
    stop = PrivateStop(
        t, "faces", "night-7-stop", users, threshold=1_000, noise_stddev=50.0, every=10, counts=20
    )
    steps = PrivateSteps(
        t.run("faces", "night-7"),
        users,
        clip_norm=1.0,
        noise_multiplier=10.0,
        sampling_rate=1.0,
        expected_batch=2_000,  # a public number of users
        stop=stop,
    )
    trainer = PrivateTrainer(steps, lambda model, chosen: model - rows[chosen], Descent(0.5))
    model = trainer.run(np.zeros(4), 200)  # ends before step 200 if a count is below 1,000
    t.close_run("faces", "night-7")

print(steps.step, "steps; counts:", [round(count) for _, count in stop.counted])
