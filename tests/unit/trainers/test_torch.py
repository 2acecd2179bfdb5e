"""Private steps with PyTorch and Opacus themselves: `make test-torch`. Noise comes from seeds."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from functools import partial
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streams import Turnstile
from streams.sdk.errors import InvalidRequest, RequestRejected, Unusable
from streams.trainers.checkpoint import Checkpoint
from streams.trainers.planning import noise_for_steps
from streams.trainers.private_stop import PrivateStop
from tests.readme import README, blocks, page
from tests.unit.trainers.rosters import FilterRun, FilterService
from tests.unit.trainers.test_steps import silenced

torch = pytest.importorskip("torch", reason="PyTorch is not installed: make test-torch")
opacus = pytest.importorskip("opacus", reason="Opacus is not installed: make test-torch")
dp = pytest.importorskip("streams.trainers.torch")
ghost = pytest.importorskip("streams.trainers.ghost")
DeviceSum = pytest.importorskip("streams.trainers.device_sums").DeviceSum
PrivacyEngine = dp.PrivacyEngine

USERS = np.repeat(np.arange(40), [1, 2, 3, 2] * 10)
ROWS = torch.tensor(np.random.default_rng(0).normal(size=(80, 3)).astype(np.float32))
LABELS = (ROWS[:, 0] > 0).long()
LOSS = torch.nn.functional.cross_entropy
DATASET = torch.utils.data.TensorDataset(ROWS, LABELS)


class Opens:
    """Opens runs of a filter in memory."""

    def __init__(self, service: FilterService) -> None:
        self.service = service

    def run(self, dataset: str, name: str, min_separation: int | None = None) -> FilterRun:
        return self.service.open()


def loader_of(dataset: Any = DATASET, batch_size: int = 10, **settings: Any) -> Any:
    return torch.utils.data.DataLoader(dataset, batch_size=batch_size, **settings)


def network() -> Any:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2))


def made(service: FilterService, **changes: Any) -> tuple[Any, Any, Any]:
    """Return module, optimizer and loader of a training whose gradients are not checked."""
    return engine_of(service, **{"examples_are_independent": True, **changes})[1]


def engine_of(service: FilterService, **changes: Any) -> tuple[Any, tuple[Any, Any, Any]]:
    module = changes.pop("module", None) or network()
    arguments = {
        "data_loader": loader_of(DATASET, collate_fn=changes.pop("collate_fn", None)),
        "users": USERS,
        "noise_multiplier": 1.0,
        "max_grad_norm": 1.0,
        "sampling_rate": 1.0,
        "population": 10,
        "steps": 1,
        "not_private_generator": np.random.default_rng(1),
        **changes,
    }
    engine = dp.PrivacyEngine(Opens(service), dataset="digits", run="night-7")
    return engine, engine.make_private(
        module=module, optimizer=torch.optim.SGD(module.parameters(), lr=0.5), **arguments
    )


def training(module: Any, optimizer: Any, loader: Any, loss: Any = LOSS) -> Iterator[Any]:
    """Train for one pass of the loader, and yield each batch before its step."""
    for rows, labels in loader:
        optimizer.zero_grad()
        loss(module(rows), labels).backward()
        yield rows, labels
        optimizer.step()


def train(module: Any, optimizer: Any, loader: Any, loss: Any = LOSS) -> int:
    """Train for one pass of the loader, and return the number of batches."""
    return sum(1 for _ in training(module, optimizer, loader, loss))


def clipped_mean() -> np.ndarray:
    """Over users, of gradients computed one user after the other."""
    total = np.zeros(26)
    module = network()
    for user in range(40):
        module.zero_grad()
        mine = torch.tensor(user == USERS)
        LOSS(module(ROWS[mine]), LABELS[mine], reduction="sum").backward()
        flat = np.concatenate([p.grad.numpy().ravel() for p in module.parameters()])
        total += flat.astype(np.float64) * min(1.0, 1.0 / np.linalg.norm(flat)) / 10.0
    return total


def flat(module: Any) -> np.ndarray:
    return np.concatenate([p.detach().numpy().ravel() for p in module.parameters()])


WORKERS = pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.process)])
OWNERS = pytest.mark.parametrize("owners", [USERS, None], ids=["many examples", "one each"])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_steps_of_several_batches_are_those_of_one(dtype: Any) -> None:
    """Gradients of the step before must not share memory with the sum of the next one."""
    models = []
    for at_once in (100, 20):
        layers = [torch.nn.GroupNorm(1, 3), *network()]
        module, optimizer, loader = made(
            FilterService(),
            module=torch.nn.Sequential(*layers).to(dtype),
            data_loader=loader_of(torch.utils.data.TensorDataset(ROWS.to(dtype), LABELS)),
            noise_multiplier=2.0,
            steps=3,
            max_physical_batch_size=at_once,
        )
        train(module, optimizer, loader)
        models.append(flat(module))
    assert models[1] == pytest.approx(models[0], rel=1e-4, abs=1e-5)


@pytest.mark.parametrize(("at_once", "reduction"), [(None, "mean"), (1, "mean"), (7, "sum")])
def test_a_step_moves_by_the_clipped_mean_over_users(at_once: Any, reduction: str) -> None:
    service = FilterService()
    module, optimizer, loader = made(
        service, max_physical_batch_size=at_once, loss_reduction=reduction
    )
    silenced(optimizer.private)
    before = flat(module)
    train(module, optimizer, loader, partial(LOSS, reduction=reduction))
    scale = 10.0 if reduction == "sum" else 1.0
    expected = -0.5 * clipped_mean() * scale
    assert flat(module) - before == pytest.approx(expected, rel=1e-4, abs=1e-5 * scale)
    assert len(service.charges) == 1


def test_one_pass_of_the_loader_has_as_many_steps_as_opacus_has() -> None:
    service = FilterService(epsilon=50.0)
    module, optimizer, loader = made(
        service, sampling_rate=0.25, noise_multiplier=3.0, epochs=2, steps=None
    )
    assert len(loader) == 4
    train(module, optimizer, loader)
    assert service.charges == [(3.0, 0.25)] * 4
    train(module, optimizer, loader)
    assert len(service.charges) == 8
    assert len(loader) == 0
    train(module, optimizer, loader)
    assert len(service.charges) == 8


@OWNERS
def test_an_empty_batch_is_released_as_noise(owners: Any) -> None:
    module, optimizer, loader = made(FilterService(), sampling_rate=1e-9, steps=1, users=owners)
    before = flat(module)
    train(module, optimizer, loader)
    assert np.abs(flat(module) - before).min() > 0.0


def test_a_training_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    service, checkpoint = FilterService(epsilon=50.0), Checkpoint(tmp_path / "torch.npz")
    for steps in (5, 12):
        module, optimizer, loader = made(service, sampling_rate=0.5, steps=steps)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
        assert dp.restore(checkpoint, module, optimizer, scheduler) == (steps == 12)
        assert len(loader) == (5 if steps == 5 else 7)
        if steps == 12:
            assert np.array_equal(flat(module), last)  # noqa: F821
            assert (scheduler.last_epoch, optimizer.param_groups[0]["lr"]) == (1, 0.25)
            with pytest.raises(InvalidRequest):
                dp.restore(checkpoint, module, optimizer)
        train(module, optimizer, loader)
        scheduler.step()
        dp.save(checkpoint, module, optimizer, scheduler)
        last = flat(module)  # noqa: F841
    assert checkpoint.released() == 11
    assert len(service.charges) == 12


def test_a_batch_without_its_step_is_handed_out_again() -> None:
    service = FilterService()
    module, optimizer, loader = made(service, sampling_rate=0.5)
    first, _ = next(iter(loader))
    again, _ = next(iter(loader))
    assert torch.equal(first, again)
    assert len(service.charges) == 1
    with pytest.raises(InvalidRequest):
        list(loader)
    LOSS(module(first), torch.zeros(len(first), dtype=torch.long)).backward()
    optimizer.step()
    with pytest.raises(InvalidRequest):
        optimizer.step()


class Twice(torch.nn.Module):
    """One layer that is called twice, one whose weight another one shares, one with two rows."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.same = torch.nn.Linear(3, 3)
        self.first, self.second = torch.nn.Linear(3, 3), torch.nn.Linear(3, 3)
        self.second.weight = self.first.weight
        self.last = torch.nn.Linear(3, 2)

    def forward(self, rows: Any) -> Any:
        rows = self.same(torch.tanh(self.same(rows)))
        rows = self.second(torch.tanh(self.first(rows)))
        return self.last(torch.stack([rows, -rows], dim=1)).sum(dim=1)


