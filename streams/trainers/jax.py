"""Individual accounting for JAX, instead of ``jax.grad`` (docs/train/jax.md).

The function that computes a step's gradient cannot be compiled as a whole, because a charge happens
between two steps. If gradients by user are computed elsewhere, give them to ``PrivateSteps``. JAX
is the extra ``jax``; optax is not needed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from numpy.typing import NDArray

from accounting.exact.argument_checks import whole_number
from streams.sdk.errors import InvalidRequest, invalid_requests
from streams.trainers.examples import ExamplesByUser, SumsByUser
from streams.trainers.steps import PrivateSteps

Tree: TypeAlias = Any
"""Arrays in dicts, lists and tuples, as JAX takes them."""


def private_grad(
    loss: Callable[..., jax.Array],
    private: PrivateSteps,
    examples: ExamplesByUser,
    *,
    examples_at_once: int = 256,
) -> Callable[..., Tree]:
    """Return a function of parameters and data that computes the next step's private gradient.

    Every call charges a step, draws its users, and computes their gradients by ``jax.vmap``, always
    for the same number of examples: it is compiled once, and no result depends on the batch size.

    Args:
        loss: the function of parameters and one example that returns a number.
        private: its users are those of ``examples``.
        examples: the examples of each user.
        examples_at_once: examples per computation, which bounds memory.

    Returns:
        ``(params, *data) -> gradient``, like params. Every array of ``data`` has the
        examples along its first axis.

    Raises (in that function):
        InvalidRequest: the data have another number of examples.
        TurnstileError: any error of the charge. Call again to continue.
    """
    with invalid_requests():
        whole_number("examples_at_once", examples_at_once, 1, 2**62)

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
        chosen, counts = examples.select(step.positions)
        sums = SumsByUser(counts)
        for start in range(0, len(chosen), examples_at_once):
            here = chosen[start : start + examples_at_once]
            padded = np.pad(here, (0, examples_at_once - len(here)), mode="edge")
            taken = jax.tree.map(partial(_take, padded), data)
            rows = rows_of(params, taken)
            users, (complete,) = sums.add([np.asarray(rows[: len(here)])])
            step.add(complete, users)
        return unravel(jnp.asarray(step.release(flat.size), dtype=flat.dtype))

    return gradient


def arrays_of(tree: Tree) -> dict[str, NDArray[Any]]:
    """Return the leaves of parameters and optimizer state, for ``Checkpoint.save``."""
    return {f"leaf {place}": np.asarray(leaf) for place, leaf in enumerate(jax.tree.leaves(tree))}


def tree_of(arrays: Mapping[str, NDArray[Any]], like: Tree) -> Tree:
    """Return the leaves from ``arrays_of`` in the structure of ``like``.

    Raises:
        InvalidRequest: the leaves do not fit.
    """
    leaves, structure = jax.tree.flatten(like)
    saved = [arrays.get(f"leaf {place}") for place in range(len(leaves))]
    shapes = [None if leaf is None else leaf.shape for leaf in saved]
    if len(arrays) != len(leaves) or shapes != [np.shape(leaf) for leaf in leaves]:
        raise InvalidRequest(
            f"the checkpoint has leaves of shapes {shapes}, which do not fit these parameters and "
            "this optimizer: use the ones that it was saved from"
        )
    return jax.tree.unflatten(structure, [jnp.asarray(leaf) for leaf in saved])


def _take(places: NDArray[np.int64], array: Any) -> Any:
    return jnp.asarray(array[places])
