"""The loop of a private training on arrays: draw, compute gradients, release, update, save.

The model is a vector. It is saved with the released step before anything of the step is published.
The same lines restart a training that was interrupted:

    run = t.run("mnist", "night-7")
    steps = PrivateSteps(run, users, ...)
    trainer = PrivateTrainer(steps, gradients, Descent(0.5), checkpoint=Checkpoint("night-7.npz"))
    model = trainer.run(model, 1000)

The run is opened without ``released``: a step whose users may have been drawn is given up, not
drawn again. Only a training without sampling (``sampling_rate=1``) may open it with
``released=checkpoint.released()``; a step that was not released is then handed back.

Gradients are functions of one user's data alone, bit for bit. Matrix products of a batch are not:
linear algebra libraries add up in an order that follows the shape of the batch and the number of
threads. So the gradient of one user would depend, in its last bits, on which other users were
drawn, which the proofs exclude (docs/guarantees.md). `rounded_rows` and `row_products` round the
entries of both factors to few bits, at one power of two per row and per column. A sum of products,
in units of the two powers, is then a sum of integers below 2^53, and float64 holds every partial
sum exactly. (Numbers so small that products underflow are not covered: scores of 1e-300 are 0 to a
softmax.)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from accounting.exact.argument_checks import whole_number
from accounting.exact.invalid_input import quoted
from streams.sdk.errors import InvalidRequest, invalid_requests
from streams.trainers.checkpoint import Checkpoint
from streams.trainers.planning import Schedule
from streams.trainers.steps import PrivateSteps
from streams.trainers.sums import Rows

Floats: TypeAlias = NDArray[np.float64]

_EXACT_BITS: Final = 53
_SMALLEST_EXPONENT: Final = -990  # entries that are smaller become zero

Gradients: TypeAlias = Callable[[Floats, NDArray[np.int64]], Rows]
"""Returns gradients (m, d) of the users at m positions: for each user the sum over its examples.

A user's row must be the same, bit for bit, whichever other users are in the batch. Matrix products
of a batch do not guarantee this; ``row_products`` does."""


class Optimizer(Protocol):
    """Updates a model by private gradients; this is post-processing."""

    def move(self, model: Floats, gradient: Floats, step: int) -> Floats:
        """Return the next model."""

    def state(self) -> Mapping[str, Floats]:
        """Return the arrays needed after a restart, by name."""

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Restore the state."""