class Branches(torch.nn.Module):
    """Layers of several kinds, one of them twice, on paths that part and meet again."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.convolution = torch.nn.Conv1d(1, 2, 2)
        self.norm = torch.nn.LayerNorm(4)
        self.linear, self.other = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
        self.last = torch.nn.Linear(4, 2)

    def forward(self, rows: Any) -> Any:
        seen = self.norm(self.convolution(rows[:, None]).flatten(1))
        # What comes back to the three is one tensor.
        return self.last(self.other(seen) + self.linear(seen) + self.linear(2.0 * seen))


@pytest.mark.parametrize("build", [network, Twice, Branches])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_gradients_by_example_are_those_that_opacus_finds(build: Any, reduction: str) -> None:
    modules = [
        kind(build(), loss_reduction=reduction)
        for kind in (opacus.GradSampleModule, ghost.PrivateModule)
    ]
    for module in modules:
        for _ in range(2):
            for parameter in module.parameters():
                parameter.grad_sample = None
            LOSS(module(ROWS), LABELS, reduction=reduction).backward()
    for theirs, ours in zip(*(module.parameters() for module in modules), strict=True):
        for place in (0, 7):
            some = slice(place, place + 1)
            written = ghost.written_sum("", ours, len(ROWS), some)
            assert torch.allclose(theirs.grad_sample[place].flatten().double(), written, rtol=1e-5)


@OWNERS
def test_gradients_of_more_than_one_pass_are_refused(owners: Any) -> None:
    module, optimizer, loader = made(FilterService(), users=owners)
    rows, labels = next(iter(loader))
    for _ in range(2):
        LOSS(module(rows), labels).backward()
    with pytest.raises(InvalidRequest):
        optimizer.step()


class Stream(torch.utils.data.IterableDataset):
    def __iter__(self) -> Any:
        return iter(DATASET)


def test_a_module_that_mixes_examples_is_refused() -> None:
    from opacus.validators.errors import UnsupportedModuleError

    mixing = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    with pytest.raises((UnsupportedModuleError, ExceptionGroup)):
        made(FilterService(), module=mixing)


# --- what one user adds does not depend on the others ---------------------------------------------


class Pictures(torch.nn.Module):
    """A small convolutional network with layers of several kinds."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.convolution = torch.nn.Conv2d(1, 4, 3, padding=1)
        self.norm = torch.nn.GroupNorm(2, 4)
        self.hidden, self.last = torch.nn.Linear(4 * 64, 32), torch.nn.Linear(32, 10)

    def forward(self, images: Any) -> Any:
        seen = torch.relu(self.norm(self.convolution(images.view(-1, 1, 8, 8))))
        return self.last(torch.relu(self.hidden(seen.flatten(1))))


