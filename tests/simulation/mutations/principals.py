"""Who may ask for what."""

from __future__ import annotations

from typing import Any

import msgspec

from streams.ledger import principals, tracked
from streams.schemas import decode_signed
from tests.simulation.mutations.registry import Patches, mutation, replaced


@mutation
def signatures_not_verified() -> Patches:
    """Who is said to have signed has signed."""
    yield replaced(principals, "is_signed_by", lambda *_: True)


@mutation
def signatures_of_other_partitions_count() -> Patches:
    """What was signed for one partition can be asked of another."""
    real = principals.is_signed_by

    def is_signed_by(key: bytes, log: bytes, _: int, sender: Any) -> bool:
        return any(real(key, log, partition, sender) for partition in range(4))

    yield replaced(principals, "is_signed_by", is_signed_by)


@mutation
def whoever_is_registered_may() -> Patches:
    """Nobody asks which principals a dataset names."""

    def check_right(self: Any, policies: Any, _: str, sender: Any) -> None:
        if principals.allowing(policies) is not None:
            self._known(sender, "it is charged")

    yield replaced(principals.Gate, "_check_right", check_right)


@mutation
def unsigned_requests_count() -> Patches:
    """A dataset takes what nobody has signed."""
    real = principals.Gate.check

    def check(self: Any, request: Any, sender: Any) -> None:
        if sender is not None:
            real(self, request, sender)

    yield replaced(principals.Gate, "check", check)


@mutation
def everybody_creates() -> Patches:
    """Whoever signs, or does not, creates datasets."""
    yield replaced(principals.Gate, "check_creation", lambda *_: None)


@mutation
def keys_stay_when_they_are_taken_away() -> Patches:
    """A principal that was known goes on being known by the key that it had."""
    real = principals.Gate.register

    def register(self: Any, request: Any, sender: Any) -> None:
        before = dict(self._principals)
        real(self, request, sender)
        self._principals.update(before)

    yield replaced(principals.Gate, "register", register)


@mutation
def older_words_of_the_operator_count() -> Patches:
    """What an operator has said before, and others repeat, holds again."""
    real = principals.Gate._note

    def note(self: Any, operator: Any, before: Any) -> None:
        if before is not None:
            before = msgspec.structs.replace(before, number=-1)
        real(self, operator, before)

    yield replaced(principals.Gate, "_note", note)


@mutation
def every_operator_is_followed() -> Patches:
    """Another operator is bound by its own signature, although there is one."""
    real = principals.Gate._is_by_operator

    def is_by_operator(self: Any, key: bytes, bound: Any, sender: Any) -> bool:
        if sender is not None and sender.principal is None:
            said = decode_signed(sender.request)[0]
            key = getattr(said, "operator", key)
        return real(self, key, bound, sender)

    yield replaced(principals.Gate, "_is_by_operator", is_by_operator)


@mutation
def principals_not_compacted() -> Patches:
    """Of those who are known there are changes and no pages."""
    real = tracked.Tracked.take_page

    def take_page(self: Any, name: str) -> bytes | None:
        page = real(self, name)
        return None if self.kind == "principal" else page

    yield replaced(tracked.Tracked, "take_page", take_page)
