"""Who may do what: an operator, the principals that it has registered, and what a dataset allows.

    (nobody) --bind-operator, signed by its key--> operator K      the first one of a partition
    operator K --bind-operator, signed by K--> operator L
    (unknown) --register-principal, signed by the operator--> known by a key
    known by a key --register-principal--> known by another key, or (unknown)

What the operator says has a number, and counts only if it is above all before: what was said once,
and can be read in the log, brings no key back that was taken away. Said again at once, it is
answered again.

A request is allowed by the nearest policy that names anybody: that of the dataset, or of one that
it is within. Whoever creates a dataset within such a one has to be allowed to manage that one, and
may name others; a dataset that names somebody is within none where everybody may do everything.

A signature made for one log counts in no other.

State is a function of the log alone, so this worker's settings do not say who the operator is: they
say whose word this worker would follow, and it stops where the log says another one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Literal, Protocol, TypeAlias

import msgspec
from msgspec import UNSET, UnsetType

from streams.ledger.partition_error import PartitionError
from streams.ledger.tracked import Tracked
from streams.schemas import (
    Allow,
    BindOperator,
    CloseDataset,
    Erase,
    Policy,
    Reason,
    RegisterPrincipal,
    Rejection,
    Request,
    Sender,
    WithdrawDataset,
)
from streams.wire.requests import NoVerifier, check_public_key, is_signed_by
from streams.wire.signatures import keys_in, public_bytes, public_text

Right: TypeAlias = Literal["charge", "manage"]


class Operator(msgspec.Struct, frozen=True, array_like=True):
    """Who says whose keys count."""

    key: bytes
    number: int  # of what it said last
    said: bytes  # a digest of that
    also: list[bytes] = []  # ids of other logs, signatures for which count here


class Principal(msgspec.Struct, frozen=True, array_like=True):
    """Somebody who signs requests."""

    key: bytes
    creates: bool = False


Principals: TypeAlias = Tracked[Principal]


class UnknownOperator(PartitionError):
    """The log is of an operator, or of a copy, that this worker was not told of."""

    kind = "operator-key"


class CannotVerify(PartitionError):
    """A signature has to be checked, and nothing here can."""

    kind = "operator-key"

    def __init__(self, problem: NoVerifier) -> None:
        super().__init__(
            f"a signed request has to be checked, and nothing here can do so ({problem})",
            "Install dp-turnstile with its extra `secure` and start the worker again",
        )


class Operators:
    """The operators whose word this worker follows.

    Args:
        keys: public keys as of a key ring; none: whoever the log says.

    Raises:
        InvalidKey: what is given is no key.
    """

    def __init__(self, keys: str) -> None:
        self._keys = {public_bytes(key) for key in keys_in(keys)}

    def check(self, key: bytes) -> None:
        """Refuse to follow another one.

        Raises:
            UnknownOperator: it is another one.
        """
        if self._keys and key not in self._keys:
            raise UnknownOperator(
                f"the operator of this log is {public_text(key)}, which operator_keys here does "
                "not have: it would say who may charge whom",
                "If that is the operator, add its key to operator_keys of the workers, and leave "
                "those there that were before it in this log. If not, somebody else has bound it: "
                "no record after it may be decided",
            )

    def knows(self, key: bytes) -> bool:
        """Whether it was named."""
        return key in self._keys


class BoundOperator(Tracked[Operator]):
    """() -> the operator, once there is one."""

    def __init__(self, operators: Operators) -> None:
        super().__init__("operator", Operator)
        self.operators = operators

    def check(self) -> None:
        """Make sure that it is one whose word this worker follows.

        Raises:
            UnknownOperator: it is not.
        """
        if self:
            self.operators.check(self[()].key)


class Datasets(Protocol):
    """The policies of a partition."""

    def policies_of(self, name: str) -> list[Policy]:
        """Of a dataset and its ancestors, the nearest first; none if there is none."""

    def outermost_of(self, request: Erase) -> list[str]:
        """The datasets without a parent that a request is about."""


class Gate:
    """Who may do what in one partition.

    Args:
        place: the id of the log, and the partition.
        operator: if there is one.
        principals: that it has registered.
        datasets: of the partition.
    """

    def __init__(
        self,
        place: tuple[bytes, int],
        operator: BoundOperator,
        principals: Principals,
        datasets: Datasets,
    ) -> None:
        self._log, self._partition = place
        self._operator = operator
        self._principals = principals
        self._datasets = datasets

    def check(self, request: Request, sender: Sender | None) -> None:
        """Check who asks for something about a dataset that is there.

        A user is erased in all datasets that the sender may manage (``may_manage``), so that
        other datasets' access lists cannot prevent it.

        Raises:
            Rejection: NOT_ALLOWED.
        """
        about = self._about(request)
        if isinstance(request, Erase) and any(self.may_manage(name, sender) for name in about):
            about = about if request.dataset is not UNSET else ()
        for name in about:
            right: Right = "charge"
            if isinstance(request, WithdrawDataset | CloseDataset | Erase):
                right = "manage"
            self._check_right(self._datasets.policies_of(name), right, sender)

    def may_manage(self, dataset: str, sender: Sender | None) -> bool:
        """Return whether a sender may manage a dataset, which has to exist."""
        try:
            self._check_right(self._datasets.policies_of(dataset), "manage", sender)
        except Rejection:
            return False
        return True

    def check_creation(
        self, policy: Policy, outer: Sequence[Policy], sender: Sender | None
    ) -> None:
        """Check who creates a dataset nested in these others.

        Raises:
            Rejection: NOT_ALLOWED.
        """
        if allowing(outer) is not None:
            self._check_right(outer, "manage", sender)
        elif self._operator:
            self._known(sender, f"dataset {policy.dataset!r} is created", may_create=True)

    def bind(self, request: BindOperator, sender: Sender | None) -> None:
        """Know the operator by a key.

        Raises:
            Rejection: INVALID_KEY, NOT_ALLOWED or SUPERSEDED.
            UnknownOperator: this worker does not follow it.
        """
        _check_key(request.operator)
        bound = self._operator.get(())
        said = _digest(sender)
        if bound is not None and said == bound.said:
            return
        signer = request.operator if bound is None else bound.key
        if not self._is_by_operator(signer, bound, sender):
            self._check_copied(request, bound, sender)
            detail = "an operator is bound by its own signature, and another one by the one before"
            raise Rejection(Reason.NOT_ALLOWED, f"{detail}, for this log and partition")
        also = [] if bound is None else bound.also
        also = also + [log for log in request.also if log not in also]
        self._note(Operator(request.operator, request.number, said, also), bound)

    def register(self, request: RegisterPrincipal, sender: Sender | None) -> None:
        """Know a principal by a key, or not any more.

        Raises:
            Rejection: INVALID_KEY, NOT_ALLOWED or SUPERSEDED.
        """
        if request.key is not UNSET:
            _check_key(request.key)
        bound = self._operator.get(())
        if bound is None:
            detail = "no operator is bound, who would say whose keys count: send bind-operator"
            raise Rejection(Reason.NOT_ALLOWED, detail)
        said = _digest(sender)
        if said == bound.said:
            return
        if not self._is_by_operator(bound.key, bound, sender):
            detail = f"principals are registered by the operator, {public_text(bound.key)}"
            raise Rejection(Reason.NOT_ALLOWED, detail)
        self._note(Operator(bound.key, request.number, said, bound.also), bound)
        if request.key is not UNSET:
            self._principals[request.principal,] = Principal(request.key, request.creates)
        elif (request.principal,) in self._principals:
            del self._principals[request.principal,]

    def _about(self, request: Request) -> Sequence[str]:
        if isinstance(request, Erase):
            return self._datasets.outermost_of(request)
        dataset: str | None = getattr(request, "dataset", None)
        return () if dataset is None else (dataset,)

    def _check_right(self, policies: Sequence[Policy], right: Right, sender: Sender | None) -> None:
        policy = allowing(policies)
        if policy is None or isinstance(policy.allow, UnsetType):
            return
        names = policy.allow.charge if right == "charge" else policy.allow.manage
        what = f"dataset {policies[0].dataset!r} is {right}d"
        if sender is None or sender.principal not in names:
            who = "nobody has signed this"
            if sender is not None:
                who = f"this is signed by {sender.principal or 'the operator'}"
            allowed = f"principals that dataset {policy.dataset!r} allows to {right} it ({names})"
            raise Rejection(Reason.NOT_ALLOWED, f"{what} by {allowed}, and {who}")
        self._known(sender, what)

    def _known(self, sender: Sender | None, what: str, *, may_create: bool = False) -> None:
        """Check that a principal is registered and has signed, and whether it may create."""
        if sender is None or sender.principal is None:
            detail = f"{what} by principals that the operator has registered: sign the request"
            raise Rejection(Reason.NOT_ALLOWED, detail)
        known = self._principals.get((sender.principal,))
        if known is None:
            detail = f"{what} by registered principals, and {sender.principal!r} is none"
            raise Rejection(Reason.NOT_ALLOWED, detail)
        if may_create and not known.creates:
            detail = f"{what} by principals that may create, and {sender.principal!r} may not"
            raise Rejection(Reason.NOT_ALLOWED, detail)
        if not self._is_signed(known.key, self._operator.get(()), sender):
            detail = (
                f"{what} by who signs it for this log and partition, and this signature is not by "
                f"the key of {sender.principal!r}"
            )
            raise Rejection(Reason.NOT_ALLOWED, detail)

    def _is_by_operator(self, key: bytes, bound: Operator | None, sender: Sender | None) -> bool:
        is_said = sender is not None and sender.principal is None
        return is_said and self._is_signed(key, bound, sender)

    def _is_signed(self, key: bytes, bound: Operator | None, sender: Sender | None) -> bool:
        logs = [self._log, *(bound.also if bound is not None else ())]
        return sender is not None and any(self._is_for(log, key, sender) for log in logs)

    def _is_for(self, log: bytes, key: bytes, sender: Sender) -> bool:
        try:
            return is_signed_by(key, log, self._partition, sender)
        except NoVerifier as problem:
            raise CannotVerify(problem) from problem

    def _check_copied(
        self, request: BindOperator, bound: Operator | None, sender: Sender | None
    ) -> None:
        """Stop where the records of another log begin: its signatures would not count, and what
        was charged with them would be lost.
        """
        known = self._operator.operators.knows(request.operator)
        has_begun = bound is not None and bound.number > 0
        if has_begun or not known or sender is None or sender.principal is not None:
            return
        if request.log != self._log and self._is_for(request.log, request.operator, sender):
            raise UnknownOperator(
                f"here begin the records of the log {request.log.hex()}, whose signatures do not "
                f"count in this one, {self._log.hex()}: what was charged with them would be lost",
                "If records were copied, make the topic anew, and before they are copied bind the "
                "operator by the key with which that log began, with --also, which names the log. "
                "If not, make it anew as well: somebody has written this before the operator was "
                "bound",
            )

    def _note(self, operator: Operator, before: Operator | None) -> None:
        if before is not None and operator.number <= before.number:
            detail = f"number {operator.number} is not above {before.number}, which was said before"
            raise Rejection(Reason.SUPERSEDED, detail)
        self._operator.operators.check(operator.key)
        self._operator[()] = operator


def allowing(policies: Sequence[Policy]) -> Policy | None:
    """The first of these policies that says who is allowed; None if all are."""
    return next((policy for policy in policies if policy.allow is not UNSET), None)


def allow_of(policies: Sequence[Policy]) -> Allow | None:
    """What it says."""
    policy = allowing(policies)
    return None if policy is None or isinstance(policy.allow, UnsetType) else policy.allow


def _check_key(key: bytes) -> None:
    if problem := check_public_key(key):
        raise Rejection(Reason.INVALID_KEY, f"{public_text(key)} is no public key: {problem}")


def _digest(sender: Sender | None) -> bytes:
    """Of what an operator said."""
    said = b"" if sender is None or sender.principal is not None else sender.request
    return hashlib.sha256(said).digest() if said else b""
