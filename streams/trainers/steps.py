"""Sampled training, step by step: charge, draw, clip, add noise, release.

The states of a step:

    next --begin--> decided --coins--> open --add, add, ...--> open --release--> next
    open --begin--> open                    after an error: the same users, nothing added
    next --begin--> given up                decided before this attempt, and may have been drawn

1. Compute the step's rate and noise from a public schedule.
2. Charge every admitted user, drawn or not; the decision is durable.
3. Draw each admitted user with an independent coin.
4. Clip each user's contribution to the level that was charged, round it towards zero to a grid, and
   add the contributions up as integers.
5. Set levels from the observed norms, from the next step that is charged (docs/guarantees.md): a
   user's level is `HEADROOM` times the norm that its gradient had when it was drawn last.
6. Add noise once, even if no user was drawn or admitted, and divide the sum by a public number.

Coins are drawn once per step. A process that ends between steps 3 and 6 has lost its coins. New
coins would be conditioned on the cause, for example on a batch that was too large for the memory.
So such a step is given up, and its users stay charged.

The released value is that of `release`. Positions, levels and norms are as secret as the data, and
so is the duration of a step. The noise is sampled exactly, on a grid 2^24 times finer than its
standard deviation (``accounting.release.exact_normals``).
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any, Final, Literal, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from accounting.costs.mechanisms import PoissonGaussian
from accounting.exact.argument_checks import positive_finite
from accounting.exact.invalid_input import quoted
from accounting.release.exact_normals import ExactNormals
from streams.sdk.arguments import UsersLike, read_users
from streams.sdk.errors import InvalidRequest, ReleasedTwice, Unusable, invalid_requests
from streams.sdk.roster import Roster
from streams.sdk.roster_steps import RosterStep, poisson_sample
from streams.sdk.run import Run
from streams.trainers.checkpoint import Checkpoint, Saved
from streams.trainers.planning import Plan, Schedule, mechanism_of, value_at
from streams.trainers.private_stop import PrivateStop
from streams.trainers.sums import ClippedSum

logger = logging.getLogger("turnstile.trainers")

Places: TypeAlias = slice | NDArray[np.integer[Any]]
"""Users among those who were drawn: a slice of them, or distinct indices, (k,)."""

Total: TypeAlias = tuple[int, NDArray[np.int64]]
"""The exponent of a grid spacing, and a sum in multiples of it, which may be overwritten.

The grid may be finer than that of the noise. One user then changes the sum, rounded down to the
grid of the noise, by at most the user's limit."""

Levels: TypeAlias = Literal["own", "clip_norm"]
"""Each user is charged a level that follows the user's own norms, or the clip norm."""

HEADROOM: Final = 2.0
"""A user's level over the last observed norm. A level is older than the gradient that it clips, and
clips gradients that have grown since."""

LEVEL_COUNT: Final = 100
"""Number of norm levels up to the clip norm."""

GRID_BITS: Final = 24
"""The noise is this many powers of two above the grid spacing."""

_NOISE_AT_ONCE: Final = 2**15
_BLOCK: Final = 2**20  # columns that are processed at once
_LARGEST_ROW: Final = 2.0**45  # in grid spacings: 2^17 rows of one direction add up to 2^62


