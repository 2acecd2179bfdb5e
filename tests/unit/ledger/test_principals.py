"""Who may create, charge and manage a dataset: nobody else, and nobody whose key was taken away."""

import pytest
from msgspec import UNSET

from streams.ledger.ledger import PartitionError, UnknownOperator, ledger_of
from streams.schemas import (
    Allow,
    CloseDataset,
    Erase,
    OperatorBound,
    PrincipalRegistered,
    Reason,
    Signed,
    decode_signed,
    encode,
)
from streams.wire.requests import NoVerifier
from streams.wire.signatures import public_text
from tests.keys import OPERATOR, binding, public_key, registration, signed
from tests.unit.ledger.ledgers import answer_of, rebuilt
from tests.unit.ledger.roster_logs import prices
from tests.unit.ledger.signed_logs import ALLOW, SignedLog, guarded, operated, refusal

OTHER_LOG = b"another log, 16 "


def begun() -> SignedLog:
    """A guarded dataset, of which run r has come to step 0."""
    log = guarded()
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
    "creates one within it": lambda log: log.create("inner", parent="d"),
}
EVERYTHING = CHARGING | MANAGING
STRANGERS = {
    "nobody": None,
    "somebody else": {"by": "bob"},
    "somebody unknown": {"by": "zoe"},
    "the operator": {"by": None},
    "a thief who knows the name": {"by": "alice", "key": "zoe"},
    "a manager for another partition": {"by": "mary", "partition": 1},
    "alice for another partition": {"by": "alice", "partition": 1},
    "alice for another log": {"by": "alice", "log": OTHER_LOG},
    "mary for another log": {"by": "mary", "log": OTHER_LOG},
}


def state(log: SignedLog) -> tuple:
    ledger = log.ledger
    return ledger.summary(), dict(ledger.state.runs), log.spent(), ledger.state.uncompacted()


@pytest.mark.parametrize("act", CHARGING)
def test_those_may_charge_whom_a_dataset_names(act):
    for name in ALLOW.charge:
        log = begun()
        with log.signing(name):
            assert refusal(CHARGING[act](log)) is None
        log.audit()


@pytest.mark.parametrize("act", MANAGING)
def test_those_may_manage_whom_a_dataset_names(act):
    log = begun()
    with log.signing("mary"):
        assert refusal(MANAGING[act](log)) is None
    log.audit()


@pytest.mark.parametrize("stranger", STRANGERS)
@pytest.mark.parametrize("act", EVERYTHING)
def test_nobody_else_may_and_nothing_has_changed(act, stranger):
    log = begun()
    before = state(log)
    log.how = STRANGERS[stranger]
    assert refusal(EVERYTHING[act](log)) is Reason.NOT_ALLOWED
    assert state(log) == before
    log.audit()


@pytest.mark.parametrize("act", EVERYTHING)
def test_who_may_charge_may_not_manage_and_the_other_way_round(act):
    log = begun()
    with log.signing("alice" if act in MANAGING else "mary"):
        assert refusal(EVERYTHING[act](log)) is Reason.NOT_ALLOWED


def test_one_that_nobody_has_used_is_withdrawn_by_who_manages_it():
    log = guarded()
    for name, expected in (("alice", Reason.NOT_ALLOWED), ("mary", None)):
        with log.signing(name):
            assert refusal(log.withdraw()) is expected
    assert not log.ledger.state.datasets
    log.audit()


def test_what_is_signed_does_not_count_when_a_byte_of_it_is_another():
    log = begun()
    with log.signing("alice"):
        log.charge(1, [7], [0.5])
    value = log.records.pop()
    log = begun()
    before = state(log)
    record = decode_signed(value)[1].request
    wrong = [value[:at] + bytes([value[at] ^ 1]) + value[at + 1 :] for at in range(len(value))]
    assert any(record not in each for each in wrong)
    for each in wrong:
        log.send(each)
    assert {log.auditor.rejects[0, at][0] for at in range(10, len(log.records))} <= {
        *("malformed", "unsupported-version", "not-allowed", "unknown-dataset"),
    }
    assert state(log) == before
    log.send(value)
    assert log.ledger.state.runs["d", "r"].step == 1
    log.audit()


