"""A run: one trainer or query answerer that charges a dataset, step by step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from accounting import Gaussian, Laplace, Mechanism, PoissonGaussian, PureDP
from streams.packing import charge_digest, pack_norms, pack_users, select_users, unpack_bits
from streams.partitioner import partitions_of
from streams.policies import mechanism_of
from streams.schemas import (
    MAX_CHARGE_USERS,
    MAX_REQUEST_BYTES,
    Answer,
    Charge,
    Decision,
    MechanismName,
    Policy,
    Refused,
    Request,
    RunOpened,
    User,
    encode,
)
from streams.sdk.errors import ConflictingDecisions, InvalidCharge, Refusal, TurnstileError
from streams.sdk.replies import step_key


@dataclass(frozen=True, eq=False)
class StepDecision:
    """Who takes part in one step. All arrays are in the order of the users that were given.

    Attributes:
        step: the step that was charged.
        admitted: bool (n,), who may contribute to what is released.
        granted: float64 (n,), the norm to which each contribution must be clipped; 0 if halted.
        exhausted: bool (n,), who has nothing left after this step.
    """

    step: int
    admitted: NDArray[np.bool_]
    granted: NDArray[np.float64]
    exhausted: NDArray[np.bool_]

    @property
    def halted(self) -> NDArray[np.bool_]:
        """Who must be left out of this step; they were charged nothing for it."""
        return ~self.admitted


class Asks(Protocol):
    """Publishes a request to partitions and waits for their answers."""

    def ask(
        self, key: object, requests: dict[int, Request], timeout: float | None
    ) -> dict[int, Answer]:
        """The answers by partition; raises when one is missing or a refusal."""


class Run:
    """One attempt of a run. Not to be shared between threads.

    Attributes:
        step: the next step to charge. After a restart it follows the last step that was decided
            in every partition, or is the step that was interrupted (see ``interrupted``).
        attempt: which incarnation of the run this is; lower ones are fenced.
        interrupted: the last attempt ended before all partitions had decided ``step``. Charging
            it again with the same users and norms completes it; ``abandon`` gives it up.
        policy: the policy of the dataset.
    """

    def __init__(self, asks: Asks, opened: dict[int, RunOpened]) -> None:
        first = next(iter(opened.values()))
        self.dataset, self.name, self.attempt = first.dataset, first.run, first.attempt
        self.policy: Policy = first.policy
        self._asks = asks
        self._last = {partition: answer.last_step for partition, answer in opened.items()}
        last, earliest = max(self._last.values()), min(self._last.values())
        if last - earliest > 1:
            raise TurnstileError(
                f"run {self.name!r} has come to different steps: {self._last}; "
                "it was not written by this SDK, start a new run"
            )
        self.interrupted = last != earliest
        self.step = last if self.interrupted else last + 1
        self._failed: TurnstileError | None = None

    def charge(
        self,
        users: NDArray[np.int64] | Sequence[User],
        norms: ArrayLike,
        *,
        noise_stddev: float | None = None,
        mechanism: Mechanism | None = None,
        clip_norm: float | None = None,
        timeout: float | None = None,
    ) -> StepDecision:
        """Charge one step and wait until every partition has decided it.

        Only after this returns may the step be released: over the admitted users, each
        contribution clipped to its granted norm, with the noise that was charged. Neighbouring
        datasets differ by adding or removing one user.

        Args:
            users: n distinct ids, integers (signed 64-bit) or strings.
            norms: (n,) the norm of each user's contribution before release: L2 for Gaussian
                noise, L1 for Laplace noise, the step's eps for PureDP.
            noise_stddev: standard deviation of Gaussian noise, in the units of the norms.
            mechanism: instead of noise_stddev, an ``accounting`` mechanism.
            clip_norm: no norm may exceed it.
            timeout: seconds to wait; the Turnstile's own by default.

        Raises:
            InvalidCharge: these arguments cannot be charged; nothing was published.
            DecisionTimeout: call again with the same arguments.
            Fenced: a newer attempt of this run is at work.
            Refusal: a worker refused; open the run again.
        """
        if self._failed is not None:
            raise TurnstileError("this attempt cannot go on; open the run again") from self._failed
        scale, name = _mechanism(noise_stddev, mechanism, self.policy)
        ids, values = _users(users), _norms(norms, len(users), clip_norm)
        homes = partitions_of(ids, self.policy.partitions)
        order = np.argsort(homes, kind="stable")
        bounds = np.searchsorted(homes[order], np.arange(self.policy.partitions + 1))
        positions = {
            partition: order[bounds[partition] : bounds[partition + 1]]
            for partition in range(self.policy.partitions)
        }
        charges = {
            partition: self._part(select_users(ids, mine), values[mine], name, scale, clip_norm)
            for partition, mine in positions.items()
        }
        answers = self._decide(charges, timeout)
        decision = _assemble(self.step, len(values), values, positions, answers)
        self.step += 1
        self.interrupted = False
        return decision

    def abandon(self, timeout: float | None = None) -> None:
        """Give up an interrupted step. Who was charged for it stays charged; it is not released."""
        if not self.interrupted:
            raise InvalidCharge(f"step {self.step} is not interrupted: there is nothing to abandon")
        empty = np.empty(0, dtype=np.int64)
        charges = {
            partition: self._part(empty, np.empty(0), "gaussian", 1.0, None)
            for partition, last in self._last.items()
            if last < self.step
        }
        self._decide(charges, timeout)
        self.step += 1
        self.interrupted = False

    def _part(
        self,
        users: NDArray[np.int64] | list[User],
        norms: NDArray[np.float64],
        mechanism: MechanismName,
        scale: float,
        clip_norm: float | None,
    ) -> Charge:
        return Charge(
            dataset=self.dataset,
            run=self.name,
            attempt=self.attempt,
            step=self.step,
            users=pack_users(users),
            norms=pack_norms(norms),
            mechanism=mechanism,
            scale=scale,
            clip_norm=clip_norm,
        )

    def _decide(self, charges: dict[int, Charge], timeout: float | None) -> dict[int, Decision]:
        for partition, charge in charges.items():
            count = len(charge.norms) // 8
            if count > MAX_CHARGE_USERS:
                raise InvalidCharge(
                    f"partition {partition} has {count} users, more than {MAX_CHARGE_USERS}: "
                    "charge fewer users a step, or use more partitions"
                )
            size = len(encode(charge))
            if size > MAX_REQUEST_BYTES:
                raise InvalidCharge(
                    f"the users of partition {partition} take {size} bytes, more than "
                    f"{MAX_REQUEST_BYTES}: charge fewer users a step, or use more partitions"
                )
        key = step_key(self.dataset, self.name, self.attempt, self.step)
        try:
            answers = self._asks.ask(key, dict(charges), timeout)
        except (Refusal, ConflictingDecisions) as error:
            self._failed = error
            raise
        decisions = {p: answer for p, answer in answers.items() if isinstance(answer, Decision)}
        for partition, charge in charges.items():
            if decisions[partition].digest != charge_digest(charge):
                self._failed = ConflictingDecisions(
                    f"partition {partition} decided step {self.step} for other content"
                )
                raise self._failed
        return decisions


def _assemble(
    step: int,
    count: int,
    norms: NDArray[np.float64],
    positions: dict[int, NDArray[np.int64]],
    decisions: dict[int, Decision],
) -> StepDecision:
    admitted = np.zeros(count, dtype=np.bool_)
    exhausted = np.zeros(count, dtype=np.bool_)
    granted = np.zeros(count)
    for partition, mine in positions.items():
        decision = decisions[partition]
        admitted[mine] = unpack_bits(decision.admitted, len(mine))
        exhausted[mine] = unpack_bits(decision.exhausted, len(mine))
        granted[mine] = np.where(admitted[mine], norms[mine], 0.0)
        clipped = mine[np.frombuffer(decision.clipped, dtype="<u4")]
        granted[clipped] = np.frombuffer(decision.granted, dtype="<f8")
    return StepDecision(step, admitted, granted, exhausted)


def _mechanism(
    noise_stddev: float | None, mechanism: Mechanism | None, policy: Policy
) -> tuple[float, MechanismName]:
    if (noise_stddev is None) == (mechanism is None):
        raise InvalidCharge("give either noise_stddev or mechanism")
    match mechanism:
        case None:
            assert noise_stddev is not None
            scale, name = float(noise_stddev), "gaussian"
        case Gaussian():
            scale, name = float(mechanism.noise_stddev), "gaussian"
        case Laplace():
            scale, name = float(mechanism.scale), "laplace"
        case PureDP():
            scale, name = 1.0, "pure-dp"
        case PoissonGaussian():
            raise InvalidCharge(
                "Poisson-sampled steps cannot be charged through the service; charge them as "
                "Gaussian, which never costs less, or account them with accounting.RenyiFilter"
            )
    try:
        mechanism_of(name, scale, policy)  # type: ignore[arg-type]
    except Refused as refused:
        raise InvalidCharge(refused.detail) from refused
    return scale, name  # type: ignore[return-value]


def _users(users: NDArray[np.int64] | Sequence[User]) -> NDArray[np.int64] | list[User]:
    """Distinct ids as int64, or as a list when some are strings."""
    try:
        ids = _typed_users(users)
    except (OverflowError, UnicodeEncodeError) as error:
        raise InvalidCharge(f"a user id cannot be encoded: {error}") from error
    if isinstance(ids, np.ndarray):
        values, counts = np.unique(ids, return_counts=True)
        twice = values[counts > 1].tolist()
    else:
        seen: set[User] = set()
        twice = [user for user in ids if user in seen or seen.add(user)]  # type: ignore[func-returns-value]
    if twice:
        raise InvalidCharge(f"user {twice[0]!r} stands twice in one step: add its norms up first")
    return ids


def _typed_users(users: NDArray[np.int64] | Sequence[User]) -> NDArray[np.int64] | list[User]:
    if isinstance(users, np.ndarray):
        if users.ndim != 1:
            raise InvalidCharge(f"users has shape {users.shape}; it must be one-dimensional")
        if users.dtype.kind in "iu":
            if len(users) and int(users.max()) > np.iinfo(np.int64).max:
                raise InvalidCharge(f"user {users.max()} does not fit in a signed 64-bit integer")
            return users.astype(np.int64)
        users = users.tolist()
    if isinstance(users, str | bytes):
        raise InvalidCharge(f"users is {users!r}; give a list of ids")
    ids: list[User] = []
    for user in users:
        if isinstance(user, str):
            if not 1 <= len(user) <= 256:
                raise InvalidCharge(f"user {user!r} has {len(user)} characters, not 1 to 256")
            user.encode()
            ids.append(user)
        elif isinstance(user, int | np.integer) and not isinstance(user, bool):
            ids.append(int(user))
        else:
            raise InvalidCharge(f"user {user!r} is a {type(user).__name__}, not an int or str")
    if all(isinstance(user, int) for user in ids):
        return np.array(ids, dtype=np.int64)
    return ids


def _norms(norms: ArrayLike, users: int, clip_norm: float | None) -> NDArray[np.float64]:
    try:
        values = np.asarray(norms, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InvalidCharge(f"norms are not numbers: {error}") from error
    if values.shape != (users,):
        raise InvalidCharge(f"norms has shape {values.shape}; with {users} users it is ({users},)")
    if clip_norm is not None and not 0 <= clip_norm < np.inf:
        raise InvalidCharge(f"clip_norm is {clip_norm}; it must be finite and not negative")
    limit = np.inf if clip_norm is None else clip_norm
    bad = ~((values >= 0) & (values < np.inf) & (values <= limit))
    if bad.any():
        position = int(np.flatnonzero(bad)[0])
        allowed = "finite and not negative"
        if clip_norm is not None:
            allowed += f", and at most clip_norm = {clip_norm}: clip before charging"
        raise InvalidCharge(f"norm {values[position]} at position {position}; it must be {allowed}")
    return values
