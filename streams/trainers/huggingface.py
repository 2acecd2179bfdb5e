"""A Hugging Face ``Trainer`` whose training is private for every user (docs/train/huggingface.md).

One step of the ``Trainer`` is one charged step: learning-rate schedules, logging and saving follow
public numbers. ``args.max_grad_norm`` is the clip norm of a user's gradient.
``args.per_device_train_batch_size`` is the number of examples that are computed at once; times
``gradient_accumulation_steps`` it is the expected number of users in a step.

**Resuming.** Whenever the ``Trainer`` saves, the content of its checkpoint folder and the released
step are also written to one file, which is replaced atomically. Steps that were charged since are
given up: they stay charged, they count as steps of the learning-rate schedule, and nothing more of
them is released.

**Ill-formed examples have a loss of 0**: those without a column of ``examples``, with another shape
or type, or with a token, position or label unknown to the model. An error would reveal them.

transformers and accelerate are the extra ``huggingface``.
"""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch.nn import functional
from torch.utils.data import DataLoader, IterableDataset
from transformers import Trainer, TrainerState
from transformers.trainer import SCHEDULER_NAME, TRAINER_STATE_NAME
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from accounting.exact.invalid_input import quoted
from streams.sdk.errors import InvalidRequest
from streams.trainers.checkpoint import Checkpoint
from streams.trainers.independence import check_padding
from streams.trainers.loader import IndividualDPLoader, Settings
from streams.trainers.ranks import rank_and_ranks
from streams.trainers.steps import PrivateSteps
from streams.trainers.torch import PrivacyEngine

_RELEASED_ONLY: Final = ("loss", "train_loss", "grad_norm")
# transformers uploads the other names of the folder to the Hub; the checkpoint may be secret.
_CHECKPOINT: Final = "_turnstile.npz"
_UNPACKED: Final = "_turnstile-unpacked"
_SHIFTED: Final = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")  # predict the next
_OF_TOKENS: Final = (*_SHIFTED, "ForMaskedLM", "ForTokenClassification")
_HEADS: Final = (*_OF_TOKENS, "ForSequenceClassification", "ForImageClassification")
_LOSSES: Final[dict[str, Any]] = {
    "regression": functional.mse_loss,
    "multi_label_classification": functional.binary_cross_entropy_with_logits,
}  # of problem types, whose labels are numbers
_IGNORED: Final = -100  # a label without a loss
_COUNTS: Final = "turnstile_counts"  # which examples of a batch are well-formed
_BY_METRIC: Final = ("reduce_lr_on_plateau", "greedy")  # schedules that do not follow steps


