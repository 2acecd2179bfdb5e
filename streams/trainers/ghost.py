"""Opacus's modules for ``streams.trainers.torch``: gradients by example are not copied, and those
of linear layers need not be written out.

A linear layer's inputs and backpropagated outputs are kept instead, and added up exactly
(``streams.trainers.sums``). One backward pass is enough: the same kept rows give norms and sum.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from opacus.grad_sample import GradSampleModule
from opacus.grad_sample.embedding import compute_embedding_grad_sample
from opacus.grad_sample.linear import compute_linear_grad_sample

from streams.sdk.errors import InvalidRequest
from streams.trainers.sums import Outer, Part

Factors: TypeAlias = list[tuple[torch.Tensor, torch.Tensor]]

Found: TypeAlias = dict[torch.nn.Parameter, torch.Tensor]
Sampler: TypeAlias = Callable[[torch.nn.Module, list[torch.Tensor], torch.Tensor], Found]

_FACTORS = "turnstile_factors"
_CURRENT = "_current_grad_sample"  # where Opacus adds up the gradients of one pass


class PrivateModule(GradSampleModule):
    """Opacus's module, which keeps the factors of weights that ``mark_weights`` has marked.

    Opacus adds samplers' results to zeros, which takes a tenth of a step's time in a small network.
    Here they are not copied.
    """

    GRAD_SAMPLERS: dict[type[torch.nn.Module], Sampler]

    def __init__(self, module: torch.nn.Module, **settings: Any) -> None:
        super().__init__(module, **settings)
        samplers = {**self.GRAD_SAMPLERS, torch.nn.Linear: _sample_linear}
        samplers[torch.nn.Embedding] = _sample_embedding
        self.GRAD_SAMPLERS = {k: partial(_in_place, sampler) for k, sampler in samplers.items()}


def _in_place(
    sampler: Sampler, layer: Any, activations: list[torch.Tensor], backprops: torch.Tensor
) -> Found:
    """Store a sampler's first result without a copy; return the rest, which Opacus adds to it.

    Rows that share memory with other tensors are copied.
    """
    shared = {tensor.untyped_storage().data_ptr() for tensor in (backprops, *activations)}
    left: Found = {}
    for parameter, rows in sampler(layer, activations, backprops).items():
        if hasattr(parameter, _CURRENT) or len(rows) != layer.max_batch_len:
            left[parameter] = rows
            continue
        storage = rows.untyped_storage().data_ptr()
        setattr(parameter, _CURRENT, rows.clone() if storage in shared else rows)
        shared.add(storage)
    return left


def mark_weights(module: torch.nn.Module, parameters: list[torch.nn.Parameter]) -> frozenset[int]:
    """Mark the weights of linear layers; return their indices among the parameters.

    A weight that several layers share is not marked, so its gradients are written out.
    """
    layers = list(module.modules())
    owners = Counter(id(own) for layer in layers for own in layer.parameters(recurse=False))
    marked = {
        id(layer.weight)
        for layer in layers
        if type(layer) is torch.nn.Linear and owners[id(layer.weight)] == 1
    }
    places = frozenset(i for i, parameter in enumerate(parameters) if id(parameter) in marked)
    for place in places:
        setattr(parameters[place], _FACTORS, [])
    return places


def forget_gradients(module: GradSampleModule) -> None:
    """Drop all gradients, and what hooks keep of passes that were not finished."""
    for layer in module.modules():
        layer.__dict__.pop("activations", None)
        layer.__dict__.pop("max_batch_len", None)
    for parameter in module.parameters():
        parameter.grad = parameter.grad_sample = None
        parameter._forward_counter = 0
        parameter.__dict__.pop(_CURRENT, None)
        if hasattr(parameter, _FACTORS):
            setattr(parameter, _FACTORS, [])


def part_of(
    name: str,
    parameter: torch.nn.Parameter,
    sample: Any,
    size: int,
    count: int,
    *,
    as_factors: bool,
) -> Part:
    """Return the gradients of one parameter, a row for each of the first examples of a batch.

    Args:
        name: for the error.
        parameter: of the model.
        sample: its gradients by example, in the form of Opacus.
        size: the number of rows of the batch.
        count: the number of examples; the rest of the batch is padding.
        as_factors: whether kept factors of outer products need not be written out.

    Raises:
        InvalidRequest: there is another number of gradients than of rows.
    """
    if not isinstance(sample, torch.Tensor) or len(sample) != size:
        found = "no gradient" if sample is None else f"{len(sample)} gradients"
        raise InvalidRequest(
            f"{name} has {found} by example, but the batch has {size} examples. Compute the loss "
            "of a batch once, call zero_grad before it, and give every layer one row per example: "
            "some models share position_ids, so add them to each example. Use no weight outside "
            "its layer, call requires_grad_(False) on a layer that is not used"
        )
    factors: Factors = getattr(parameter, _FACTORS, [])
    if len(factors) == 1 and as_factors and factors[0][0].dtype == torch.float32:
        left, right = (side[:count].detach().cpu().numpy() for side in factors[0])
        return Outer(left, right)
    if factors:
        written = [torch.einsum("ni,nj->nij", left, right) for left, right in factors]
        sample = torch.stack(written).sum(dim=0)
    return _in_numpy(sample[:count])


def _sample_linear(
    layer: torch.nn.Linear, activations: list[torch.Tensor], backprops: torch.Tensor
) -> Found:
    """Keep the factors of a linear layer, and return rows (n, 0) by which Opacus counts passes.

    A layer that is called several times in one pass has several factors. The first call of a pass,
    which finds no rows of it yet, drops the factors of the previous pass.
    """
    weight = layer.weight
    if not hasattr(weight, _CURRENT) and hasattr(weight, _FACTORS):
        setattr(weight, _FACTORS, [])
    if backprops.dim() != 2 or not hasattr(weight, _FACTORS):
        written: Found = compute_linear_grad_sample(layer, activations, backprops)
        return written
    factors: Factors = getattr(weight, _FACTORS)
    factors.append((backprops, activations[0].to(backprops.dtype)))
    kept = {weight: backprops.new_empty((len(backprops), 0))}
    if layer.bias is not None and layer.bias.requires_grad:
        kept[layer.bias] = backprops
    return kept


def _sample_embedding(
    layer: torch.nn.Embedding, activations: list[torch.Tensor], backprops: torch.Tensor
) -> Found:
    """Leave out the row of padding, as PyTorch does; Opacus trains it."""
    found: Found = compute_embedding_grad_sample(layer, activations, backprops)
    if layer.padding_idx is not None and layer.weight in found:
        found[layer.weight][:, layer.padding_idx] = 0.0
    return found


def _in_numpy(sample: torch.Tensor) -> NDArray[np.floating[Any]]:
    """Return rows in a type that numpy supports."""
    kept = sample.detach().cpu()
    kept = kept.float() if kept.dtype.itemsize < 4 else kept
    rows: NDArray[np.floating[Any]] = kept.numpy().reshape(len(kept), -1)
    return rows