IMAGES = torch.tensor(np.random.default_rng(5).normal(size=(195, 64)).astype(np.float32))
DIGITS = torch.arange(195) % 10


class Sentences(torch.nn.Module):
    """A small model of sequences, in which the first layer and the last one share a weight."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.words, self.norm = torch.nn.Embedding(10, 8), torch.nn.LayerNorm(8)
        self.hidden, self.last = torch.nn.Linear(8, 8), torch.nn.Linear(8, 10)
        self.last.weight = self.words.weight

    def forward(self, images: Any) -> Any:
        words = (images[:, :7].abs() * 100).long() % 10
        return self.last(self.norm(torch.relu(self.hidden(self.words(words))))).mean(dim=1)


def integers_of(
    monkeypatch: pytest.MonkeyPatch, build: Any, users: np.ndarray, examples: Any
) -> np.ndarray:
    """Return the sum of a step in which all of these users are drawn, before the noise."""
    found: list[np.ndarray] = []
    total_of = DeviceSum.total

    def watched(one: Any) -> Any:
        exponent, total = total_of(one)
        found.append(total.copy())
        return exponent, total

    places = np.flatnonzero(np.isin(np.arange(195) % 65, users))
    places = places[places // 65 < examples(places % 65)]
    with monkeypatch.context() as patch:
        patch.setattr(DeviceSum, "total", watched)
        private, optimizer, loader = made(
            FilterService(),
            module=build(),
            data_loader=loader_of(
                torch.utils.data.TensorDataset(IMAGES[places], DIGITS[places]), batch_size=64
            ),
            users=places % 65,
            population=64,
        )
        train(private, optimizer, loader)
    (total,) = found
    return total


@pytest.mark.parametrize("build", [Pictures, Sentences])
@pytest.mark.parametrize("examples", [lambda users: 1, lambda users: 1 + users % 3], ids=["1", "3"])
def test_integers_of_a_user_do_not_depend_on_others_in_the_batch(
    monkeypatch: pytest.MonkeyPatch, build: Any, examples: Any
) -> None:
    """Bit for bit, where all batches have one shape; whether it is so depends on the library."""
    total_of = partial(integers_of, monkeypatch, build, examples=examples)
    alone = [total_of(users=np.array([user])) for user in range(65)]
    for size in (2, 3, 8, 33, 65):
        for first in (0, 65 - size):
            users = np.arange(first, first + size)
            assert np.array_equal(total_of(users=users), sum(alone[first : first + size]))


@OWNERS
def test_every_batch_has_the_same_size_whichever_users_are_drawn(owners: Any) -> None:
    for rate in (1.0, 0.5, 1e-9):
        module, optimizer, loader = made(
            FilterService(), sampling_rate=rate, population=8 / rate, users=owners, steps=1
        )
        sizes = [len(rows) for rows, _ in training(module, optimizer, loader)]
        assert set(sizes) == {loader.batch_size} == {24}


class Noisy(torch.nn.Module):
    """A layer whose input is masked."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.mask, self.last = torch.nn.Dropout(0.5), torch.nn.Linear(3, 2)
        self.seen: list[Any] = []

    def forward(self, rows: Any) -> Any:
        self.seen.append(self.mask(torch.ones_like(rows)))
        return self.last(rows * self.seen[-1])


