"""Settings come from a file, the environment and arguments; unusable ones are rejected."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams.config import Config, ConfigurationError, redact
from streams.kafka.tokens import token_function


def test_later_sources_override_earlier_ones(tmp_path):
    file = tmp_path / "turnstile.toml"
    file.write_text('[turnstile]\nkafka = "file:1"\nredis = "redis://file"\ntimeout = 5\n')
    environment = {"TURNSTILE_REDIS": "redis://variable", "TURNSTILE_PARTITIONS": "7"}
    config = Config.load(file, environment, kafka="argument:1", timeout=None)
    assert config == Config(kafka="argument:1", redis="redis://variable", timeout=5.0, partitions=7)
    assert Config.load(None, {"TURNSTILE_CONFIG": str(file)}).kafka == "file:1"


UNUSABLE = [
    'kafak = "typo:1"',
    "partitions = 0",
    'partitions = "many"',
    "timeout = nan",
    'kafka = ""',
    "not toml",
    pytest.param("x = " + "[" * 9000, id="nested deep"),
    pytest.param("partitions = " + "9" * 4000, id="a large integer"),
    pytest.param(f"partitions = [{'0, ' * 20000}]", id="a long list"),
    'prefix = "a\\u0000b"',
    "partitions = 2.7",
    "partitions = 100001",
    "replication = -1",
    "timeout = 1e12",
    'kafka = "host:port"',
    'kafka = "host:99999"',
    'kafka = "one:1,[::1]"',
    'kafka = "one:1, two:2"',
    'prefix = "{a}"',
    'prefix = "a/b"',
]


@pytest.mark.parametrize("content", UNUSABLE)
def test_unusable_settings_are_rejected(tmp_path, content):
    file = tmp_path / "turnstile.toml"
    file.write_text(content)
    with pytest.raises(ConfigurationError) as rejected:
        Config.load(file, {})
    assert len(str(rejected.value)) < 2000


def test_variable_that_is_not_unicode_is_rejected():
    for name in ("TIMEOUT", "PARTITIONS", "PREFIX", "KAFKA"):
        with pytest.raises(ConfigurationError):
            Config.load(None, {f"TURNSTILE_{name}": "\udcff"})


def test_missing_file_is_rejected(tmp_path):
    with pytest.raises(ConfigurationError):
        Config.load(tmp_path / "absent.toml", {})
    with pytest.raises(ConfigurationError):
        Config.load(tmp_path / "a\0b.toml", {})


USABLE_REDIS = [
    "redis://localhost",
    "redis://:p%40ss@host:6379/3",
    "rediss://user:secret@10.0.0.1/?db=3",
    "redis://[::1]:6379",
    "unix:///run/redis.sock?db=1",
    "redis+cluster://one:7000,two:7001,[::1]",
    "rediss+cluster://user:p%40ss@one:7000,two/0",
    "redis+sentinel://one:26379,two/mymaster",
    "rediss+sentinel://:secret@one/mymaster/3?ssl_check_hostname=false",
]
UNUSABLE_REDIS = [
    "nonsense",
    "",
    "http://user:secret@host",
    "localhost:6379",
    "redis://",
    "redis://user:secret@",
    "redis://host:0",
    "redis://:se/cret@host",
    "redis://:sec ret@host",
    "redis://:secret@host/one",
    "unix://",
    "redis://host?db=one",
    "redis://host?sec=ret",
    "redis+cluster://",
    "redis+cluster://one:99999",
    "redis+cluster://one:7000, two:7001",
    "redis+cluster://one:7000/1",
    "redis+cluster://one:7000?db=1",
    "redis+cluster://one:7000?sec=ret",
    "redis+sentinel://one:26379",
    "redis+sentinel://one/mymaster/one",
    "redis+other://one:26379",
]


@pytest.mark.parametrize("url", USABLE_REDIS)
def test_usable_redis_url_is_not_changed(url):
    assert Config(redis=url).redis == url


@pytest.mark.parametrize("url", UNUSABLE_REDIS)
def test_unusable_redis_url_is_rejected_and_not_shown(url):
    with pytest.raises(ConfigurationError) as caught:
        Config.load(None, {"TURNSTILE_REDIS": url})
    assert "ret" not in str(caught.value)


def test_repr_hides_passwords_in_urls():
    config = Config(redis="redis://:secret@host", partitions=7)
    assert "secret" not in repr(config)
    assert "partitions=7" in repr(config)


REDACTED = [
    ("redis://localhost:6379/0", "redis://localhost:6379/0"),
    ("redis://:secret@host:1/0", "redis://***@host:1/0"),
    ("rediss://user:secret@host", "rediss://***@host"),
    ("redis://:sec@ret@host", "redis://***@host"),
    ("redis://:sec/ret?#@host", "redis://***@host"),
    (
        "unix://user@/run/redis.sock?db=1&password=secret",
        "unix://***@/run/redis.sock?db=1&password=***",
    ),
    ("redis://host?ssl_password=secret&db=1", "redis://host?ssl_password=***&db=1"),
    ("Redis at redis://:secret@a does not answer: b", "Redis at redis://***@a does not answer: b"),
    ("redis://:secret@a and redis://:secret@b", "redis://***@a and redis://***@b"),
    (ValueError("redis://:secret@a"), "redis://***@a"),
    ("kafka is 'user:secret@host:9092'", "kafka is ***@host:9092'"),
]


@pytest.mark.parametrize(("text", "shown"), REDACTED)
def test_redact_hides_logins(text, shown):
    assert redact(text) == shown


@given(st.text(alphabet="ab:/@ '", max_size=24))
def test_redact_hides_everything_before_the_last_at_sign(text):
    """The definition, as a pattern; searching for it takes quadratic time."""
    definition = re.compile(r"(?<=://)\S*@|(?<!\S)[^\s:]+:(?!//)\S+@")
    assert redact(text) == definition.sub("***@", text)


@pytest.mark.parametrize("part", ["://", "a:", "@", "password=", "a"])
def test_redact_takes_linear_time(part):
    """A quadratic search of 3 MB would not end within this run."""
    text = part * 1_000_000
    assert redact(text + " u:secret@h").endswith(" ***@h")


def test_secrets_can_be_in_their_own_files(tmp_path):
    (tmp_path / "password").write_text("se cret\n")
    (tmp_path / "ring").write_text("one\ntwo # remark\n")
    file = tmp_path / "turnstile.toml"
    file.write_text('redis_password_file = "password"\ntrusted_keys_file = "ring"\n')
    config = Config.load(file, {})
    assert (config.redis_password, config.trusted_keys) == ("se cret", "one\ntwo # remark")
    # A variable wins over the file, whichever of the two forms either has.
    other = tmp_path / "other"
    other.write_text("another")
    assert Config.load(file, {"TURNSTILE_REDIS_PASSWORD": "mine"}).redis_password == "mine"
    variable = {"TURNSTILE_REDIS_PASSWORD_FILE": str(other)}
    assert Config.load(file, variable).redis_password == "another"


UNUSABLE_SECURITY = [
    'kafka_security = "TLS"',
    'kafka_mechanism = "GSSAPI"',
    'kafka_security = "SASL_SSL"',
    'kafka_security = "SASL_SSL"\nkafka_username = "u"',
    'kafka_password = "hunter2"',
    'kafka_username = "u"\nkafka_security = "SSL"',
    'kafka_username = "u"\nkafka_password = "hunter2"\nkafka_mechanism = "PLAIN"\n'
    'kafka_security = "SASL_PLAINTEXT"',
    'kafka_token_provider = "company.kafka:token"',
    'kafka_security = "SASL_SSL"\nkafka_mechanism = "OAUTHBEARER"',
    'kafka_security = "SASL_PLAINTEXT"\nkafka_mechanism = "OAUTHBEARER"\n'
    'kafka_token_provider = "company.kafka:token"',
    'kafka_security = "SASL_SSL"\nkafka_mechanism = "OAUTHBEARER"\n'
    'kafka_token_provider = "not a function"',
    'kafka_security = "SASL_SSL"\nkafka_mechanism = "OAUTHBEARER"\n'
    'kafka_token_provider = "company.kafka:token"\nkafka_password = "hunter2"',
    'kafka_ca = "turnstile.toml"',
    'kafka_security = "SSL"\nkafka_ca = "absent.pem"',
    'kafka_security = "SSL"\nkafka_key = "turnstile.toml"',
    'redis_ca = "turnstile.toml"',
    'redis_password = "hunter2"\nredis_password_file = "turnstile.toml"',
    'kafka_password_file = "absent"',
    'signing_key_file = "empty"',
    "kafka_password = 2.5e7",
]


@pytest.mark.parametrize("content", UNUSABLE_SECURITY)
def test_contradicting_security_settings_are_rejected_and_secrets_not_shown(tmp_path, content):
    file = tmp_path / "turnstile.toml"
    file.write_text(content)
    (tmp_path / "empty").write_text("\n")
    with pytest.raises(ConfigurationError) as caught:
        Config.load(file, {})
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("provider", ["absent_module:token", "streams.config:absent"])
def test_token_provider_that_cannot_be_imported_is_rejected(provider):
    options = {"kafka_security": "SASL_SSL", "kafka_mechanism": "OAUTHBEARER"}
    with pytest.raises(ConfigurationError):
        token_function(Config(kafka_token_provider=provider, **options))


def test_repr_hides_secrets():
    secrets = {
        "kafka_password": "hunter2",
        "kafka_key_password": "hunter2",
        "redis_password": "hunter2",
        "signing_key": "hunter2",
    }
    config = Config(kafka_security="SASL_SSL", kafka_username="me", **secrets)
    assert "hunter2" not in repr(config)
    assert "kafka_username='me'" in repr(config)
    assert repr(Config()).count("=") == 3, "what has its default is not worth a line"


@pytest.mark.parametrize("keys", ["short", f"{'k' * 16} {'x' * 15}", "y" * 65, "é" * 33])
def test_short_or_long_erasure_keys_are_rejected_and_not_shown(keys):
    with pytest.raises(ConfigurationError) as refused:
        Config(erasure_keys=keys)
    assert keys.split()[-1] not in str(refused.value)
    fine = Config(erasure_keys=f"{'k' * 16},\n{'x' * 64}")
    assert "kkkk" not in repr(fine)
