"""Settings: file, environment, arguments, in rising order of weight."""

import pytest

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
    ("partitions = 0", "at least 1"),
    ('partitions = "many"', "int"),
    ("timeout = nan", "above 0"),
    ('kafka = ""', "host:port"),
    ("not toml", "TOML"),
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
]


@pytest.mark.parametrize(("text", "shown"), REDACTED)
def test_a_password_in_a_url_is_never_shown(text, shown):
    assert redact(text) == shown