def test_what_was_signed_and_is_said_again_is_decided_once():
    log = begun()
    with log.signing("alice"):
        first = log.charge(1, [7], [0.5])
    spent = log.spent()
    again = answer_of(log.send(log.records[-1]))
    assert again == first
    assert log.spent() == spent


# --- the operator ---------------------------------------------------------------------------------


def test_keys_count_from_when_they_are_registered_to_when_they_are_taken_away():
    log = guarded()
    with log.signing("alice"):
        log.open()
    assert log.tell(registration("alice", 20, key="alice, new")) is None
    for key, expected in (("alice", Reason.NOT_ALLOWED), ("alice, new", None)):
        with log.signing("alice", key=key):
            assert refusal(log.charge(0, [7], [0.5])) is expected
    assert log.tell(registration("alice", 21, key=UNSET)) is None
    for key in ("alice", "alice, new"):
        with log.signing("alice", key=key):
            assert refusal(log.charge(1, [7], [0.5])) is Reason.NOT_ALLOWED
    with log.signing("anna"):
        assert refusal(log.charge(1, [7], [0.5])) is None
    log.audit()


def test_what_the_operator_has_said_once_brings_no_key_back():
    log = guarded()
    log.tell(registration("alice", 20, key=UNSET))
    before = state(log)
    for value in log.records[:-2]:
        log.send(value)
        assert log.reason() in ("superseded", "not-allowed")
    assert log.tell(registration("alice", 20)) is Reason.SUPERSEDED
    assert log.tell(registration("bob", 20)) is Reason.SUPERSEDED
    assert state(log) == before
    log.audit()


def test_what_the_operator_said_last_is_answered_again():
    log = SignedLog()
    for record, kind in (
        (binding(), OperatorBound),
        (registration("alice", 2), PrincipalRegistered),
        (registration("alice", 3, key=UNSET), PrincipalRegistered),
        (binding(4, "next"), OperatorBound),
    ):
        for _ in range(2):
            with log.signing(None):
                assert isinstance(answer_of(log.send(record)), kind)
    log.audit()


def test_only_the_operator_says_whose_keys_count():
    log = guarded()
    before = state(log)
    strangers = [None, {"by": "cora"}, {"by": None, "key": "zoe"}, {"by": None, "partition": 1}]
    for log.how in [*strangers, {"by": None, "log": OTHER_LOG}]:
        for record in (
            registration("zoe", 99, creates=True),
            registration("alice", 99, key="zoe"),
            registration("alice", 99, key=UNSET),
            binding(99, "zoe"),
        ):
            assert refusal(answer_of(log.send(record))) is Reason.NOT_ALLOWED
    log.how = None
    assert state(log) == before
    log.audit()


def test_the_first_operator_is_bound_by_its_own_key_and_the_next_one_by_the_one_before():
    log = SignedLog()
    with log.signing(None, key="zoe"):
        assert refusal(answer_of(log.send(binding()))) is Reason.NOT_ALLOWED
    assert log.tell(registration("alice", 1)) is Reason.NOT_ALLOWED
    assert log.tell(binding()) is None
    assert log.tell(binding(2, "next"), key="next") is Reason.NOT_ALLOWED
    assert log.tell(binding(2, "next")) is None
    assert log.tell(registration("alice", 3)) is Reason.NOT_ALLOWED
    assert log.tell(registration("alice", 3), key="next") is None
    assert log.ledger.summary().operator == public_key("next")
    log.audit()


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


@pytest.mark.parametrize("point", [*POINTS, "with a part of order 2"])
def test_keys_about_which_libraries_could_disagree_are_refused(point):
    key = POINTS.get(point) or with_small_part()
    log = operated()
    record = registration("alice", 99)
    assert log.tell(type(record)(**{**as_fields(record), "key": key})) is Reason.INVALID_KEY
    record = binding(99)
    assert log.tell(type(record)(**{**as_fields(record), "operator": key})) is Reason.INVALID_KEY
    log.audit()


