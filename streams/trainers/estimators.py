"""The base class of the estimators: scikit-learn's where it is installed, else a minimal one that
can fit and predict.
"""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streams.sdk.arguments import read_rows
from streams.sdk.errors import InvalidRequest, Unusable

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
