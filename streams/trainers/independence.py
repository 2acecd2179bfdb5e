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

import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from inspect import signature
from typing import Any, Final

import numpy as np
import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map_only

from accounting.exact.invalid_input import quoted
from streams.sdk.errors import InvalidRequest
from streams.trainers.ghost import PrivateModule, written_sum
from streams.trainers.loader import Randomness, shapes_of

_FEWEST: Final = 4  # examples, of which one is beside the others
# Rounding of a sum depends on the size of the batch. Couplings of examples are larger.
_TOLERANCES: Final = {8: 1e-6, 4: 1e-4}  # by bytes of the shortest float
_LOW_PRECISION: Final = 1e-2
_MOVED: Final = 1e-2  # standard deviation by which parameters are moved to other values


def check_trained(module: PrivateModule, parameters: Sequence[torch.nn.Parameter]) -> None:
    """Refuse parameters that the module does not use any more, which would get noise alone; and a
    trained layer in eval mode, in which Opacus's hooks see nothing.
    """
    missing = {id(parameter) for parameter in parameters}
    for name, layer in module._module.named_modules():
        own = [one for one in layer._parameters.values() if one is not None]
        missing.difference_update(map(id, own))
        if not layer.training and any(parameter.requires_grad for parameter in own):
            raise InvalidRequest(
                f"layer {name!r} is in eval mode: call train() on the model before the next batch "
                "is taken from the loader"
            )
    if missing:
        raise InvalidRequest(
            "the optimizer has parameters that are not the module's any more, so the module would "
            "not be trained: move and change the module before the optimizer is made"
        )


def check_padding(collate: Callable[[list[Any]], Any], batches: Sequence[list[Any]]) -> None:
    """Refuse a collate function whose batches of as many examples have different shapes."""
    with Randomness():
        shapes = [shapes_of(collate(batch)) for batch in batches]
    if any(one != shapes[0] for one in shapes):
        raise InvalidRequest(
            "the collate function pads to the longest example of a batch, or its shapes follow the "
            "examples otherwise, so gradients depend on the other users' examples: pad to one "
            "length (in transformers by padding='max_length' and default_data_collator)"
        )


def check_independence(
    module: PrivateModule,
    parameters: Sequence[torch.nn.Parameter],
    loss_of: Callable[[Any], torch.Tensor],
    collate: Callable[[list[Any]], Any],
    examples: Sequence[Any],
) -> None:
    """Check the gradient of the first example beside six sets of the others.

    Arguments and errors are those of ``PrivacyEngine.check``. The module, its buffers and all
    random generators are then as before; gradients are dropped.
    """
    if len(examples) < _FEWEST:
        raise InvalidRequest(f"{len(examples)} examples are too few: give at least {_FEWEST}")
    pairs = [[example, example] for example in examples]
    check_padding(collate, pairs)
    with Randomness():
        first, *others = (_tensors_of(collate(pair)) for pair in pairs)
    if first and all(all(map(torch.equal, first, other)) for other in others):
        raise InvalidRequest(
            "all examples are the same: give different ones, with different labels and lengths"
        )
    trained = {id(parameter) for parameter in parameters}
    named = {name: p for name, p in module._module.named_parameters() if id(p) in trained}

    def compare(*, is_double: bool) -> None:
        def loss_of_rows(rows: Sequence[int]) -> torch.Tensor:
            batch = collate([examples[row] for row in rows])
            return loss_of(tree_map_only(torch.Tensor, _in_double, batch) if is_double else batch)

        with Randomness(), _undisturbed(module, is_double), torch.enable_grad():
            _compare(module, named, loss_of_rows, len(examples))

    try:
        compare(is_double=True)
    except (RuntimeError, TypeError):  # a model that does not compute in float64
        try:
            compare(is_double=False)
        except (RuntimeError, TypeError) as error:
            raise InvalidRequest(
                f"the loss of the examples and its gradients cannot be computed: {error}. If the "
                "loss is right, Opacus may not have a layer of this model, or adapters of this kind"
            ) from error


def _tensors_of(batch: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(batch) if isinstance(leaf, torch.Tensor)]