class HuggingFaceTrainer(Trainer):
    """``transformers.Trainer``, charged step by step.

    Args:
        engine: the engine of this training.
        examples: made up or public, in the form of ``train_dataset``: at least four, of different
            tokens, lengths and labels, with which the training is checked
            (``PrivacyEngine.check``). The first one replaces ill-formed ones; a model class of your
            own, or ``compute_loss_func``, then has its loss instead of 0.
        target_epsilon: with target_delta, the guarantee of every user.
        target_delta: see target_epsilon.
        users: (examples,), the user of each example of ``train_dataset``; by default each example
            has its own user.
        settings: other arguments of ``PrivacyEngine.make_private_with_epsilon``.
        arguments: of ``Trainer``, by name.

    Raises:
        InvalidRequest: the arguments are invalid, or the gradient of an example depends on the
            others; no user was charged.
    """

    optimizer: Any
    lr_scheduler: Any

    def __init__(
        self,
        *,
        engine: PrivacyEngine,
        examples: Sequence[dict[str, Any]],
        target_epsilon: float,
        target_delta: float,
        users: Any = None,
        settings: dict[str, Any] | None = None,
        **arguments: Any,
    ) -> None:
        settings = settings or {}
        if misplaced := arguments.keys() & set(Settings._fields):
            raise InvalidRequest(f"put {', '.join(sorted(misplaced))} into settings")
        if settings.get("stop") is not None:
            raise InvalidRequest("Trainer makes all planned steps: leave stop out")
        super().__init__(**arguments)
        args = self.args
        self._check()
        at_once = args.per_device_train_batch_size
        self._expected = at_once * args.gradient_accumulation_steps  # users in a step
        dataset = self.train_dataset
        if hasattr(dataset, "column_names"):
            dataset = self._remove_unused_columns(dataset)
        collate = self._get_collator_with_removed_columns(self.data_collator)
        self._collate = WellFormed(collate, examples, _limits(self._base))
        source: DataLoader[Any] = DataLoader(
            dataset,
            batch_size=self._expected,
            collate_fn=self._collate,
            num_workers=args.dataloader_num_workers,
            pin_memory=args.dataloader_pin_memory,
            prefetch_factor=args.dataloader_prefetch_factor,
        )
        whole = args.max_steps <= 0
        if whole and args.num_train_epochs != int(args.num_train_epochs):
            raise InvalidRequest(
                f"num_train_epochs is {args.num_train_epochs}; give a whole number, or max_steps"
            )
        self.create_optimizer()
        self.engine = engine
        self.model_wrapped, self.optimizer, loader = engine.make_private_with_epsilon(
            module=self.model,
            optimizer=self.optimizer,
            data_loader=source,
            users=users,
            target_epsilon=target_epsilon,
            target_delta=target_delta,
            epochs=int(args.num_train_epochs) if whole else None,
            steps=None if whole else args.max_steps,
            max_grad_norm=args.max_grad_norm,
            max_physical_batch_size=at_once,
            **settings,
        )
        assert isinstance(loader.private, PrivateSteps)  # there is one process
        assert loader.private.planned is not None
        self._loader, self._private = loader, loader.private
        self._pass = loader.private.planned // (int(args.num_train_epochs) if whole else 1)
        self._missed = 0  # steps of the schedule since the checkpoint, which were given up
        self._checkpoint = Checkpoint(Path(args.output_dir) / _CHECKPOINT)
        # A charged step is one step here; its gradient is clipped by user, and private already.
        args.gradient_accumulation_steps, args.max_grad_norm = 1, 0.0
        if not settings.get("examples_are_independent"):
            self._check_independence(examples)

    def get_train_dataloader(self) -> Any:
        """Return the charged steps of one pass, each with its batches."""
        steps = LoaderSteps(self._loader, self._pass)
        return DataLoader(steps, batch_size=None, collate_fn=lambda step: step)

    def num_examples(self, dataloader: Any) -> int:
        """Return the number of examples, which is logged; of a charged pass the expected one."""
        if isinstance(dataloader.dataset, LoaderSteps):
            return int(self._pass * self._expected)
        return int(super().num_examples(dataloader))

    def train(self, resume_from_checkpoint: Any = None, **arguments: Any) -> Any:
        """Train, as ``Trainer.train`` does.

        Args:
            resume_from_checkpoint: True to continue the run from its last checkpoint in
                ``output_dir``. A run that ended before its first one goes on with the model as it
                was given; its steps so far are given up.
            arguments: of ``Trainer.train``.

        Raises:
            InvalidRequest: ``resume_from_checkpoint`` is a path; or the run has made steps before,
                and it is not True; or ``output_dir`` has the checkpoint of another run. No user was
                charged.
            Fenced, ReleasedTwice: another trainer has taken over the run.
        """
        if resume_from_checkpoint not in (None, False, True):
            raise InvalidRequest(
                f"resume_from_checkpoint is {quoted(resume_from_checkpoint)}: give True, which "
                f"continues from {self._checkpoint.path}. To train on from an older model, load "
                "it and open a run of another name"
            )
        step = self._private.step
        if not resume_from_checkpoint:
            if step:
                raise InvalidRequest(
                    f"the run has made {step} steps already: give resume_from_checkpoint=True, or "
                    "open a run of another name"
                )
            if self._checkpoint.path.exists() and self.args.save_strategy != "no":
                raise InvalidRequest(
                    f"{self._checkpoint.path} is the checkpoint of another training, which this "
                    "one would replace: give another output_dir"
                )
            return super().train(**arguments)
        folder = self._unpack()
        try:
            return super().train(resume_from_checkpoint=str(folder), **arguments)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _unpack(self) -> Path:
        """Write the folder that ``Trainer`` resumes from, at the next step of the run."""
        folder = Path(self.args.output_dir) / _UNPACKED
        shutil.rmtree(folder, ignore_errors=True)
        saved = self._private.resume(self._checkpoint)
        step, state, made = self._private.step, self.state, 0
        if saved is None:
            self.save_model(str(folder), _internal_call=True)
            state.train_batch_size = self._train_batch_size
        else:
            for name, content in saved.arrays.items():
                path = folder / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content.tobytes())
            state = TrainerState.load_from_json(str(folder / TRAINER_STATE_NAME))
            # Without the schedule (save_only_model) the new one starts at 0.
            made = state.global_step if SCHEDULER_NAME in saved.arrays else 0
        self._missed = step - made
        state.global_step, state.epoch = step, step / self._pass
        state.save_to_json(str(folder / TRAINER_STATE_NAME))
        return folder

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        """Load both, and move the schedule on to the next step of the run."""
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is not None and self.args.lr_scheduler_type not in _BY_METRIC:
            for _ in range(self._missed):
                self.lr_scheduler.step()

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        """Save a checkpoint, as ``Trainer`` does, and the file to resume from.

        Raises:
            Fenced, ReleasedTwice: another trainer has taken over the run.
        """
        self._private.check_attempt()
        super()._save_checkpoint(model, trial)
        step = f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}"
        folder = Path(self._get_output_dir(trial)) / step
        content = {
            str(path.relative_to(folder)): np.fromfile(path, dtype=np.uint8)
            for path in folder.rglob("*")
            if path.is_file()
        }
        self._private.save(self._checkpoint, content)

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Any:
        """Charge a step, and add up all its batches but the last, which the caller releases.

        The loss is not returned, because it must not be published.
        """
        model.train()  # before the first batch is taken, which charges the step
        with warnings.catch_warnings():
            # One for each batch with frozen layers: the number of batches follows the drawn users.
            warnings.filterwarnings("ignore", "Full backward hook is firing")
            for batch in inputs:
                super().training_step(model, batch)
                if self._loader.is_last:
                    break
                self.optimizer.step()
                model.zero_grad()
        return torch.zeros((), device=self.args.device)

    def compute_loss(
        self,
        model: Any,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Any = None,
    ) -> Any:
        """Return the mean over examples of the loss of each; in evaluation, as ``Trainer`` does.

        transformers takes the mean over all labels of the batch that are not -100. The gradient of
        an example would then depend on how many labels the other examples have.
        """
        counts = inputs.pop(_COUNTS, None)
        base, kind, labels = self._base, _kind_of(self._base), inputs.get("labels")
        known = kind == type(base).__name__  # a class of the caller's own may have another loss
        if not (model.training and known and labels is not None and self.compute_loss_func is None):
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        outputs = model(**inputs)
        shifts = kind.endswith(_SHIFTED) and not base.config.is_encoder_decoder
        loss = _loss_by_example(
            outputs["logits"],
            labels,
            str(getattr(base.config, "problem_type", None)),
            shifts=shifts,
            smoothing=self.args.label_smoothing_factor,
        )
        loss = (loss if counts is None else loss * counts).mean()
        return (loss, outputs) if return_outputs else loss

    @property
    def _base(self) -> Any:
        """Return the model of transformers, without adapters."""
        return self.model.get_base_model() if hasattr(self.model, "get_base_model") else self.model

    def _check_independence(self, examples: Sequence[dict[str, Any]]) -> None:
        """Call ``PrivacyEngine.check`` with the loss of this training."""
        cut = [
            {n: v[: len(v) - less] if isinstance(v, list) else v for n, v in examples[0].items()}
            for less in range(3)
        ]
        try:
            check_padding(self._collate.collate, [cut[:2], cut[1:]])
        except InvalidRequest:
            raise
        except (ValueError, TypeError, RuntimeError, AttributeError):
            pass  # the collator takes texts of one length alone
        config = self._base.config
        problem = getattr(config, "problem_type", None)  # models infer it from the first labels
        self.model_wrapped.train()
        try:
            self.engine.check(
                lambda batch: self.compute_loss(self.model_wrapped, self._prepare_inputs(batch)),
                examples,
            )
        finally:
            config.problem_type = problem

    def floating_point_ops(self, inputs: Any) -> int:
        """Return 0: the number of operations depends on the drawn users."""
        return 0

    def log(self, logs: dict[str, float], *arguments: Any, **named: Any) -> None:
        """Log everything but what is computed from training data."""
        public = {name: value for name, value in logs.items() if name not in _RELEASED_ONLY}
        super().log(public, *arguments, **named)

    def _check(self) -> None:
        args = self.args
        if self.train_dataset is None:
            raise InvalidRequest("train_dataset is missing")
        if rank_and_ranks()[1] > 1 or args.n_gpu > 1 or args.world_size > 1:
            raise InvalidRequest(
                "this trainer runs on one process and one device: use PrivacyEngine with a loop of "
                "your own for several"
            )
        for name in ("auto_find_batch_size", "fp16", "group_by_length", "use_liger_kernel"):
            if getattr(args, name, False):
                raise InvalidRequest(f"{name} is True; a private training needs {name}=False")
        again = args.gradient_checkpointing_kwargs or {}
        if args.gradient_checkpointing and not again.get("use_reentrant"):
            raise InvalidRequest(
                "gradient_checkpointing computes layers again where gradients by example are not "
                "found: give gradient_checkpointing_kwargs={'use_reentrant': True}, too"
            )
        if args.include_num_input_tokens_seen not in (False, "no"):
            raise InvalidRequest("include_num_input_tokens_seen counts private data: leave it out")


