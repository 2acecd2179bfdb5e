"""Individual accounting for JAX: in the place of ``jax.grad``, or first in a chain of optax.

    private = PrivateSteps(run, grouped.users, clip_norm=1.0, noise_stddev=1.1, ...)
    gradient = private_grad(loss, private, grouped)
    while private.step < steps:
        updates, state = optimizer.update(gradient(params, images, labels), state, params)
        params = optax.apply_updates(params, updates)

``loss(params, *example)`` is that of one example. Whoever computes gradients by user elsewhere
gives them to ``individual_dp``, which has the shape of an optax transformation. Neither can be
compiled as a whole: between two steps stands a charge. JAX is the extra ``jax``; optax is not
needed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from numpy.typing import NDArray

from streams.sdk.errors import InvalidRequest
from streams.trainers.examples import ExamplesByUser
from streams.trainers.steps import PrivateSteps

Tree: TypeAlias = Any
"""Arrays in dicts, lists and tuples, as JAX takes them."""


class GradientTransformation(NamedTuple):
    """A pair of functions, as optax has them; ``optax.chain`` takes it."""

    init: Callable[[Tree], Any]
    update: Callable[..., tuple[Tree, Any]]


class EmptyState(NamedTuple):
    """Nothing has to be kept between steps but what the run keeps."""


def individual_dp(private: PrivateSteps) -> GradientTransformation:
    """From gradients by user to a private mean.

    It is used as ``optax.contrib.differentially_private_aggregate`` is. The updates given are those
    of the users of ``private.begin()``, in that order: every leaf has them along its first axis, a
    user's being the sum over its examples. What comes out has the shape of the parameters. Begin a
    step, update once, and again.

    Raises (in ``update``):
        InvalidRequest: the step was not begun, or there are other users than were drawn.
    """

    def init(params: Tree) -> EmptyState:
        return EmptyState()

    def update(updates: Tree, state: EmptyState, params: Tree = None) -> tuple[Tree, EmptyState]:
        step = private.open_step
        if step is None:
            raise InvalidRequest("begin a step first: its users are those to give gradients of")
        leaves, structure = jax.tree.flatten(updates)
        users = len(step.positions)
        for leaf in leaves:
            if leaf.ndim == 0 or len(leaf) != users:
                raise InvalidRequest(
                    f"a gradient has shape {leaf.shape}; its first axis must be the {users} users "
                    "who were drawn"
                )
        step.forget()
        sizes = [math.prod(leaf.shape[1:]) for leaf in leaves]
        rows = [np.reshape(leaf, (users, size)) for leaf, size in zip(leaves, sizes, strict=True)]
        step.add(np.concatenate(rows, axis=1))
        parts = np.split(step.release(), np.cumsum(sizes)[:-1])
        shaped = [
            jnp.asarray(part.reshape(leaf.shape[1:]), dtype=leaf.dtype)
            for part, leaf in zip(parts, leaves, strict=True)
        ]
        return jax.tree.unflatten(structure, shaped), state

    return GradientTransformation(init, update)


def private_grad(
    loss: Callable[..., jax.Array],
    private: PrivateSteps,
    examples: ExamplesByUser,
    *,
    examples_at_once: int = 256,
) -> Callable[..., Tree]:
    """A function of parameters and data that gives the private gradient of the next step.

    Every call charges a step, draws its users, and computes their gradients by ``jax.vmap``, always
    for so many examples at once: it is compiled once, and no result depends on the size of a batch.

    Args:
        loss: of parameters and one example, a number.
        private: whose users are those of ``examples``.
        examples: whose example is which.
        examples_at_once: bounds memory.

    Returns:
        ``(params, *data) -> gradient``, like params. Every array of ``data`` has the
        examples along its first axis.

    Raises (in that function):
        InvalidRequest: the data have another number of examples.
        TurnstileError: whatever the charge raises. Call again to go on.
    """
    if examples_at_once < 1:
        raise InvalidRequest(f"examples_at_once is {examples_at_once}; it must be at least 1")

    @jax.jit
    def rows_of(params: Tree, chosen: tuple[Tree, ...]) -> jax.Array:
        def row(*example: Tree) -> jax.Array:
            return ravel_pytree(jax.grad(loss)(params, *example))[0]

        return jax.vmap(row)(*chosen)

    def gradient(params: Tree, *data: Tree) -> Tree:
        for array in jax.tree.leaves(data):
            examples.check_covers(len(array))
        flat, unravel = ravel_pytree(params)
        step = private.begin()
        for places in examples.parts(step.positions, examples_at_once):
            chosen = examples.select(step.positions[places])
            rows = np.empty((len(chosen.examples), flat.size), dtype=flat.dtype)
            for start in range(0, len(rows), examples_at_once):
                here = chosen.examples[start : start + examples_at_once]
                padded = np.pad(here, (0, examples_at_once - len(here)), mode="edge")
                taken = jax.tree.map(partial(_take, padded), data)
                rows[start : start + len(here)] = rows_of(params, taken)[: len(here)]
            step.add(chosen.sums(rows.astype(np.float64)), places)
        return unravel(jnp.asarray(step.release(flat.size), dtype=flat.dtype))

    return gradient


def arrays_of(tree: Tree) -> dict[str, NDArray[Any]]:
    """The leaves of parameters and optimizer state, for ``Checkpoint.save``."""
    return {f"leaf {place}": np.asarray(leaf) for place, leaf in enumerate(jax.tree.leaves(tree))}


def tree_of(arrays: Mapping[str, NDArray[Any]], like: Tree) -> Tree:
    """What ``arrays_of`` took apart, put together in the manner of ``like``.

    Raises:
        InvalidRequest: it has other leaves.
    """
    leaves, structure = jax.tree.flatten(like)
    saved = [arrays.get(f"leaf {place}") for place in range(len(leaves))]
    shapes = [None if leaf is None else leaf.shape for leaf in saved]
    if len(arrays) != len(leaves) or shapes != [np.shape(leaf) for leaf in leaves]:
        raise InvalidRequest("the checkpoint was made of other parameters or another optimizer")
    return jax.tree.unflatten(structure, [jnp.asarray(leaf) for leaf in saved])


def _take(places: NDArray[np.int64], array: Any) -> Any:
    return jnp.asarray(array[places])
