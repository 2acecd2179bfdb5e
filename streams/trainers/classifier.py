"""Logistic regression with the interface of scikit-learn and individual accounting.

The classifier is an estimator of scikit-learn, the extra ``sklearn``. It works in pipelines and
searches (each fit charges again).

Everything that is learnt from the data outside of the private steps is a release. So features are
used as they are: scale them by bounds that are known without the data, not by their own mean and
deviation. An example without a known label or with a feature that is not finite counts as zero, in
silence: an error or a warning would tell that a user with such an example is in the data.

The labels and the denominator are arguments without a default: a release divided by a number of
users that comes from the data reveals that number exactly.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.validation import check_is_fitted, column_or_1d, validate_data

from streams.sdk.arguments import nearest_float
from streams.sdk.client import Turnstile
from streams.sdk.errors import InvalidRequest
from streams.sdk.run import Run
from streams.trainers.checkpoint import Checkpoint
from streams.trainers.examples import ExamplesByUser, SumsByUser
from streams.trainers.loop import (
    Descent,
    Floats,
    Gradients,
    PrivateTrainer,
    rounded_rows,
    row_products,
    softmax,
)
from streams.trainers.planning import counted_noise, noise_for_steps, public_population
from streams.trainers.steps import PrivateSteps

_ENTRIES_AT_ONCE = 2**22
"""Gradient entries of the users that are computed together."""


class IndividualDPClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Multinomial logistic regression, (epsilon, delta)-private for every user.

    Neighbouring datasets differ by adding or removing one user. By default the noise is what the
    budget needs so that a user whose gradient always has the length ``clip_norm`` can pay for every
    step. In a dataset whose measure charges norms, a user with shorter gradients is charged less,
    and has the rest for later trainings.

    Args:
        epsilon: with delta, the budget of a dataset in this process, which counts steps. A ``run``
            given to ``fit`` has the budget of its own dataset, which then applies.
        delta: see epsilon.
        population: a public number of users: a round figure, or a count that was released
            privately. ``sampling_rate`` times this number is the denominator of every release. The
            number of users in the data is not public: neighbouring datasets differ in it.
        classes: all possible labels, two or more. They are public: do not take them from y.
        steps: the number of steps of the training.
        noise_multiplier: the noise, as a multiple of ``clip_norm``. None: the least with which the
            clip norm lasts for all ``steps``.
        sampling_rate: the probability with which a user is drawn for a step.
        clip_norm: the largest norm of a user's gradient, the sum over its examples. An unspent
            budget pays for this norm in every planned step.
        max_examples_per_user: the number of a user's examples that are used at most
            (``ExamplesByUser.of``). None: all of them.
        learning_rate: the learning rate of the descent.
        momentum: the momentum of the descent.
        checkpoint: a file with model and released step, for a ``run`` that is opened again.
        not_private_seed: seeds coins and noise, for experiments that must be repeated. A party that
            knows it knows the noise, so nothing is private then.

    Attributes:
        classes_: labels, in the order of the columns of ``predict_proba``.
        coef_: (classes, features).
        intercept_: (classes,).
        noise_multiplier_: the noise that was charged, as a multiple of ``clip_norm``.
        n_features_in_: the number of features.
        n_iter_: the number of steps.
    """

    def __init__(
        self,
        epsilon: float = 8.0,
        delta: float = 1e-5,
        *,
        population: float,
        classes: ArrayLike,
        steps: int = 200,
        noise_multiplier: float | None = None,
        sampling_rate: float = 0.1,
        clip_norm: float = 1.0,
        max_examples_per_user: int | None = None,
        learning_rate: float = 4.0,
        momentum: float = 0.0,
        checkpoint: str | None = None,
        not_private_seed: int | None = None,
    ) -> None:
        self.epsilon = epsilon
        self.delta = delta
        self.population = population
        self.classes = classes
        self.steps = steps
        self.noise_multiplier = noise_multiplier
        self.sampling_rate = sampling_rate
        self.clip_norm = clip_norm
        self.max_examples_per_user = max_examples_per_user
        self.learning_rate = learning_rate
        self.momentum = momentum
        self.checkpoint = checkpoint
        self.not_private_seed = not_private_seed

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.non_deterministic = self.not_private_seed is None
        tags.classifier_tags.poor_score = True  # of few users, under noise
        return tags

    def fit(
        self,
        X: ArrayLike,  # noqa: N803
        y: ArrayLike,
        users: ArrayLike | None = None,
        *,
        run: Run | None = None,
    ) -> IndividualDPClassifier:
        """Train, charging every step before it is released.

        Args:
            X: (examples, features). An example that is not finite counts as zero. Text, a row of
                another length, or in a frame an int beyond float64 is an error: convert it first.
            y: (examples,), labels. An example whose label is not in ``classes`` counts as zero.
            users: (examples,), the user of each example; by default each example has its own user.
                An invalid id is an error: leave it out first (``QueryAnswerer.answer``).
            run: the run to charge, from ``Turnstile.run``. By default it is a run of a dataset in
                this process, which protects no promise that outlives the process: the same users
                can be charged elsewhere.

        Raises:
            InvalidRequest: the arguments are invalid, or the noise is too low for all steps; no
                user was charged.
            TurnstileError: any error of a charge.
        """
        rows = self._read(X)
        self.classes_, targets = self._labels(y, len(rows))
        finite = np.asarray(np.isfinite(rows).all(axis=1))
        rows, targets = np.where(finite[:, np.newaxis], rows, 0.0), np.where(finite, targets, -1)
        grouped = ExamplesByUser.covering(len(rows), users, self.max_examples_per_user)
        charged = run or self._own_run()
        policies, noise = [charged.policy, *charged.outer], self.noise_multiplier
        if noise is None:
            noise = noise_for_steps(policies, self.steps, sampling_rate=self.sampling_rate)
        self.noise_multiplier_ = float(noise)
        seed = self.not_private_seed
        with_one = np.column_stack([rows, np.ones(len(rows))])
        shape = (with_one.shape[1], len(self.classes_))
        private = PrivateSteps(
            charged,
            grouped.users,
            clip_norm=self.clip_norm,
            noise_multiplier=self.noise_multiplier_,
            sampling_rate=self.sampling_rate,
            expected_batch=self.sampling_rate * public_population(self.population),
            steps=self.steps,
            not_private_generator=None if seed is None else np.random.default_rng(seed),
        )
        trainer = PrivateTrainer(
            private,
            logistic_gradients(with_one, targets, len(self.classes_), grouped),
            Descent(self.learning_rate, self.momentum),
            checkpoint=None if self.checkpoint is None else Checkpoint(self.checkpoint),
            users_at_once=max(1, _ENTRIES_AT_ONCE // (shape[0] * shape[1])),
        )
        weights = trainer.run(np.zeros(shape[0] * shape[1]), self.steps)
        weights = weights.reshape(shape)
        self.coef_, self.intercept_ = weights[:-1].T.copy(), weights[-1].copy()
        self.n_iter_ = private.step
        return self

    def decision_function(self, X: ArrayLike) -> Floats:  # noqa: N803
        """Return scores (n, classes); for two classes, the second score minus the first, (n,)."""
        scores = self._scores(X)
        return np.asarray(scores[:, 1] - scores[:, 0]) if scores.shape[1] == 2 else scores

    def predict_proba(self, X: ArrayLike) -> Floats:  # noqa: N803
        """Return probabilities (n, classes)."""
        return softmax(self._scores(X))

    def predict(self, X: ArrayLike) -> NDArray[Any]:  # noqa: N803
        """Return the likeliest label of each row, (n,)."""
        likeliest = self._scores(X).argmax(axis=1)
        return np.asarray(self.classes_[likeliest])

    def _scores(self, X: ArrayLike) -> Floats:  # noqa: N803
        check_is_fitted(self, "coef_")
        rows = validate_data(self, X, reset=False, dtype=np.float64)
        return np.asarray(rows @ self.coef_.T + self.intercept_)

    def _read(self, rows: object) -> NDArray[np.float64]:
        if isinstance(rows, list | tuple | np.ndarray):
            array = np.asarray(rows)
            if array.dtype == object and array.size:  # an int beyond float64 is no error
                rows = np.vectorize(nearest_float, otypes=[object])(array)
        settings = {"dtype": np.float64, "ensure_all_finite": False, "ensure_min_samples": 0}
        return np.asarray(validate_data(self, rows, reset=True, **settings))

    def _labels(self, y: ArrayLike, examples: int) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """Return the classes, and the place of each label among them, -1 if it has none."""
        if y is None:
            raise InvalidRequest("fit requires y to be passed, but the target y is None")
        classes = np.unique(np.asarray(self.classes))
        if len(classes) < 2:
            raise InvalidRequest(f"classes has {len(classes)} class; give at least 2")
        if isinstance(y, list | tuple):
            # One by one: np.asarray makes all labels text, or fails, because of one of them.
            labels = np.empty(len(y), dtype=object)
            for place, label in enumerate(y):
                labels[place] = label
        else:
            labels = np.asarray(y)
            labels = labels if labels.ndim == 1 else np.asarray(column_or_1d(labels, warn=True))
        if labels.shape != (examples,):
            raise InvalidRequest(
                f"y has shape {labels.shape}; it must be ({examples},), one label per row of X"
            )
        text = [kind.dtype.kind in "US" for kind in (labels, classes)]
        if labels.dtype != object and text[0] != text[1]:  # the type of a column is public
            raise InvalidRequest(
                f"y has type {labels.dtype}, classes has {classes.dtype}: no label is in classes"
            )
        known = {label: place for place, label in enumerate(classes.tolist())}
        return classes, np.array(
            [_place(known, label) for label in labels.tolist()], dtype=np.int64
        )

    def _own_run(self) -> Run:
        noise = self.noise_multiplier
        if noise is None:
            noise = counted_noise(self.epsilon, self.delta, self.sampling_rate, self.steps)
        service = Turnstile.in_memory(partitions=1)
        service.create_dataset(
            "fit",
            measure="steps",
            epsilon=self.epsilon,
            delta=self.delta,
            sampling_rate=self.sampling_rate,
            noise_multiplier=noise,
        )
        return service.run("fit", "fit")


def _place(known: dict[Any, int], label: Any) -> int:
    """Return the place of a label, -1 if it has none."""
    try:
        return known.get(label, -1)
    except TypeError:  # a list, or something else that cannot be looked up
        return -1


def logistic_gradients(
    features: Floats, targets: NDArray[np.int64], classes: int, examples: ExamplesByUser
) -> Gradients:
    """Return the gradients of multinomial logistic regression, a row for each user.

    A user's row is the same, bit for bit, whichever other users are in the batch.

    Args:
        features: (examples, d).
        targets: (examples,), indices of the labels among the classes; -1: the example counts as
            zero.
        classes: the number of classes.
        examples: the examples of each user.
    """
    # Without a warning of numpy, which would tell that there is a user with such features.
    silent = np.errstate(over="ignore", invalid="ignore")
    features = silent(rounded_rows)(features)

    @silent
    def gradients(model: Floats, positions: NDArray[np.int64]) -> Floats:
        chosen, counts = examples.select(positions)
        rows, wanted = features[chosen], targets[chosen]
        residuals = softmax(row_products(rows, model.reshape(-1, classes)))
        residuals[np.arange(len(wanted)), wanted] -= 1.0
        residuals[wanted < 0] = 0.0
        outer = rows[:, :, np.newaxis] * residuals[:, np.newaxis, :]
        _, (sums,) = SumsByUser(counts).add([outer.reshape(len(wanted), -1)])
        return sums

    return gradients
