"""Released sums of layers of many kinds against PyTorch's gradients: `make test-torch`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.unit.trainers.rosters import FilterService
from tests.unit.trainers.test_steps import silenced

torch = pytest.importorskip("torch", reason="PyTorch is not installed: make test-torch")
opacus = pytest.importorskip("opacus", reason="Opacus is not installed: make test-torch")
from opacus.layers import DPGRU, DPLSTM, DPMultiheadAttention  # noqa: E402

from tests.unit.trainers.test_torch import loader_of, made  # noqa: E402

nn, functional = torch.nn, torch.nn.functional
EACH = [1, 2, 7, 14, 1, 3, 1, 5]  # examples of each user; a batch has 10
OWNERS = np.repeat(np.arange(len(EACH)), EACH)
WIDTH, LENGTH = 8, 6


def draw(*shape: int) -> Any:
    drawn = np.random.default_rng(0).normal(size=(len(OWNERS), *shape))
    return torch.tensor(drawn.astype(np.float32))


class Sequence(nn.Module):
    """A layer between two others, on sequences, whose mean is classified."""

    def __init__(self, layer: Callable[[], Any], call: Callable[[Any, Any], Any] | None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.layer = nn.Linear(WIDTH, WIDTH), layer()
        self.last = nn.Linear(WIDTH, 3)
        self.call = call or (lambda layer, rows: layer(rows))

    def forward(self, rows: Any) -> Any:
        return self.last(self.call(self.layer, torch.tanh(self.first(rows))).mean(dim=1))


class Tied(nn.Module):
    """An embedding whose weight is that of the last layer, and one with a row for padding."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words, self.kinds = nn.Embedding(9, WIDTH), nn.Embedding(4, WIDTH, padding_idx=0)
        self.last = nn.Linear(WIDTH, 9)
        self.last.weight = self.words.weight

    def forward(self, rows: Any) -> Any:
        places = (rows.abs() * 50).int()[..., 0]
        return self.last(torch.tanh(self.words(places % 9) + self.kinds(places % 4))).mean(dim=1)