class Augmented(torch.utils.data.Dataset):
    """Examples to which three generators add something."""

    def __len__(self) -> int:
        return len(ROWS)

    def __getitem__(self, place: int) -> Any:
        added = [random.random(), np.random.rand(), float(torch.rand(()))]
        return torch.tensor(added), LABELS[place]


def seed_everything() -> None:
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)


def drawn_afterwards() -> list[float]:
    return [float(torch.rand(())), random.random(), float(np.random.rand())]


@WORKERS
def test_masks_and_augmentations_do_not_follow_a_known_seed(workers: int) -> None:
    seen = []
    seed_everything()
    undisturbed = drawn_afterwards()
    for _ in range(2):
        module, optimizer, loader = made(
            FilterService(),
            module=Noisy(),
            not_private_generator=None,
            data_loader=loader_of(Augmented(), num_workers=workers),
        )
        seed_everything()
        *_, (rows, _) = training(module, optimizer, loader)
        assert drawn_afterwards() == undisturbed
        seen.append((rows, module._module.seen[-1]))
    for place in range(3):
        assert not torch.equal(seen[0][0][:, place], seen[1][0][:, place])
    assert not torch.equal(seen[0][1], seen[1][1])


@pytest.mark.parametrize("kind", [np.random.MT19937, np.random.PCG64])
def test_numpy_continues_with_the_bit_generator_that_it_had(kind: Any) -> None:
    own = np.random.get_bit_generator()
    try:
        rows = []
        for trains in (False, True):
            np.random.set_bit_generator(kind(0))
            if trains:
                data = loader_of(Augmented())
                module, optimizer, loader = made(
                    FilterService(), not_private_generator=None, data_loader=data
                )
                train(module, optimizer, loader)
            rows.append(np.random.standard_normal(3))
        assert np.array_equal(*rows)
    finally:
        np.random.set_bit_generator(own)


@pytest.mark.parametrize("ends_first", [0, 1])
def test_two_trainings_in_turns_restore_the_generators(ends_first: int) -> None:
    seed_everything()
    undisturbed = drawn_afterwards()
    masks = []
    for _ in range(2):
        pair = [
            made(
                FilterService(),
                module=Noisy(),
                not_private_generator=None,
                max_physical_batch_size=len(ROWS),
            )
            for _ in range(2)
        ]
        seed_everything()
        batches = [next(iter(loader)) for _, _, loader in pair]
        for place in (ends_first, 1 - ends_first):
            module, optimizer, _ = pair[place]
            rows, labels = batches[place]
            LOSS(module(rows), labels).backward()
            optimizer.step()
            masks.append(module._module.seen[-1])
        assert drawn_afterwards() == undisturbed
    for place in range(2):
        assert not torch.equal(masks[place], masks[place + 2])


