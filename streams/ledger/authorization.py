"""Authorization: the public keys that may charge and manage a dataset.

A listed dataset has an access list: its own, or that of the nearest dataset that it is nested in or
a share of. An open dataset has none, and takes requests without a signature. A listed dataset is
never nested in an open one, whose budget every client could spend.

The states of a dataset's own list in one partition:

    (none) --create-dataset with a list--> list
    (none, and a parent has a list) --set-access--> list    signed by a key that may manage
    list --set-access, with a higher number--> list         signed by a key that may manage
    list --withdraw-dataset--> (none)                       the number stays

A client that reads and writes the log can repeat its records. The number ensures that a repeated
set-access brings back no removed key, also if the dataset was withdrawn and created again in
between.

A list names the log that signatures are for; clients put the id of their log there. A copy of the
log has another id, and its records name the original. So signatures of the original are valid in
the copy, and its charges are charged there too. A manager's set-access, signed for the original,
makes the list name the copy.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from msgspec import UNSET

from streams.ledger.budgets import Policies
from streams.ledger.errors import CannotVerify
from streams.ledger.tracked import Tracked
from streams.records import (
    AccessList,
    Allowed,
    CloseDataset,
    CreateDataset,
    Erase,
    Import,
    Reason,
    Rejection,
    Request,
    Retire,
    Right,
    Sender,
    SetAccess,
    WithdrawDataset,
)
from streams.records.signatures import NoVerifier, check_public_key, is_signed, public_text


class Access(msgspec.Struct, frozen=True, array_like=True):
    """A dataset's own access list."""

    log: bytes  # the id of the log that signatures are for
    number: int  # of the last set-access, 0 before the first
    allow: list[Allowed]  # empty: the dataset was withdrawn


