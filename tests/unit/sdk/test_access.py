"""Clients that sign: access lists that are set, and requests that are not even sent."""

import pytest

from streams import DecisionTimeout, InvalidRequest, PolicyChanged, RequestRejected, Turnstile
from streams.config import Config
from streams.records import MAX_REQUEST_BYTES, Reason
from streams.records.signatures import public_text
from streams.sdk.dataset_requests import signer_of
from tests.keys import private_key, public
from tests.unit.sdk.partitions import Partitions

ALLOW = {public("alice"): ["charge"], public("mary"): ["manage"]}


@pytest.fixture
def service() -> Partitions:
    return Partitions(3)


def client(service: Partitions, name: str | None) -> Turnstile:
    """Return a client that signs until another one is opened on the connection."""
    key = None if name is None else private_key(name)
    return Turnstile(connection=service, request_key=key)


def refused(act) -> Reason | None:
    """Why a request is rejected, if it is."""
    try:
        act()
    except RequestRejected as error:
        return error.reason
    return None


def charge(turnstile: Turnstile) -> None:
    run = turnstile.run("d", "r")
    assert run.charge([1, 2, 3], [0.1] * 3, noise_stddev=4.0).admitted.all()


def test_order_of_an_access_list_does_not_matter(service):
    turnstile = client(service, None)
    made = turnstile.create_dataset("d", measure="zcdp", budget=1.0, allow=ALLOW)
    again = {key: rights * 2 for key, rights in reversed(ALLOW.items())}
    assert turnstile.create_dataset("d", measure="zcdp", budget=1.0, allow=again) == made
    for allow in (None, {public("mary"): ["manage"]}):
        with pytest.raises(PolicyChanged) as error:
            turnstile.create_dataset("d", measure="zcdp", budget=1.0, allow=allow)
        assert error.value.held == made


def test_partial_change_is_completed_by_the_same_call(service):
    client(service, None).create_dataset("d", measure="zcdp", budget=1.0, allow=ALLOW)
    mary = client(service, "mary")
    new = {public("anna"): ["charge"], public("mary"): ["manage"]}

    service.deaf = {1, 2}
    with pytest.raises(DecisionTimeout):
        mary.set_access("d", new)
    service.deaf = set()
    held = [ledger.state.access["d",].number > 0 for ledger in service.ledgers]
    assert held == [True, False, False]
    mary.set_access("d", new)
    charge(client(service, "anna"))


def test_access_list_is_set_with_a_key_where_one_exists(service):
    client(service, None).create_dataset("d", measure="zcdp", budget=1.0)
    with pytest.raises(InvalidRequest):
        client(service, None).set_access("d", ALLOW)
    mary = client(service, "mary")
    assert refused(lambda: mary.set_access("d", ALLOW)) is Reason.NOT_ALLOWED
    assert refused(lambda: mary.set_access("e", ALLOW)) is Reason.UNKNOWN_DATASET


def test_list_of_a_copied_dataset_is_moved_to_this_log(service):
    service.log = b"another log, 16 "
    client(service, None).create_dataset("d", measure="zcdp", budget=1.0, allow=ALLOW)
    copied_from, service.log = service.log.hex(), bytes(16)
    assert refused(lambda: charge(client(service, "alice"))) is Reason.NOT_ALLOWED
    mary = client(service, "mary")
    assert refused(lambda: mary.set_access("d", ALLOW)) is Reason.NOT_ALLOWED
    mary.set_access("d", ALLOW, copied_from=copied_from)
    charge(client(service, "alice"))
    mary = client(service, "mary")
    for wrong in ("abc", "z" * 32):
        with pytest.raises(InvalidRequest):
            mary.set_access("d", ALLOW, copied_from=wrong)


@pytest.mark.parametrize(
    "allow",
    [
        {},
        {public("mary"): ["charge"]},
        {public("mary"): []},
        {public("mary"): ["manage", "read"]},
        {public("mary"): "manage"},
        {"mary": ["manage"]},
        {private_key("mary"): ["manage"]},
        {public_text(bytes(32)): ["manage"]},
        {public(str(number)): ["manage"] for number in range(33)},
    ],
)
def test_invalid_access_list_is_not_sent(service, allow):
    with pytest.raises(InvalidRequest) as error:
        client(service, None).create_dataset("d", measure="zcdp", budget=1.0, allow=allow)
    assert private_key("mary") not in str(error.value)
    with pytest.raises(InvalidRequest):
        client(service, "mary").set_access("d", allow)
    assert service.logs == [[], [], []]


def test_request_too_large_with_its_signature_is_not_sent(service):
    service.signer = signer_of(private_key("alice"))
    with pytest.raises(InvalidRequest):
        service.send("key", {0: bytes(MAX_REQUEST_BYTES - 100)}, service.deadline(1.0))
    assert service.logs == [[], [], []]


def test_request_key_is_private_and_never_shown():
    with pytest.raises(InvalidRequest) as error:
        Turnstile.in_memory(request_key=public("alice"))
    assert public("alice") not in str(error.value)
    assert private_key("alice") not in repr(Config(request_key=private_key("alice")))
