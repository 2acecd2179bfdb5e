"""Authorization: the public keys that may charge and manage a dataset.

A listed dataset has an access list of its own, or those of its parents, or that of the dataset that
it is a share of. Where several lists apply, a key has the rights that all of them give. An open
dataset has no list, and takes requests without a signature. A listed dataset is never nested in an
open one, whose budget every client could spend.

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

from collections.abc import Mapping, Sequence

import msgspec
from msgspec import UNSET

from streams.ledger.budgets import Policies
from streams.ledger.partition_errors import CannotVerify
from streams.ledger.tracked import Tracked
from streams.records import (
    AccessList,
    Allowed,
    CloseDataset,
    CreateDataset,
    Erase,
    Import,
    Policy,
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
    """The access lists of one partition's datasets; ``lists`` has each dataset's own list."""

    def __init__(self, partition: int, lists: Tracked[Access], policies: Policies) -> None:
        self._partition = partition
        self._lists = lists
        self._policies = policies

    def of(self, dataset: str) -> list[Access]:
        """Return the lists that are in force for a dataset; none if it is open."""
        policy = self._policies.get((dataset,))
        if policy is None:
            return []
        access = self._lists.get((dataset,))
        if access is not None and access.allow:
            return [access]
        found: list[Access] = []
        for above in _above(policy):
            found += (each for each in self.of(above) if each not in found)
        return found

    def allowed(self, dataset: str) -> AccessList | None:
        """Return the rights that the lists in force for a dataset give; None if it is open."""
        lists = [_rights(access.allow) for access in self.of(dataset)]
        if not lists:
            return None
        rights = {
            key: [right for right in given if all(right in each.get(key, ()) for each in lists)]
            for key, given in lists[0].items()
        }
        return [Allowed(key=key, rights=given) for key, given in rights.items() if given]

    def check(self, request: Request, sender: Sender | None) -> None:
        """Check that the sender may ask this of datasets that exist (NOT_ALLOWED).

        A user is erased from all datasets that the sender may manage (``may_manage``), so that the
        access lists of other datasets cannot prevent it. The checks of create-dataset and
        set-access are ``check_creation`` and ``set_access``. The sender of a retire may manage all
        datasets.
        """
        if isinstance(request, CreateDataset | SetAccess | Import):
            return
        if isinstance(request, Erase):
            families = self._policies.families_of(request)
            about = sorted({name for family in families for name in family})
            if request.dataset is UNSET and any(self.may_erase(each, sender) for each in families):
                return
        elif isinstance(request, Retire):
            about = sorted(name for (name,) in self._policies)
        else:
            about = [request.dataset]
        manages = isinstance(request, WithdrawDataset | CloseDataset | Erase | Retire)
        for name in about:
            self._check_right(name, "manage" if manages else "charge", sender)

    def may_erase(self, family: Sequence[str], sender: Sender | None) -> bool:
        """Return whether a sender may manage all outermost datasets of a family."""
        try:
            for name in family:
                self._check_right(name, "manage", sender)
        except Rejection:
            return False
        return True

    def check_creation(self, request: CreateDataset, sender: Sender | None) -> None:
        """Check that the sender may nest a dataset, or create a share (NOT_ALLOWED)."""
        for name in _above(request.policy):
            self._check_right(name, "manage", sender)

    def check_list(self, request: CreateDataset) -> None:
        """Check the access list with which a dataset is to begin, if any (INVALID_ACCESS)."""
        policy = request.policy
        if (policy.allow is UNSET) != (request.log is UNSET):
            detail = "an access list and the id of the log that signatures are for belong together"
            raise Rejection(Reason.INVALID_ACCESS, detail)
        if policy.allow is not UNSET:
            check_access(policy.allow)
        parents = [name for name in policy.parents or () if (name,) in self._policies]
        open_ones = [name for name in parents if not self.of(name)]
        if open_ones and (policy.allow is not UNSET or len(open_ones) < len(parents)):
            detail = (
                f"dataset {open_ones[0]!r} has no access list, so every client can spend its "
                f"budget: dataset {policy.dataset!r} nested in it cannot have a list, of its own "
                "or of another parent"
            )
            raise Rejection(Reason.INVALID_ACCESS, detail)

    def check_log(self, request: CreateDataset) -> None:
        """Check that an existing dataset's signatures are for the client's log (NOT_ALLOWED)."""
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
        """Replace a dataset's access list by one that ``check_access`` accepts.

        Rejected with NOT_ALLOWED or SUPERSEDED.
        """
        access, own = self.of(request.dataset), self._lists.get(request.address)
        asked = Access(request.log, request.number, request.allow)
        if own == asked:
            return  # The same record again, which changes nothing.
        if not access:
            detail = f"dataset {request.dataset!r} was created without an access list: it has none"
            raise Rejection(Reason.NOT_ALLOWED, detail)
        self._check_right(request.dataset, "manage", sender)
        before = 0 if own is None else own.number
        if request.number <= before:
            detail = f"number {request.number} is not above {before}, the last change's number"
            raise Rejection(Reason.SUPERSEDED, detail)
        self._lists[request.address] = asked

    def _check_right(self, dataset: str, right: Right, sender: Sender | None) -> None:
        for access in self.of(dataset):
            self._check_listed(access, dataset, right, sender)

    def _check_listed(
        self, access: Access, dataset: str, right: Right, sender: Sender | None
    ) -> None:
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
    """Check an access list by itself (INVALID_ACCESS)."""
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


def _above(policy: Policy) -> Sequence[str]:
    """Return the datasets whose lists apply to one without a list."""
    return [policy.share_of] if policy.share_of is not UNSET else policy.parents or ()


def _rights(allow: AccessList) -> Mapping[bytes, list[Right]]:
    return {entry.key: entry.rights for entry in allow}