def as_fields(record) -> dict:
    return {name: getattr(record, name) for name in record.__struct_fields__}


# --- creating -------------------------------------------------------------------------------------


def test_those_create_datasets_whom_the_operator_lets():
    log = operated()
    for log.how, expected in (
        (None, Reason.NOT_ALLOWED),
        ({"by": "alice"}, Reason.NOT_ALLOWED),
        ({"by": "cora", "key": "zoe"}, Reason.NOT_ALLOWED),
        ({"by": "cora"}, None),
    ):
        assert refusal(log.create()) is expected
    log.how = None
    assert refusal(log.create()) is None, "the same again changes nothing"
    assert refusal(log.create(budget=2.0)) is Reason.POLICY_CHANGED
    for request in (log.open(), log.charge(0, [7], [0.5])):
        assert refusal(request) is None, "it names nobody"
    log.audit()


def test_everybody_creates_where_no_operator_is():
    log = SignedLog()
    assert refusal(log.create(allow=ALLOW)) is None
    with log.signing("alice"):
        assert refusal(log.open()) is Reason.NOT_ALLOWED
    assert refusal(log.create("e")) is None
    assert refusal(log.open("e")) is None
    log.audit()


def test_a_dataset_within_another_is_made_by_who_manages_that_and_names_others():
    log = guarded()
    with log.signing("mary"):
        assert refusal(log.create("as that", parent="d")) is not None  # no name
        assert refusal(log.create("as-that", parent="d")) is None
        assert refusal(log.create("own", parent="d", allow=Allow(charge=["bob"]))) is None
    for dataset, name, expected in (
        ("as-that", "alice", None),
        ("as-that", "bob", Reason.NOT_ALLOWED),
        ("own", "bob", None),
        ("own", "alice", Reason.NOT_ALLOWED),
    ):
        with log.signing(name):
            assert refusal(log.open(dataset)) is expected
            assert refusal(log.charge(0, [7], [0.5], dataset=dataset)) is expected
    with log.signing("cora"):
        assert refusal(log.create("other", parent="d")) is Reason.NOT_ALLOWED
    log.audit()


def test_a_dataset_that_names_somebody_is_within_none_that_names_nobody():
    log = operated()
    with log.signing("cora"):
        log.create("all")
        assert refusal(log.create("d", parent="all", allow=ALLOW)) is Reason.INVALID_POLICY
        assert refusal(log.create("d", parent="all")) is None
    log.audit()


def test_other_access_lists_do_not_prevent_that_a_user_is_erased():
    log = guarded()
    with log.signing("cora"):
        log.create("annas", allow=Allow(charge=["bob"], manage=["anna"]))
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
    log.audit()


@pytest.mark.parametrize(
    "record",
    [
        Signed(request=b"", signature=bytes(64)),
        Signed(request=signed(binding(), None), signature=bytes(64)),
    ],
    ids=["of nothing", "twice"],
)
def test_what_is_no_signed_request_is_malformed(record):
    log = SignedLog()
    assert refusal(answer_of(log.send(record))) is Reason.MALFORMED


def test_what_the_gate_knows_is_put_back():
    log = begun()
    log.tell(registration("bob", 20, key=UNSET))
    again = rebuilt(log.changes)
    assert again.summary() == log.ledger.summary()
    taken = {name: log.ledger.state.take_page(name) for name in log.ledger.state.uncompacted()}
    pages = {name: page for name, page in taken.items() if page is not None}
    kept = type("Kept", (), {"pages": pages, "changes": []})
    loaded = ledger_of(kept, 0, 1, log.ledger.state.topic, log.ledger.chain)
    assert loaded.summary() == log.ledger.summary()
    log.hand_over(loaded)
    for name, expected in (("alice", None), ("bob", Reason.NOT_ALLOWED)):
        with log.signing(name):
            assert refusal(log.charge(1, [7], [0.5])) is expected