def _loss_by_example(
    logits: torch.Tensor, labels: torch.Tensor, problem: str, *, shifts: bool, smoothing: float
) -> torch.Tensor:
    """Return (n,), the mean loss of each example's own labels, as transformers defines it."""
    if problem in _LOSSES:
        each = _LOSSES[problem](logits, labels.view_as(logits).to(logits), reduction="none")
        return torch.as_tensor(each.view(len(labels), -1).mean(dim=1))
    if shifts:
        logits, labels = logits[:, :-1], labels[:, 1:]
    each = functional.cross_entropy(
        logits.movedim(-1, 1), labels, reduction="none", label_smoothing=smoothing
    )
    counted = (labels != _IGNORED).view(len(labels), -1).sum(dim=1)
    return torch.as_tensor(each.view(len(labels), -1).sum(dim=1) / counted.clamp(min=1))


def _kind_of(model: Any) -> str:
    """Return the name of the class of transformers that the model is; empty if it is unknown."""
    theirs = (one for one in type(model).__mro__ if one.__module__.startswith("transformers."))
    return next((one.__name__ for one in theirs if one.__name__.endswith(_HEADS)), "")


def _limits(model: Any) -> dict[str, int | None]:
    """Return the number of values of integer columns; None if the model does not say it."""
    config, kind = model.config, _kind_of(model)
    vocabulary, classes = getattr(config, "vocab_size", None), getattr(config, "num_labels", 2)
    is_of_numbers = classes == 1 or getattr(config, "problem_type", None) in _LOSSES
    by_classes = None if is_of_numbers and not kind.endswith(_OF_TOKENS) else classes
    return {
        "input_ids": vocabulary,
        "decoder_input_ids": vocabulary,
        "token_type_ids": getattr(config, "type_vocab_size", None) or vocabulary,
        "position_ids": getattr(config, "max_position_embeddings", None),
        "labels": vocabulary if kind.endswith((*_SHIFTED, "ForMaskedLM")) else by_classes,
    }


