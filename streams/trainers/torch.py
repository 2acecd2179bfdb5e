"""Individual accounting for PyTorch, with the names and habits of Opacus (docs/train/pytorch.md).

The loader charges a step and draws its users; the optimizer clips, adds noise and updates the
parameters. Gradients by example come from Opacus's ``GradSampleModule``. Its validator rejects
modules that it cannot handle, such as batch normalisation. The loss and the accuracy on training
data are releases that are not charged: do not publish them.

The contribution of a user must not depend on which other users were drawn:

- **One example's gradient is compared beside several sets of others**, by ``check``.
- **Every batch has the same number of examples.** The drawn users' examples are filled up with
  copies, whose gradients are dropped; more of them come in several batches. Libraries round the
  gradient of an example differently in a batch of another size.
- **Dropout and augmentation follow the operating system's randomness while a step is open**
  (``streams.trainers.loader.Randomness``). With a known seed the mask of an example would reveal
  its place in the batch, and so which other users were drawn.

Gradients of linear layers and embeddings are not written out (``streams.trainers.ghost``). Opacus's
ghost clipping computes norms and sums in float32, which bounds no contribution for certain, and
needs two backward passes. Here both are exact (``streams.trainers.device_sums``), after one pass.

PyTorch and Opacus are the extra ``torch``.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np
import torch
from opacus import PrivacyEngine as OpacusEngine
from opacus.distributed import DifferentiallyPrivateDistributedDataParallel
from opacus.grad_sample import GradSampleModule
from opacus.optimizers import DPOptimizer
from opacus.optimizers.utils import params
from opacus.validators import ModuleValidator
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.nn.parallel import DistributedDataParallel

from accounting import MEASURES, PoissonGaussian
from accounting.exact.argument_checks import positive_finite
from streams.operations.statement import statement_of
from streams.records import Measure, Reason
from streams.sdk.client import Turnstile
from streams.sdk.errors import InvalidRequest, RequestRejected, Unusable, invalid_requests
from streams.sdk.run import Run
from streams.trainers.checkpoint import Checkpoint
from streams.trainers.correlated import CorrelatedSteps
from streams.trainers.device_sums import DeviceSum, Written
from streams.trainers.ghost import PrivateModule, part_of, written_sum
from streams.trainers.independence import check_independence, check_trained
from streams.trainers.loader import Draws, IndividualDPLoader, Settings
from streams.trainers.planning import Schedule, counted_noise, noise_for_steps, value_at
from streams.trainers.ranks import RankedSteps, check_equal
from streams.trainers.steps import PrivateSteps

T = TypeVar("T")

_CONTENT: Final = "content"
_ADDS_UP: Final = (
    DifferentiallyPrivateDistributedDataParallel,
    DistributedDataParallel,
    FullyShardedDataParallel,
)

_OTHERWISE: Final = {
    "accountant": "give measure, which names the way of accounting",
    "clipping": "gradients are clipped as a whole: leave it out",
    "criterion": "call your criterion on the module's output",
    "grad_sample_mode": "factors of gradients are used where they suffice: leave it out",
    "noise_multiplier": "make_private takes it, make_private_with_epsilon computes it",
    "noise_generator": "give not_private_generator, in tests only",
    "is_compatible": "make_private raises an error that says what is not compatible",
    "load_checkpoint": "use streams.trainers.torch.restore",
    "poisson_sampling": "users are always drawn by Poisson sampling, which the charge is for",
    "rand_on_empty": "a step without users releases noise alone: leave it out",
    "save_checkpoint": "use streams.trainers.torch.save, which also keeps the released step",
    "secure_mode": "noise is always exact, from the operating system: leave it out",
    "secure_rng": "noise is always exact, from the operating system",
    "target_delta": "make_private_with_epsilon takes it",
    "target_epsilon": "make_private_with_epsilon takes it",
    "validate": "make_private raises an error that says what is not compatible",
    "wrap_model": "the module is always wrapped: leave it out",
}
"""Arguments and methods of Opacus, with a hint for each."""


class PrivacyEngine:
    """Makes trainings private for every user, charged step by step.

    Neighbouring datasets differ by adding or removing one user, with all its examples. An engine
    serves one training.

    Args:
        turnstile: the service. With ``torch.distributed`` only rank 0 uses it.
        dataset: the name of the dataset in the service. It is created by
            ``make_private_with_epsilon`` if it does not exist.
        run: the name of the training. After a restart the same name continues it.
        measure: the measure of a dataset that is created. "steps" counts steps at the clip norm,
            with the noise of the tightest accountant for a fixed number of steps. "renyi" has a few
            percent more noise, and charges users with short gradients less. "gdp" is for
            ``sampling_rate=1``.
    """

    def __init__(
        self,
        turnstile: Turnstile | None = None,
        *,
        dataset: str = "",
        run: str = "",
        measure: Measure = "steps",
        **others: Any,
    ) -> None:
        _refuse(others)
        if not (dataset and run):
            raise InvalidRequest(
                "dataset or run is missing: each training is a run that charges the budgets of a "
                'dataset, as PrivacyEngine(Turnstile.open("budgets.db"), dataset="faces", '
                'run="night-7")'
            )
        self._turnstile, self._dataset, self._name = turnstile, dataset, run
        self._measure: Measure = measure
        self._training: _Training | None = None
        self._independence = "not checked"  # of an example's gradient from the others

    get_compatible_module = OpacusEngine.get_compatible_module

    @property
    def accountant(self) -> PrivacyEngine:
        """Return the engine, for scripts that call ``accountant.get_epsilon(delta)``."""
        return self

    def __getattr__(self, name: str) -> Any:
        """Raise the error that says what to use instead of what Opacus has."""
        instead = f": {_OTHERWISE[name]}" if name in _OTHERWISE else ""
        raise AttributeError(f"PrivacyEngine has no {name}{instead}")

    def make_private(
        self,
        *,
        module: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        data_loader: Any,
        noise_multiplier: Schedule,
        max_grad_norm: float,
        users: Any = None,
        epochs: int | None = None,
        steps: int | None = None,
        **settings: Any,
    ) -> tuple[GradSampleModule, IndividualDPOptimizer, IndividualDPLoader]:
        """Return a private module, optimizer and loader. The dataset must exist.

        Args:
            module: to be trained, in training mode.
            optimizer: the optimizer of its parameters.
            data_loader: a ``torch.utils.data.DataLoader``. Its dataset, ``collate_fn``, workers and
                pinned memory are used; its batches are replaced by Poisson samples of users.
            noise_multiplier: the noise, as a multiple of ``max_grad_norm``; may be a schedule.
            max_grad_norm: the norm that a user's gradient, summed over its examples, is clipped to.
                A user whose budget is unspent when the training begins can afford it in every
                planned step.
            users: (examples,), the user of each example; by default each example has its own user.
            epochs: planned number of passes over the loader, each of about 1 / sampling rate steps.
            steps: the planned number of steps, instead of ``epochs``; the loader's only pass then
                has all of them. Without either there is no plan, so users may be halted.
            settings: the other arguments of ``Settings``, by name.

        Raises:
            InvalidRequest: the arguments are invalid, or the noise is too low for the planned
                steps; no user was enrolled.
            opacus.validators.errors.UnsupportedModuleError: the module mixes examples.
        """
        draws = Draws(data_loader, users, epochs, steps, _read(settings))
        _check_model(module, optimizer, max_grad_norm)

        def opened() -> tuple[Run, Schedule]:
            run = self._open(draws.groups)
            if run is None:
                raise InvalidRequest(
                    f"dataset {self._dataset!r} does not exist: create it with create_dataset, or "
                    "call make_private_with_epsilon, which does"
                )
            return run, noise_multiplier

        return self._make(opened, module, optimizer, draws, max_grad_norm, None)

    def make_private_with_epsilon(
        self,
        *,
        module: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        data_loader: Any,
        target_epsilon: float,
        target_delta: float,
        max_grad_norm: float,
        users: Any = None,
        epochs: int | None = None,
        steps: int | None = None,
        **settings: Any,
    ) -> tuple[GradSampleModule, IndividualDPOptimizer, IndividualDPLoader]:
        """Return a private module, optimizer and loader, with the noise that lasts for all steps.

        Args:
            module, optimizer, data_loader: as for ``make_private``, and so are the others.
            target_epsilon: with target_delta, the guarantee of every user. A dataset that does not
                exist is created with it; an existing one must guarantee no less.
            target_delta: see target_epsilon.
            max_grad_norm, users, settings: as for ``make_private``.
            epochs, steps: one of them is required.

        Raises:
            InvalidRequest: the arguments are invalid, the existing dataset guarantees less, or no
                noise lasts; no user was enrolled.
            opacus.validators.errors.UnsupportedModuleError: the module mixes examples.
        """
        draws = Draws(data_loader, users, epochs, steps, _read(settings))
        _check_model(module, optimizer, max_grad_norm)
        charges = draws.charges
        if charges is None:
            raise InvalidRequest("the noise follows from the number of steps: give epochs or steps")

        def opened() -> tuple[Run, Schedule]:
            run = self._open(draws.groups)
            if run is None:
                self._create(draws, charges, target_epsilon, target_delta)
                run = self._service().run(self._dataset, self._name, min_separation=draws.groups)
            promised = run.policy.epsilon(target_delta)
            if promised > target_epsilon * (1.0 + 1e-9):
                raise InvalidRequest(
                    f"dataset {self._dataset!r} exists and guarantees epsilon {promised:.6g} at "
                    f"delta {target_delta:g}, which is more than target_epsilon = "
                    f"{target_epsilon:g}: give target_epsilon={promised:.6g}, or use a dataset of "
                    "another name"
                )
            policies = [run.policy, *run.outer]
            return run, noise_for_steps(policies, charges, sampling_rate=draws.rate)

        return self._make(opened, module, optimizer, draws, max_grad_norm, target_delta)

    def check(self, loss_of: Callable[[Any], torch.Tensor], examples: Sequence[Any]) -> None:
        """Check that the gradient of an example does not depend on the other examples.

        It is required before the first step, and changes neither the module nor any generator.

        Args:
            loss_of: takes a batch that the loader's ``collate_fn`` has made, and returns the loss
                of the training: ``lambda batch: criterion(module(batch[0]), batch[1])``.
            examples: at least four, as the dataset has them, of different labels and lengths. They
                must be public or made up: with users' examples a refusal reveals something of them.

        Raises:
            Unusable: nothing was made private yet.
            InvalidRequest: the gradient depends on the others, or is not the loss's gradient. No
                user was charged.
        """
        made = self._made()
        check_trained(made.module, made.optimizer.params)
        collate = made.draws.source.collate_fn
        check_independence(made.module, made.optimizer.params, loss_of, collate, examples)
        self._independence = "checked"

    def _check_step(self) -> None:
        """Check before a step is charged that its gradients can be computed by example."""
        if self._independence == "not checked":
            raise InvalidRequest(
                "whether the gradient of an example depends on the others was not checked: call "
                "engine.check(loss_of, examples) with public or made-up examples, or pass "
                "examples_are_independent=True, which the statement then says"
            )
        made = self._made()
        check_trained(made.module, made.optimizer.params)

    def get_epsilon(self, delta: float) -> float:
        """Return the epsilon that the dataset's budget guarantees to every user, rounded up.

        It is public and does not change during training. It covers all trainings and queries of
        the dataset together. For a dataset with parents, publish ``statement`` instead.

        Raises:
            Unusable: nothing was made private yet.
        """
        return self._made().optimizer.private.policies[0].epsilon(delta)

    def statement(self, delta: float | None = None) -> dict[str, Any]:
        """Return the guarantee for a model card, as values that JSON has.

        Args:
            delta: the guarantee's delta; by default that given to ``make_private_with_epsilon``.

        Raises:
            Unusable: nothing was made private yet.
            InvalidRequest: delta is missing.
        """
        made = self._made()
        delta = made.delta if delta is None else delta
        if delta is None:
            raise InvalidRequest("make_private knows no delta: give it to statement")
        draws, private = made.draws, made.optimizer.private
        stated = statement_of(private.policies, delta)
        stated.assumed.append(
            "the gradient of an example does not depend on the other examples of its batch "
            f"({self._independence}; a check compares examples of no user before the first step)"
        )
        stated.covered.insert(0, "the model after every step")
        stop, noise = draws.settings.stop, private.noise_multiplier
        if stop is not None:
            stated.covered.insert(1, "the noisy counts of users that may end the training")
        return {
            "text": stated.text(f"Training {self._name!r}"),
            **asdict(stated),
            "run": self._name,
            "independence": self._independence,
            "steps": private.step,
            "planned_steps": draws.steps,
            "private_stop": None if stop is None else stop.stated,
            "population": draws.settings.population,
            "sampling_rate": None if callable(draws.rate) else draws.rate,
            "groups_in_turn": draws.groups,
            "noise_multiplier": None if callable(noise) else noise,
            "max_grad_norm": made.optimizer.max_grad_norm,
        }

    def _made(self) -> _Training:
        if self._training is None:
            raise Unusable("nothing was made private yet: call make_private_with_epsilon first")
        return self._training

    def _service(self) -> Turnstile:
        if self._turnstile is None:
            raise InvalidRequest(
                'turnstile is None: give Turnstile.open("budgets.db"), or the service. Only ranks '
                "above 0 need none"
            )
        return self._turnstile

    def _open(self, separation: int | None) -> Run | None:
        """Return the run; None if the dataset does not exist."""
        try:
            return self._service().run(self._dataset, self._name, min_separation=separation)
        except RequestRejected as rejected:
            if rejected.reason is not Reason.UNKNOWN_DATASET:
                raise
            return None

    def _create(self, draws: Draws, charges: int, epsilon: float, delta: float) -> None:
        rate = max(value_at(draws.rate, step) for step in range(charges))
        counted: dict[str, Any] = {}
        if self._measure == "steps":
            counted = {
                "sampling_rate": rate,
                "noise_multiplier": counted_noise(epsilon, delta, rate, charges),
                "odometer_step": charges,  # each step would raise all odometers alike
            }
        else:
            with invalid_requests():
                mechanism = PoissonGaussian(1.0, rate)
            known = MEASURES.get(self._measure)
            if known is None or not known.covers_by_table(mechanism):
                raise InvalidRequest(
                    f"measure is {self._measure!r}, which does not charge steps at sampling rate "
                    f"{rate:.6g}: use 'steps' or 'renyi', or 'gdp' without sampling"
                )
        self._service().create_dataset(
            self._dataset, measure=self._measure, epsilon=epsilon, delta=delta, **counted
        )

    def _make(
        self,
        opened: Callable[[], tuple[Run, Schedule]],
        module: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        draws: Draws,
        max_grad_norm: float,
        delta: float | None,
    ) -> tuple[GradSampleModule, IndividualDPOptimizer, IndividualDPLoader]:
        settings = draws.settings
        new_sum = partial(
            DeviceSum, clip_norm=max_grad_norm, expected=draws.expected_users, scratch=[]
        )

        def charged() -> PrivateSteps:
            run, noise = opened()
            arguments: dict[str, Any] = {
                "clip_norm": max_grad_norm,
                "noise_multiplier": noise,
                "expected_batch": draws.expected_batch,
                "steps": draws.steps,
                "levels": settings.levels,
                "new_sum": new_sum,
                "not_private_generator": settings.not_private_generator,
            }
            if settings.column is not None:
                arguments["column"] = settings.column
                return CorrelatedSteps(run, draws.examples.users, **arguments)
            arguments |= {"sampling_rate": draws.rate, "stop": settings.stop}
            return PrivateSteps(run, draws.examples.users, **arguments)

        private: PrivateSteps | RankedSteps
        if draws.ranks == 1:
            private = charged()
        else:
            # The grid of a rank's sum follows from some of these.
            shapes = [p.shape for p in params(optimizer)]
            check_equal((draws.compared, max_grad_norm, shapes), module)
            private = RankedSteps(charged, new_sum)
        loader = IndividualDPLoader(private, draws, self._check_step)
        wrapped = PrivateModule(
            module, batch_first=settings.batch_first, loss_reduction=settings.loss_reduction
        )
        made = IndividualDPOptimizer(optimizer, loader, max_grad_norm, draws.expected_batch)
        if settings.examples_are_independent:
            self._independence = "declared"
        self._training = _Training(draws, delta, wrapped, made)
        return wrapped, made, loader


def _refuse(names: Iterable[str]) -> None:
    for name in names:
        if name in _OTHERWISE:
            raise InvalidRequest(f"{name} is not an argument here: {_OTHERWISE[name]}")
        raise TypeError(f"{name} is not an argument of PrivacyEngine or of its methods")


def _read(settings: dict[str, Any]) -> Settings:
    _refuse(settings.keys() - set(Settings._fields))
    return Settings(**{"population": None, **settings})


class _Training(NamedTuple):
    draws: Draws
    delta: float | None
    module: PrivateModule
    optimizer: IndividualDPOptimizer


def _check_model(
    module: torch.nn.Module, optimizer: torch.optim.Optimizer, max_grad_norm: Any
) -> None:
    with invalid_requests():
        positive_finite("max_grad_norm", max_grad_norm)
    if isinstance(optimizer, DPOptimizer) or isinstance(module, GradSampleModule):
        raise InvalidRequest("module or optimizer was made private before: pass the original ones")
    if isinstance(module, _ADDS_UP):
        raise InvalidRequest(
            f"module is a {type(module).__name__}: pass the module itself, without it. The "
            "optimizer adds up clipped gradients over all ranks"
        )
    known = {id(parameter) for parameter in module.parameters()}
    if not params(optimizer):
        raise InvalidRequest(
            "no parameter of the optimizer is trained: call requires_grad_(True) on some, in PEFT "
            "by inference_mode=False or is_trainable=True"
        )
    if any(id(parameter) not in known for parameter in params(optimizer)):
        raise InvalidRequest("the optimizer has parameters that are not the module's")
    ModuleValidator.validate(module, strict=True)


class IndividualDPOptimizer(DPOptimizer):
    """Opacus's optimizer, with the charged level of each user instead of one norm for all."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        loader: IndividualDPLoader,
        max_grad_norm: float,
        expected_batch: Schedule,
    ) -> None:
        super().__init__(
            optimizer,
            noise_multiplier=0.0,
            max_grad_norm=max_grad_norm,
            expected_batch_size=value_at(expected_batch, 0),
        )
        self._loader = loader
        self._begun: list[torch.Tensor] = []  # sums of a user with more examples than a batch
        self.private = loader.private  # from now on both are read-only

    @property
    def noise_multiplier(self) -> float | None:
        """Return the next step's noise over the clip norm; None for a schedule on several ranks."""
        noise = self.private.noise_multiplier
        return None if noise is None else value_at(noise, self.private.step)

    @property
    def accumulated_iterations(self) -> int:
        """Return 1, for Opacus's hooks of steps: one step is charged, whatever its batches."""
        return 1

    def __setattr__(self, name: str, value: Any) -> None:
        """Refuse to change what users are charged for, as Opacus's schedulers do."""
        if name in ("noise_multiplier", "max_grad_norm") and hasattr(self, "private"):
            raise InvalidRequest(
                f"{name} is what users are charged for, and cannot be set afterwards: give it to "
                "make_private, where noise_multiplier may be a function of the step"
            )
        if name != "noise_multiplier":  # which Opacus's constructor sets
            super().__setattr__(name, value)

    @property
    def _step_supports_amp_scaling(self) -> bool:
        """Raise an error in ``GradScaler.step``, which reads this before it updates."""
        raise InvalidRequest(
            "GradScaler scales gradients before they are clipped, and skips steps that follow from "
            "users' data: use bfloat16 without it. The step can be repeated: iterate again"
        )

    def signal_skip_step(self, do_skip: bool = True) -> None:
        """Raise the error that says what to do instead of Opacus's virtual steps."""
        raise InvalidRequest(
            "signal_skip_step is not needed: the loader knows which batch completes a step. Call "
            "step() after every batch"
        )

    def pre_step(self, closure: Callable[[], float] | None = None) -> bool:
        """Clip and add up this batch; if it completes the step, add noise once and update.

        Raises:
            InvalidRequest: there was no batch, or its gradients are not of one pass over it.
        """
        (step, batch), parameters = self._loader.take(), self.params
        if batch.begins and batch.ends and len(batch.counts):
            step.add(self._each(part_of, batch.counts), batch.users)
        elif len(batch.counts):
            sums = self._each(written_sum, slice(0, int(batch.counts[0])))
            self._begun = sums if batch.begins else [*map(torch.add, self._begun, sums)]
            if batch.ends:
                step.add([Written(one[None]) for one in self._begun], batch.users)
        for parameter in parameters:
            parameter.grad_sample = None
        self._is_last_step_skipped = not self._loader.is_last
        if not self._loader.is_last:
            return False
        sizes = [parameter.numel() for parameter in parameters]
        released = torch.from_numpy(step.release(sum(sizes)))
        self._loader.randomness.restore()
        for parameter, part in zip(parameters, released.split(sizes), strict=True):
            # A copy, also in float64: the next step uses the memory of the released values again.
            grad = part.to(parameter.device, parameter.dtype, copy=True)
            parameter.grad = grad.view_as(parameter)
        if self.step_hook is not None:
            self.step_hook(self)
        return True

    def _each(self, function: Callable[..., T], of_users: Any) -> list[T]:
        """Return what a function of gradients by example returns, for each parameter."""
        size = self._loader.batch_size
        return [
            function(f"parameter {place}", parameter, size, of_users)
            for place, parameter in enumerate(self.params)
        ]