# --- the engine -----------------------------------------------------------------------------------


@pytest.fixture
def service() -> Iterator[Turnstile]:
    with Turnstile.in_memory(partitions=1) as turnstile:
        yield turnstile


def with_epsilon(
    service: Turnstile, name: str = "night-7", measure: Any = "renyi", **changes: Any
) -> tuple[Any, Any]:
    """Return the engine, and module, optimizer and loader, with a plan of eight steps."""
    module = network()
    arguments: dict[str, Any] = {
        "module": module,
        "optimizer": torch.optim.SGD(module.parameters(), lr=0.5),
        "data_loader": loader_of(shuffle=True, batch_size=20),
        "users": USERS,
        "population": 80,
        "target_epsilon": 3.0,
        "target_delta": 1e-5,
        "epochs": 2,
        "max_grad_norm": 1.0,
        "examples_are_independent": True,
        **changes,
    }
    engine = PrivacyEngine(service, dataset="faces", run=name, measure=measure)
    return engine, engine.make_private_with_epsilon(**arguments)


def test_three_lines_make_a_script_private(service: Turnstile) -> None:
    engine, (module, optimizer, loader) = with_epsilon(service)
    sizes = []
    for _ in range(2):
        assert len(loader) == 4
        sizes += [len(rows) for rows, _ in training(module, optimizer, loader)]
    assert set(sizes) == {loader.batch_size}
    run = service.run("faces", "night-7")
    assert run.step == 8
    assert run.policy.epsilon(1e-5) == engine.get_epsilon(1e-5) <= 3.0
    assert engine.get_epsilon(1e-6) > 3.0
    assert not np.array_equal(flat(module), flat(network()))
    statement = json.loads(json.dumps(engine.statement()))
    assert statement["epsilon"] == pytest.approx(3.0, rel=1e-6)
    assert (statement["delta"], statement["unit"]) == (1e-5, "user")
    assert (statement["steps"], statement["planned_steps"]) == (8, 8)
    assert (statement["sampling_rate"], statement["max_grad_norm"]) == (0.25, 1.0)
    assert statement["population"] == 80
    assert engine.statement(1e-6)["epsilon"] > 3.0


@pytest.mark.slow
def test_by_default_steps_are_counted_with_the_tightest_noise(service: Turnstile) -> None:
    from opacus.accountants.utils import get_noise_multiplier

    engine, made = with_epsilon(service, measure="steps", epochs=3)
    statement = engine.statement()
    assert (statement["measure"], statement["planned_steps"]) == ("steps", 12)
    assert 2.99 < statement["epsilon"] <= 3.0
    theirs = get_noise_multiplier(
        target_epsilon=3.0, target_delta=1e-5, sample_rate=0.25, steps=12, accountant="prv"
    )
    assert 0.98 * theirs < statement["noise_multiplier"] <= theirs
    for _ in range(3):
        train(*made)
    run = service.run("faces", "night-7")
    assert (run.step, run.policy.steps) == (12, 12)
    assert run.policy.noise_multiplier == statement["noise_multiplier"]
    # The dataset pays for no second training, and for no other plan.
    for changes in ({"epochs": 4}, {"data_loader": loader_of(batch_size=40)}):
        with pytest.raises(InvalidRequest):
            with_epsilon(service, **changes)


def test_an_existing_dataset_is_used_if_it_guarantees_enough(service: Turnstile) -> None:
    service.create_dataset("faces", measure="renyi", epsilon=2.0, delta=1e-5)
    engine, _ = with_epsilon(service)
    assert engine.get_epsilon(1e-5) == pytest.approx(2.0, rel=1e-6)
    with pytest.raises(InvalidRequest):
        with_epsilon(service, target_epsilon=1.0)


def test_schedule_of_the_sampling_rate_scales_the_denominator(service: Turnstile) -> None:
    rates = [0.5, 1.0, 0.25]
    engine, (module, optimizer, loader) = with_epsilon(
        service,
        epochs=None,
        steps=3,
        sampling_rate=lambda step: rates[step],
        population=100,
        max_physical_batch_size=80,
    )
    assert len(loader) == 3
    divisors = []
    for rows, labels in loader:
        optimizer.zero_grad()
        LOSS(module(rows), labels).backward()
        silenced(optimizer.private)
        step = optimizer.private.open_step
        before = flat(module)
        drawn = len(step.positions)
        optimizer.step()
        moved = np.linalg.norm(flat(module) - before) / 0.5
        divisors.append((drawn, moved))
    for rate, (drawn, moved) in zip(rates, divisors, strict=True):
        assert moved <= 1.001 * drawn / (100 * rate)
    assert divisors[1][0] == 40
    assert engine.statement()["sampling_rate"] is None


