"""A check that the gradient of one example does not depend on the others of its batch.

Every proof needs that. A loss or a model can break this without any error: a mean over
something else than examples, such as weights of classes or counted tokens; a contrastive loss;
statistics of a batch; a collate function that pads to the longest example. Clipping hides it,
because all contributions are short.

So one example is computed beside several sets of others, before anything is charged. Its gradient
must be the same each time. The gradients of all examples of a set must also add up to PyTorch's
gradient of the loss: Opacus takes gradients by example from hooks of layers, and misses a weight
that is used outside the layer that owns it.

The examples are public or made up. With private ones, a refusal would itself be a release.
"""

from __future__ import annotations

import copy
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import numpy as np
import torch
from opacus.grad_sample import GradSampleModule
from torch.overrides import TorchFunctionMode

from streams.sdk.errors import InvalidRequest
from streams.trainers.ghost import forget_gradients, part_of
from streams.trainers.loader import Randomness, shapes_of

FEWEST: Final = 4  # examples, of which one is beside the others
# Rounding of a sum depends on the size of the batch. Couplings of examples are larger.
_TOLERANCES: Final = {8: 1e-6, 4: 1e-4}  # by bytes of the shortest float
_LOW_PRECISION: Final = 1e-2

_CAUSES: Final = (
    "Usual causes: a loss that is not the mean over examples (weights of classes, a mean over "
    "tokens that are not ignored, a sum where loss_reduction is 'mean'); a contrastive loss; "
    "statistics of the batch, as in batch normalisation; a collate function that pads to the "
    "longest example; random numbers of a generator of its own"
)


def check_mode(module: GradSampleModule) -> None:
    """Check that all layers that are trained are in training mode, without which Opacus's hooks
    see nothing.

    Raises:
        InvalidRequest: one is in eval mode.
    """
    for name, layer in module.named_modules():
        own = layer.parameters(recurse=False)
        if not layer.training and any(parameter.requires_grad for parameter in own):
            raise InvalidRequest(
                f"layer {name.removeprefix('_module.')!r} is in eval mode: call train() on the "
                "model before the next batch is taken from the loader"
            )


def check_independence(
    module: GradSampleModule,
    parameters: Sequence[torch.nn.Parameter],
    loss_of: Callable[[Any], torch.Tensor],
    collate: Callable[[list[Any]], Any],
    examples: Sequence[Any],
) -> None:
    """Check the gradient of the first example beside six sets of the others.

    The module, its gradients and buffers and all random generators are then as before.

    Args:
        module: private, in training mode.
        parameters: those that are trained.
        loss_of: the loss of a collated batch, as in the training.
        collate: puts a list of examples together.
        examples: at least four, of different labels and lengths; none of a user's.

    Raises:
        InvalidRequest: the gradient of the example differs, or gradients do not add up.
    """
    if len(examples) < FEWEST:
        raise InvalidRequest(f"{len(examples)} examples are too few: give at least {FEWEST}")
    with hidden():
        alone = [shapes_of(collate([example, example])) for example in examples]
    if any(shapes != alone[0] for shapes in alone):
        raise InvalidRequest(
            "collate_fn gives batches of other shapes for other examples. Pad to one length, not "
            "to the longest example of a batch"
        )
    names = {id(p): name.removeprefix("_module.") for name, p in module.named_parameters()}
    checked = [(names[id(parameter)], parameter) for parameter in parameters]
    try:
        _compare(module, checked, loss_of, collate, examples, is_double=True)
    except (RuntimeError, TypeError):  # a model that does not compute in float64
        _compare(module, checked, loss_of, collate, examples, is_double=False)


def _compare(
    module: GradSampleModule,
    parameters: Sequence[tuple[str, torch.nn.Parameter]],
    loss_of: Callable[[Any], torch.Tensor],
    collate: Callable[[list[Any]], Any],
    examples: Sequence[Any],
    *,
    is_double: bool,
) -> None:
    others, half = list(range(1, len(examples))), len(examples) // 2
    sets = [others[:half], others[half:], others, others[::2], [others[-1]] * 3, others[::-1]]

    with hidden(), _undisturbed(module, is_double), _NoDropout(), torch.enable_grad():
        bytes_each = min((p.itemsize for p in module.parameters()), default=8)
        tolerance = _TOLERANCES.get(bytes_each, _LOW_PRECISION)

        def gradients(number: int, *, is_seeded: bool) -> tuple[list[Any], list[Any]]:
            """Return the gradient of the example beside a set of others, and the sum over all."""
            place, chosen = min(number, len(sets[number])), sets[number]
            if is_seeded:
                # With one seed, size and place, an example gets the same random numbers each time.
                place, chosen = 0, (chosen * 3)[:3]
                torch.manual_seed(0)
                np.random.seed(0)
                random.seed(0)
            rows = [*chosen[:place], 0, *chosen[place:]]
            forget_gradients(module)
            batch = collate([examples[row] for row in rows])
            versions = [parameter._version for _, parameter in parameters]
            loss_of(_in_double(batch) if is_double else batch).backward()
            _check_versions(parameters, versions)
            found, sums, expected = _gradients(module, parameters, place, len(rows))
            limit = tolerance * max(map(_norm, (found, sums, expected)))
            pairs = zip(parameters, sums, expected, strict=True)
            if wrong := [name for (name, _), one, other in pairs if _norm([one - other]) > limit]:
                raise InvalidRequest(
                    "the gradients of the examples do not add up to that of the loss, for "
                    f"{_some(wrong)}: a weight is used outside the layer that owns it, as by "
                    "functional.linear, or the loss is computed twice. Share the layer instead"
                )
            return found, sums

        def farthest(*, is_seeded: bool) -> tuple[float, int]:
            """Return the largest relative distance of the gradient from the first, and its set."""
            first, _ = gradients(0, is_seeded=is_seeded)
            if not _norm(first):
                raise InvalidRequest("the first example has no gradient: give one that has")
            numbers = range(1, len(sets))
            return max((_apart(gradients(n, is_seeded=is_seeded)[0], first), n) for n in numbers)

        apart, number = farthest(is_seeded=False)
        if apart > tolerance:
            _, sums = gradients(number, is_seeded=False)
            again = (gradients(number, is_seeded=False)[1] for _ in range(4))
            if any(_apart(other, sums) > tolerance for other in again):
                apart, _ = farthest(is_seeded=True)
        if apart > tolerance:
            raise InvalidRequest(
                "the gradient of an example depends on the other examples of its batch: it changes "
                f"by {apart:.2g} of its norm. {_CAUSES}"
            )