class Bare(nn.Module):
    """A parameter that is no layer's."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.full((WIDTH,), 0.7))

    def forward(self, rows: Any) -> Any:
        return rows * self.scale


def shared() -> Any:
    """Return two linear layers with one weight."""
    layers = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH))
    layers[2].weight = layers[0].weight
    return layers


def frozen() -> Any:
    """Return an adapter beside a frozen layer (LoRA), of which one side is frozen, too."""
    return nn.ModuleList(
        [nn.Linear(WIDTH, WIDTH).requires_grad_(False), nn.Linear(WIDTH, 2), nn.Linear(2, WIDTH)]
    )


def by_channel(layer: Any, rows: Any) -> Any:
    return layer(rows.transpose(1, 2)).transpose(1, 2)


KINDS: dict[str, tuple[Callable[[], Any], Any]] = {
    "linear": (lambda: nn.Linear(WIDTH, WIDTH), None),
    "linear, one row": (
        lambda: nn.Linear(LENGTH * WIDTH, WIDTH),
        lambda layer, rows: layer(rows.flatten(1))[:, None],
    ),
    "input by name": (
        lambda: nn.Linear(WIDTH, WIDTH),
        lambda layer, rows: layer(input=rows),
    ),
    "used twice": (
        lambda: nn.Linear(WIDTH, WIDTH),
        lambda layer, rows: layer(torch.tanh(layer(rows[:, 1:]))),
    ),
    "shared weight": (shared, None),
    "more than one axis": (
        lambda: nn.Linear(4, 4, bias=False),
        lambda layer, rows: layer(rows.unflatten(-1, (2, 4))).flatten(-2),
    ),
    "adapter": (frozen, lambda layers, rows: layers[0](rows) + layers[2](layers[1](rows))),
    "layer norm": (lambda: nn.LayerNorm(WIDTH), None),
    "RMS norm": (lambda: nn.RMSNorm(WIDTH), None),
    "group norm": (lambda: nn.GroupNorm(2, WIDTH), by_channel),
    "instance norm": (lambda: nn.InstanceNorm1d(WIDTH, affine=True), by_channel),
    "convolution": (lambda: nn.Conv1d(WIDTH, WIDTH, 3, padding=1), by_channel),
    "groups of channels": (lambda: nn.Conv1d(WIDTH, WIDTH, 3, padding=1, groups=2), by_channel),
    "LSTM": (lambda: DPLSTM(WIDTH, WIDTH, batch_first=True), lambda layer, rows: layer(rows)[0]),
    "GRU": (lambda: DPGRU(WIDTH, WIDTH, batch_first=True), lambda layer, rows: layer(rows)[0]),
    "attention": (
        lambda: DPMultiheadAttention(WIDTH, 2, batch_first=True),
        lambda layer, rows: layer(rows, rows, rows)[0],
    ),
    "PReLU": (nn.PReLU, None),
    "bare parameter": (Bare, None),
}


def released(build: Callable[[], Any], owners: Any, max_grad_norm: float) -> tuple[Any, Any]:
    """Return the released sum without noise, and that of PyTorch's gradients of each user."""
    rows, labels = draw(LENGTH, WIDTH), torch.arange(len(OWNERS)) % 3
    module, optimizer, loader = made(
        FilterService(),
        module=build(),
        data_loader=loader_of(torch.utils.data.TensorDataset(rows, labels)),
        users=owners,
        max_grad_norm=max_grad_norm,
        max_physical_batch_size=10,
    )
    silenced(optimizer.private)
    for some, wanted in loader:
        optimizer.zero_grad()
        functional.cross_entropy(module(some), wanted).backward()
        optimizer.step()
    found = torch.cat([one.grad.flatten().double() for one in optimizer.params]).numpy() * 10.0
    by_hand, total = build(), np.zeros(len(found))
    owners = np.arange(len(OWNERS)) if owners is None else owners
    for user in np.unique(owners):
        by_hand.zero_grad()
        mine = torch.tensor(owners == user)
        functional.cross_entropy(by_hand(rows[mine]), labels[mine], reduction="sum").backward()
        trained = [one for one in by_hand.parameters() if one.requires_grad]
        row = torch.cat([one.grad.flatten().double() for one in trained]).numpy()
        total += row * min(1.0, max_grad_norm / np.linalg.norm(row))
    return found, total


@pytest.mark.parametrize("owners", [OWNERS, None], ids=["many examples", "one each"])
@pytest.mark.parametrize("kind", [*KINDS, "tied embedding"])
def test_the_released_sum_is_that_of_each_users_gradient(kind: str, owners: Any) -> None:
    """Users have 1 to 14 examples, in batches of 10. Only some of the users are clipped."""
    layer, call = KINDS.get(kind, (None, None))
    found, total = released(lambda: Tied() if layer is None else Sequence(layer, call), owners, 0.9)
    assert np.linalg.norm(total) > 0.5
    assert np.linalg.norm(found - total) < 3e-4 * np.linalg.norm(total)


def test_a_changed_input_of_a_layer_is_refused() -> None:
    class Changes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 3)

        def forward(self, rows: Any) -> Any:
            seen = torch.tanh(self.first(rows))
            found = self.last(seen)
            seen.detach().zero_()
            return found.mean(dim=1)

    with pytest.raises(RuntimeError):
        released(Changes, None, 1.0)


def test_a_module_without_hooks_is_that_of_the_caller() -> None:
    module, *_ = made(FilterService(), module=Sequence(*KINDS["linear"]))
    plain = module.to_standard_module()
    assert all("forward" not in layer.__dict__ for layer in plain.modules())
    functional.cross_entropy(plain(draw(LENGTH, WIDTH)), torch.zeros(34).long()).backward()
    assert all(one.grad is not None for one in plain.parameters())
