"""Only keys on a dataset's access list charge and manage it, and no key that was removed."""

import pytest
from msgspec import UNSET, structs

from streams.ledger import datasets
from streams.ledger.ledger import PartitionError
from streams.records import (
    Allowed,
    CloseDataset,
    Erase,
    OpenRun,
    Reason,
    Signed,
    decode_signed,
    encode,
)
from streams.records.signatures import NoVerifier
from tests.audit import auditor
from tests.keys import allowing, public_key, setting, signed
from tests.unit.ledger.audited import AuditedLog
from tests.unit.ledger.ledgers import answer_of
from tests.unit.ledger.roster_logs import prices
from tests.unit.ledger.signed_logs import ALLOW, SignedLog, listed, refusal

OTHER_LOG = b"another log, 16 "
FEWER = allowing(anna="charge", mary="manage")


def begun() -> SignedLog:
    """A listed dataset, of which run r has come to step 0."""
    log = listed()
    with log.signing("alice"):
        log.open()
        log.charge(0, [7], [0.5])
        log.enrol([7, 8])
    return log


CHARGING = {
    "opens a run": lambda log: log.open(run="s"),
    "opens a run that is there": lambda log: log.open(attempt=2),
    "charges": lambda log: log.charge(1, [7], [0.5]),
    "charges what was charged": lambda log: log.charge(0, [7], [0.5]),
    "enrols": lambda log: log.enrol([7, 8, 9]),
    "charges a roster": lambda log: log.step(1, prices(), members=2),
    "closes a run": lambda log: log.close(),
}
MANAGING = {
    "closes it": lambda log: answer_of(log.send(CloseDataset(dataset="d", request="c"))),
    "erases a user": lambda log: answer_of(log.send(Erase(dataset="d", user=7, request="f"))),
    "erases a user everywhere": lambda log: answer_of(log.send(Erase(user=7, request="f"))),
    "creates one inside it": lambda log: log.create("inner", parents=["d"]),
    "sets its list": lambda log: answer_of(log.send(setting("d", 1, FEWER))),
}
EVERYTHING = CHARGING | MANAGING
STRANGERS = {
    "unsigned": None,
    "a key that is not on the list": {"key": "zoe"},
    "mary for another partition": {"key": "mary", "partition": 1},
    "alice for another partition": {"key": "alice", "partition": 1},
    "alice for another log": {"key": "alice", "log": OTHER_LOG},
    "mary for another log": {"key": "mary", "log": OTHER_LOG},
}


def state(log: SignedLog) -> tuple:
    ledger = log.ledger
    return ledger.summary(), dict(ledger.state.runs), log.spent(), dict(ledger.state.access)


@pytest.mark.parametrize("key", ["alice", "anna", "mary"])
@pytest.mark.parametrize("act", EVERYTHING)
def test_a_key_has_the_rights_of_its_list_and_no_other(act, key):
    log = begun()
    allowed = MANAGING if key == "mary" else CHARGING
    with log.signing(key):
        assert refusal(EVERYTHING[act](log)) is (None if act in allowed else Reason.NOT_ALLOWED)


@pytest.mark.parametrize("stranger", STRANGERS)
@pytest.mark.parametrize("act", EVERYTHING)
def test_no_other_request_is_applied_and_nothing_has_changed(act, stranger):
    log = begun()
    before = state(log)
    log.how = STRANGERS[stranger]
    assert refusal(EVERYTHING[act](log)) is Reason.NOT_ALLOWED
    assert state(log) == before


def test_signature_by_another_key_does_not_count():
    log = begun()
    value = encode(OpenRun(dataset="d", run="r", attempt=2, request="t"))
    by_zoe = decode_signed(signed(value, "zoe"))[1]
    forged = Signed(request=value, signature=by_zoe.signature, key=public_key("alice"))
    assert refusal(answer_of(log.send(forged))) is Reason.NOT_ALLOWED