# --- what a worker follows ------------------------------------------------------------------------

KNOWN = public_text(public_key(OPERATOR))


def test_a_worker_stops_where_an_operator_is_bound_whom_it_does_not_follow():
    log = SignedLog()
    log.follow(KNOWN)
    before = log.ledger.chain
    with pytest.raises(UnknownOperator, match="operator_keys here does not have"):
        log.ledger.apply(0, signed(binding(1, "zoe"), None, key="zoe"))
    assert log.ledger.chain == before
    assert not log.ledger.state.take_changes().entries
    assert log.tell(binding()) is None
    with pytest.raises(PartitionError):
        log.ledger.apply(1, signed(binding(2, "zoe"), None))
    log.follow(f"{KNOWN}, {public_text(public_key('zoe'))}")
    assert log.tell(binding()) is None
    assert log.tell(binding(2, "zoe")) is None


def test_a_worker_does_not_go_on_from_a_state_of_an_operator_whom_it_does_not_follow():
    log = guarded()
    log.tell(binding(30, "next"))
    kept = type("Kept", (), {"pages": {}, "changes": log.changes})
    where = 0, 1, log.ledger.state.topic, log.ledger.chain
    for keys in (KNOWN, public_text(public_key("zoe"))):
        with pytest.raises(UnknownOperator):
            ledger_of(kept, *where, operator_keys=keys)
    later = public_text(public_key("next"))
    assert ledger_of(kept, *where, operator_keys=later).summary() == log.ledger.summary()


def test_where_signatures_cannot_be_checked_nothing_is_decided(monkeypatch):
    log = begun()

    def is_signed_by(*_: object) -> bool:
        raise NoVerifier("No module named 'cryptography'")

    monkeypatch.setattr("streams.ledger.principals.is_signed_by", is_signed_by)
    value = signed(Erase(user=7, dataset="d", request="f"), "mary")
    before = log.ledger.chain
    with pytest.raises(PartitionError, match="extra `secure`"):
        log.ledger.apply(len(log.records), value)
    assert log.ledger.chain == before
    assert log.ledger.apply(len(log.records), encode(binding()))  # nobody has signed it


# --- copies of a log ------------------------------------------------------------------------------


def original() -> list[bytes]:
    """The records of another log, in which alice has charged."""
    senders = [decode_signed(value)[1] for value in begun().records]
    return [signed(sender.request, sender.principal, log=OTHER_LOG) for sender in senders]


def test_a_copy_is_applied_as_the_log_that_it_is_of_when_that_was_named_first():
    log = SignedLog()
    assert log.tell(binding(0, also=[OTHER_LOG])) is None
    for value in original():
        log.send(value)
        assert log.reason() is None
    assert log.spent() == begun().spent()
    with log.signing("alice"):
        assert refusal(log.charge(1, [7], [0.5])) is None
    log.audit()


@pytest.mark.parametrize("first", [None, binding(0)], ids=["nothing", "another name"])
def test_a_copy_that_was_not_announced_stops_where_the_operator_is_known(first):
    log = SignedLog()
    log.follow(KNOWN)
    if first is not None:
        log.tell(first)
    bound = signed(binding(log=OTHER_LOG), None, log=OTHER_LOG)
    with pytest.raises(UnknownOperator, match="here begin the records of the log"):
        log.ledger.apply(len(log.records), bound)


def test_no_stranger_stops_a_log_by_records_of_another():
    log = SignedLog()
    strange = signed(binding(1, "zoe", log=OTHER_LOG), None, key="zoe", log=OTHER_LOG)
    log.send(strange)
    assert log.reason() == "not-allowed"
    log.follow(KNOWN)
    assert refusal(answer_of(log.ledger.apply(0, strange))) is Reason.NOT_ALLOWED
    assert log.tell(binding()) is None
    for value in (strange, signed(binding(99, log=OTHER_LOG), None, log=OTHER_LOG)):
        assert refusal(answer_of(log.send(value))) is Reason.NOT_ALLOWED
