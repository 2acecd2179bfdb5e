"""Opacus's modules for ``streams.trainers.torch``: gradients by example that are not written out.

Layers that multiply by a weight, ``Linear`` and ``Embedding``, keep their inputs and backpropagated
outputs instead (``streams.trainers.device_sums.Factored``). One backward pass is enough: the same
rows give norms and sums. PyTorch's own gradient of such a weight, which is not used, is not
computed. The gradients of all other layers come from Opacus's hooks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import torch
from opacus.grad_sample import GradSampleModule
from torch.nn import functional

from streams.sdk.errors import InvalidRequest
from streams.trainers.device_sums import NARROW, Factored, Integers, Part, Written

Found: TypeAlias = dict[torch.nn.Parameter, torch.Tensor]
Sampler: TypeAlias = Callable[[torch.nn.Module, list[torch.Tensor], torch.Tensor], Found]

_CURRENT = "_current_grad_sample"  # where Opacus adds up the gradients of one pass


class PrivateModule(GradSampleModule):
    """Opacus's module, with layers that keep the factors of their gradients.

    Opacus adds samplers' results to zeros, which takes a tenth of a step's time in a small network.
    Here they are not copied.

    Attributes:
        computes_gradients: whether PyTorch's gradients of the kept weights are computed, too.
    """

    GRAD_SAMPLERS: dict[type[torch.nn.Module], Sampler]

    def __init__(self, module: torch.nn.Module, **settings: Any) -> None:
        for layer in _keepable(list(super().iterate_submodules(module))):
            layer.forward = _Keeping(layer, self)
        super().__init__(module, **settings)
        self.computes_gradients = False
        self.GRAD_SAMPLERS = {k: partial(_in_place, f) for k, f in self.GRAD_SAMPLERS.items()}

    def iterate_submodules(self, module: torch.nn.Module) -> Iterable[torch.nn.Module]:
        """Yield the layers that get Opacus's hooks."""
        return (one for one in super().iterate_submodules(module) if not _keeps(one))

    def remove_hooks(self) -> None:
        """Give all layers their own forward pass back."""
        super().remove_hooks()
        for layer in filter(_keeps, self._module.modules()):
            del layer.forward

    def forget(self) -> None:
        """Drop all gradients, and what hooks keep of passes that were not finished."""
        for layer in self._module.modules():
            layer.__dict__.pop("activations", None)
            layer.__dict__.pop("max_batch_len", None)
        for parameter in self._module.parameters():
            parameter.grad = parameter.grad_sample = None
            parameter._forward_counter = 0
            parameter.__dict__.pop(_CURRENT, None)


def _keepable(layers: list[torch.nn.Module]) -> list[torch.nn.Module]:
    """Return the layers whose weights no layer of another kind shares."""
    found = [
        layer
        for layer in layers
        if type(layer) in (torch.nn.Linear, torch.nn.Embedding)
        and set(layer._parameters) <= {"weight", "bias"}
        and "forward" not in layer.__dict__
    ]
    kept = {id(layer) for layer in found}
    others = (layer for layer in layers if id(layer) not in kept)
    taken = {id(one) for layer in others for one in layer.parameters(recurse=False)}
    return [one for one in found if not taken & {id(own) for own in one.parameters()}]


def _keeps(layer: torch.nn.Module) -> bool:
    return isinstance(layer.__dict__.get("forward"), _Keeping)


class _Keeping:
    """The forward pass of a layer that keeps the factors of its gradients."""

    def __init__(self, layer: torch.nn.Module, module: PrivateModule) -> None:
        self._layer, self._module = layer, module

    @torch.compiler.disable
    def __call__(self, input: torch.Tensor) -> torch.Tensor:
        layer: Any = self._layer
        own = layer._parameters.values()
        trained = [one for one in own if one is not None and one.requires_grad]
        is_seen = layer.training and torch.is_grad_enabled() and self._module.hooks_enabled
        output: torch.Tensor
        if not (trained and is_seen) or self._module.computes_gradients:
            output = type(layer).forward(layer, input)
        elif isinstance(layer, torch.nn.Linear):
            bias = None if layer.bias is None else layer.bias.detach()
            output = functional.linear(input, layer.weight.detach(), bias)
        else:
            output = functional.embedding(
                *(input, layer.weight.detach(), layer.padding_idx, layer.max_norm, layer.norm_type),
                *(layer.scale_grad_by_freq, layer.sparse),
            )
        if trained and is_seen:
            output = _Keep.apply(output, input.detach(), self, *trained)
        return output

    def keep(self, seen: torch.Tensor, back: torch.Tensor) -> None:
        """Keep the factors of one call, with what comes back to its output."""
        layer: Any = self._layer
        if not self._module.batch_first:
            seen, back = seen.transpose(0, 1), back.transpose(0, 1)
        if self._module.loss_reduction == "mean":
            back = back * len(seen)
        if isinstance(layer, torch.nn.Linear):
            back, seen = (side.reshape(len(seen), -1, side.shape[-1]) for side in (back, seen))
            _keep(layer.weight, back, seen)
            _keep(layer.bias, back, None)
            return
        places = seen.reshape(len(seen), -1)
        back = back.reshape(*places.shape, -1)
        if layer.padding_idx is not None:  # its row is not trained, as in PyTorch
            back = back.masked_fill((places == layer.padding_idx)[..., None], 0.0)
        _keep(layer.weight, places, back)