def test_signed_request_with_a_changed_byte_does_not_count():
    log = begun()
    with log.signing("alice"):
        log.charge(1, [7], [0.5])
    value = log.records.pop()
    log = begun()
    before = state(log)
    record = decode_signed(value)[1].request
    wrong = [value[:at] + bytes([value[at] ^ 1]) + value[at + 1 :] for at in range(len(value))]
    assert any(record not in each for each in wrong)
    first = len(log.records)
    for each in wrong:
        log.send(each)
    assert {log.auditor.rejects[0, at][0] for at in range(first, len(log.records))} <= {
        *("malformed", "unsupported-version", "not-allowed", "unknown-dataset"),
    }
    assert state(log) == before
    log.send(value)
    assert log.ledger.state.runs["d", "r"].step == 1


@pytest.mark.parametrize(
    "record",
    [
        Signed(request=b"", signature=bytes(64), key=bytes(32)),
        Signed(request=signed(b"", "alice"), signature=bytes(64), key=bytes(32)),
    ],
    ids=["of nothing", "twice"],
)
def test_what_is_no_signed_request_is_malformed(record):
    log = SignedLog()
    assert refusal(answer_of(log.send(record))) is Reason.MALFORMED


# --- changes of a list ----------------------------------------------------------------------------


def test_no_earlier_change_brings_a_key_back():
    log = begun()
    log.set(20, FEWER)
    log.set(21)
    log.set(22, FEWER)
    before = state(log)
    for value in log.records[-3:-1]:
        assert refusal(answer_of(log.send(value))) is Reason.SUPERSEDED
    for number in (0, 21, 22):
        assert log.set(number) is Reason.SUPERSEDED
    assert state(log) == before


def test_repeated_list_restores_no_key_of_a_recreated_dataset():
    log = listed()
    log.set(20)
    changed = log.records[-1]
    with log.signing("mary"):
        assert refusal(log.withdraw()) is None
    assert refusal(log.create(allow=FEWER)) is None
    assert refusal(answer_of(log.send(changed))) is Reason.SUPERSEDED
    with log.signing("alice"):
        assert refusal(log.open()) is Reason.NOT_ALLOWED
    assert log.set(21) is None


def test_withdrawn_names_count_where_their_number_is_kept(monkeypatch):
    monkeypatch.setattr(datasets, "MAX_DATASETS", 2)
    monkeypatch.setattr(auditor, "_MOST_DATASETS", 2)
    log = SignedLog()
    for name in ("d", "e"):
        log.create(name, allow=ALLOW)
        log.set(1, dataset=name)
        with log.signing("mary"):
            log.withdraw(name)
    assert refusal(log.create("f")) is Reason.TOO_LARGE
    assert refusal(log.create("d")) is None
    assert refusal(log.create("f")) is Reason.TOO_LARGE


def test_last_change_with_another_list_or_log_is_superseded():
    log = listed()
    log.set(1, FEWER)
    assert log.set(1) is Reason.SUPERSEDED
    assert log.set(1, FEWER, log=OTHER_LOG) is Reason.SUPERSEDED


def test_an_open_dataset_is_given_no_list():
    log = SignedLog()
    log.create()
    for key in (None, "mary"):
        assert log.set(1, key=key) is Reason.NOT_ALLOWED
    assert log.set(1, dataset="nobody-created-this") is Reason.UNKNOWN_DATASET


INVALID = {
    "without a manager": allowing(alice="charge"),
    "out of order": ALLOW[::-1],
    "a key twice": [ALLOW[0], *ALLOW],
    "a right twice": [Allowed(key=public_key("mary"), rights=["manage", "manage"])],
    "rights out of order": [Allowed(key=public_key("mary"), rights=["manage", "charge"])],
}
POINTS = {
    "y = 0, of order 4": bytes(32),
    "the neutral one": (1).to_bytes(32, "little"),
    "of order 2": (2**255 - 20).to_bytes(32, "little"),
    "of order 8": bytes.fromhex("26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05"),
    "the neutral one, with a sign": (1 + 2**255).to_bytes(32, "little"),
    "y = p": (2**255 - 19).to_bytes(32, "little"),
    "y = 2**255 - 1": b"\xff" * 32,
    "on no curve": (2).to_bytes(32, "little"),
}


