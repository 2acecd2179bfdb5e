"""Settings: file, environment, arguments, in rising order of weight."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams.config import Config, ConfigurationError, redact


def test_each_source_wins_over_the_one_before(tmp_path):
    file = tmp_path / "turnstile.toml"
    file.write_text('[turnstile]\nkafka = "file:1"\nredis = "redis://file"\ntimeout = 5\n')
    environment = {"TURNSTILE_REDIS": "redis://variable", "TURNSTILE_PARTITIONS": "7"}
    config = Config.load(file, environment, kafka="argument:1", timeout=None)
    assert config == Config(kafka="argument:1", redis="redis://variable", timeout=5.0, partitions=7)
    assert Config.load(None, {"TURNSTILE_CONFIG": str(file)}).kafka == "file:1"


UNUSABLE = [
    ('kafak = "typo:1"', "unknown setting"),
    ("partitions = 0", "1 to 100,000"),
    ('partitions = "many"', "int"),
    ("timeout = nan", "above 0"),
    ('kafka = ""', "host:port"),
    ("not toml", "TOML"),
    ("partitions = 2.7", "int"),
    ("partitions = true", "int"),
    ("partitions = 100001", "1 to 100,000"),
    ("replication = -1", "1 to 1,000"),
    ("timeout = 1e12", "at most 1,000,000"),
    ("timeout = true", "float"),
    ('kafka = "host:port"', "host:port of a broker"),
    ('kafka = "host:99999"', "host:port of a broker"),
    ('kafka = "host"', "write host:9092"),
    ('kafka = "one:1,[::1]"', r"\[::1\] has no port: write \[::1\]:9092"),
    ('kafka = "one:1, two:2"', "commas"),
    ('prefix = "{a}"', "letters, digits"),
    ('prefix = "a/b"', "letters, digits"),
]


@pytest.mark.parametrize(("content", "message"), UNUSABLE)
def test_unusable_settings_say_what_is_wrong(tmp_path, content, message):
    file = tmp_path / "turnstile.toml"
    file.write_text(content)
    with pytest.raises(ConfigurationError, match=message):
        Config.load(file, {})


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ConfigurationError, match=r"absent\.toml"):
        Config.load(tmp_path / "absent.toml", {})


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
    ("nonsense", "redis, rediss or unix"),
    ("", "redis, rediss or unix"),
    ("http://user:secret@host", "redis, rediss or unix"),
    ("localhost:6379", "redis, rediss or unix"),
    ("redis://", "no host"),
    ("redis://user:secret@", "no host"),
    ("redis://host:0", "no host or port"),
    ("redis://:secret", "unreadable"),
    ("redis://:se/cret@host", "unreadable"),
    ("redis://[secret", "unreadable"),
    ("redis://:sec ret@host", "%20"),
    ("redis://:secret@host\n", "%20"),
    ("redis://:secret@host/one", "not a number"),
    ("unix://", "no socket"),
    ("redis://host?db=one", "not a number"),
    ("redis://host?sec=ret", "its options are"),
    ("redis://host?secret", "unreadable"),
    ("redis+cluster://", "no host or port: .*cluster"),
    ("redis+cluster://one:7000,", "no host or port"),
    ("redis+cluster://one:99999", "no host or port"),
    ("redis+cluster://one:7000, two:7001", "%20"),
    ("redis+cluster://one:7000/1", "no database but 0"),
    ("redis+cluster://one:7000?db=1", "no database but 0"),
    ("redis+cluster://one:7000?sec=ret", "its options are"),
    ("redis+cluster://:sec/ret@one:7000", "unreadable"),
    ("redis+sentinel://one:26379", "no service: .*/service"),
    ("redis+sentinel://one/mymaster/one", "not a number"),
    ("redis+other://one:26379", "unreadable"),
]


@pytest.mark.parametrize("url", USABLE_REDIS)
def test_the_url_of_a_redis_is_taken_as_it_is(url):
    assert Config(redis=url).redis == url


@pytest.mark.parametrize(("url", "message"), UNUSABLE_REDIS)
def test_an_unusable_url_of_a_redis_is_refused_and_never_shown(url, message):
    with pytest.raises(ConfigurationError, match=message) as caught:
        Config.load(None, {"TURNSTILE_REDIS": url})
    assert "ret" not in str(caught.value)


def test_settings_can_be_printed_without_their_passwords():
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
def test_a_password_in_a_url_is_never_shown(text, shown):
    assert redact(text) == shown


@given(st.text(alphabet="ab:/@ '", max_size=24))
def test_everything_up_to_the_last_at_sign_of_an_address_is_hidden(text):
    """The definition, as a pattern; searching for it takes quadratic time."""
    definition = re.compile(r"(?<=://)\S*@|(?<!\S)[^\s:]+:(?!//)\S+@")
    assert redact(text) == definition.sub("***@", text)


@pytest.mark.parametrize("part", ["://", "a:", "@", "password=", "a"])
def test_a_long_text_is_redacted_in_a_time_that_grows_with_its_length(part):
    """A quadratic search of 3 MB would not end within this run."""
    text = part * 1_000_000
    assert redact(text + " u:secret@h").endswith(" ***@h")


def test_secrets_can_be_in_files_of_their_own_beside_the_settings(tmp_path):
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
    ('kafka_security = "TLS"', "PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL"),
    ('kafka_mechanism = "GSSAPI"', "SCRAM-SHA-512"),
    ('kafka_security = "SASL_SSL"', "needs kafka_username and kafka_password"),
    ('kafka_security = "SASL_SSL"\nkafka_username = "u"', "kafka_password_file"),
    ('kafka_password = "hunter2"', "has no login"),
    ('kafka_username = "u"\nkafka_security = "SSL"', "has no login"),
    (
        'kafka_username = "u"\nkafka_password = "hunter2"\nkafka_mechanism = "PLAIN"\n'
        'kafka_security = "SASL_PLAINTEXT"',
        "kafka_mechanism",
    ),
    ('kafka_ca = "turnstile.toml"', "kafka_ca"),
    ('kafka_security = "SSL"\nkafka_ca = "absent.pem"', "kafka_ca"),
    ('kafka_security = "SSL"\nkafka_key = "turnstile.toml"', "without kafka_certificate"),
    ('redis_ca = "turnstile.toml"', "begins with rediss"),
    ('redis_password = "hunter2"\nredis_password_file = "turnstile.toml"', "give one"),
    ('kafka_password_file = "absent"', "absent"),
    ('signing_key_file = "empty"', "is empty"),
    ('kafka_ca_file = "turnstile.toml"', "unknown setting"),
    ("kafka_password = 2.5e7", "of type str|has no login"),
]


@pytest.mark.parametrize(("content", "message"), UNUSABLE_SECURITY)
def test_less_security_than_was_asked_for_is_refused_and_no_secret_shown(
    tmp_path, content, message
):
    file = tmp_path / "turnstile.toml"
    file.write_text(content)
    (tmp_path / "empty").write_text("\n")
    with pytest.raises(ConfigurationError, match=message) as caught:
        Config.load(file, {})
    assert "hunter2" not in str(caught.value)


def test_no_secret_is_in_what_is_shown_of_settings():
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
def test_erasure_keys_that_could_be_guessed_or_do_not_fit_are_refused_and_not_shown(keys):
    with pytest.raises(ConfigurationError, match="must have 16 to 64") as refused:
        Config(erasure_keys=keys)
    assert keys.split()[-1] not in str(refused.value)
    fine = Config(erasure_keys=f"{'k' * 16},\n{'x' * 64}")
    assert "kkkk" not in repr(fine)
