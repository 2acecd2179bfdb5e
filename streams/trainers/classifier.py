"""Logistic regression with the interface of scikit-learn and individual accounting.

scikit-learn is not needed. Where it is installed, the classifier is one of its estimators and works
in its pipelines and searches (each fit charges again).

Everything that is learnt from the data outside of the private steps is a release. So features are
used as they are: scale them by bounds that are known without the data, not by their own mean and
deviation. The labels and the denominator are arguments without a default: a release divided by a
number of users that comes from the data reveals that number exactly.
"""

from __future__ import annotations

import inspect
import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from streams.sdk.arguments import read_rows
from streams.sdk.errors import InvalidRequest, Unusable
from streams.sdk.run import Run
from streams.trainers.checkpoint import Checkpoint
from streams.trainers.examples import ExamplesByUser
from streams.trainers.loop import (
    Descent,
    Floats,
    Gradients,
    PrivateTrainer,
    rounded_rows,
    row_products,
    softmax,
)
from streams.trainers.planning import counted_noise, noise_for_steps
from streams.trainers.steps import PrivateSteps

_ENTRIES_AT_ONCE = 2**22
"""Gradient entries of the users that are computed together."""

try:
    from sklearn.base import BaseEstimator, ClassifierMixin
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import check_is_fitted, validate_data

    class ClassifierBase(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
        """The base class of classifiers, from scikit-learn."""

        def __sklearn_tags__(self) -> Any:
            tags = super().__sklearn_tags__()
            tags.non_deterministic = self.not_private_seed is None
            tags.classifier_tags.poor_score = True  # of few users, under noise
            return tags

        def _read(
            self, rows: object, labels: object, *, reset: bool
        ) -> tuple[NDArray[np.float64], Any]:
            if labels is None and not reset:
                return validate_data(self, rows, reset=False, dtype=np.float64), None
            checked, wanted = validate_data(self, rows, labels, dtype=np.float64)
            check_classification_targets(wanted)
            return checked, wanted

        def _check_fitted(self, attribute: str) -> None:
            check_is_fitted(self, attribute)

except ModuleNotFoundError:

    class ClassifierBase:  # type: ignore[no-redef]
        """The base class of classifiers where scikit-learn is not installed."""

        n_features_in_: int

        def get_params(self, deep: bool = True) -> dict[str, Any]:
            """Return the constructor's arguments."""
            names = list(inspect.signature(type(self).__init__).parameters)[1:]
            return {name: getattr(self, name) for name in names}

        def set_params(self, **params: Any) -> ClassifierBase:
            """Set constructor arguments."""
            unknown = params.keys() - self.get_params().keys()
            if unknown:
                raise InvalidRequest(f"{type(self).__name__} has no argument {min(unknown)!r}")
            for name, value in params.items():
                setattr(self, name, value)
            return self

        def score(self, rows: Any, labels: Any) -> float:
            """Return the fraction of rows whose label is predicted correctly."""
            return float(np.mean(self.predict(rows) == np.asarray(labels)))

        def predict(self, rows: Any) -> NDArray[Any]:
            """Return the label of each row."""
            raise NotImplementedError

        def _read(
            self, rows: object, labels: object, *, reset: bool
        ) -> tuple[NDArray[np.float64], Any]:
            checked = read_rows("X", rows)
            if checked.ndim != 2 or not checked.size or not np.isfinite(checked).all():
                raise InvalidRequest(f"X has shape {checked.shape}; it must be (n, d) and finite")
            if reset:
                self.n_features_in_ = checked.shape[1]
            if checked.shape[1] != self.n_features_in_:
                raise InvalidRequest(
                    f"X has {checked.shape[1]} features; it must have {self.n_features_in_}, as in "
                    "fit"
                )
            wanted = None if labels is None else np.asarray(labels)
            if wanted is not None and wanted.shape != checked.shape[:1]:
                raise InvalidRequest(
                    f"y has shape {wanted.shape}; it must be ({len(checked)},), one label per row "
                    "of X"
                )
            return checked, wanted

        def _check_fitted(self, attribute: str) -> None:
            if not hasattr(self, attribute):
                raise Unusable(f"{type(self).__name__} is not fitted yet: call fit first")


class IndividualDPClassifier(ClassifierBase):
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
        steps: of the training.
        noise_multiplier: the noise, as a multiple of ``clip_norm``. None: the least with which the
            clip norm lasts for all ``steps``.
        sampling_rate: the probability with which a user is drawn for a step.
        clip_norm: of a user's gradient, the sum over its examples: the norm that lasts for all
            steps.
        max_examples_per_user: the number of a user's examples that are used at most
            (``ExamplesByUser.of``). None: all of them.
        learning_rate: of the descent.
        momentum: of the descent.
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
            X: (examples, features), finite.
            y: (examples,), labels.
            users: (examples,), the user of each example; by default each example has its own user.
            run: the run to charge, from ``Turnstile.run``. By default it is a run of a dataset in
                this process, which protects no promise that outlives the process: the same users
                can be charged elsewhere.

        Raises:
            InvalidRequest: the arguments are invalid, or the noise is too low for all steps; no
                user was charged.
            TurnstileError: any error of a charge.
        """
        rows, labels = self._read(X, y, reset=True)
        self.classes_, targets = self._labels(labels)
        grouped = (
            ExamplesByUser.one_each(len(rows))
            if users is None
            else ExamplesByUser.of(users, self.max_examples_per_user)
        )
        grouped.check_covers(len(rows))
        charged = run or self._own_run()
        self.noise_multiplier_ = self._noise(charged)
        seed = self.not_private_seed
        with_one = np.column_stack([rows, np.ones(len(rows))])
        shape = (with_one.shape[1], len(self.classes_))
        private = PrivateSteps(
            charged,
            grouped.users,
            clip_norm=self.clip_norm,
            noise_multiplier=self.noise_multiplier_,
            sampling_rate=self.sampling_rate,
            expected_batch=self._expected_batch(),
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
        self._check_fitted("coef_")
        rows, _ = self._read(X, None, reset=False)
        return np.asarray(rows @ self.coef_.T + self.intercept_)

    def _labels(self, labels: NDArray[Any]) -> tuple[NDArray[Any], NDArray[np.int64]]:
        classes = np.unique(np.asarray(self.classes))
        if len(classes) < 2:
            raise InvalidRequest(f"classes has {len(classes)} class; give at least 2")
        places = np.minimum(np.searchsorted(classes, labels), len(classes) - 1)
        unknown = np.flatnonzero(classes[places] != labels)
        if unknown.size:
            raise InvalidRequest(
                f"label {labels[unknown[0]]!r} is not in classes; list all possible labels"
            )
        return classes, places.astype(np.int64)

    def _expected_batch(self) -> float:
        population = self.population
        if not isinstance(population, int | float | np.number) or not 0 < population < math.inf:
            raise InvalidRequest(f"population is {population!r}; it must be a positive number")
        return float(self.sampling_rate * population)

    def _noise(self, run: Run) -> float:
        if self.noise_multiplier is not None:
            return float(self.noise_multiplier)
        policies = [run.policy, *run.outer]
        return noise_for_steps(policies, self.steps, sampling_rate=self.sampling_rate)

    def _own_run(self) -> Run:
        from streams.sdk.client import Turnstile

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


def logistic_gradients(
    features: Floats, targets: NDArray[np.int64], classes: int, examples: ExamplesByUser
) -> Gradients:
    """Return the gradients of multinomial logistic regression, a row for each user.

    A user's row is the same, bit for bit, whichever other users are in the batch.

    Args:
        features: (examples, d).
        targets: (examples,), indices of the labels among the classes.
        classes: the number of classes.
        examples: the examples of each user.
    """
    # Without a warning of numpy, which would tell that there is a user with such features.
    silent = np.errstate(over="ignore", invalid="ignore")
    features = silent(rounded_rows)(features)

    @silent
    def gradients(model: Floats, positions: NDArray[np.int64]) -> Floats:
        chosen = examples.select(positions)
        rows, wanted = features[chosen.examples], targets[chosen.examples]
        residuals = softmax(row_products(rows, model.reshape(-1, classes)))
        residuals[np.arange(len(wanted)), wanted] -= 1.0
        outer = rows[:, :, np.newaxis] * residuals[:, np.newaxis, :]
        return np.asarray(chosen.sums(outer.reshape(len(wanted), -1)))

    return gradients