def _compare(
    module: PrivateModule,
    named: Mapping[str, torch.nn.Parameter],
    loss_of: Callable[[Sequence[int]], torch.Tensor],
    count: int,
) -> None:
    bytes_each = min((p.itemsize for p in module.parameters()), default=8)
    tolerance = _TOLERANCES.get(bytes_each, _LOW_PRECISION)
    reached: set[str] = set()  # parameters of which an example had a gradient

    def gradients(
        beside: list[int], place: int, seed: int = 0, divisor: float = 1.0
    ) -> tuple[list[Any], list[Any]]:
        """Return the gradient of the first example beside others, and the sum over all."""
        torch.manual_seed(seed)
        np.random.seed(seed)
        random.seed(seed)
        rows = [*beside[:place], 0, *beside[place:]]
        module.forget()
        versions = {name: parameter._version for name, parameter in named.items()}
        with _Changed(len(rows), divisor):
            loss = loss_of(rows)
            if not isinstance(loss, torch.Tensor) or not loss.requires_grad:
                raise InvalidRequest(
                    "the loss is no tensor that depends on a trained parameter: the model may have "
                    "its adapters disabled, or compute without gradients"
                )
            loss.backward()
        _refuse(
            [name for name, parameter in named.items() if parameter._version != versions[name]],
            "computing the loss changes it, which reveals the examples of the batch: leave out "
            "max_norm of an Embedding",
        )
        found, sums, differences = [], [], []
        for name, parameter in named.items():
            size = len(rows)
            mine, total = (
                written_sum(name, parameter, size, some).cpu().numpy()
                for some in (slice(place, place + 1), slice(0, size))
            )
            if total.any() or mine.any():
                reached.add(name)
            found.append(mine)
            sums.append(total)
            whole = torch.zeros(()) if parameter.grad is None else parameter.grad.detach()
            scale = size if module.loss_reduction == "mean" else 1
            differences.append(sums[-1] - whole.cpu().double().numpy().ravel() * scale)
        limit = tolerance * max(_norm(found), _norm(sums))
        _refuse(
            [name for name, one in zip(named, differences, strict=True) if _norm([one]) > limit],
            "the gradients of the examples do not add up to that of the loss: a weight is used "
            "outside the layer that owns it, as by functional.linear, or the loss is computed "
            "twice. Share the layer instead",
        )
        return found, sums

    others, half = list(range(1, count)), count // 2
    sets = [others[:half], others[half:], others, others[::2], [others[-1]] * 3, others[::-1]]
    places = [min(number, len(beside)) for number, beside in enumerate(sets)]
    totals = (gradients(others, 0, seed)[1] for seed in range(3))
    total = next(totals)
    if any(_apart(one, total) > tolerance for one in totals):
        # With one seed, size and place, an example gets the same random numbers each time.
        sets, places = [(beside * 3)[:3] for beside in sets], [0] * len(sets)
    alone = (gradients(*beside)[0] for beside in zip(sets, places, strict=True))
    first = next(alone)
    if not _norm(first):
        raise InvalidRequest("the first example has no gradient: give one that has")
    apart = max(_apart(one, first) for one in alone)
    if apart > tolerance:
        raise InvalidRequest(
            "the gradient of an example depends on the other examples of its batch: it changes by "
            f"{apart:.2g} of its norm. Usual causes: a loss that is not the mean over examples "
            "(weights of classes, a mean over tokens that are not ignored, a sum where "
            "loss_reduction is 'mean'); a contrastive loss; statistics of the batch, as in batch "
            "normalisation; random numbers of a generator of its own"
        )
    beside, other = (gradients(sets[2], 0, divisor=divisor)[0] for divisor in (1.0, 0.5))
    if _apart(other, beside) > tolerance:
        raise InvalidRequest(
            "the loss is a mean over the labels that are not ignored, so an example whose label is "
            "ignore_index (-100 by default) changes the gradients of the others: use "
            "reduction='none', and the mean over examples"
        )
    if len(reached) < len(named):
        # At the first values a gradient may be zero: the one factor of LoRA begins with zeros.
        torch.manual_seed(0)
        for parameter in named.values():
            parameter.data += _MOVED * torch.randn_like(parameter)
        gradients(others, 0)
    _refuse(
        [name for name in named if name not in reached],
        "no example has a gradient of it, also at other values, so training would add noise alone: "
        "call requires_grad_(False), or give examples that use it",
    )


def _refuse(names: list[str], problem: str) -> None:
    if names:
        raise InvalidRequest(f"{quoted(names)}: {problem}")


@contextmanager
def _undisturbed(module: PrivateModule, is_double: bool) -> Iterator[None]:
    """Compute with copies of parameters and buffers, in float64 if so; restore them."""
    kept = [(tensor, tensor.data) for tensor in (*module.parameters(), *module.buffers())]
    module.forget()  # their type must be that of the parameters
    module.computes_gradients = True
    try:
        for tensor, data in kept:
            tensor.data = (_in_double(data) if is_double else data).clone()
        with torch.compiler.set_stance("force_eager"):  # types and modes change nothing compiled
            yield
    finally:
        module.computes_gradients = False
        module.forget()
        for tensor, data in kept:
            tensor.data = data


class _Changed(TorchFunctionMode):  # type: ignore[misc]
    """Changes functions of PyTorch: dropout is off, although layers stay in training mode, in which
    Opacus's hooks see them; and means over labels that are not ignored have another divisor.

    Args:
        examples: of the batch.
        divisor: of such a mean, times the number of its labels.
    """

    def __init__(self, examples: int, divisor: float) -> None:
        super().__init__()
        self._examples, self._divisor = examples, divisor

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        named = dict(kwargs or {})
        if "dropout" in getattr(func, "__name__", ""):
            return args[0] if args else named["input"]
        if "dropout_p" in named:
            named["dropout_p"] = 0.0
        result = func(*args, **named)
        if func in (functional.cross_entropy, functional.nll_loss):
            given = signature(func).bind(*args, **named)
            given.apply_defaults()
            target, reduction = given.arguments["target"], given.arguments["reduction"]
            # Probabilities of classes are never ignored, nor is a label of an example by itself.
            of_batch = not target.is_floating_point() and target.numel() % self._examples == 0
            if reduction == "mean" and of_batch:
                return result / self._divisor
        return result


def _in_double(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.double() if tensor.is_floating_point() else tensor


def _norm(parts: Sequence[Any]) -> float:
    return math.hypot(*map(np.linalg.norm, parts))


def _apart(one: Sequence[Any], other: Sequence[Any]) -> float:
    """Return the distance over the larger norm; infinite if one is not finite."""
    apart = _norm([mine - its for mine, its in zip(one, other, strict=True)])
    largest = max(_norm(one), _norm(other))
    return math.inf if not math.isfinite(apart) else apart / largest if largest else 0.0
