"""Trainings in which one example's gradient depends on the others: `make test-torch`."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from streams.sdk.errors import InvalidRequest
from tests.unit.trainers.rosters import FilterService

torch = pytest.importorskip("torch", reason="PyTorch is not installed: make test-torch")
opacus = pytest.importorskip("opacus", reason="Opacus is not installed: make test-torch")
from streams.trainers.independence import check_trained  # noqa: E402
from tests.unit.trainers.test_torch import (  # noqa: E402
    LABELS,
    LOSS,
    ROWS,
    drawn_afterwards,
    engine_of,
    loader_of,
    network,
    seed_everything,
    train,
)

nn, functional = torch.nn, torch.nn.functional
EXAMPLES = [(ROWS[place], LABELS[place]) for place in range(8)]
WORDS = torch.tensor([[1, 2, 3, 4, 5], [1, 2, 0, 0, 0], [5, 0, 0, 0, 0], [4, 3, 2, 0, 0]])
SENTENCES = [(WORDS[n % 4].roll(n // 4), WORDS[n % 4]) for n in range(8)]


def layers(*added: Any, **settings: Any) -> Any:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), *added, nn.Linear(4, 2), **settings)


class Words(nn.Module):
    """A language model, whose last layer may be the first one used as a function."""

    def __init__(self, *, ties: bool = False, **settings: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words = nn.Embedding(6, 4, **settings)
        self.last = nn.Linear(4, 6, bias=False).requires_grad_(not ties)
        self.ties = ties

    def forward(self, words: Any) -> Any:
        seen = torch.tanh(self.words(words))
        return functional.linear(seen, self.words.weight) if self.ties else self.last(seen)


class Adapted(nn.Module):
    """A layer with an adapter, one factor of which begins with zeros, as in LoRA."""

    def __init__(self, *, trains_both: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.right = nn.Linear(3, 2), nn.Linear(3, 2, bias=False)
        self.left = nn.Linear(2, 2, bias=False).requires_grad_(trains_both)
        nn.init.zeros_(self.left.weight)

    def forward(self, rows: Any) -> Any:
        return self.layer(rows) + self.left(self.right(rows))


class Shared(Words):
    """The weight of the first layer is that of the last one, as a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.last.weight = self.words.weight