def save(
    checkpoint: Checkpoint,
    module: torch.nn.Module,
    optimizer: IndividualDPOptimizer,
    *schedulers: Any,
) -> None:
    """Save module, optimizer and learning-rate schedulers with the released step, before anything
    of the step is published.
    """
    content = io.BytesIO()
    torch.save([one.state_dict() for one in (module, optimizer, *schedulers)], content)
    optimizer.private.save(
        checkpoint, {_CONTENT: np.frombuffer(content.getvalue(), dtype=np.uint8)}
    )


def restore(
    checkpoint: Checkpoint,
    module: torch.nn.Module,
    optimizer: IndividualDPOptimizer,
    *schedulers: Any,
) -> bool:
    """Restore what ``save`` was given, in its order; return False if there is no checkpoint.

    Raises:
        ReleasedTwice: the next step of the run was released before.
        InvalidRequest: the file is not a checkpoint of this run, or of as many schedulers.
    """
    saved = optimizer.private.resume(checkpoint)
    if saved is None:
        return False
    content = io.BytesIO(saved.arrays[_CONTENT].tobytes())
    states, restored = torch.load(content, weights_only=True), (module, optimizer, *schedulers)
    if len(states) != len(restored):
        raise InvalidRequest(
            f"{checkpoint.path} has {len(states) - 2} schedulers, but restore was given "
            f"{len(schedulers)}: give save and restore the same ones"
        )
    for one, state in zip(restored, states, strict=True):
        one.load_state_dict(state)
    return True