@pytest.mark.parametrize("users", [3, 30])  # with 3, drop_last would leave no batch
def test_steps_rate_and_noise_do_not_follow_the_number_of_users(users: int) -> None:
    data = torch.utils.data.TensorDataset(ROWS[:users], LABELS[:users])
    with Turnstile.in_memory(partitions=1) as service:
        engine, (module, optimizer, loader) = with_epsilon(
            service,
            data_loader=loader_of(data, batch_size=20, drop_last=True),
            users=None,
            population=200,
            epochs=1,
        )
        train(module, optimizer, loader)
        stated = engine.statement()
    assert (stated["sampling_rate"], stated["steps"], loader.batch_size) == (0.1, 10, 32)
    with Turnstile.in_memory(partitions=1) as service:
        policy = service.create_dataset("faces", measure="renyi", epsilon=3.0, delta=1e-5)
    assert stated["noise_multiplier"] == noise_for_steps([policy], 10, sampling_rate=0.1)


SAMPLERS = (
    torch.utils.data.WeightedRandomSampler([1.0] * 80, 8),
    torch.utils.data.RandomSampler(DATASET, replacement=True),
    torch.utils.data.SubsetRandomSampler(range(40)),
)
LOADERS = (
    [ROWS],
    loader_of(batch_size=None),
    *(loader_of(sampler=sampler) for sampler in SAMPLERS),
    torch.utils.data.DataLoader(Stream(), 8),
)
NO_PRIVACY: dict[str, Any] = {
    "target_epsilon": [-1.0, float("nan")],
    "target_delta": [1.0],
    "poisson_sampling": [False],
    "clipping": ["per_layer"],
    "criterion": [LOSS],
    "grad_sample_mode": ["functorch"],
    "noise_generator": [torch.Generator()],
    "data_loader": LOADERS,
    "users": [USERS[1:]],
    # None: the denominator would follow the number of users in the data.
    "population": [0, -1.0, None, float("nan")],
    "sampling_rate": [0.0, 1.5, lambda step: 0.5],
    "max_grad_norm": [0.0, float("nan"), [1.0, 2.0]],
    "max_physical_batch_size": [0],
    "loss_reduction": ["none"],
    "epochs": [None, 0, 1.5],
    "steps": [8],  # beside the number of epochs
    "measure": ["gdp", "no measure"],
    "optimizer": [
        torch.optim.SGD(network().parameters(), lr=0.5),
        torch.optim.SGD(network().requires_grad_(False).parameters(), lr=0.5),
    ],
    "module": [opacus.GradSampleModule(network())],
}


@pytest.mark.parametrize(
    "changes",
    [
        *({name: value} for name, values in NO_PRIVACY.items() for value in values),
        {"epochs": None, "steps": 2.5},
        {"measure": "steps", "target_epsilon": -1.0},
    ],
)
def test_arguments_without_privacy_create_no_dataset(
    service: Turnstile, changes: dict[str, Any]
) -> None:
    with pytest.raises(InvalidRequest):
        with_epsilon(service, **changes)
    with pytest.raises(RequestRejected):
        service.run("faces", "night-7")


def test_every_name_of_opacus_has_a_meaning_or_a_hint(service: Turnstile) -> None:
    engine, _ = with_epsilon(service)
    public = {name for name in dir(opacus.PrivacyEngine()) if not name.startswith("_")}
    for name in public - {"dataset"}:  # that one is for Opacus itself
        if not hasattr(engine, name):
            with pytest.raises(AttributeError, match=f"PrivacyEngine has no {name}: "):
                getattr(engine, name)
    assert not hasattr(engine, "speed")
    ours, theirs = (
        set(signature(one.make_private_with_epsilon).parameters)
        for one in (PrivacyEngine, opacus.PrivacyEngine)
    )
    theirs |= set(signature(opacus.PrivacyEngine.make_private).parameters)
    for name in theirs - ours - set(dp.Settings._fields) - {"kwargs"}:
        with pytest.raises(InvalidRequest, match=f"{name} is not an argument here: "):
            with_epsilon(service, **{name: None})
    for name in set(signature(opacus.PrivacyEngine).parameters):
        with pytest.raises(InvalidRequest, match=f"{name} is not an argument here: "):
            PrivacyEngine(**{name: None})
    with pytest.raises(InvalidRequest, match=r"Turnstile\.open"):
        PrivacyEngine()


