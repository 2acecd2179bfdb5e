"""Sampled training, step by step: charge, draw, clip, add noise, release.

A step:

    next --begin--> decided --coins--> open --add, add, ...--> open --release--> next
    open --begin--> open                    after an error: the same users, nothing added
    next --begin--> given up                decided before this attempt, and may have been drawn

1. Rate and noise of the step come from a public schedule.
2. Every admitted user is charged, drawn or not; the decision is durable.
3. Then each admitted user is drawn with an independent coin.
4. Each user's contribution is clipped to the level that was charged and rounded towards zero to a
   grid; contributions are added up as integers.
5. The norms that were seen become levels, from the next step that is charged (docs/guarantees.md).
6. Noise is added once, even if no user was drawn, and the sum is divided by a public number.

Coins are drawn once per step. A process that dies between steps 3 and 6 has lost its coins, and
new ones would be conditioned on why it died: a batch that was too large for the memory, for
instance. So such a step is given up. Its users stay charged.

The released value is that of `release`. Positions, levels and norms are as secret as the data, and
so is the duration of a step. The noise is sampled exactly, on a grid 2^24 times finer than its
standard deviation (``accounting.release.exact_normals``), or finer where outer products are added.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from fractions import Fraction
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from accounting import InvalidInput
from accounting.costs.mechanisms import PoissonGaussian
from accounting.release.exact_normals import ExactNormals
from streams.sdk.errors import InvalidRequest, ReleasedTwice, Unusable
from streams.sdk.sampling import poisson_sample
from streams.trainers.batching import check_sampling
from streams.trainers.checkpoint import Checkpoint, Saved
from streams.trainers.outer import FINER_BITS, Outer, check_grid
from streams.trainers.pacing import Pace
from streams.trainers.rosters import ChargedAhead, ChargesAhead, Roster, RosterDecision, TrainingRun
from streams.trainers.sums import ClippedSum, Part, Scratch

Places: TypeAlias = slice | NDArray[np.integer[Any]]
"""Which of the users who were drawn: a slice of them, or distinct places, (k,)."""

Schedule: TypeAlias = float | Callable[[int], float]
"""A number, or what it is in each step: a function of the step and of what was released."""

GRID_BITS: Final = 24
"""The noise is so many powers of two above the spacing of the grid."""

_EXACT: Final = 2.0**53
_LARGEST_SUM: Final = 2.0**62


class PrivateSteps:
    """Private means of gradients over sampled users, each charged before it is computed.

    Neighbouring datasets differ by adding or removing one user. Not to be shared between threads,
    nor used from copies of a process: each copy would release the same step.

    Args:
        run: of ``Turnstile.run``.
        users: distinct ids, in the order of positions.
        clip_norm: no contribution of a user is longer.
        noise_stddev: of the noise in each coordinate of the sum, in the units of ``clip_norm``: not
            a multiple of it. A schedule may change it, from what is public.
        sampling_rate: with which each user is drawn. A schedule as well.
        expected_batch: what sums are divided by. A public number, as a rate times a number of users
            that is known without the data; never the size of a batch.
        levels: of norms up to ``clip_norm``.
        own_coins: whether norms of users who were drawn become their levels. Reports on realised
            histories do not hold for such a run; the budget does.
        pace: keeps levels to what lasts until the end; needs ``own_coins``.
        sampling: 'poisson'; other ways to draw are refused, with the reason.
        outer_parts: numbers of the parts of a row that may be given as outer products; they follow
            from the model, not from data.
        not_private_generator: draws coins and noise, for tests and for figures that must be
            repeated. Whoever knows its seed knows the noise: nothing is private then.

    Raises:
        InvalidRequest: an argument that cannot be used; nobody was enrolled.
    """

    def __init__(
        self,
        run: TrainingRun,
        users: ArrayLike,
        *,
        clip_norm: float,
        noise_stddev: Schedule,
        sampling_rate: Schedule,
        expected_batch: float,
        levels: int = 100,
        own_coins: bool = True,
        pace: Pace | None = None,
        sampling: str = "poisson",
        outer_parts: Collection[int] = (),
        not_private_generator: np.random.Generator | None = None,
    ) -> None:
        check_sampling(sampling)
        for name, value in (("clip_norm", clip_norm), ("expected_batch", expected_batch)):
            if not 0 < value < math.inf:
                raise InvalidRequest(f"{name} is {value}; it must be finite and positive")
        self._run = run
        self._noise_stddev, self._sampling_rate = noise_stddev, sampling_rate
        self._expected_batch = float(expected_batch)
        if pace is not None and not own_coins:
            raise InvalidRequest("a pace follows the norms that were seen: it needs own_coins")
        self._own_coins, self._pace = own_coins, pace
        self.outer_parts, self.scratch = frozenset(outer_parts), Scratch()
        self._generator = not_private_generator
        self._normals = ExactNormals(not_private_generator)
        self._users = len(users)  # type: ignore[arg-type]
        self._open: OpenStep | None = None
        self._ahead: _Sent | None = None
        self._released = -1
        self._name = run.dataset, run.name
        mechanism, _ = self._settings(run.step, clip_norm)
        self.roster: Roster = run.enrol(users, clip_norm=clip_norm, levels=levels)
        if own_coins and not self.roster.may_follow_samples:
            raise InvalidRequest(
                "sampled_levels is False in the dataset's policy, so levels must not follow the "
                "norms of users who were drawn: pass own_coins=False"
            )
        if pace is not None:
            first = pace.begin(self._users, run.step, mechanism, clip_norm, levels)
            self.roster.set_norms(np.full(self._users, first))

    @property
    def step(self) -> int:
        """The step that comes next, or that is open."""
        return self._run.step if self._open is None else self._open.step

    @property
    def open_step(self) -> OpenStep | None:
        """The step that is charged and not released, if there is one."""
        return self._open

    def resume(self, checkpoint: Checkpoint) -> Saved | None:
        """Return what was saved of this run; None if there is no file.

        The file becomes that of this attempt: from now on no earlier attempt can replace it. Steps
        that were charged since it was written count as given up.

        Raises:
            ReleasedTwice: the file has a step that the run has not come to.
            Fenced: the file is of a later attempt.
            InvalidRequest: the file is no checkpoint of this run.
        """
        saved = checkpoint.load(self._name)
        if saved is None:
            return None
        if saved.released >= self.step:
            raise ReleasedTwice(
                f"step {self.step} comes next, and {checkpoint.path} says that step "
                f"{saved.released} was released: another trainer has written it, or it is the file "
                "of another service. Open the run again; if that changes nothing, name another file"
            )
        checkpoint.save(self._name, self._run.attempt, self.step - 1, saved.arrays)
        return saved

    def save(self, checkpoint: Checkpoint, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Write the file, after asking the service whether this attempt still holds.

        To be called before anything that was made of a released step leaves this process. If it
        raises, nothing of the step may leave.

        Raises:
            Fenced, ReleasedTwice: another trainer has taken over the run.
            TurnstileError: as ``Run.check_attempt``; call again.
        """
        if self._released >= 0:
            self._run.check_attempt()
            checkpoint.save(self._name, self._run.attempt, self._released, arrays)

    def check_attempt(self) -> None:
        """Ask the service whether this attempt still holds; for trainers without a checkpoint.

        Raises:
            TurnstileError: as ``Run.check_attempt``. Nothing of the step may leave.
        """
        self._run.check_attempt()

    def begin(self, *, ahead: bool = False) -> OpenStep:
        """Charge the next step and draw its users; or return the step that is open.

        A step that an earlier attempt may have drawn is given up, and the next one is charged: its
        users stay charged, and nothing of it is released.

        Args:
            ahead: send the step after it as well, to be charged while this one is computed. Norms
                that are seen then become levels one step later, and schedules of the step after it
                are asked before this one is released. A training that ends here has paid for one
                more step that it does not release.

        Raises:
            ReleasedTwice: the run returned a step a second time.
            InvalidRequest: noise or rate of this step cannot be used; nothing was charged.
            TurnstileError: whatever the charge raises; nothing may be released then.
        """
        if self._open is not None:
            self._open.forget()
            return self._open
        decision, mechanism, exponent = self._charge()
        if decision.may_be_drawn:
            ahead = False  # one step more was charged than the caller has counted
            decision, mechanism, exponent = self._charge()
        # Step 3.
        drawn = self._draw(decision, mechanism)
        self._open = OpenStep(self, decision, drawn, mechanism, exponent)
        if ahead:
            self._ahead = self._send()
        return self._open

    def _charge(self) -> tuple[RosterDecision, PoissonGaussian, int]:
        """Steps 1 and 2, or the decision of the step that was sent ahead."""
        if self._ahead is not None:
            decision, (_, mechanism, exponent) = self._ahead.charged.decision(), self._ahead
            self._ahead = None
        else:
            # Step 1.
            mechanism, exponent = self._settings(self._run.step, self.roster.clip_norm)
            # Step 2.
            decision = self.roster.charge(
                noise_stddev=mechanism.noise_stddev, sampling_rate=mechanism.sampling_rate
            )
        if decision.step <= self._released:
            raise ReleasedTwice(f"step {decision.step} comes after step {self._released}")
        if self._pace is not None:
            self._pace.charged(decision.step, mechanism)
        return decision, mechanism, exponent

    def _send(self) -> _Sent:
        """Steps 1 and 2 of the next step, without the decision."""
        if not isinstance(self.roster, ChargesAhead):
            raise InvalidRequest("this roster cannot be charged ahead")
        mechanism, exponent = self._settings(self._run.step, self.roster.clip_norm)
        charged = self.roster.charge_ahead(
            noise_stddev=mechanism.noise_stddev, sampling_rate=mechanism.sampling_rate
        )
        return _Sent(charged, mechanism, exponent)

    def _settings(self, step: int, clip_norm: float) -> tuple[PoissonGaussian, int]:
        """The mechanism of a step, and to which power of two its grid is spaced."""
        noise, rate = (
            float(value(step) if callable(value) else value)
            for value in (self._noise_stddev, self._sampling_rate)
        )
        try:
            mechanism = PoissonGaussian(noise, rate)
        except InvalidInput as error:
            raise InvalidRequest(f"step {step}: {error}") from error
        exponent = math.frexp(noise)[1] - GRID_BITS
        finest = exponent - (FINER_BITS if self.outer_parts else 0)
        largest = math.ldexp(clip_norm, -finest) if finest > -900 else math.inf
        fits = check_grid(largest, finest) if self.outer_parts else largest < _EXACT / 2
        if largest * max(self._users, 1) > _LARGEST_SUM or not fits:
            raise InvalidRequest(
                f"noise_stddev is {noise} in step {step}, far too little beside clip_norm = "
                f"{clip_norm} and {self._users} users"
            )
        return mechanism, exponent

    def _draw(self, decision: RosterDecision, mechanism: PoissonGaussian) -> NDArray[np.int64]:
        if self._generator is None:
            return decision.sample()
        return poisson_sample(
            decision.admitted, mechanism.sampling_rate, not_private_generator=self._generator
        )

    def _close(
        self,
        step: OpenStep,
        totals: Sequence[tuple[int, NDArray[np.int64]]],
        norms: NDArray[np.float64],
    ) -> NDArray[np.float64]:
        """Steps 5 and 6."""
        if step is not self._open:
            raise Unusable(f"step {step.step} was released or given up: begin the next one")
        if self._own_coins and len(norms):
            seen = np.minimum(norms, self.roster.clip_norm)
            if self._pace is not None:
                seen = self._pace.limited(step.step, step.positions, seen)
            self.roster.observe(step.positions, seen)
        self._open, self._released = None, step.step
        noisy = []
        for exponent, total in totals:
            stddev = Fraction(step.noise_stddev) / Fraction(2) ** exponent
            units = total + self._normals.draw(stddev, len(total))
            noisy.append(units * math.ldexp(1.0, exponent))  # of a power of two: exact
        return np.concatenate(noisy) / self._expected_batch