class Authorization:
    """The access lists of one partition's datasets.

    Args:
        partition: its number.
        lists: (dataset,) -> its own list.
        policies: (dataset,) -> its policy.
    """

    def __init__(self, partition: int, lists: Tracked[Access], policies: Policies) -> None:
        self._partition = partition
        self._lists = lists
        self._policies = policies

    def of(self, dataset: str) -> Access | None:
        """Return the list that is in force for a dataset; None if it is open."""
        while (policy := self._policies.get((dataset,))) is not None:
            access = self._lists.get((dataset,))
            if access is not None and access.allow:
                return access
            parent = policy.parent if policy.share_of is UNSET else policy.share_of
            if parent is UNSET:
                break
            dataset = parent
        return None

    def check(self, request: Request, sender: Sender | None) -> None:
        """Check that the sender may ask this of datasets that exist.

        A user is erased from all datasets that the sender may manage (``may_manage``), so that the
        access lists of other datasets cannot prevent it. The checks of create-dataset and
        set-access are ``check_creation`` and ``set_access``. The sender of a retire may manage all
        datasets.

        Raises:
            Rejection: NOT_ALLOWED.
        """
        if isinstance(request, CreateDataset | SetAccess | Import):
            return
        if isinstance(request, Erase):
            about = self._policies.outermost_of(request)
            if request.dataset is UNSET and any(self.may_manage(name, sender) for name in about):
                return
        elif isinstance(request, Retire):
            about = sorted(name for (name,) in self._policies)
        else:
            about = [request.dataset]
        manages = isinstance(request, WithdrawDataset | CloseDataset | Erase | Retire)
        for name in about:
            self._check_right(name, "manage" if manages else "charge", sender)

    def may_manage(self, dataset: str, sender: Sender | None) -> bool:
        """Return whether a sender may manage a dataset."""
        try:
            self._check_right(dataset, "manage", sender)
        except Rejection:
            return False
        return True

    def check_creation(self, request: CreateDataset, sender: Sender | None) -> None:
        """Check that the sender may nest a dataset in its parent, or create a share.

        Raises:
            Rejection: NOT_ALLOWED.
        """
        for parent in (request.policy.parent, request.policy.share_of):
            if parent is not UNSET:
                self._check_right(parent, "manage", sender)

    def check_list(self, request: CreateDataset) -> None:
        """Check the access list with which a dataset is to begin, if there is one.

        Raises:
            Rejection: INVALID_ACCESS.
        """
        policy = request.policy
        if (policy.allow is UNSET) != (request.log is UNSET):
            detail = "an access list and the id of the log that signatures are for belong together"
            raise Rejection(Reason.INVALID_ACCESS, detail)
        if policy.allow is UNSET:
            return
        check_access(policy.allow)
        parent = policy.parent
        if parent is not UNSET and (parent,) in self._policies and self.of(parent) is None:
            detail = (
                f"dataset {parent!r} has no access list, so every client can spend its budget: "
                f"dataset {policy.dataset!r} nested in it cannot have a list"
            )
            raise Rejection(Reason.INVALID_ACCESS, detail)

    def check_log(self, request: CreateDataset) -> None:
        """Check that the signatures of a dataset that exists are for the client's log.

        Raises:
            Rejection: NOT_ALLOWED.
        """
        access = self._lists.get(request.address)
        if request.log is not UNSET and access is not None and access.log != request.log:
            detail = (
                f"requests about dataset {request.policy.dataset!r} are signed for the log "
                f"{access.log.hex()}, not for {request.log.hex()}"
            )
            raise Rejection(Reason.NOT_ALLOWED, detail)

    def created(self, request: CreateDataset) -> None:
        """Store the access list of a new dataset, if it has one."""
        if request.policy.allow is not UNSET and request.log is not UNSET:
            before = self._lists.get(request.address)
            number = 0 if before is None else before.number
            self._lists[request.address] = Access(request.log, number, request.policy.allow)

    def withdrawn(self, address: tuple[str, ...]) -> None:
        """Remove the access list of a dataset that was withdrawn, and keep its number."""
        access = self._lists.get(address)
        if access is not None and access.number:
            self._lists[address] = msgspec.structs.replace(access, allow=[])
        elif access is not None:
            del self._lists[address]

    def set_access(self, request: SetAccess, sender: Sender | None) -> None:
        """Replace the access list of a dataset that exists by one that ``check_access`` accepts.

        Raises:
            Rejection: NOT_ALLOWED or SUPERSEDED.
        """
        access, own = self.of(request.dataset), self._lists.get(request.address)
        asked = Access(request.log, request.number, request.allow)
        if own == asked:
            return  # The same record again, which changes nothing.
        if access is None:
            detail = f"dataset {request.dataset!r} was created without an access list: it has none"
            raise Rejection(Reason.NOT_ALLOWED, detail)
        self._check_right(request.dataset, "manage", sender)
        before = 0 if own is None else own.number
        if request.number <= before:
            detail = f"number {request.number} is not above {before}, the last change's number"
            raise Rejection(Reason.SUPERSEDED, detail)
        self._lists[request.address] = asked

    def _check_right(self, dataset: str, right: Right, sender: Sender | None) -> None:
        access = self.of(dataset)
        if access is None:
            return
        detail = f"dataset {dataset!r} takes requests signed by keys that may {right} it"
        if sender is None:
            raise Rejection(Reason.NOT_ALLOWED, f"{detail}: this request is unsigned")
        if right not in _rights(access.allow).get(sender.key, ()):
            detail = f"{detail}: {public_text(sender.key)} may not"
            raise Rejection(Reason.NOT_ALLOWED, detail)
        try:
            valid = is_signed(access.log, self._partition, sender)
        except NoVerifier as problem:
            raise CannotVerify(problem) from problem
        if not valid:
            detail = (
                f"{detail}: the signature is not valid for partition {self._partition} of the log "
                f"{access.log.hex()}"
            )
            raise Rejection(Reason.NOT_ALLOWED, detail)


def check_access(allow: AccessList) -> None:
    """Check an access list by itself.

    Raises:
        Rejection: INVALID_ACCESS.
    """
    keys, complaint = [entry.key for entry in allow], None
    if keys != sorted(set(keys)):
        complaint = "its keys have to increase"
    elif any(entry.rights != sorted(set(entry.rights)) for entry in allow):
        complaint = "the rights of a key have to be in alphabetical order"
    elif not any("manage" in entry.rights for entry in allow):
        complaint = "no key may manage the dataset, so that the list could never change"
    if complaint:
        raise Rejection(Reason.INVALID_ACCESS, f"the access list is invalid: {complaint}")
    for key in keys:
        if problem := check_public_key(key):
            raise Rejection(Reason.INVALID_ACCESS, f"{public_text(key)} is no key: {problem}")


def _rights(allow: AccessList) -> Mapping[bytes, list[Right]]:
    return {entry.key: entry.rights for entry in allow}
