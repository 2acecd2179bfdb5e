"""Private trainings with Hugging Face's Trainer: `make test-huggingface`."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from accounting import square_root_column
from streams import Fenced, InvalidRequest, Turnstile

torch = pytest.importorskip("torch", reason="PyTorch is not installed: make test-huggingface")
transformers = pytest.importorskip("transformers", reason="make test-huggingface")
filter_repo_objects = pytest.importorskip("huggingface_hub.utils").filter_repo_objects
pytest.importorskip("opacus", reason="Opacus is not installed: make test-huggingface")
pytest.importorskip("peft", reason="PEFT is not installed: make test-huggingface")
from streams.trainers import PrivacyEngine  # noqa: E402
from streams.trainers.ghost import written_sum  # noqa: E402
from streams.trainers.huggingface import HuggingFaceTrainer  # noqa: E402
from tests.unit.trainers import finetuning  # noqa: E402
from tests.unit.trainers.finetuning import (  # noqa: E402
    EXAMPLE,
    EXAMPLES,
    STEPS,
    USERS,
    Death,
    Reviews,
    network,
)


@pytest.fixture
def service() -> Iterator[Turnstile]:
    with Turnstile.in_memory(partitions=1) as turnstile:
        yield turnstile


def trainer_of(service: Turnstile, folder: Path, name: str = "a", **changes: Any) -> Any:
    settings: dict[str, Any] = {
        "output_dir": str(folder),
        "num_train_epochs": 3,
        "per_device_train_batch_size": 8,
        "gradient_accumulation_steps": 2,
        "max_grad_norm": 1.0,
        "learning_rate": 1e-2,
        "logging_steps": 2,
        "save_strategy": "no",
        "report_to": [],
        "disable_tqdm": True,
        "use_cpu": True,
        **changes.pop("args", {}),
    }
    arguments: dict[str, Any] = {
        "model": network(),
        "examples": EXAMPLES,
        "train_dataset": Reviews(),
        "users": USERS,
        "settings": {"population": 40, "sampling_rate": 0.2},
        "target_epsilon": 8.0,
        "target_delta": 1e-5,
        **changes,
    }
    engine = PrivacyEngine(service, dataset="reviews", run=name, measure="renyi")
    args = transformers.TrainingArguments(**settings)
    return HuggingFaceTrainer(engine=engine, args=args, **arguments)


def test_nothing_that_is_computed_from_training_data_is_logged(
    service: Turnstile, tmp_path: Path
) -> None:
    trainer = trainer_of(service, tmp_path, eval_dataset=Reviews())
    done = trainer.train()
    logged = set().union(*trainer.state.log_history)
    assert {"learning_rate", "epoch"} <= logged
    assert not {"loss", "train_loss", "grad_norm"} & logged
    assert done.training_loss == 0.0
    assert trainer.state.total_flos == 0
    assert trainer.evaluate()["eval_loss"] > 0.0


def test_saved_model_loads_without_the_private_wrapper(service: Turnstile, tmp_path: Path) -> None:
    trainer = trainer_of(service, tmp_path, args={"save_strategy": "epoch", "max_steps": 4})
    trainer.train()
    trainer.save_model(str(tmp_path / "model"))
    loaded = transformers.BertForSequenceClassification.from_pretrained(tmp_path / "model")
    pairs = zip(loaded.parameters(), trainer.model.parameters(), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)


@pytest.mark.parametrize(
    "changes",
    [
        {"args": {"num_train_epochs": 1.5}},
        {"args": {"auto_find_batch_size": True}},
        {"args": {"max_grad_norm": 0.0}},
        {"target_epsilon": -1.0},
        {"users": USERS[1:]},
        {"train_dataset": None},
        {"population": 40},  # belongs in settings
    ],
)
def test_trainings_that_cannot_be_private_are_rejected(
    service: Turnstile, tmp_path: Path, changes: dict[str, Any]
) -> None:
    with pytest.raises(InvalidRequest):
        trainer_of(service, tmp_path, **changes)


def test_a_run_is_not_trained_twice(service: Turnstile, tmp_path: Path) -> None:
    trainer = trainer_of(service, tmp_path, args={"max_steps": 2})
    with pytest.raises(InvalidRequest):
        trainer.train(resume_from_checkpoint=str(tmp_path))
    trainer.train()
    for again in (trainer, trainer_of(service, tmp_path, args={"max_steps": 4})):
        with pytest.raises(InvalidRequest):
            again.train()
    assert service.run("reviews", "a").step == 2


def test_rows_of_noise_leave_neither_the_checkpoint_nor_the_computer(
    service: Turnstile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader of both the rows and the published models could subtract the noise."""
    changes: dict[str, Any] = {
        "settings": {"population": 32, "column": square_root_column(2)},
        "args": {"save_strategy": "steps", "save_steps": 1, "max_steps": 2},
    }
    trainer_of(service, tmp_path, **changes).train()
    files: list[str] = []

    def collect(*_: Any, **__: Any) -> None:
        files.extend(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*"))

    trainer = trainer_of(service, tmp_path, **changes)
    monkeypatch.setattr(transformers.Trainer, "train", collect)  # of a resumed training
    trainer.train(resume_from_checkpoint=True)
    assert any(name.endswith("model.safetensors") for name in files)
    assert not [name for name in files if "noise" in name]
    uploads: list[dict[str, Any]] = []
    monkeypatch.setattr(
        "transformers.trainer.hf_api",
        lambda: SimpleNamespace(upload_folder=lambda **named: uploads.append(named)),
    )
    monkeypatch.setattr(trainer, "create_model_card", lambda **_: None)
    trainer.hub_model_id = "me/model"
    trainer.push_to_hub()
    assert uploads[0]["folder_path"] == str(tmp_path)
    collect()
    sent = list(filter_repo_objects(files, ignore_patterns=uploads[0]["ignore_patterns"]))
    assert "config.json" in sent
    assert not [name for name in sent if "turnstile" in name]


# --- killed and resumed ---------------------------------------------------------------------------

Lives = Callable[..., "np.ndarray[Any, np.dtype[np.float32]]"]
SIGKILL = -9


@pytest.fixture(scope="module")
def lives() -> Lives:
    """Return a function that trains in processes, of which all but the last are killed."""
    forks = multiprocessing.get_context("forkserver")
    forks.set_forkserver_preload([finetuning.__name__])

    def trained(folder: Path, *deaths: Death, **settings: Any) -> Any:
        for death in (*deaths, None):
            process = forks.Process(
                target=finetuning.train, args=(folder,), kwargs={**settings, "death": death}
            )
            process.start()
            process.join(120)
            process.kill()
            assert process.exitcode == (SIGKILL if death else 0)
        with np.load(folder / "model.npz") as model:
            return np.concatenate([model[str(n)].ravel() for n in range(len(model.files))])

    return trained


def charged_steps(folder: Path) -> tuple[int, bool]:
    """Return how many steps the run has made, and whether every user can pay for another one."""
    with Turnstile.open(folder / "budgets.db") as service:
        run = service.run("reviews", "a")
        roster = run.enrol(np.unique(USERS), clip_norm=1.0)
        decision = roster.charge(
            noise_stddev=run.policy.noise_multiplier, sampling_rate=finetuning.RATE
        )
        assert decision.admitted.all() or not decision.admitted.any()
        return decision.step, bool(decision.admitted.all())


@pytest.mark.process
@pytest.mark.parametrize("kind", finetuning.TRAININGS)
@pytest.mark.parametrize(
    ("save_every", "deaths", "given_up"),
    [
        (1, [Death("step begin", 0), Death("step begin", 7), Death("save", 9)], []),
        (1, [Death("step end", 8)], [7]),
        (1, [Death("forward", 3), Death("forward", 4), Death("forward", 14)], [3, 4, 14]),
        (4, [Death("forward", 10)], [8, 9, 10]),
        (4, [Death("forward", 2)], [0, 1, 2]),  # before the first checkpoint
    ],
)
def test_a_killed_training_releases_all_steps_but_those_given_up(
    lives: Lives,
    tmp_path: Path,
    kind: str,
    save_every: int,
    deaths: list[Death],
    given_up: list[int],
) -> None:
    model = lives(tmp_path / "a", *deaths, kind=kind, save_every=save_every)
    with Turnstile.open(tmp_path / "a" / "budgets.db") as service:
        noise = service.run("reviews", "a").policy.noise_multiplier
    assert isinstance(noise, float)
    expected = finetuning.by_hand(noise, [n for n in range(STEPS) if n not in given_up], kind)
    assert model == pytest.approx(expected, abs=1e-4)
    assert charged_steps(tmp_path / "a") == (STEPS, False)


def test_a_trainer_whose_successor_has_taken_over_saves_nothing(
    service: Turnstile, tmp_path: Path
) -> None:
    trainer = trainer_of(service, tmp_path, args={"save_strategy": "steps", "save_steps": 1})

    class Succeeded(transformers.TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if state.global_step == 3:
                service.run("reviews", "a")

    trainer.add_callback(Succeeded())
    with pytest.raises(Fenced):
        trainer.train()
    assert not (tmp_path / "checkpoint-3").exists()
    resumed = trainer_of(service, tmp_path, args={"save_strategy": "steps", "save_steps": 1})
    assert resumed.train(resume_from_checkpoint=True).global_step == STEPS


@pytest.mark.parametrize("save_only_model", [False, True])
def test_the_learning_rate_follows_the_steps_of_the_run(
    service: Turnstile, tmp_path: Path, save_only_model: bool
) -> None:
    args = {
        "save_strategy": "steps",
        "save_steps": 4,
        "save_only_model": save_only_model,
        "logging_steps": 1,
    }
    trainer = trainer_of(service, tmp_path, args=args)

    class Interrupted(transformers.TrainerCallback):
        def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if state.global_step == 6:
                raise KeyboardInterrupt

    trainer.add_callback(Interrupted())
    with pytest.raises(KeyboardInterrupt):
        trainer.train()
    resumed = trainer_of(service, tmp_path, args=args)
    resumed.train(resume_from_checkpoint=True)
    found = [e["learning_rate"] for e in resumed.state.log_history if "learning_rate" in e]
    steps = [*range(4), *range(6, STEPS)]  # the log of steps 4 and 5 was not saved
    assert found == pytest.approx([1e-2 * (1.0 - step / STEPS) for step in steps])


def test_a_training_keeps_the_checkpoint_of_another_one(service: Turnstile, tmp_path: Path) -> None:
    args = {"max_steps": 2, "save_strategy": "steps", "save_steps": 1}
    trainer_of(service, tmp_path, args=args).train()
    service.close_run("reviews", "a")
    other = trainer_of(service, tmp_path, "b", args=args)
    for resumes in (False, True):
        with pytest.raises(InvalidRequest):
            other.train(resume_from_checkpoint=resumes)
    assert service.run("reviews", "b").step == 0


# --- the loss of each example ---------------------------------------------------------------------

SMALL = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
LLAMA: dict[str, Any] = {**SMALL, "intermediate_size": 8, "vocab_size": 30}
VIT: dict[str, Any] = {**SMALL, "intermediate_size": 8, "image_size": 8, "patch_size": 4}
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
BERT: dict[str, Any] = {**LLAMA, **NO_DROPOUT, "max_position_embeddings": 8}
GPT2: dict[str, Any] = {"vocab_size": 30, "n_embd": 8, "n_layer": 1, "n_head": 2, "n_positions": 8}
GPT2 |= {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
T5: dict[str, Any] = {"vocab_size": 30, "d_model": 8, "d_kv": 4, "d_ff": 8, "num_layers": 1}
T5 |= {"num_heads": 2, "dropout_rate": 0.0, "decoder_start_token_id": 0}
MANY = torch.tensor([[-100, 7, 8, 9, 10, 11], [-100, 7, *[-100] * 4], [*[-100] * 4, 8, 9]])


@pytest.mark.parametrize(
    ("kind", "config", "labels"),
    [
        ("GPT2LMHeadModel", GPT2, MANY),
        ("BertForMaskedLM", BERT, MANY),
        ("BertForTokenClassification", {**BERT, "num_labels": 12}, MANY),
        ("T5ForConditionalGeneration", T5, MANY),
        ("BertForSequenceClassification", BERT, torch.tensor([0, 1, 1])),
        ("BertForSequenceClassification", {**BERT, "num_labels": 1}, torch.tensor([0.1, 2.0, 1.0])),
        ("BertForSequenceClassification", {**BERT, "num_labels": 2}, torch.eye(3)[:, :2]),
    ],
)
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_loss_of_a_batch_is_the_mean_of_its_examples(
    service: Turnstile, tmp_path: Path, kind: str, config: Any, labels: Any, smoothing: float
) -> None:
    kind = getattr(transformers, kind)
    torch.manual_seed(0)
    model = kind(kind.config_class(**config))
    args = {"label_smoothing_factor": smoothing}
    settings = {"population": 40, "examples_are_independent": True}  # Opacus rejects some
    trainer = trainer_of(service, tmp_path, model=model, args=args, settings=settings)
    batch = {"input_ids": torch.arange(5, 23).view(3, 6), "labels": labels}

    def loss_of(rows: slice) -> float:
        return float(trainer.compute_loss(model, {k: v[rows] for k, v in batch.items()}))

    rows = [slice(place, place + 1) for place in range(3)]
    assert loss_of(slice(None)) == pytest.approx(np.mean([loss_of(row) for row in rows]))
    if not smoothing:
        own = [float(model(**{k: v[row] for k, v in batch.items()}).loss) for row in rows]
        assert [loss_of(row) for row in rows] == pytest.approx(own)


# --- the check of a gradient ----------------------------------------------------------------------


class Rows(torch.utils.data.Dataset):
    """Private examples, which the check must not touch."""

    def __len__(self) -> int:
        return len(USERS)

    def __getitem__(self, place: int) -> dict[str, Any]:
        raise AssertionError("a private example is read")


TEXT = {"input_ids": [0] * 6, "attention_mask": [1] * 6, "labels": 0}
TAGGED = {**TEXT, "labels": [0] * 6}
PLACES = {"position_ids": list(range(6))}
IMAGE = {"pixel_values": np.zeros((3, 8, 8), dtype=np.float32), "labels": 0}


@pytest.mark.parametrize(
    ("kind", "config", "example"),
    [
        ("GPT2LMHeadModel", GPT2, TAGGED | PLACES),
        ("BertForTokenClassification", BERT, TAGGED | PLACES),
        ("BertForSequenceClassification", BERT, TEXT | PLACES),
        (
            "BertForSequenceClassification",
            {**BERT, "num_labels": 1},
            TEXT | PLACES | {"labels": 0.5},
        ),
        ("LlamaForCausalLM", LLAMA, TAGGED),
        ("ViTForImageClassification", VIT, IMAGE),
    ],
)
def test_models_are_checked_with_the_examples_of_the_caller(
    service: Turnstile, tmp_path: Path, kind: str, config: Any, example: Any
) -> None:
    kind = getattr(transformers, kind)
    torch.manual_seed(0)
    model = kind(kind.config_class(**config))
    trainer = trainer_of(
        service, tmp_path, model=model, train_dataset=Rows(), examples=varied(example)
    )
    assert trainer.engine.statement()["independence"] == "checked"


def varied(example: dict[str, Any]) -> list[dict[str, Any]]:
    """Return examples in the form of one: other tokens, pixels, labels and numbers of labels."""
    found = []
    for n in range(4):
        labels = example["labels"]
        tags = [*[n % 2] * (6 - n), *[-100] * n]
        made = {"labels": tags if isinstance(labels, list) else type(labels)(n % 2)}
        if "input_ids" in example:
            made["input_ids"] = [(5 + n + place) % 30 for place in range(6)]
        else:
            made["pixel_values"] = example["pixel_values"] + np.float32(n)
        found.append({**example, **made})
    return found


class OwnLoss(transformers.GPT2LMHeadModel):  # type: ignore[misc]
    """A model whose loss is not that of transformers' own class, so that it is not replaced."""


def test_a_model_that_couples_its_examples_is_refused(service: Turnstile, tmp_path: Path) -> None:
    model = OwnLoss(transformers.GPT2Config(**GPT2))
    changes = {"model": model, "train_dataset": Rows(), "examples": varied(TAGGED | PLACES)}
    with pytest.raises(InvalidRequest, match="not the mean over examples"):
        trainer_of(service, tmp_path, **changes)
    assert service.run("reviews", "a").step == 0


def padding_to_the_longest(examples: list[dict[str, Any]]) -> Any:
    longest = max(len(example["input_ids"]) for example in examples)
    return {
        name: torch.tensor(
            [
                part + [0] * (longest - len(part)) if isinstance(part, list) else part
                for part in (example[name] for example in examples)
            ]
        )
        for name in examples[0]
    }


def test_a_collator_that_pads_to_the_longest_is_refused(service: Turnstile, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="pads to the longest"):
        trainer_of(service, tmp_path, data_collator=padding_to_the_longest)


@pytest.mark.parametrize(
    "example",
    [{**EXAMPLE, "input_ids": [30] * 6}, {**EXAMPLE, "labels": 2}],
    ids=["token", "label"],
)
def test_an_ill_formed_example_is_refused(
    service: Turnstile, tmp_path: Path, example: dict[str, Any]
) -> None:
    with pytest.raises(InvalidRequest, match=r"examples\[2\].* does not have"):
        trainer_of(service, tmp_path, examples=[*EXAMPLES[:2], example, *EXAMPLES[2:]])


ILL_FORMED: list[Any] = [
    {**EXAMPLE, **change}
    for change in ({"input_ids": [30] * 6}, {"labels": 2}, {"position_ids": None}, {"labels": 1.0})
]


def test_an_ill_formed_example_has_no_loss(tmp_path: Path) -> None:
    """Users whose examples are all ill-formed leave the noise-free model where it was."""

    class IllFormed(Reviews):
        def __getitem__(self, place: int) -> Any:
            return [*ILL_FORMED, None][place % 5]

    with Turnstile.in_memory(partitions=1) as service:
        trainer = trainer_of(service, tmp_path, train_dataset=IllFormed())
        batch = next(iter(next(iter(trainer.get_train_dataloader()))))
        trainer.compute_loss(trainer.model_wrapped, batch).backward()
        size = len(batch["labels"])
        each = [
            written_sum("", parameter, size, slice(place, place + 1))
            for parameter in trainer.model.parameters()
            for place in range(size)
        ]
        assert each
        assert not any(one.any() for one in each)