def test_attributes_in_scripts_for_opacus_have_their_meaning(service: Turnstile) -> None:
    """Attributes that Opacus's own examples and tutorials read have values of this training."""
    engine, (module, optimizer, loader) = with_epsilon(service)
    assert engine.accountant.get_epsilon(delta=1e-5) == engine.get_epsilon(1e-5)
    assert (optimizer.expected_batch_size, loader.sample_rate) == (20, 0.25)
    accountant = opacus.accountants.RDPAccountant()
    optimizer.attach_step_hook(accountant.get_optimizer_hook_fn(sample_rate=loader.sample_rate))
    train(module, optimizer, loader)
    assert accountant.history == [(optimizer.noise_multiplier, 0.25, 4)]
    with pytest.raises(InvalidRequest):
        optimizer.signal_skip_step(True)
    mixing = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    fixed = PrivacyEngine.get_compatible_module(mixing)
    assert isinstance(fixed[1], torch.nn.GroupNorm)


def test_the_optimizer_keeps_its_noise_and_clip_norm(service: Turnstile) -> None:
    engine, (_, optimizer, _) = with_epsilon(service, max_grad_norm=0.5)
    noise = engine.statement()["noise_multiplier"]
    assert (optimizer.noise_multiplier, optimizer.max_grad_norm) == (noise, 0.5)
    schedulers = opacus.schedulers
    for change in (
        lambda: setattr(optimizer, "noise_multiplier", 0.1),
        lambda: setattr(optimizer, "max_grad_norm", 5.0),
        lambda: schedulers.ExponentialNoise(optimizer, gamma=0.9).step(),
        lambda: schedulers.ExponentialGradClip(optimizer, gamma=0.9).step(),
    ):
        with pytest.raises(InvalidRequest, match="make_private"):
            change()
    assert (optimizer.noise_multiplier, optimizer.max_grad_norm) == (noise, 0.5)


def test_a_scaler_of_gradients_is_refused() -> None:
    service = FilterService()
    module, optimizer, loader = made(service)
    scaler = torch.amp.GradScaler("cpu")
    rows, labels = next(iter(loader))
    scaler.scale(LOSS(module(rows), labels)).backward()
    with pytest.raises(InvalidRequest):
        scaler.step(optimizer)
    optimizer.zero_grad()
    train(module, optimizer, loader)
    assert len(service.charges) == 1


def test_make_private_needs_a_budget_that_pays_for_the_plan(service: Turnstile) -> None:
    module = network()
    arguments: dict[str, Any] = {
        "module": module,
        "optimizer": torch.optim.SGD(module.parameters(), lr=0.5),
        "data_loader": loader_of(),
        "population": 80,
        "max_grad_norm": 1.0,
        "epochs": 15,
    }
    engine = PrivacyEngine(service, dataset="faces", run="night-7")
    with pytest.raises(Unusable):
        engine.get_epsilon(1e-5)
    with pytest.raises(InvalidRequest):
        engine.make_private(noise_multiplier=9.0, **arguments)
    service.create_dataset("faces", measure="renyi", epsilon=3.0, delta=1e-5)
    with pytest.raises(InvalidRequest):
        engine.make_private(noise_multiplier=0.5, **arguments)
    engine.make_private(noise_multiplier=9.0, **arguments)
    with pytest.raises(InvalidRequest):
        engine.statement()
    assert engine.statement(1e-5)["planned_steps"] == 120