def with_small_part() -> bytes:
    """A good key, and the point of order 2 added to it: (x, y) becomes (-x, -y)."""
    number = int.from_bytes(public_key("alice"), "little")
    y, sign = number & (2**255 - 1), number >> 255
    return ((2**255 - 19 - y) + ((1 - sign) << 255)).to_bytes(32, "little")


INVALID |= {
    name: [Allowed(key=point, rights=["manage"])]
    for name, point in {**POINTS, "with a part of order 2": with_small_part()}.items()
}


@pytest.mark.parametrize("name", INVALID)
def test_unordered_lists_and_ambiguous_keys_are_refused(name):
    log = listed()
    before = state(log)
    assert log.set(1, INVALID[name]) is Reason.INVALID_ACCESS
    assert refusal(log.create("e", allow=INVALID[name])) is Reason.INVALID_ACCESS
    assert state(log) == before


# --- creating -------------------------------------------------------------------------------------


def test_dataset_is_created_again_with_its_first_list_only():
    log = listed()
    log.set(1, FEWER)
    assert refusal(log.create(allow=ALLOW)) is None
    for policy in ({}, {"allow": FEWER}, {"allow": ALLOW, "budget": 2.0}):
        assert refusal(log.create(**policy)) is Reason.POLICY_CHANGED
    assert log.ledger.state.access["d",].allow == FEWER


def test_a_manager_creates_nested_datasets_with_lists():
    log = listed()
    with log.signing("mary"):
        assert refusal(log.create("as-that", parents=["d"])) is None
        own = allowing(bob="charge", zoe="manage")
        assert refusal(log.create("own", parents=["d"], allow=own)) is None
    for dataset, name, expected in (
        ("as-that", "alice", None),
        ("as-that", "bob", Reason.NOT_ALLOWED),
        ("own", "bob", None),
        ("own", "alice", Reason.NOT_ALLOWED),
    ):
        with log.signing(name):
            assert refusal(log.open(dataset)) is expected
            assert refusal(log.charge(0, [7], [0.5], dataset=dataset)) is expected
    for name in (None, "alice", "zoe"):
        with log.signing(name):
            assert refusal(log.create("other", parents=["d"])) is Reason.NOT_ALLOWED


def test_manager_gives_a_nested_dataset_its_own_list():
    log = listed()
    with log.signing("mary"):
        log.create("inner", parents=["d"])
    own = allowing(bob="charge", zoe="manage")
    assert log.set(1, own, "inner", key="alice") is Reason.NOT_ALLOWED
    assert log.set(1, own, "inner") is None
    assert log.set(2, own, "inner") is Reason.NOT_ALLOWED, "the nearest list decides"
    with log.signing("bob"):
        assert refusal(log.open("inner")) is None
        assert refusal(log.open()) is Reason.NOT_ALLOWED


def test_a_share_has_the_access_list_of_its_dataset():
    log = listed()
    for name, expected in (
        (None, Reason.NOT_ALLOWED),
        ("alice", Reason.NOT_ALLOWED),
        ("mary", None),
    ):
        with log.signing(name):
            assert refusal(log.create("part", budget=0.5, share_of="d")) is expected
    for name, expected in (
        (None, Reason.NOT_ALLOWED),
        ("mary", Reason.NOT_ALLOWED),
        ("alice", None),
    ):
        with log.signing(name):
            assert refusal(log.open("part")) is expected
    with log.signing("mary"):
        own = allowing(zoe="charge manage")
        assert refusal(log.create("other", budget=0.5, share_of="d", allow=own)) is None
    with log.signing("alice"):
        assert refusal(log.open("other")) is Reason.NOT_ALLOWED