class Descent:
    """Gradient descent, with optional momentum."""

    def __init__(self, learning_rate: Schedule, momentum: float = 0.0) -> None:
        self.learning_rate = learning_rate
        self.momentum = momentum
        self._velocity: Floats | None = None

    def move(self, model: Floats, gradient: Floats, step: int) -> Floats:
        """Return the model after one step down the gradient, or the momentum."""
        if self.momentum:
            before = 0.0 if self._velocity is None else self._velocity
            self._velocity = gradient = self.momentum * before + gradient
        rate = self.learning_rate(step) if callable(self.learning_rate) else self.learning_rate
        return model - rate * gradient

    def state(self) -> Mapping[str, Floats]:
        """Return the velocity, if there is one."""
        return {} if self._velocity is None else {"velocity": self._velocity}

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Restore the velocity."""
        self._velocity = state.get("velocity")


class PrivateTrainer:
    """Trains a vector by private steps.

    Args:
        steps: charges, draws and releases.
        gradients: see ``Gradients``.
        optimizer: updates the model.
        checkpoint: the file of the model and the released step. Without it a training that is
            interrupted is lost, and stays charged.
        checkpoint_every: steps between two writes. A crash loses the steps since the last one,
            which stay charged.
        users_at_once: the number of users whose gradients are computed together. It bounds memory,
            so that a large batch does not end the process.
        charge_ahead: charge the next step while the current one is computed (see
            ``PrivateSteps.begin``).
    """

    def __init__(
        self,
        steps: PrivateSteps,
        gradients: Gradients,
        optimizer: Optimizer,
        *,
        checkpoint: Checkpoint | None = None,
        checkpoint_every: int = 1,
        users_at_once: int = 1024,
        charge_ahead: bool = False,
    ) -> None:
        with invalid_requests():
            self._every = whole_number("checkpoint_every", checkpoint_every, 1, 2**62)
            self._at_once = whole_number("users_at_once", users_at_once, 1, 2**62)
        self.steps = steps
        self._gradients = gradients
        self._optimizer = optimizer
        self._checkpoint = checkpoint
        self._ahead = charge_ahead
        self._model: Floats | None = None
        self._due: int | None = None  # the step whose model has to be saved and published

    def run(
        self,
        model: Floats,
        steps: int,
        *,
        released: Callable[[int, Floats], None] | None = None,
    ) -> Floats:
        """Train until the run has made this many steps in total, and return the model.

        The number of steps may depend on released values, but not on which users are exhausted. The
        ``stop`` of ``PrivateSteps`` may end the training before.

        Before a model is saved and published, the service is asked whether this attempt of the run
        is still the newest (``Run.check_attempt``).

        Args:
            model: the first model, (d,); a checkpoint or an earlier call takes precedence.
            steps: in total, those before a restart included.
            released: called with a step and the model after it, once they are saved; by default
                only the returned model is published.

        Raises:
            InvalidRequest: there are more steps than planned; nothing was charged.
            Fenced: another trainer has taken over the run. Publish nothing more.
            ReleasedTwice: the checkpoint has a step that the run has not reached, or a later one.
            TurnstileError: as ``Roster.charge`` and ``Run.check_attempt``; call again to continue.
        """
        planned = self.steps.planned
        if planned is not None and steps > planned:
            raise InvalidRequest(
                f"steps is {quoted(steps)}, but PrivateSteps has a plan of {planned}: give it the "
                "same number"
            )
        if self._model is None:
            self._model = self._resume(np.asarray(model, dtype=np.float64))
        model = self._model
        self.steps.warn_of_lost_steps()
        self._show(model, released)
        while self.steps.step < steps and not self.steps.stopped:
            step = self.steps.begin(ahead=self._ahead and self.steps.step + 1 < steps)
            for places in step.parts(self._at_once):
                step.add(self._gradients(model, step.positions[places]), places)
            gradient = step.release(len(model))
            self._model = model = self._optimizer.move(model, gradient, step.step)
            shows = released is not None or self._checkpoint is not None
            if (
                step.step + 1 >= steps
                or self.steps.stopped
                or (shows and (step.step + 1) % self._every == 0)
            ):
                self._due = step.step
            self._show(model, released)
        return model

    def _resume(self, model: Floats) -> Floats:
        saved = self.steps.resume(self._checkpoint) if self._checkpoint else None
        if saved is None:
            return model
        if saved.arrays["model"].shape != model.shape:
            raise InvalidRequest(
                f"the checkpoint has a model of shape {saved.arrays['model'].shape}; it must be "
                f"{model.shape}"
            )
        self._optimizer.restore(saved.arrays)
        return saved.arrays["model"].astype(np.float64)

    def _show(self, model: Floats, released: Callable[[int, Floats], None] | None) -> None:
        """Save and publish the model if that is due, also after an earlier try has failed."""
        if self._due is None:
            return
        if self._checkpoint is None:
            self.steps.check_attempt()
        else:
            self.steps.save(self._checkpoint, {**self._optimizer.state(), "model": model})
        step, self._due = self._due, None
        if released is not None:
            released(step, model)


def rounded_rows(rows: Floats) -> Floats:
    """Round the entries of each row, (m, d), so that ``row_products`` is exact.

    Each is rounded to a relative 2^-k of the largest entry in its row, where k = (53 - log2 d) / 2:
    23 bits for 65 columns, 21 for 785.
    """
    return _rounded(rows, 1, _bits(rows.shape[1]))


def row_products(rows: Floats, matrix: Floats) -> Floats:
    """Multiply rows from ``rounded_rows`` by a matrix, (d, c), whose columns are rounded alike."""
    return np.asarray(rows @ _rounded(matrix, 0, _bits(len(matrix))))


def softmax(scores: Floats) -> Floats:
    """Return the softmax of each row, (m, c)."""
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=1, keepdims=True))


def _bits(terms: int) -> int:
    """Return the bits of each factor with which a sum of so many products is below 2^53."""
    return (_EXACT_BITS - terms.bit_length()) // 2


def _rounded(values: Floats, axis: int, bits: int) -> Floats:
    largest = np.abs(values).max(axis=axis, keepdims=True, initial=0.0)
    exponents = np.maximum(np.frexp(largest)[1], _SMALLEST_EXPONENT)
    whole = np.rint(values * np.ldexp(1.0, bits - exponents))
    return np.asarray(whole * np.ldexp(1.0, exponents - bits))
