"""Mutations of authorization."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from streams.ledger import authorization, tracked
from tests.simulation.mutations.registry import Patches, mutation, replaced


@mutation
def signatures_not_verified() -> Patches:
    """The key that a request names counts as its signer, without verification."""
    yield replaced(authorization, "is_signed", lambda *_: True)


@mutation
def signatures_of_other_partitions_accepted() -> Patches:
    """A request signed for one partition is accepted in another."""
    real = authorization.is_signed

    def is_signed(log: bytes, _: int, sender: Any) -> bool:
        return any(real(log, partition, sender) for partition in range(4))

    yield replaced(authorization, "is_signed", is_signed)


@mutation
def every_key_is_allowed() -> Patches:
    """A dataset with an access list accepts requests signed by any key."""

    def check_right(self: Any, dataset: str, _: str, sender: Any) -> None:
        for access in self.of(dataset):
            if sender is None or not authorization.is_signed(access.log, self._partition, sender):
                reason = authorization.Reason.NOT_ALLOWED
                raise authorization.Rejection(reason, "it is not signed")

    yield replaced(authorization.Authorization, "_check_right", check_right)


@mutation
def unsigned_requests_accepted() -> Patches:
    """A dataset with an access list accepts unsigned requests."""
    real = authorization.Authorization.check

    def check(self: Any, request: Any, sender: Any) -> None:
        if sender is not None:
            real(self, request, sender)

    yield replaced(authorization.Authorization, "check", check)


@mutation
def every_client_creates_nested_datasets() -> Patches:
    """A nested dataset is created without the right to manage its parent."""
    yield replaced(authorization.Authorization, "check_creation", lambda *_: None)


@mutation
def removed_keys_stay_allowed() -> Patches:
    """A new access list keeps the keys of the old one."""
    real = authorization.Authorization.set_access

    def set_access(self: Any, request: Any, sender: Any) -> None:
        before = self.of(request.dataset)
        real(self, request, sender)
        own = self._lists[request.address]
        kept = {entry.key: entry for entry in (*(before[0].allow if before else ()), *own.allow)}
        allow = [kept[key] for key in sorted(kept)]
        self._lists[request.address] = replace(own, allow=allow)

    yield replaced(authorization.Authorization, "set_access", set_access)


@mutation
def older_access_lists_accepted() -> Patches:
    """A replayed, older access list is accepted."""
    real = authorization.Authorization.set_access

    def set_access(self: Any, request: Any, sender: Any) -> None:
        own = self._lists.get(request.address)
        if own is not None and own.allow and own.number > request.number:
            self._lists[request.address] = replace(own, number=-1)
        try:
            real(self, request, sender)
        except authorization.Rejection:
            if own is not None:
                self._lists[request.address] = own
            raise

    yield replaced(authorization.Authorization, "set_access", set_access)


@mutation
def numbers_begin_again_with_a_new_dataset() -> Patches:
    """The number of the last change is deleted when a dataset is withdrawn."""

    def withdrawn(self: Any, address: Any) -> None:
        self._lists.pop(address, None)

    yield replaced(authorization.Authorization, "withdrawn", withdrawn)


@mutation
def access_lists_not_merged() -> Patches:
    """Access lists are not merged into pages."""
    real = tracked.Tracked.take_page

    def take_page(self: Any, name: str) -> bytes | None:
        page = real(self, name)
        return None if self.kind == "access" else page

    yield replaced(tracked.Tracked, "take_page", take_page)