class _Sent(NamedTuple):
    """A step that is under way, at these settings."""

    charged: ChargedAhead
    mechanism: PoissonGaussian
    exponent: int


class OpenStep:
    """A step that is charged and drawn, and not released yet.

    Attributes:
        step: of the run.
        positions: of the users who were drawn, in order, (m,). Secret.
        clip_norms: the level of each of them, (m,). Secret.
        noise_stddev: of the noise that will be added to the sum.
    """

    def __init__(
        self,
        owner: PrivateSteps,
        decision: RosterDecision,
        positions: NDArray[np.int64],
        mechanism: PoissonGaussian,
        exponent: int,
    ) -> None:
        self.step = decision.step
        self.positions = positions
        self.clip_norms = decision.clip_norms_at(positions)
        self.noise_stddev = mechanism.noise_stddev
        self.exponent = exponent
        self._owner = owner
        self.forget()

    def forget(self) -> None:
        """Begin anew with what is added."""
        self._sum = ClippedSum(self.exponent, self._owner.outer_parts, self._owner.scratch)
        self._norms = np.zeros(len(self.positions))
        self._added = np.zeros(len(self.positions), dtype=np.bool_)

    def parts(self, users_at_once: int) -> list[slice]:
        """Places in ``positions``, so many at a time."""
        return [
            slice(start, min(start + users_at_once, len(self.positions)))
            for start in range(0, len(self.positions), users_at_once)
        ]

    def add(self, rows: Part | Sequence[Part], places: Places = slice(None)) -> None:
        """Add the gradients of users who were drawn: clipped, one row a user.

        A row that is not finite, or too long for its norm to be, counts as zero: whether it does
        depends on that user's data alone.

        Args:
            rows: (k, d), the sum of the gradients of all of a user's examples; or the columns of
                such rows in parts, (k, d_1), (k, d_2), ..., as arrays or, where the steps were
                told so, as outer products.
            places: which users in ``positions`` they are of, in this order; all by default.

        Raises:
            InvalidRequest: not one row a user, of another length than before, of a user whose row
                was added before or is there twice, or of nobody who was drawn. Nothing was added.
        """
        places = _distinct(places, len(self.positions))
        parts = [rows] if isinstance(rows, np.ndarray | Outer) else list(rows)
        count = len(self.positions[places])
        for place, part in enumerate(parts):
            if len(part.shape) != 2 or len(part) != count:
                raise InvalidRequest(
                    f"rows has shape {part.shape}; with {count} users it is (k, d)"
                )
            if isinstance(part, Outer) and place not in self._owner.outer_parts:
                raise InvalidRequest(f"part {place} is an outer product: say so in outer_parts")
        widths = [part.shape[1] for part in parts]
        if self._sum.widths not in (None, widths):
            raise InvalidRequest(f"rows have {widths} entries, others {self._sum.widths}")
        if self._added[places].any():
            raise InvalidRequest("the gradient of a user was added before: sum a user's gradients")
        self._added[places] = True
        self._norms[places] = self._sum.add(parts, self.clip_norms[places])

    def release(self, dimension: int | Sequence[int] | None = None) -> NDArray[np.float64]:
        """The private mean, once: what was added, with noise, over the expected batch.

        Args:
            dimension: of the gradients, or of each of their parts; needed where nobody was drawn
                and so nothing added.

        Raises:
            InvalidRequest: a user who was drawn is missing, or nothing says how many coordinates
                there are. Nothing was released.
            Unusable: it was released before.
        """
        if not self._added.all():
            missing = int(np.count_nonzero(~self._added))
            raise InvalidRequest(f"gradients of {missing} users who were drawn were not added")
        widths = self._sum.widths
        if widths is None:
            if dimension is None:
                raise InvalidRequest("nobody was drawn: say how many coordinates a gradient has")
            if isinstance(dimension, int) and self._owner.outer_parts:
                raise InvalidRequest(f"dimension is {dimension}; say that of each part")
            self._sum.begin([dimension] if isinstance(dimension, int) else dimension)
        elif dimension is not None:
            found = sum(widths) if isinstance(dimension, int) else widths
            if dimension != found:
                raise InvalidRequest(f"dimension is {dimension}; gradients have {found}")
        return self._owner._close(self, self._sum.totals(), self._norms)


def _distinct(places: Places, users: int) -> Places:
    """The same places, of which each is one of so many users and none comes twice."""
    if isinstance(places, slice):
        try:
            places.indices(users)
        except (TypeError, ValueError) as error:
            raise InvalidRequest(f"places is {places}: {error}") from error
        return places
    found = np.array(places) if isinstance(places, np.ndarray | list | tuple) else np.array(None)
    if found.ndim != 1 or found.dtype.kind not in "iu":
        raise InvalidRequest(
            f"places are of {found.dtype} and shape {found.shape}: give a slice, or an array of "
            "integers, one a row; of truth values, np.flatnonzero of them"
        )
    if not ((found >= 0) & (found < users)).all():
        raise InvalidRequest(
            f"places are from {found.min()} to {found.max()}; {users} users were drawn: give their "
            "places in positions, counted from 0"
        )
    if np.bincount(found.astype(np.intp), minlength=users).max(initial=0) > 1:
        raise InvalidRequest("a user is in places twice: sum a user's gradients, one row a user")
    return found