class PrivateSteps:
    """Private means of gradients over sampled users. Every step is charged before it is computed.

    Neighbouring datasets differ by adding or removing one user. An object must not be shared
    between threads, nor used from copies of a process: each copy would release the same step.

    Args:
        run: from ``Turnstile.run``.
        users: distinct ids, in the order of positions.
        clip_norm: the largest norm that an unspent budget pays for in every planned step.
            Contributions are clipped to it.
        noise_multiplier: standard deviation of the noise in each coordinate of the sum, as a
            multiple of ``clip_norm``. It may be a schedule, which follows public values.
        sampling_rate: the probability with which each user is drawn. It may be a schedule.
        expected_batch: the divisor of sums. A public number, such as a rate times a number of users
            that is known without the data; never the size of a batch. It may be a schedule.
        steps: the planned number of steps, those before a restart included. If the noise is too low
            for it, this is an error before the first step. None: no plan, so users may be halted.
        levels: "own" charges each user ``HEADROOM`` times the norm that its gradient had when it
            was drawn last, at most ``clip_norm``. Reports on realised histories do not hold then;
            the budget does. "clip_norm" charges all users the clip norm. None: "own" where lower
            levels save budget and the policy allows it.
        new_sum: makes the sum of a step, from the exponent of the grid that it is released on. By
            default of NumPy's rows.
        stop: ends the training when few users can still pay, by a count that it has charged.
        not_private_generator: draws coins and noise, for tests and for figures that must be
            repeated. A party that knows its seed knows the noise, so nothing is private then.

    Attributes:
        planned: the planned number of steps, or None.
        policies: of the dataset and its parents, the nearest first.
        stopped: whether ``stop`` has ended the training. Public.

    Raises:
        InvalidRequest: an argument is invalid, the noise is too low for the planned steps, or the
            budget is too small for any step; no user was enrolled.
    """

    def __init__(
        self,
        run: Run,
        users: UsersLike,
        *,
        clip_norm: float,
        noise_multiplier: Schedule,
        sampling_rate: Schedule,
        expected_batch: Schedule,
        steps: int | None = None,
        levels: Levels | None = None,
        new_sum: Callable[[int], StepSum] | None = None,
        stop: PrivateStop | None = None,
        not_private_generator: np.random.Generator | None = None,
    ) -> None:
        with invalid_requests():
            positive_finite("clip_norm", clip_norm)
            positive_finite("expected_batch", value_at(expected_batch, run.step))
        if stop is not None and list(stop.users) != list(read_users(users)):
            raise InvalidRequest("stop has other users: give it the same ones, in the same order")
        self._run, self._stop, self.stopped = run, stop, False
        self.noise_multiplier, self._sampling_rate = noise_multiplier, sampling_rate
        self._expected_batch = expected_batch
        self.planned = steps
        self.new_sum = new_sum or ClippedSum
        self._generator = not_private_generator
        self._noise = _Noise(not_private_generator, callable(noise_multiplier))
        self._open: OpenStep | None = None
        self._ahead: tuple[Callable[[], RosterStep], PoissonGaussian, int] | None = None
        self._released = -1
        self._name = run.dataset, run.name
        self._lost = run.step  # steps of earlier attempts of which no checkpoint was restored
        policies = self.policies = [run.policy, *run.outer]
        self._follows = self._follows_norms(levels)
        self._clip_norm = clip_norm
        self._settings()
        if steps is not None:
            self._check_plan(steps)
        elif not callable(noise_multiplier) and not callable(sampling_rate):
            lowest, noise = clip_norm / LEVEL_COUNT, noise_multiplier * LEVEL_COUNT
            if not Plan(policies, noise, sampling_rate, 1, lowest).lasts():
                raise InvalidRequest(
                    f"the budget does not even pay for one step of norm {lowest:.6g} at this noise "
                    "and rate, so every step would release noise alone: raise noise_multiplier, or "
                    "give a dataset with a larger budget"
                )
        self._prepare(users)

    def _check_plan(self, steps: int) -> None:
        """Check that the clip norm can be paid for in all planned steps."""
        noise, rate = self.noise_multiplier, self._sampling_rate
        Plan(self.policies, noise, rate, steps, self._clip_norm).check()

    def _prepare(self, users: UsersLike) -> None:
        """Make the run ready to charge these users."""
        self.roster: Roster = self._run.enrol(users, clip_norm=self._clip_norm, levels=LEVEL_COUNT)

    def _follows_norms(self, levels: Levels | None) -> bool:
        """Return whether levels follow observed norms."""
        if not isinstance(levels, str | None) or levels not in (None, "own", "clip_norm"):
            raise InvalidRequest(f"levels is {quoted(levels)}; it must be 'own' or 'clip_norm'")
        # Without sampling no coin decides whose norm is seen.
        stated = [each.dataset for each in self.policies if not each.has_sampled_levels]
        may = self._sampling_rate == 1 or not stated
        counts_steps = self._run.policy.row.shape is not None  # so that low levels save nothing
        if levels == "own" and not may:
            raise InvalidRequest(
                f"dataset {stated[0]!r} does not allow levels that follow the norms of "
                "users who were drawn: pass levels='clip_norm', or create it with "
                "sampled_levels=True"
            )
        return levels == "own" or (levels is None and may and not counts_steps)

    @property
    def step(self) -> int:
        """Return the step that is open, or else the next one."""
        return self._run.step if self._open is None else self._open.step

    @property
    def open_step(self) -> OpenStep | None:
        """Return the step that is charged and not released, if there is one."""
        return self._open

    def resume(self, checkpoint: Checkpoint) -> Saved | None:
        """Return what was saved of this run; None if there is no file.

        The file then belongs to this attempt, so no earlier attempt can replace it. Steps that were
        charged since it was written count as given up.

        Raises:
            ReleasedTwice: the file has a step that the run has not reached.
            Fenced: the file is of a later attempt.
            InvalidRequest: the file is not a checkpoint of this run.
        """
        saved = checkpoint.load(self._name)
        if saved is None:
            return None
        # This also refuses a file with a step that the run has not reached.
        checkpoint.save(self._name, self._run.attempt, self.step - 1, saved.arrays)
        self._lost = 0
        return saved

    def warn_of_lost_steps(self) -> None:
        """Log once that the model of the steps of earlier attempts was not restored."""
        lost, self._lost = self._lost, 0
        if lost:
            logger.warning(
                "run %r of dataset %r has made %s steps before, and no checkpoint was restored: "
                "training goes on with the model as it was given. If that is not the model after "
                "these steps, restore it, or train in a run of another name, which is charged "
                "again. These steps stay charged",
                *reversed(self._name),
                lost if self.planned is None else f"{lost} of its {self.planned} planned",
            )

    def save(self, checkpoint: Checkpoint, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Write the file, after asking the service whether this attempt is still the newest.

        Call it before anything made of a released step leaves this process. If it raises, nothing
        of the step may leave.

        Raises:
            Fenced, ReleasedTwice: another trainer has taken over the run.
            TurnstileError: as ``Run.check_attempt``; call again.
        """
        if self._released >= 0:
            self._run.check_attempt()
            checkpoint.save(self._name, self._run.attempt, self._released, arrays)

    def check_attempt(self) -> None:
        """Ask the service whether this attempt is the newest, for trainers without a checkpoint.

        Raises:
            TurnstileError: as ``Run.check_attempt``. Nothing of the step may leave.
        """
        self._run.check_attempt()

    def begin(self, *, ahead: bool = False) -> OpenStep:
        """Charge the next step and draw its users; or return the step that is open.

        If an earlier attempt may have drawn the step, it is given up, and the next one is charged.
        Its users stay charged, and nothing of it is released.

        Args:
            ahead: send the step after it as well, to be charged while this one is computed.
                Observed norms then become levels one step later, and schedules of the step after it
                are evaluated before this one is released. A training that ends here has paid for
                one more step that it does not release.

        Raises:
            ReleasedTwice: the run returned a step a second time.
            InvalidRequest: noise or rate of this step is invalid, all planned steps were made, or
                the training was stopped; nothing was charged.
            TurnstileError: any error of the charge; nothing may be released then.
        """
        if self._open is not None:
            self._open.forget()
            return self._open
        self.warn_of_lost_steps()
        if self.stopped:
            raise InvalidRequest("a private count has ended the training: close its run")
        if self.planned is not None and self._run.step >= self.planned:
            raise InvalidRequest(
                f"step {self._run.step} is beyond the {self.planned} planned steps, which is what "
                "the budget pays for: end the training, or plan more steps"
            )
        return self._next(ahead)

    def _next(self, ahead: bool) -> OpenStep:
        """Do steps 1 to 3 of the next step, which is open from then on."""
        decision, mechanism, exponent = self._charge()
        if decision.may_be_drawn:
            ahead = False  # the caller has counted one step less than was charged
            decision, mechanism, exponent = self._charge()
        # Step 3.
        rate, generator = mechanism.sampling_rate, self._generator
        drawn = (
            decision.sample()
            if generator is None
            else poisson_sample(decision.admitted, rate, not_private_generator=generator)
        )
        # If no user was admitted, the step still exists and releases noise alone: an exception
        # would follow from the budget of a single user who can or cannot pay.
        limits = decision.clip_norms_at(drawn)
        noise = mechanism.noise_stddev
        self._open = opened = OpenStep(self, decision.step, drawn, limits, noise, exponent)
        self._decision = decision
        if ahead and self._run.step != self.planned:
            # Steps 1 and 2 of the next step, without waiting for the decision.
            mechanism, exponent = self._settings()
            charged = self.roster.charge_ahead(
                noise_stddev=mechanism.noise_stddev, sampling_rate=mechanism.sampling_rate
            )
            self._ahead = charged.decision, mechanism, exponent
        return opened

    def _charge(self) -> tuple[RosterStep, PoissonGaussian, int]:
        """Do steps 1 and 2, or read the decision of the step that was sent ahead."""
        if self._ahead is not None:
            receive, mechanism, exponent = self._ahead
            decision, self._ahead = receive(), None
        else:
            # Step 1.
            mechanism, exponent = self._settings()
            # Step 2.
            decision = self.roster.charge(
                noise_stddev=mechanism.noise_stddev, sampling_rate=mechanism.sampling_rate
            )
        self._check_new(decision.step)
        return decision, mechanism, exponent

    def _check_new(self, step: int) -> None:
        if step <= self._released:
            raise ReleasedTwice(
                f"the run returned step {step} after step {self._released} was released: "
                "release nothing more, and open the run again"
            )

    def _settings(self) -> tuple[PoissonGaussian, int]:
        """Return the mechanism of the next step, and the exponent of its grid spacing."""
        step, clip_norm = self._run.step, self._clip_norm
        mechanism = mechanism_of(self.noise_multiplier, self._sampling_rate, clip_norm, step)
        return mechanism, self._exponent_of(mechanism.noise_stddev)

    def _exponent_of(self, noise: float) -> int:
        """Return the exponent of the grid spacing for noise of this standard deviation."""
        step, clip_norm = self._run.step, self._clip_norm
        exponent = math.frexp(noise)[1] - GRID_BITS
        largest = math.ldexp(clip_norm, -exponent) if exponent > -900 else math.inf
        # A public bound, since an error must not follow from the number of users. A sum of more
        # users than fit is that sum modulo 2^64, noise included: private, and of no use.
        if largest > _LARGEST_ROW:
            raise InvalidRequest(
                f"noise_multiplier gives a noise of {noise} in step {step}, too small for norms of "
                f"{clip_norm}: the sum would not be exact"
            )
        return exponent

    def close_step(
        self,
        step: OpenStep,
        total: Total,
        norms: NDArray[np.float64],
    ) -> NDArray[np.float64]:
        """Do steps 5 and 6; for ``OpenStep.release``."""
        if step is not self._open:
            raise Unusable(f"step {step.step} was released or given up: begin the next one")
        if self._follows and len(norms):
            self._set_levels(step.positions, np.minimum(HEADROOM * norms, self._clip_norm))
        self._open, self._released = None, step.step
        if self._stop is not None:
            self.stopped = self._stop.ends_after(step.step, self._decision.admitted)
        exponent, units = total
        finer = step.exponent - exponent
        units >>= finer  # to the grid of the noise, rounding down
        self._add_noise(step, units)
        units <<= finer  # modulo 2^64, if more users were added than fit
        # The first product is exact. In blocks, since the memory of the integers is used again.
        expected, released = value_at(self._expected_batch, step.step), units.view(np.float64)
        for start in range(0, len(units), _BLOCK):
            block = slice(start, start + _BLOCK)
            released[block] = units[block] * math.ldexp(1.0, exponent) / expected
        return released

    def _set_levels(self, positions: NDArray[np.int64], norms: NDArray[np.float64]) -> None:
        """Set what these users, who were drawn, are charged in later steps."""
        if self._sampling_rate == 1:
            self.roster.set_norms(norms, positions)  # no coin decides who is seen
        else:
            self.roster.observe(positions, norms)

    def _add_noise(self, step: OpenStep, units: NDArray[np.int64]) -> None:
        """Add the noise of a step, once, to a sum in grid spacings."""
        stddev = math.ldexp(step.noise_stddev, -step.exponent)  # exact, too
        for start in range(0, len(units), _BLOCK):  # noise of all of a large model takes memory
            block = units[start : start + _BLOCK]
            block += self._noise.draw(stddev, len(block))


class _Noise:
    """Draws rounded normal deviates, those of a small model for several steps at once: a draw of
    few takes much longer per deviate.

    Args:
        generator: a seeded one, for tests, whose numbers are drawn when they are needed.
        changes: whether standard deviations differ from step to step.
    """

    def __init__(self, generator: np.random.Generator | None, changes: bool) -> None:
        self._normals = ExactNormals(generator)
        self._at_once = 1 if changes or generator is not None else _NOISE_AT_ONCE
        self._ready: dict[float, NDArray[np.int64]] = {}

    def draw(self, stddev: float, count: int) -> NDArray[np.int64]:
        """Return deviates as ``ExactNormals.draw``, each of them once."""
        if count >= self._at_once:
            return self._normals.draw(Fraction(stddev), count)
        ready = self._ready.pop(stddev, None)
        if ready is None or len(ready) < count:
            ready = self._normals.draw(Fraction(stddev), self._at_once)
        self._ready[stddev] = ready[count:]
        return ready[:count]


class StepSum(Protocol):
    """A sum of clipped gradients, in integers.

    Attributes:
        columns: the number of columns; None before the first gradient.
    """

    columns: int | None

    def begin(self, columns: int) -> None:
        """Set the number of columns, for a sum that may stay empty."""

    def check(self, rows: Any, users: int) -> None:
        """Check that rows are the gradients of so many users; if not, raise InvalidRequest."""

    def add(self, rows: Any, limits: NDArray[np.float64]) -> NDArray[np.float64]:
        """Add gradients, clipped to their limits (k,); return their norms, (k,)."""

    def total(self) -> Total:
        """Return the sum."""


class StepOwner(Protocol):
    """Releases the steps that it has opened."""

    new_sum: Callable[[int], StepSum]

    def close_step(
        self,
        step: OpenStep,
        total: Total,
        norms: NDArray[np.float64],
    ) -> NDArray[np.float64]:
        """Return the private mean of a step, from its sum and the norms of its users."""


class OpenStep:
    """A step that is charged and drawn, and not released yet.

    Attributes:
        step: the step of the run.
        positions: the positions of the users who were drawn, increasing, (m,). Secret.
        clip_norms: the level of each of them, (m,). Secret.
        noise_stddev: standard deviation of the noise that will be added to the sum.
    """

    def __init__(
        self,
        owner: StepOwner,
        step: int,
        positions: NDArray[np.int64],
        clip_norms: NDArray[np.float64],
        noise_stddev: float,
        exponent: int,
    ) -> None:
        self.step = step
        self.positions = positions
        self.clip_norms = clip_norms
        self.noise_stddev = noise_stddev
        self.exponent = exponent
        self._owner = owner
        self.forget()

    def forget(self) -> None:
        """Discard everything that was added."""
        self._sum = self._owner.new_sum(self.exponent)
        self._norms = np.zeros(len(self.positions))
        self._added = np.zeros(len(self.positions), dtype=np.bool_)

    def parts(self, users_at_once: int) -> list[slice]:
        """Split ``positions`` into slices of at most so many users."""
        return [
            slice(start, min(start + users_at_once, len(self.positions)))
            for start in range(0, len(self.positions), users_at_once)
        ]

    def add(self, rows: Any, places: Places = slice(None)) -> None:
        """Add the clipped gradients of users who were drawn, one row per user.

        A row that is not finite, or too long for a float64 norm, counts as zero. This depends on
        that user's data alone.

        Args:
            rows: (k, d), the sum of the gradients of all of a user's examples; or what else
                ``new_sum`` adds.
            places: indices of these users in ``positions``, in this order; all by default.

        Raises:
            InvalidRequest: the number of rows is not that of the users, a row has another length
                than before, a user was added before or appears twice, or a user was not drawn.
                Nothing was added.
        """
        places = _distinct(places, len(self.positions))
        self._sum.check(rows, len(self.positions[places]))
        if np.count_nonzero(self._added[places]):
            raise InvalidRequest("a user's gradient was added before: add up its examples first")
        self._added[places] = True
        self._norms[places] = self._sum.add(rows, self.clip_norms[places])

    def release(self, dimension: int) -> NDArray[np.float64]:
        """Return the private mean, once: the sum with noise, divided by the expected batch.

        Args:
            dimension: the dimension of the gradients.

        Raises:
            InvalidRequest: a user who was drawn is missing, or the dimension is wrong. Nothing was
                released.
            Unusable: it was released before.
        """
        missing = len(self._added) - np.count_nonzero(self._added)
        if missing:
            raise InvalidRequest(
                f"gradients of {missing} users who were drawn are missing: add them before release"
            )
        if self._sum.columns is None:  # no user was drawn
            self._sum.begin(dimension)
        elif dimension != self._sum.columns:
            raise InvalidRequest(
                f"dimension is {quoted(dimension)}; it must be {self._sum.columns}, as the rows"
            )
        return self._owner.close_step(self, self._sum.total(), self._norms)


def _distinct(places: Places, users: int) -> Places:
    """Return the places after checking that they are distinct and within range."""
    try:
        if isinstance(places, slice):
            places.indices(users)
            return places
        found = np.array(places)
    except (TypeError, ValueError) as error:
        raise InvalidRequest(f"places is {quoted(places)}: {error}") from error
    # No negative index: it would give a row to another user, with that user's level.
    fits = found.ndim == 1 and found.dtype.kind in "iu" and ((found >= 0) & (found < users)).all()
    if not fits or np.bincount(found.astype(np.intp)).max(initial=0) > 1:
        raise InvalidRequest(
            f"places is {quoted(places)}; it must be a slice, or an array with an index below "
            f"{users}, the number of users drawn, for each row. Convert truth values with "
            "np.flatnonzero, and add up the examples of a user who appears twice in one row"
        )
    return found