def _check_versions(
    parameters: Sequence[tuple[str, torch.nn.Parameter]], versions: Sequence[int]
) -> None:
    pairs = zip(parameters, versions, strict=True)
    if changed := [name for (name, one), version in pairs if one._version != version]:
        raise InvalidRequest(
            f"computing the loss changes {_some(changed)}, which reveals the examples of the "
            "batch: leave out max_norm of an Embedding"
        )


def _gradients(
    module: GradSampleModule,
    parameters: Sequence[tuple[str, torch.nn.Parameter]],
    place: int,
    size: int,
) -> tuple[list[Any], list[Any], list[Any]]:
    """Return one example's gradients, the sums over all, and PyTorch's gradients of the sum."""
    lost = [name for name, p in parameters if getattr(p, "grad_sample", None) is None]
    if lost:
        raise InvalidRequest(
            f"the loss gives no gradient by example to {_some(lost)}: the layer is not used, or is "
            "in eval mode, or its weight is used outside it. Call requires_grad_(False) on a layer "
            "that is not used, and train() on the model"
        )
    found, sums, expected = [], [], []
    for name, parameter in parameters:
        sample: Any = parameter.grad_sample
        if not isinstance(sample, torch.Tensor) or len(sample) != size:
            raise InvalidRequest(
                f"{name} has {len(sample)} gradients, but the batch has {size} examples: compute "
                "the loss of a batch once, and give every layer one row per example. Some models "
                "share position_ids between examples: add them to each example"
            )
        rows = part_of(parameter, sample, size, as_factors=False)
        assert isinstance(rows, np.ndarray)
        scale = size if module.loss_reduction == "mean" else 1
        found.append(rows[place].astype(np.float64))
        sums.append(rows.sum(axis=0, dtype=np.float64))
        whole = torch.zeros(()) if parameter.grad is None else parameter.grad
        expected.append(whole.detach().cpu().double().numpy().ravel() * scale)
    return found, sums, expected


@contextmanager
def hidden() -> Iterator[None]:
    """Leave the random generators as they are now."""
    randomness = Randomness()
    randomness.hide()
    try:
        yield
    finally:
        randomness.restore()


@contextmanager
def _undisturbed(module: GradSampleModule, is_double: bool) -> Iterator[None]:
    """Compute with copies of parameters and buffers, in float64 if so; restore everything."""
    tensors = [*module.parameters(), *module.buffers()]
    kept = [(tensor, tensor.data) for tensor in tensors]
    gradients = [(p, p.grad, getattr(p, "grad_sample", None)) for p in module.parameters()]
    for parameter in module.parameters():
        parameter.grad = None  # its type must be that of the parameter
    try:
        for tensor, data in kept:
            widens = is_double and data.is_floating_point()
            tensor.data = data.to(torch.float64 if widens else data.dtype, copy=True)
        with torch.compiler.set_stance("force_eager"):  # types and modes change nothing compiled
            yield
    finally:
        forget_gradients(module)
        for tensor, data in kept:
            tensor.data = data
        for parameter, gradient, sample in gradients:
            parameter.grad, parameter.grad_sample = gradient, sample


class _NoDropout(TorchFunctionMode):  # type: ignore[misc]
    """Switch dropout off in training mode, in which Opacus's hooks and other layers stay."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        named, name = dict(kwargs or {}), getattr(func, "__name__", "")
        if "dropout" in name:
            return args[0] if args else named["input"]
        if name == "scaled_dot_product_attention":
            named.pop("dropout_p", None)
            args = (*args[:4], 0.0, *args[5:]) if len(args) > 4 else args
        return func(*args, **named)


def _in_double(batch: Any) -> Any:
    if isinstance(batch, torch.Tensor):
        return batch.double() if batch.is_floating_point() else batch
    if isinstance(batch, Mapping):
        made: Any = copy.copy(batch)
        for name in batch:
            made[name] = _in_double(batch[name])
        return made
    if isinstance(batch, list | tuple):
        parts = [_in_double(part) for part in batch]
        return type(batch)(*parts) if hasattr(batch, "_fields") else type(batch)(parts)
    return batch


def _norm(parts: Sequence[Any]) -> float:
    return float(np.sqrt(sum(float(np.dot(part, part)) for part in parts)))


def _apart(one: Sequence[Any], other: Sequence[Any]) -> float:
    """Return the distance over the larger norm; infinite if one is not finite."""
    apart = _norm([mine - its for mine, its in zip(one, other, strict=True)])
    largest = max(_norm(one), _norm(other))
    return math.inf if not math.isfinite(apart) else apart / largest if largest else 0.0


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