class Unused(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused = network(), nn.Linear(3, 2)

    def forward(self, rows: Any) -> Any:
        self.unused(rows)
        return self.used(rows)


class OfBatch(nn.Module):
    """Statistics of the batch, which Opacus's validator does not find."""

    def forward(self, rows: Any) -> Any:
        return rows - rows.mean(dim=0)


class InFloat32(nn.Module):
    def forward(self, rows: Any) -> Any:
        return torch.tanh(rows @ torch.ones(4, 4))


def usual(module: Any, batch: Any) -> Any:
    return LOSS(module(batch[0]), batch[1], reduction="none").mean()


def of_labels(module: Any, batch: Any) -> Any:
    """The mean over the labels that are not ignored; all examples of the check have one."""
    return LOSS(module(batch[0]), batch[1])


def of_likelihood(module: Any, batch: Any) -> Any:
    seen = functional.log_softmax(module(batch[0]), dim=-1).flatten(0, 1)
    return functional.nll_loss(seen, batch[1].flatten(), ignore_index=-1)


def of_probabilities(module: Any, batch: Any) -> Any:
    seen = module(batch[0])
    return LOSS(seen, functional.one_hot(batch[1], 2).to(seen))


def of_words(module: Any, batch: Any) -> Any:
    """The mean over an example's own tokens, then over examples."""
    return LOSS(module(batch[0]).movedim(-1, 1), batch[1], reduction="none").mean()


def counted_words(module: Any, batch: Any) -> Any:
    return LOSS(module(batch[0]).movedim(-1, 1), batch[1], ignore_index=0)


def weighted(module: Any, batch: Any) -> Any:
    seen = module(batch[0])
    return LOSS(seen, batch[1], weight=torch.tensor([1.0, 50.0]).to(seen))


def contrastive(module: Any, batch: Any) -> Any:
    seen = functional.normalize(module(batch[0]), dim=1)
    return LOSS(seen @ seen.T / 0.1, torch.arange(len(seen)))


def summed(module: Any, batch: Any) -> Any:
    return LOSS(module(batch[0]), batch[1], reduction="sum")


def pads(examples: Any) -> Any:
    words, targets = zip(*examples, strict=True)
    longest = max(int((one > 0).sum()) for one in words)
    return torch.stack([one[:longest] for one in words]), torch.stack(targets)[:, :longest]


def train_words(module: Any, optimizer: Any, loader: Any) -> None:
    for batch in loader:
        optimizer.zero_grad()
        of_words(module, batch).backward()
        optimizer.step()


def masked(examples: Any) -> Any:
    """Mask some words at random, as language models do."""
    words, targets = (torch.stack(part) for part in zip(*examples, strict=True))
    kept = torch.rand(words.shape) < 0.5
    return torch.where(kept, words, torch.randint(6, words.shape)), targets


def checked(
    module: Any = None,
    loss: Callable[[Any, Any], Any] = usual,
    examples: Any = EXAMPLES,
    **changes: Any,
) -> None:
    """Check a training, and compare everything that it could change."""
    service = FilterService()
    engine, (private, _, _) = engine_of(service, module=module, **changes)
    seed_everything()
    undisturbed = drawn_afterwards()
    seed_everything()
    before = [(t, t.data_ptr(), t.clone(), t.dtype) for t in private.state_dict().values()]
    try:
        engine.check(lambda batch: loss(private, batch), examples)
    finally:
        assert drawn_afterwards() == undisturbed
        now = private.state_dict().values()
        for (tensor, place, value, kind), after in zip(before, now, strict=True):
            assert after.data_ptr() == place
            assert after.dtype == tensor.dtype == kind
            assert torch.equal(after, value)
        assert all(p.grad is p.grad_sample is None for p in private.parameters())
        assert all(layer.training for layer in private.modules())
        assert not service.charges


@pytest.mark.parametrize(
    ("module", "loss", "examples", "cause"),
    [
        (None, weighted, EXAMPLES, "depends"),
        (None, of_labels, EXAMPLES, "not ignored"),
        (Words(), of_likelihood, SENTENCES, "not ignored"),
        (None, contrastive, EXAMPLES, "depends"),
        (None, summed, EXAMPLES, "depends"),
        (layers(OfBatch()), usual, EXAMPLES, "depends"),
        (Words(), counted_words, SENTENCES, "depends"),
        (Words(ties=True), of_words, SENTENCES, "add up"),
        (Words(max_norm=0.1), of_words, SENTENCES, "max_norm"),
        (Unused(), usual, EXAMPLES, "unused"),
        (Adapted(trains_both=False), usual, EXAMPLES, "right.weight.* noise alone"),
        (None, usual, EXAMPLES[:3], "too few"),
        (None, usual, EXAMPLES[:1] * 6, "the same"),
        (None, lambda *_: torch.zeros((), requires_grad=True), EXAMPLES, "no gradient"),
    ],
)
def test_a_gradient_that_depends_on_other_examples_is_refused(
    module: Any, loss: Any, examples: Any, cause: str
) -> None:
    with pytest.raises(InvalidRequest, match=cause):
        checked(module, loss, examples)


@pytest.mark.parametrize(
    ("module", "loss", "examples"),
    [
        (None, usual, EXAMPLES),
        (None, of_probabilities, EXAMPLES),
        (layers(nn.Dropout(0.5), nn.LayerNorm(4)), usual, EXAMPLES),
        (layers(InFloat32()), usual, EXAMPLES),
        (layers().bfloat16(), lambda m, b: usual(m, [b[0].bfloat16(), b[1]]), EXAMPLES),
        (layers().double(), lambda m, b: usual(m, [b[0].double(), b[1]]), EXAMPLES),
        (Adapted(trains_both=True), usual, EXAMPLES),
        (Words(padding_idx=0), of_words, SENTENCES),
        (Shared(), of_words, SENTENCES),
    ],
)
@pytest.mark.parametrize("users", [None, np.arange(80) // 2], ids=["one each", "two each"])
def test_a_gradient_of_its_example_alone_is_accepted(
    module: Any, loss: Any, examples: Any, users: Any
) -> None:
    checked(copy.deepcopy(module), loss, examples, users=users)


def test_a_collate_function_that_pads_to_the_longest_is_refused() -> None:
    data = torch.utils.data.TensorDataset(WORDS.repeat(20, 1), WORDS.repeat(20, 1))
    changes: dict[str, Any] = {"data_loader": loader_of(data, collate_fn=pads)}
    with pytest.raises(InvalidRequest):
        checked(Words(), of_words, SENTENCES, **changes)
    service = FilterService(epsilon=50.0)
    _, (private, optimizer, loader) = engine_of(
        service,
        **changes,
        module=Words(),
        examples_are_independent=True,
        steps=20,
        sampling_rate=0.1,
        noise_multiplier=5.0,
        max_physical_batch_size=1,
    )
    with pytest.raises(InvalidRequest):
        train_words(private, optimizer, loader)
    assert service.charges


@pytest.mark.parametrize("loss", [of_words, counted_words])
def test_examples_masked_at_random_are_checked_with_one_seed(loss: Any) -> None:
    data = torch.utils.data.TensorDataset(WORDS.repeat(20, 1), WORDS.repeat(20, 1))
    changes = {"module": Words(), "data_loader": loader_of(data, collate_fn=masked)}
    if loss is of_words:
        checked(loss=loss, examples=SENTENCES, **changes)
    else:
        with pytest.raises(InvalidRequest, match="depends"):
            checked(loss=loss, examples=SENTENCES, **changes)


def test_no_step_is_charged_before_the_check_or_in_eval_mode() -> None:
    service = FilterService(epsilon=50.0)
    engine, (module, optimizer, loader) = engine_of(service)
    with pytest.raises(InvalidRequest):
        train(module, optimizer, loader)
    engine.check(lambda batch: usual(module, batch), EXAMPLES)
    module.eval()
    with pytest.raises(InvalidRequest):
        train(module, optimizer, loader)
    with pytest.raises(InvalidRequest):
        engine.check(lambda batch: usual(module, batch), EXAMPLES)
    assert not service.charges
    module.train()
    train(module, optimizer, loader)
    assert len(service.charges) == 1


def test_a_module_that_has_lost_what_is_trained_is_refused() -> None:
    """As after a move to another device, which may replace parameters."""
    for declares in (False, True):
        service = FilterService()
        engine, (module, optimizer, loader) = engine_of(service, examples_are_independent=declares)
        module._module[0].weight = nn.Parameter(module._module[0].weight.detach().clone())
        with pytest.raises(InvalidRequest, match="any more"):
            engine.check(lambda batch, module=module: usual(module, batch), EXAMPLES)
        with pytest.raises(InvalidRequest, match="any more" if declares else "check"):
            train(module, optimizer, loader)
        assert not service.charges


def test_a_change_between_two_steps_is_noticed() -> None:
    service = FilterService(epsilon=50.0)
    _, (module, optimizer, loader) = engine_of(service, examples_are_independent=True, steps=9)

    def step() -> None:
        for rows, labels in loader:
            optimizer.zero_grad()
            LOSS(module(rows), labels).backward()
            optimizer.step()
            if loader.is_last:
                return

    step()
    layer = module._module[0].eval()
    with pytest.raises(InvalidRequest, match="eval mode"):
        step()
    check_trained(module.requires_grad_(False), optimizer.params)  # no hook is needed any more
    module.requires_grad_(True)
    with pytest.raises(InvalidRequest, match="eval mode"):
        step()
    layer.train()
    step()
    layer.weight = nn.Parameter(layer.weight.detach().clone())
    with pytest.raises(InvalidRequest, match="any more"):
        step()
    assert len(service.charges) == 2


def test_the_statement_says_whether_gradients_were_checked() -> None:
    for declares in (False, True):
        engine, (module, _, _) = engine_of(FilterService(), examples_are_independent=declares)
        before = engine.statement(1e-5)
        engine.check(lambda batch, module=module: usual(module, batch), EXAMPLES)
        after = engine.statement(1e-5)
        assert before["independence"] == ("declared" if declares else "not checked")
        assert after["independence"] == "checked"
        assert before["assumed"] != after["assumed"]