def test_a_listed_dataset_is_inside_no_open_one():
    log = SignedLog()
    log.create("all")
    assert refusal(log.create(parents=["all"], allow=ALLOW)) is Reason.INVALID_ACCESS
    assert refusal(log.create(parents=["all"])) is None


def test_a_list_and_the_log_of_its_signatures_belong_together():
    log = SignedLog()
    assert refusal(log.create(allow=ALLOW, log=UNSET)) is Reason.INVALID_ACCESS
    log.create()
    record = decode_signed(log.records[-1])[0]
    log.withdraw()
    record = structs.replace(record, log=OTHER_LOG)
    assert refusal(answer_of(log.send(record))) is Reason.INVALID_ACCESS


def test_other_access_lists_do_not_prevent_that_a_user_is_erased():
    log = listed()
    log.create("annas", allow=allowing(bob="charge", anna="manage"))
    with log.signing("bob"):
        log.open("annas", "r")
        log.charge(0, [7], [1.0], dataset="annas")
    for dataset, name, erased, not_allowed in (
        (UNSET, "mary", [], ["annas"]),
        (UNSET, "anna", ["annas"], ["d"]),
        ("d", "mary", [], []),
        ("annas", "anna", ["annas"], []),
    ):
        with log.signing(name):
            answer = answer_of(log.send(Erase(user=7, request="f", dataset=dataset)))
            assert (answer.datasets, answer.not_allowed) == (erased, not_allowed)
    for dataset, name in ((UNSET, "bob"), ("d", "anna"), ("annas", "mary")):
        with log.signing(name):
            record = Erase(user=7, request="f", dataset=dataset)
            assert refusal(answer_of(log.send(record))) is Reason.NOT_ALLOWED


def test_where_signatures_cannot_be_verified_nothing_is_decided(monkeypatch):
    log = begun()

    def is_signed(*_: object) -> bool:
        raise NoVerifier("No module named 'cryptography'")

    monkeypatch.setattr("streams.ledger.authorization.is_signed", is_signed)
    value = signed(Erase(user=7, dataset="d", request="f"), "mary")
    before = log.ledger.chain
    with pytest.raises(PartitionError):
        log.ledger.apply(len(log.records), value)
    assert log.ledger.chain == before
    assert log.ledger.apply(len(log.records), signed(b"{}", "zoe"))  # no key of a list
    AuditedLog.made.clear()  # the auditor has not seen these records


# --- copies of a log ------------------------------------------------------------------------------


def copied() -> SignedLog:
    """A log with the records of another one, in which alice has charged."""
    log = SignedLog()
    log.create(allow=ALLOW, log=OTHER_LOG)
    for value in begun().records[1:]:
        log.send(signed(decode_signed(value)[1].request, "alice", log=OTHER_LOG))
        assert log.reason() is None
    return log


def test_what_was_charged_in_a_log_is_charged_in_its_copy():
    log = copied()
    assert log.spent() == begun().spent()
    with log.signing("alice"):
        assert refusal(log.charge(1, [7], [0.5])) is Reason.NOT_ALLOWED, "it is for this log"
    assert refusal(log.create(allow=ALLOW)) is Reason.NOT_ALLOWED


def test_a_manager_moves_the_signatures_of_a_dataset_to_the_copy():
    log = copied()
    assert log.set(1) is Reason.NOT_ALLOWED
    assert log.set(1, key="alice", signed_for=OTHER_LOG) is Reason.NOT_ALLOWED
    assert log.set(1, signed_for=OTHER_LOG) is None
    with log.signing("alice", log=OTHER_LOG):
        assert refusal(log.charge(1, [7], [0.5])) is Reason.NOT_ALLOWED
    with log.signing("alice"):
        assert refusal(log.charge(1, [7], [0.5])) is None
    assert refusal(log.create(allow=ALLOW)) is None