class WellFormed:
    """Collates each example by itself, and replaces ill-formed ones.

    Args:
        collate: makes a batch of examples.
        examples: are public; the batch of the first one has the well-formed columns, shapes and
            types.
        limits: numbers of values of integer columns.
    """

    def __init__(
        self,
        collate: Callable[[list[Any]], Any],
        examples: Sequence[Any],
        limits: Mapping[str, int | None],
    ) -> None:
        self.collate, self._limits = collate, limits
        self._form: dict[str, torch.Tensor] = dict(collate([examples[0]]))
        for number, one in enumerate(examples):
            if self.read(one) is None:
                raise InvalidRequest(
                    f"examples[{number}] has a column without a tensor, or in another form than "
                    "examples[0], or an index that the model does not have"
                )

    def __call__(self, examples: Sequence[Any]) -> dict[str, torch.Tensor]:
        """Return a batch, with a column that says which examples are well-formed."""
        read = [self.read(one) for one in examples]
        rows = [self._form if one is None else one for one in read]
        batch = {name: torch.cat([row[name] for row in rows]) for name in self._form}
        return {**batch, _COUNTS: torch.tensor([one is not None for one in read])}

    def read(self, example: Any) -> dict[str, torch.Tensor] | None:
        """Return the batch of one example; None if it is ill-formed."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # they would tell that the example is there
                made = self.collate([example])
            return {name: self._column(name, made[name]) for name in self._form}
        except Exception:  # there is no list of what a collate function raises
            return None

    def _column(self, name: str, values: torch.Tensor) -> torch.Tensor:
        form = self._form[name]
        if values.shape != form.shape or not torch.can_cast(values.dtype, form.dtype):
            raise ValueError(name)
        limit = None if form.is_floating_point() else self._limits.get(name)
        if limit is not None:
            inside = (values >= 0) & (values < limit)
            if not (inside | ((values == _IGNORED) & (name == "labels"))).all():
                raise ValueError(name)
        return values.to(form.dtype)


class Batches:
    """The batches of one step, of which nothing is known before it is charged."""

    def __init__(self, batches: Iterator[Any]) -> None:
        self._batches = batches

    def __iter__(self) -> Iterator[Any]:
        return self._batches

    def __contains__(self, column: object) -> bool:
        """Return False: ``Trainer`` looks for labels in order to count them."""
        return False


class LoaderSteps(IterableDataset):
    """The steps of one pass, each with its batches. A step that is skipped is not charged."""

    def __init__(self, loader: IndividualDPLoader, steps: int) -> None:
        self._loader, self._steps = loader, steps

    def __len__(self) -> int:
        """Return the number of steps in one pass."""
        return self._steps

    def __iter__(self) -> Iterator[Batches]:
        batches = iter(self._loader)
        for _ in range(self._steps):
            yield Batches(batches)
