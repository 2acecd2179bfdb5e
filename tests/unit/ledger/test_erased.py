"""Users who were erased: nobody knows who they were, and nobody has a second budget.

The auditor looks on: it makes names by the documents, and knows no slots.
"""

from functools import partial

import msgspec
import numpy as np
import pytest
from msgspec import UNSET

from streams.ledger import erasure
from streams.ledger.ledger import Ledger, LostErasureKey, ledger_of
from streams.records import (
    ERASED,
    Charge,
    Erase,
    Reason,
    Rejection,
    decode_request,
    encode,
)
from streams.records.digests import NO_TOPIC
from streams.records.packing import pack_norms
from streams.records.users import UserIds
from tests.unit.ledger.audited import AuditedLog
from tests.unit.ledger.ledgers import (
    Log,
    answer_of,
)
from tests.unit.ledger.random_logs import RandomLog
from tests.unit.ledger.roster_logs import (
    RosterLog,
    begun,
    prices,
)

KEY, OTHER = "k" * 16, "o" * 64


def erase(log: Log, user, dataset=UNSET, **fields):
    return answer_of(log.send(Erase(request="f", user=user, dataset=dataset, **fields)))


def test_erased_ids_are_in_no_state_or_output():
    for user, other in ((7_777_777_777, 8), ("Zoë Müller", "x")):
        log = begun([user, other], user_ids="mixed")
        log.charge(0, [user, other], [1.0, 1.0])
        before = len(log.outputs)
        erase(log, user)
        octets = user.encode() if isinstance(user, str) else user.to_bytes(8, "little")
        pages = {name: log.ledger.state.take_page(name) for name in log.ledger.state.unmerged()}
        again = ledger_of(Stored(pages), 0, 1, NO_TOPIC, log.ledger.chain)
        assert octets not in b"".join(pages.values())
        log.charge(1, [user, other], [1.0, 1.0])
        log.step(2, prices(), members=2)
        said = [out for outputs in log.outputs[before:] for out in outputs]
        assert octets not in b"".join(out.value for out in said)
        assert [out.key for out in said if octets in (out.key or b"")] in ([], [said[1].key])
        assert again.state.erased == log.ledger.state.erased


class Stored(msgspec.Struct):
    pages: dict[str, bytes]
    changes: list[bytes] = []


@pytest.mark.parametrize("user_ids", ["integer", "mixed"])
@pytest.mark.parametrize("known", [True, False])
def test_a_keyed_hash_is_no_id(user_ids, known):
    """No request can name it, whether the user was erased or not."""
    log = begun(user_ids=user_ids)
    log.charge(0, [7], [0.1])
    if known:
        erase(log, 7)
    name = log.ledger.state.erasure.ring.name(7, log.ledger.state.erasure.ring.newest)
    step = log.ledger.state.runs["d", "r"].step + 1
    for users in ([name], ["erased:"], [8, "erased:x"]):
        assert log.charge(step, users, [0.1] * len(users)).reason is Reason.MALFORMED
        assert log.enrol(users, first=4).reason is Reason.MALFORMED
    assert erase(log, name).reason is Reason.MALFORMED


def test_an_id_of_another_pseudonym_key_is_refused():
    log = Log()
    log.create("named", pseudonyms="0" * 16)
    log.create("plain")
    for dataset in ("named", "plain"):
        log.open(dataset)
        log.charge(0, [1], [0.1], dataset=dataset)
    assert erase(log, 1, "named").reason is Reason.MIXED_USERS
    assert erase(log, 1, "plain", pseudonyms="0" * 16).reason is Reason.MIXED_USERS
    assert erase(log, 1).datasets == ["plain"]
    assert erase(log, 1, pseudonyms="0" * 16).datasets == ["named"]


def test_erasing_in_wrong_partition_or_unknown_dataset_is_refused():
    log = Log(partitions=2)
    log.create()
    reasons = {getattr(erase(log, user), "reason", None) for user in range(9)}
    assert reasons == {None, Reason.WRONG_PARTITION}
    assert erase(log, 1, "nobody").reason is Reason.UNKNOWN_DATASET


def keyed(keys: str, records=(), place=(0, 1)) -> Ledger:
    ledger = Ledger(*place, NO_TOPIC, keys)
    for offset, record in enumerate(records):
        ledger.apply(offset, record)
    return ledger


def test_a_missing_erasure_key_suspends_the_partition():
    log = begun()
    log.charge(0, [7], [1.0])
    erase(log, 7)
    ledger = keyed(KEY, log.records)
    changes = [encode(ledger.state.take_delta())]
    for keys in (KEY, f"{OTHER} {KEY}"):
        again = ledger_of(Stored({}, changes), 0, 1, NO_TOPIC, ledger.chain, keys)
        (*_, answer) = again.apply(99, encode(Erase(request="f", user=7)))
        assert answer_of([answer]).datasets == ["d"]
    with pytest.raises(LostErasureKey):
        ledger_of(Stored({}, changes), 0, 1, NO_TOPIC, ledger.chain, OTHER)