def test_a_private_count_ends_the_loader_and_is_stated(service: Turnstile) -> None:
    """mu = 1 pays for eight counts (8 / 25) and for ten steps of noise 4 (10 / 16)."""
    service.create_dataset("faces", measure="gdp", budget=1.0)
    stop = PrivateStop(
        service, "faces", "count", range(40), threshold=20, noise_stddev=5.0, every=5, counts=8
    )
    module = network()
    engine = PrivacyEngine(service, dataset="faces", run="night-7")
    made = engine.make_private(
        module=module,
        optimizer=torch.optim.SGD(module.parameters(), lr=0.1),
        data_loader=loader_of(batch_size=40),
        users=USERS,
        population=40,
        noise_multiplier=4.0,
        max_grad_norm=1.0,
        levels="clip_norm",
        stop=stop,
        examples_are_independent=True,
    )
    while len(made[2]):
        train(*made)
    stated = json.loads(json.dumps(engine.statement(1e-5)))
    assert stated["steps"] == stop.counted[-1][0] + 1 == len(stop.counted) * 5
    assert stop.counted[-1][1] < 20.0
    assert stated["private_stop"] == {
        "run": "count",
        "threshold": 20.0,
        "noise_stddev": 5.0,
        "every": 5,
        "counts": 8,
        "charged_norm": pytest.approx(8.0**0.5),
    }
    assert any("counts" in covered for covered in stated["covered"])


def test_opacus_batch_memory_manager_is_told_the_argument(service: Turnstile) -> None:
    from opacus.utils.batch_memory_manager import BatchMemoryManager

    _, (_, optimizer, loader) = with_epsilon(service)
    with (
        pytest.raises(InvalidRequest),
        BatchMemoryManager(data_loader=loader, max_physical_batch_size=8, optimizer=optimizer),
    ):
        pass


class Named(torch.utils.data.Dataset):
    """Examples with names, whose loader puts them together in its own way."""

    def __len__(self) -> int:
        return len(ROWS)

    def __getitem__(self, place: int) -> dict[str, Any]:
        return {"row": ROWS[place], "label": int(LABELS[place]), "name": f"row {place}"}


def by_column(examples: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "rows": torch.stack([example["row"] for example in examples]),
        "labels": torch.tensor([example["label"] for example in examples]),
        "names": [example["name"] for example in examples],
    }


@WORKERS
def test_batches_are_collated_as_the_loader_of_the_caller_does(workers: int) -> None:
    moved = []
    for loader in (
        loader_of(),
        loader_of(Named(), collate_fn=by_column, num_workers=workers, shuffle=True),
    ):
        module, optimizer, batches = made(
            FilterService(epsilon=50.0),
            data_loader=loader,
            steps=3,
            sampling_rate=0.5,
            max_physical_batch_size=16,
        )
        for batch in batches:
            if isinstance(batch, dict):
                places = [int(name.removeprefix("row ")) for name in batch["names"]]
                assert torch.equal(batch["rows"], ROWS[places])
                batch = batch["rows"], batch["labels"]
            optimizer.zero_grad()
            LOSS(module(batch[0]), batch[1]).backward()
            optimizer.step()
        moved.append(flat(module))
    assert np.array_equal(*moved)


def names_of_a_script() -> dict[str, Any]:
    """Return the names that the scripts of the documents use without defining them."""
    module = network()
    return {
        "model": module,
        "optimizer": torch.optim.SGD(module.parameters(), lr=0.1),
        "loader": loader_of(batch_size=16),
        "user_ids": USERS,
        "torch": torch,
        "made_up": list(zip(-ROWS[:4], torch.tensor([0, 1, 1, 0]), strict=True)),
    }


def test_the_readme_makes_an_opacus_script_private(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (script,) = (block for block in blocks(README) if "PrivacyEngine" in block)
    monkeypatch.chdir(tmp_path)
    exec(script, names_of_a_script())
    assert 2.99 < float(capsys.readouterr().out) <= 3.0


@pytest.mark.slow
def test_the_script_of_the_documentation_trains(capsys: pytest.CaptureFixture[str]) -> None:
    (script, *_) = blocks(page("train/pytorch"))
    names = names_of_a_script()
    script = script.replace('Turnstile.open("budgets.db")', "Turnstile.in_memory()")
    exec(script.replace("population=1_400", "population=80"), names)
    assert names["engine"].statement()["steps"] == 15 * 5
    assert 2.99 < float(capsys.readouterr().out) <= 3.0


def test_the_documented_budget_is_for_the_steps_of_two_trainings() -> None:
    _, script, _ = blocks(page("train/pytorch"))
    names: dict[str, Any] = {"turnstile": Turnstile.in_memory()}
    exec(script, names)
    assert names["policy"].steps == 2 * names["STEPS"]