class _Keep(torch.autograd.Function):
    """Passes an output on, and keeps what comes back to it."""

    @staticmethod
    def forward(
        ctx: Any, output: torch.Tensor, seen: torch.Tensor, keeping: _Keeping, *_: torch.Tensor
    ) -> torch.Tensor:
        ctx.save_for_backward(seen)  # which refuses inputs that were changed since
        ctx.keeping, ctx.others = keeping, len(_)
        return output.view_as(output)

    @staticmethod
    def backward(ctx: Any, back: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        ctx.keeping.keep(*ctx.saved_tensors, back.detach())
        return back, None, None, *[None] * ctx.others


class _Kept(list[tuple[torch.Tensor, torch.Tensor | None]]):
    """The factors of one parameter's gradients in one backward pass, for each call of a layer.

    Attributes:
        backward: the number of the pass.
        is_repeated: whether there was another one.
    """

    def __init__(self, backward: int) -> None:
        super().__init__()
        self.backward, self.is_repeated = backward, False


def _keep(parameter: Any, left: torch.Tensor, right: torch.Tensor | None) -> None:
    if parameter is None or not parameter.requires_grad:
        return
    backward = torch._C._current_graph_task_id()
    if not isinstance(getattr(parameter, "grad_sample", None), _Kept):
        parameter.grad_sample = _Kept(backward)
    kept = parameter.grad_sample
    kept.is_repeated |= kept.backward != backward
    kept.append((left, right))


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


def part_of(name: str, parameter: torch.nn.Parameter, size: int, counts: Integers) -> Part:
    """Return the gradients of one parameter by user.

    Args:
        name: for the error.
        parameter: of the model.
        size: the number of examples of the batch.
        counts: (k,), the number of examples of each user, in order. The other examples of the batch
            are padding.

    Raises:
        InvalidRequest: there is another number of gradients than of examples.
    """
    sample, used = _sample_of(name, parameter, size), int(counts.sum())
    if isinstance(sample, torch.Tensor):
        return Written(_sums_by_user(sample[:used].flatten(1), counts))
    linear = [call for call in sample if call[0].is_floating_point()]
    embedded = [call for call in sample if not call[0].is_floating_point()]
    left = _joined([one for one, _ in linear])[:used] if linear else None
    places = _joined([one for one, _ in embedded])[:used] if embedded else None
    rights = [right for _, right in (*linear, *embedded) if right is not None]
    if rights:
        right = _joined(rights)[:used]
    else:
        assert left is not None
        if left.shape[1] == 1:
            return Written(_sums_by_user(left[:, 0].clone(), counts))
        right = left.new_ones(()).expand(*left.shape[:2], 1)
    if left is not None and places is None and left.shape[1] == 1:
        is_precise = torch.promote_types(left.dtype, right.dtype).itemsize >= 4
        # Written out, because a small model takes twice the time with factors.
        if is_precise and parameter.numel() <= NARROW:
            return Written(_sums_by_user((left.mT * right).flatten(1), counts))
    return Factored(left, right, counts, (len(parameter), right.shape[2]), places)


def written_sum(
    name: str, parameter: torch.nn.Parameter, size: int, examples: slice
) -> torch.Tensor:
    """Return the sum of the gradients of some examples, (d,), in float64.

    The rounding of the sum follows from these examples alone. Arguments and errors are those of
    ``part_of``.
    """
    sample = _sample_of(name, parameter, size)
    total = torch.zeros(parameter.shape, dtype=torch.float64, device=parameter.device)
    if isinstance(sample, torch.Tensor):
        for row in sample[examples]:
            total += row
        return total.flatten()
    for calls in sample:
        left, right = (None if side is None else side[examples].flatten(0, 1) for side in calls)
        assert left is not None
        if right is None:
            total += left.double().sum(dim=0)
        elif left.is_floating_point():
            total += left.double().T @ right.double()
        else:
            total.index_add_(0, left, right.double())
    return total.flatten()


def _sample_of(name: str, parameter: Any, size: int) -> torch.Tensor | _Kept:
    """Return what hooks have kept for a parameter, of one pass over the batch."""
    sample = getattr(parameter, "grad_sample", None)
    each = [left for left, _ in sample] if isinstance(sample, _Kept) else [sample]
    fits = all(isinstance(one, torch.Tensor) and len(one) == size for one in each)
    if fits and not (isinstance(sample, _Kept) and sample.is_repeated):
        return sample
    raise InvalidRequest(
        f"{name} has {'no gradients' if sample is None else 'not one gradient for each'} of the "
        f"batch's {size} examples. Call zero_grad, compute the loss of "
        "a batch once, call backward on it, and give every layer one row per example: "
        "some models share position_ids, so add them to each example. Use no weight outside "
        "its layer, call requires_grad_(False) on a layer that is not used"
    )


def _joined(sides: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the rows of all calls, (n, t, d)."""
    return sides[0] if len(sides) == 1 else torch.cat(list(sides), dim=1)


def _sums_by_user(rows: torch.Tensor, counts: Integers) -> torch.Tensor:
    """Return the sums of rows by user, in float64 and in the order of the user's own examples."""
    if len(rows) == len(counts):
        return rows
    total = rows.new_zeros((len(counts), rows.shape[1]), dtype=torch.float64)
    starts = np.cumsum(counts) - counts
    for place in range(int(counts.max())):
        users = np.flatnonzero(counts > place)
        chosen = torch.from_numpy(starts[users] + place).to(rows.device)
        total[torch.from_numpy(users).to(rows.device)] += rows[chosen]
    return total