def rotated(log: Log, *keys: str) -> list:
    """The outputs of a log whose worker is restored with one of these keys after the other."""
    place = log.ledger.state.partition, log.ledger.state.partitions
    ledger, changes, outputs = keyed(keys[0], place=place), [], []
    for offset, record in enumerate(log.records):
        now = keys[offset * len(keys) // len(log.records)]
        if now != ledger.erasure_keys:
            changes.append(encode(ledger.state.take_delta()))
            ledger = ledger_of(Stored({}, changes), *place, NO_TOPIC, ledger.chain, now)
        outputs.append(ledger.apply(offset, record))
    return outputs


def rejected_with_their_users() -> RosterLog:
    """Requests that are rejected because of users who were erased in the first half of the log."""
    log = RosterLog()
    log.create("all", user_ids="mixed")
    log.create("some", parents=["all"], user_ids="mixed")
    for name in ("all", "some"):
        log.open(name)
    log.charge(0, [7, "x", 8], [0.1] * 3, dataset="all")
    for user in (7, "x"):
        erase(log, user, hidden=True)
    for dataset in ("all", "some"):
        for users in ([7, 7], ["x", "x"], [8, "x"]):
            log.charge(1, users, [0.0] * len(users), dataset=dataset)
            log.enrol(users, dataset=dataset)
        log.enrol([8, "x", 8], dataset=dataset)
        log.enrol(["x"], first=2, dataset=dataset)
    return log


def with_erasures(hidden: bool) -> AuditedLog:
    """A random log whose hashes are hidden, as clients request it, or not."""
    log = AuditedLog()
    for record in RandomLog(5).grow(300).records:
        try:
            request = decode_request(record)
        except Rejection:
            request = None
        if isinstance(request, Erase):
            record = encode(msgspec.structs.replace(request, hidden=hidden))
        log.send(record)
    return log


def of_another_kind() -> RosterLog:
    """An erased string, charged in a dataset of integers around which its own dataset is."""
    log = RosterLog()
    for name in ("strings", "integers"):
        log.create(name, user_ids="one-kind")
    log.create("inner", parents=["strings", "integers"], user_ids="one-kind")
    for name in ("strings", "integers"):
        log.open(name)
    log.charge(0, ["x"], [0.1], dataset="strings")
    log.charge(0, [5], [0.1], dataset="integers")
    erase(log, "x", hidden=True)
    log.enrol(["x"], dataset="integers")
    log.charge(1, ["x"], [0.1], dataset="integers")
    return log


@pytest.mark.slow
@pytest.mark.parametrize(
    "make", [rejected_with_their_users, of_another_kind, partial(with_erasures, hidden=True)]
)
def test_no_output_depends_on_an_erasure_key(make):
    log = make()
    for keys in ([KEY], [KEY, f"{OTHER} {KEY}"], ["", KEY, f"{OTHER},{KEY}"]):
        assert rotated(log, *keys) == log.outputs


@pytest.mark.slow
def test_hashes_that_outputs_have_are_made_with_the_oldest_key():
    log = with_erasures(hidden=False)
    decided = rotated(log, KEY)
    assert decided != rotated(log, OTHER)
    assert rotated(log, KEY, f"{OTHER} {KEY}") == rotated(log, f"{OTHER} {KEY}") == decided


def test_users_erased_under_any_key_are_recognised():
    log = begun()
    log.charge(0, [7, 8], [1.0, 1.0])
    erase(log, 7)
    first = keyed(KEY, log.records)
    changes = [encode(first.state.take_delta())]
    later = ledger_of(Stored({}, changes), 0, 1, NO_TOPIC, first.chain, f"{OTHER}\n{KEY}")
    later.apply(90, encode(Erase(request="f", user=8, hidden=True)))
    assert len(set(later.state.erasure)) == 2
    for user in (7, 8):
        (*_, answer) = later.apply(91, encode(Erase(request="f", user=user)))
        assert answer_of([answer]).datasets == ["d"]
    norms = pack_norms(np.ones(2))
    charge = Charge(dataset="d", run="r", attempt=1, step=1, users=[7, 8], norms=norms)
    assert answer_of(later.apply(92, encode(charge))).reasons == bytes([ERASED] * 2)


def test_digests_blank_erased_users():
    assert erasure.blanked(UserIds([1, 2, 3]), np.array([1])).tolist() == [1, 0, 3]
    assert erasure.blanked(UserIds(["a", 2, "c"]), np.array([0, 1])).tolist() == ["", 0, "c"]
