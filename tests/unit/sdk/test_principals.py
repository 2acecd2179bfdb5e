"""Clients that sign: what each may, what an operator says, and what is not even sent."""

import pytest

from streams import InvalidRequest, RequestRejected, Turnstile
from streams.config import Config, ConfigurationError
from streams.schemas import MAX_REQUEST_BYTES
from streams.sdk.memory_connection import MemoryConnection
from streams.sdk.principals import signer_of
from streams.wire.signatures import public_text
from tests.keys import OPERATOR, private_key, public_key

ALLOW = {"charge": ["alice"], "manage": ["mary"]}


def public(name: str) -> str:
    return public_text(public_key(name))


@pytest.fixture
def service() -> MemoryConnection:
    """Of an operator who has registered alice, mary and cora, who may create."""
    connection = MemoryConnection(3, 1.0)
    turnstile = Turnstile(connection=connection)
    for name in ("alice", "mary", "cora"):
        turnstile.add_principal(
            name, public(name), creates=name == "cora", operator_key=private_key(OPERATOR)
        )
    return connection


def client(service: MemoryConnection, name: str) -> Turnstile:
    return Turnstile(connection=service, principal=name, request_key=private_key(name))


def test_a_dataset_is_created_charged_and_closed_by_those_who_may(service):
    assert client(service, "cora").create_dataset("d", budget=1.0, allow=ALLOW).allow.charge == [
        "alice"
    ]
    run = client(service, "alice").run("d", "r")
    assert run.charge([1, 2, 3], [0.5] * 3, noise_stddev=4.0).admitted.all()
    with pytest.raises(RequestRejected, match=r"not-allowed.*turnstile principal add"):
        client(service, "alice").close_dataset("d")
    assert client(service, "mary").close_dataset("d") == ["d"]


def test_who_creates_again_names_the_same_in_any_order(service):
    cora = client(service, "cora")
    made = cora.create_dataset("d", budget=1.0, allow={"charge": ["b", "a", "b"]})
    assert cora.create_dataset("d", budget=1.0, allow={"charge": ["a", "b"], "manage": []}) == made


def test_a_principal_that_is_removed_and_added_again_goes_on(service):
    operator = {"operator_key": private_key(OPERATOR)}
    client(service, "cora").create_dataset("d", budget=1.0, allow=ALLOW)
    run = client(service, "alice").run("d", "r")
    client(service, "alice").remove_principal("alice", **operator)
    with pytest.raises(RequestRejected, match="'alice' is none"):
        run.charge([1], [0.5], noise_stddev=4.0)
    client(service, "alice").add_principal("alice", public("alice"), **operator)
    again = client(service, "alice").run("d", "r")
    assert again.charge([1], [0.5], noise_stddev=4.0).admitted.all()


def test_an_operator_is_followed_by_the_one_it_names(service):
    Turnstile(connection=service).bind_operator(
        successor=public("next"), operator_key=private_key(OPERATOR)
    )
    turnstile = Turnstile(connection=service)
    with pytest.raises(RequestRejected, match="not-allowed"):
        turnstile.remove_principal("alice", operator_key=private_key(OPERATOR))
    turnstile.remove_principal("alice", operator_key=private_key("next"))


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"principal": "alice"}, "belong together"),
        ({"request_key": private_key("alice")}, "belong together"),
        ({"principal": "a b", "request_key": private_key("alice")}, "a b"),
        ({"principal": "alice", "request_key": public("alice")}, "this is no private key"),
    ],
)
def test_a_client_that_could_not_sign_is_not_opened(arguments, why):
    with pytest.raises(InvalidRequest, match=why) as refused:
        Turnstile.in_memory(**arguments)
    assert "turnstile-public" not in str(refused.value)
    assert private_key("alice") not in str(refused.value)


@pytest.mark.parametrize(
    "allow",
    [{"read": ["a"]}, {"charge": "alice"}, {"charge": ["a b"]}, {"manage": [7]}],
)
def test_rights_that_there_are_not_are_refused_before_anything_is_sent(service, allow):
    with pytest.raises(InvalidRequest):
        client(service, "cora").create_dataset("d", budget=1.0, allow=allow)


@pytest.mark.parametrize("key", ["", "short", public("alice")])
def test_only_a_private_key_makes_an_operator(service, key):
    with pytest.raises(InvalidRequest, match="operator_key"):
        Turnstile(connection=service).remove_principal("alice", operator_key=key)


@pytest.mark.parametrize("key", ["short", private_key("alice"), public_text(bytes(32))])
def test_what_is_no_public_key_is_registered_for_nobody(service, key):
    with pytest.raises(InvalidRequest, match="public_key"):
        Turnstile(connection=service).add_principal("bob", key, operator_key=private_key(OPERATOR))


def test_the_id_of_a_log_is_32_digits(service):
    with pytest.raises(InvalidRequest, match="32 hexadecimal digits"):
        Turnstile(connection=service).bind_operator(
            also=["abc"], operator_key=private_key(OPERATOR)
        )


def test_what_would_be_too_large_with_its_signature_is_not_sent(service):
    service.signer = signer_of("alice", private_key("alice"))
    with pytest.raises(InvalidRequest, match="with its signature"):
        service.ask("key", {0: bytes(MAX_REQUEST_BYTES - 100)}, service.deadline(1.0))
    assert service._offsets[0] == service._offsets[1]


@pytest.mark.parametrize("given", ["principal", "request_key"])
def test_settings_of_a_signature_belong_together(given):
    settings = {"principal": "alice", "request_key": private_key("alice")}
    assert private_key("alice") not in repr(Config(**settings))
    with pytest.raises(ConfigurationError, match="give both"):
        Config(**{given: settings[given]})
