"""Language models with adapters, users with very unequal numbers of texts: `make test-huggingface`.

`test_huggingface.py` has the same training killed and resumed.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from accounting import steps_noise_multiplier
from streams import InvalidRequest, Turnstile

torch = pytest.importorskip("torch", reason="PyTorch is not installed: make test-huggingface")
peft = pytest.importorskip("peft", reason="PEFT is not installed: make test-huggingface")
pytest.importorskip("opacus", reason="Opacus is not installed: make test-huggingface")
transformers = pytest.importorskip("transformers", reason="make test-huggingface")
from streams.trainers import PrivacyEngine  # noqa: E402
from streams.trainers.huggingface import HuggingFaceTrainer  # noqa: E402
from tests.readme import blocks, example, page  # noqa: E402
from tests.unit.trainers.finetuning import TEXTS, TRAININGS  # noqa: E402
from tests.unit.trainers.rosters import FilterService  # noqa: E402
from tests.unit.trainers.test_ranks import train  # noqa: E402
from tests.unit.trainers.test_steps import silenced  # noqa: E402
from tests.unit.trainers.test_torch import Opens  # noqa: E402

LEARNING_RATE, CLIP_NORM = 2.0, 1.0


def made(module: Any, **changes: Any) -> tuple[Any, tuple[Any, Any, Any]]:
    """Return the engine, and module, optimizer and loader, of steps with all users."""
    engine = PrivacyEngine(Opens(FilterService(epsilon=50.0)), dataset="texts", run="a")
    arguments: dict[str, Any] = {
        "optimizer": torch.optim.SGD(module.parameters(), lr=LEARNING_RATE),
        "data_loader": torch.utils.data.DataLoader(TEXTS.data, batch_size=8),
        "users": TEXTS.users,
        "population": 40,
        "sampling_rate": 1.0,
        "steps": 2,
        "noise_multiplier": 1.0,
        "max_grad_norm": CLIP_NORM,
        "max_examples_per_user": TRAININGS["texts"].most,
        **changes,
    }
    return engine, engine.make_private(module=module, **arguments)


def by_hand(module: Any) -> None:
    """Take a step without noise with all users: one text at a time, in float64."""
    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    total = [torch.zeros_like(parameter) for parameter in trained]
    for user in range(40):
        module.zero_grad()
        for text in TRAININGS["texts"].of_user(user):
            module(**{name: torch.tensor([value]) for name, value in text.items()}).loss.backward()
        gradients = [parameter.grad.clone() for parameter in trained]
        norm = torch.cat([one.ravel() for one in gradients]).norm()
        for one, gradient in zip(total, gradients, strict=True):
            one += gradient * min(1.0, CLIP_NORM / float(norm))
    with torch.no_grad():
        for parameter, one in zip(trained, total, strict=True):
            parameter -= LEARNING_RATE * one / 40


def test_a_plain_loop_moves_every_trained_parameter_by_the_clipped_mean() -> None:
    module, expected = TEXTS.network(0), TEXTS.network(0).double()
    before = {name: one.detach().clone() for name, one in module.named_parameters()}
    engine, (private, optimizer, loader) = made(module)
    engine.check(lambda batch: TEXTS.loss_of(private, batch), TEXTS.made_up)
    silenced(optimizer.private)
    moved: dict[str, float] = {}
    for batch in loader:
        optimizer.zero_grad()
        TEXTS.loss_of(private, batch).backward()
        optimizer.step()
    for _ in range(2):
        by_hand(expected)
    for (name, one), other in zip(module.named_parameters(), expected.parameters(), strict=True):
        moved[name] = float((one - before[name]).detach().norm())
        assert moved[name] > 1e-3 if one.requires_grad else moved[name] == 0.0, name
        assert one.detach().numpy() == pytest.approx(other.detach().numpy(), abs=1e-4)
    assert sum(value > 0.0 for value in moved.values()) == 8  # two layers, two adapters of two


@pytest.mark.process
def test_two_ranks_train_the_language_model_of_one_bit_for_bit(tmp_path: Path) -> None:
    alone, (one,) = train(tmp_path / "one", 1, users=True, texts=True)
    codes, both = train(tmp_path / "two", 2, users=True, texts=True)
    assert (alone, codes) == ([0], [0, 0])
    for other in both:
        assert all(np.array_equal(one[name], other[name]) for name in one if name.isdigit())
    assert max(other["batches"] for other in both) < one["batches"]


def test_an_adapter_for_inference_is_refused() -> None:
    """PEFT loads adapters in this way by default; a training would change nothing."""
    module = TEXTS.network(0)
    with Turnstile.in_memory(partitions=1) as service:
        engine = PrivacyEngine(service, dataset="texts", run="a")
        with pytest.raises(InvalidRequest, match="is_trainable"):
            engine.make_private(
                module=module.requires_grad_(False),
                optimizer=torch.optim.SGD(module.parameters(), lr=LEARNING_RATE),
                data_loader=torch.utils.data.DataLoader(TEXTS.data, batch_size=8),
                noise_multiplier=1.0,
                max_grad_norm=CLIP_NORM,
                population=40,
            )


def test_an_adapter_that_the_model_does_not_use_is_refused() -> None:
    module = TEXTS.network(0)
    engine, (private, _, _) = made(module)
    with module.disable_adapter(), pytest.raises(InvalidRequest, match="adapters"):
        engine.check(lambda batch: TEXTS.loss_of(private, batch), TEXTS.made_up)


def test_the_loss_of_the_page_is_the_mean_of_its_examples() -> None:
    """Each example's own loss is that of transformers; one without a label has none."""
    _, script = blocks(page("train/huggingface"))
    names: dict[str, Any] = {}
    exec(script, names)
    module, rows = TEXTS.network(0), [TRAININGS["texts"].data[place] for place in range(6)]
    own = [
        float(module(**{name: torch.tensor([value]) for name, value in row.items()}).loss)
        for row in rows
    ]
    rows.append({**rows[0], "labels": [-100] * 6})
    batch = {name: torch.tensor([row[name] for row in rows]) for name in rows[0]}
    assert float(names["loss_of"](module, batch)) == pytest.approx(sum(own) / 7, rel=1e-5)


def trainer_of(service: Turnstile, folder: Path, run: str = "a", **changes: Any) -> Any:
    """Return a trainer of two steps, whose noise comes from a seed."""
    what = TRAININGS["texts"]
    given = {"model": TEXTS.network(0), **changes}
    return HuggingFaceTrainer(
        engine=PrivacyEngine(service, dataset="texts", run=run),
        train_dataset=what.data,
        examples=what.examples,
        users=what.users,
        target_epsilon=8.0,
        target_delta=1e-5,
        settings={"population": 40, "not_private_generator": np.random.default_rng(7)},
        args=transformers.TrainingArguments(
            output_dir=str(folder),
            max_steps=2,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            use_cpu=True,
            **given.pop("args", {}),
        ),
        **given,
    )


def test_checkpointed_layers_have_the_same_gradients(tmp_path: Path) -> None:
    moved = []
    for how in ({}, {"gradient_checkpointing_kwargs": {"use_reentrant": True}}):
        args = {"gradient_checkpointing": bool(how), **how}
        with Turnstile.in_memory(partitions=1) as service:
            trainer = trainer_of(service, tmp_path, args=args)
            trainer.train()
            moved.append([one.detach().clone() for one in trainer.model.parameters()])
    assert all(map(torch.equal, *moved))


def adapted(kind: str, **settings: Any) -> Any:
    adapter = getattr(peft, kind)(task_type="CAUSAL_LM", **settings)
    return peft.get_peft_model(TEXTS.network(0).unload(), adapter)


@pytest.mark.parametrize(
    "changes",
    [
        lambda: {"args": {"gradient_checkpointing": True}},
        lambda: {"compute_loss_func": lambda *_, **__: None},
        lambda: {"model": adapted("LoraConfig", target_modules=["q_proj"], use_dora=True)},
        lambda: {"model": adapted("LoraConfig", target_modules=["embed_tokens"])},
        lambda: {"model": adapted("IA3Config")},
        lambda: {"model": adapted("PromptTuningConfig", num_virtual_tokens=2)},
    ],
    ids=["checkpointed layers", "no loss", "DoRA", "embedding", "IA3", "prompt"],
)
def test_trainings_without_gradients_by_example_are_refused(
    tmp_path: Path, changes: Callable[[], dict[str, Any]]
) -> None:
    with Turnstile.in_memory(partitions=1) as service, pytest.raises(InvalidRequest):
        trainer_of(service, tmp_path, **changes())


def test_one_budget_pays_for_the_trainings_of_two_months(tmp_path: Path) -> None:
    noise = steps_noise_multiplier(8.0, 1e-5, sampling_rate=0.2, steps=4)
    with Turnstile.in_memory(partitions=1) as service:
        policy = service.create_dataset(
            "texts",
            measure="steps",
            epsilon=8.0,
            delta=1e-5,
            sampling_rate=0.2,
            noise_multiplier=noise,
        )
        for number, month in enumerate(("2026-01", "2026-02"), 1):
            trainer = trainer_of(service, tmp_path / month, month)
            trainer.train()
            service.close_run("texts", month)
            assert trainer.engine.statement()["noise_multiplier"] == noise
            spent = {one.user: one for one in service.odometer("texts", follow=False)}
            assert {one.share(policy) for one in spent.values()} == {number / 2}
            assert len(spent) == 40


@pytest.mark.slow
def test_the_example_continues_where_it_was_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script = example("train_language_model")
    trainer, steps = script.HuggingFaceTrainer, 5
    monkeypatch.setattr(script, "STEPS", steps)
    monkeypatch.chdir(tmp_path)
    original = trainer.training_step

    def interrupted(self: Any, *arguments: Any) -> Any:
        if self.state.global_step == 2:
            raise KeyboardInterrupt
        return original(self, *arguments)

    with monkeypatch.context() as patched:
        patched.setattr(trainer, "training_step", interrupted)
        with pytest.raises(KeyboardInterrupt):
            script.main()
    losses = []
    for _ in range(2):  # the second time there is nothing left to train
        capsys.readouterr()
        script.main()
        (line,) = (one for one in capsys.readouterr().out.splitlines() if "loss of other" in one)
        losses.append(line)
    assert losses[0] == losses[1]
    with Turnstile.open(tmp_path / "budgets.db") as turnstile:
        assert turnstile.run("texts", "night-7").step == steps
