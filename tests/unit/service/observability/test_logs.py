"""The log: one format for all loggers, one line per record, and no secrets."""

from __future__ import annotations

import io
import json
import logging
import re
from collections.abc import Iterator
from typing import Any

import pytest
import structlog

from crestgate.config.observability import Logs
from crestgate.config.settings import Settings
from crestgate.service.observability.labels import key_label
from crestgate.service.observability.log_redaction import settings_secrets
from crestgate.service.observability.logs import SERVER_LOGGERS, RepeatFilter, configure

TOKEN = "cg_3f9c02d17ab4_" + "wVq0" * 10 + "abc"
ADMIN = "the-first-key-0123456789"


@pytest.fixture(autouse=True)
def restore_logging() -> Iterator[None]:
    """Restore the logging of the process."""
    names = ["", "crestgate", "crestgate.requests", *SERVER_LOGGERS]
    loggers = {name: logging.getLogger(name) for name in names}
    saved = {name: (one.level, list(one.handlers), one.propagate) for name, one in loggers.items()}
    yield
    for name, (level, handlers, propagate) in saved.items():
        loggers[name].setLevel(level)
        loggers[name].handlers[:] = handlers
        loggers[name].propagate = propagate
    logging.captureWarnings(False)
    structlog.reset_defaults()
    structlog.contextvars.clear_contextvars()


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def started(logs: Logs | None = None, stream: io.StringIO | None = None, **more: Any) -> io.StringIO:
    out = io.StringIO() if stream is None else stream
    configure(logs or Logs(), stream=out, **more)
    return out


def lines(out: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.getvalue().splitlines()]


def test_all_loggers_use_one_format() -> None:
    out = started(worker=3)
    logging.getLogger("crestgate").warning("store error: %s", "away")
    structlog.stdlib.get_logger("crestgate.pressure").info("pressure", key="k", rule="orders")
    logging.getLogger("uvicorn.error").error("it broke")
    logging.getLogger("somebody").warning("else")
    found = lines(out)
    assert [(line["level"], line["event"], line["logger"], line["worker"]) for line in found] == [
        ("warning", "store error: away", "crestgate", 3),
        ("info", "pressure", "crestgate.pressure", 3),
        ("error", "it broke", "uvicorn.error", 3),
        ("warning", "else", "somebody", 3),
    ]
    assert found[1]["rule"] == "orders"
    for line in found:
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+Z", line["timestamp"])
    assert list(found[1])[:5] == ["timestamp", "level", "event", "logger", "worker"]


def test_extra_fields_are_logged() -> None:
    out = started()
    logging.getLogger("crestgate.requests").info("request", extra={"fields": {"request_id": "r1", "status": 200}})
    (line,) = lines(out)
    assert (line["request_id"], line["status"]) == ("r1", 200)
    assert "fields" not in line


def test_request_id_of_the_context_is_in_every_line() -> None:
    out = started()
    with structlog.contextvars.bound_contextvars(request_id="r1"):
        logging.getLogger("crestgate").warning("one")
        structlog.stdlib.get_logger("crestgate").warning("two")
    logging.getLogger("crestgate").warning("three")
    assert [line.get("request_id") for line in lines(out)] == ["r1", "r1", None]


@pytest.mark.parametrize("level", ["debug", "info", "warning", "error"])
def test_levels(level: Any) -> None:
    out = started(Logs(level=level))
    for name in ("debug", "info", "warning", "error"):
        getattr(logging.getLogger("crestgate"), name)("standard")
        getattr(structlog.stdlib.get_logger("crestgate"), name)("struct")
    levels = [line["level"] for line in lines(out)]
    order = ["debug", "info", "warning", "error"]
    assert levels == [one for one in order[order.index(level) :] for _ in range(2)]


def test_server_loggers_are_quiet_except_for_errors() -> None:
    out = started()
    logging.getLogger("uvicorn.error").info("Started server process")
    logging.getLogger("uvicorn.access").info("GET /")
    assert out.getvalue() == ""


def test_text_on_a_terminal_and_json_elsewhere() -> None:
    terminal = started(stream=Terminal())
    logging.getLogger("crestgate").warning("hello there", extra={"fields": {"key": "a b", "n": 1}})
    assert re.fullmatch(r'\S+Z warning hello there logger=crestgate key="a b" n=1\n', terminal.getvalue())
    assert started(Logs(format="text")).getvalue() == ""
    assert lines(started(Logs(format="json"), stream=Terminal())) == []


@pytest.mark.parametrize("form", ["json", "text"])
def test_clients_cannot_inject_log_lines(form: Any) -> None:
    out = started(Logs(format=form))
    evil = 'a\nb\r\x1b[31m\u2028\u0085{"level": "fake"}'
    logging.getLogger("crestgate").warning("path %s", evil, extra={"fields": {"path": evil}})
    try:
        raise ValueError(evil)
    except ValueError:
        logging.getLogger("crestgate").exception("failed")
    text = out.getvalue()
    assert text.count("\n") == 2
    assert len(text.splitlines()) == 2, "no other character breaks the line"
    assert "\x1b" not in text
    assert "ValueError" in text
    assert "Traceback" in text


@pytest.mark.parametrize("form", ["json", "text"])
def test_secrets_are_redacted(form: Any) -> None:
    secret = 'p@ss"wörd/1'
    out = started(Logs(format=form), secrets=[ADMIN, secret, "", "ab"])
    log = logging.getLogger("crestgate")
    log.warning("with %s", ADMIN)
    log.warning("with %s", secret)
    log.warning("in a URL redis://user:p%%40ss%%22w%%C3%%B6rd%%2F1@cache/0")
    log.warning("another redis://user:whatever@cache:6379/0?timeout_ms=5 and more")
    log.warning("and mysql://:o/t?her@db/x then password=hidden&x=1")
    log.warning("Authorization: Bearer %s", "eyJhbGciOi.abc-def")
    log.warning("token %s was sent", TOKEN)
    log.warning("fields", extra={"fields": {"authorization": "sesame", "Token": "opensesame", "ok": "a word"}})
    structlog.stdlib.get_logger("crestgate").warning("struct", url=f"https://{ADMIN}@x/", cookie="crumbs")
    try:
        raise RuntimeError(f"cannot log in with {secret} or {ADMIN}")
    except RuntimeError:
        log.exception("failed")
    text = out.getvalue()
    for hidden in (
        ADMIN, secret, json.dumps(secret)[1:-1], "p%40ss", "whatever", "o/t?her", "hidden", "eyJhbGciOi",
        TOKEN, "wVq0wVq0", "sesame", "crumbs",
    ):  # fmt: skip
        assert hidden not in text
    for expected in (
        "redis://user:***@cache:6379/0?timeout_ms=5 and more",
        "cg_3f9c02d17ab4_***",
        "a word",
        "Traceback",
    ):
        assert expected in text
    if form == "json":
        assert len(lines(out)) == 10, "every line is still valid JSON"


def test_redaction_is_fast_on_many_addresses() -> None:
    out = started()
    logging.getLogger("crestgate").warning("x://a:" * 20_000)
    logging.getLogger("crestgate").warning("cg_" * 20_000 + "bearer " * 20_000)
    assert len(out.getvalue()) > 100_000


def record(message: str, level: int = logging.WARNING) -> logging.LogRecord:
    return logging.LogRecord("crestgate", level, "", 0, message, None, None)


def test_repeated_lines_are_suppressed() -> None:
    now = 0.0
    repeats = RepeatFilter(lambda: now)
    assert repeats.filter(record("a"))
    assert [repeats.filter(record("a")) for _ in range(5)] == [False] * 5
    assert repeats.filter(record("b"))
    assert repeats.filter(record("a", logging.ERROR)), "another level is another message"
    assert all(repeats.filter(record("info", logging.INFO)) for _ in range(5))
    now = 1.0
    again = record("a")
    assert repeats.filter(again)
    assert again.__dict__["repeated"] == 5
    assert not repeats.filter(record("a"))


def test_suppressed_lines_are_counted_in_the_next() -> None:
    out = started()
    now = 0.0
    (handler,) = logging.getLogger().handlers
    handler.filters[:] = [RepeatFilter(lambda: now)]
    for log in (logging.getLogger("crestgate"), structlog.stdlib.get_logger("crestgate.other")):
        for seconds in (0.0, 0.1, 0.2, 1.5):
            now += seconds
            log.warning("the same")
    assert [line.get("repeated") for line in lines(out)] == [None, 2, None, 2]


def test_lines_with_a_request_id_are_never_suppressed() -> None:
    out = started()
    log = structlog.stdlib.get_logger("crestgate.requests")
    for number in range(3):
        log.warning("request failed", request_id=f"a-{number}")
        logging.getLogger("crestgate").warning("the same", extra={"fields": {"request_id": f"b-{number}"}})
    assert [line["request_id"] for line in lines(out)] == ["a-0", "b-0", "a-1", "b-1", "a-2", "b-2"]


def test_lines_with_a_traceback_are_never_suppressed() -> None:
    out = started()
    for number in range(3):
        try:
            raise ValueError(f"mistake {number}")
        except ValueError as error:
            logging.getLogger("crestgate").exception("failed")
            structlog.stdlib.get_logger("crestgate.requests").error("failed too", exc_info=error)
    assert [line["exception"].rpartition(" ")[2] for line in lines(out)] == ["0", "0", "1", "1", "2", "2"]


def test_repeat_filter_is_bounded() -> None:
    repeats = RepeatFilter(lambda: 0.0)
    for number in range(10_000):
        assert repeats.filter(record(f"message {number}"))
    assert len(repeats._logged) <= 256


def test_configuring_twice_logs_each_line_once() -> None:
    first = started()
    second = started()
    logging.getLogger("crestgate").warning("hello")
    assert first.getvalue() == ""
    assert len(lines(second)) == 1


def test_key_labels_follow_the_configuration() -> None:
    assert key_label("user:42", "plain") == "user:42"
    assert key_label("user:42", "hashed") == key_label("user:42", "hashed") != key_label("user:43", "hashed")
    assert "42" not in key_label("user:42", "hashed").removeprefix("sha256:ea3fd43be1e5")
    for keys in ("plain", "hashed"):
        assert "sk-secret" not in key_label("key:apikey:sk-secret|route:/v1", keys)
    assert key_label("\ud800", "hashed").startswith("sha256:")


def test_settings_secrets() -> None:
    settings = Settings(
        store=("redis+sentinel://u:p%40ssword@a:1,b:2/main/0?sentinel_password=other-one", "redis://:third-one@c/0"),
        rules_store="mysql://u:fourth-one@d/rules",
        webhook="https://hooks.example.com/services/T0001/B0001?sig=fifth-one",
    )
    out = started(secrets=settings_secrets(settings, {"CRESTGATE_ADMIN_KEY": f" {ADMIN} "}))
    log = logging.getLogger("crestgate")
    hidden = [
        "p%40ssword",
        "p@ssword",
        "other-one",
        "third-one",
        "fourth-one",
        "/services/T0001/B0001",
        "fifth-one",
        ADMIN,
    ]
    for secret in hidden:
        log.warning("said %s aloud", secret)
    log.warning("posted to hooks.example.com")
    assert [secret for secret in hidden if secret in out.getvalue()] == []
    assert "posted to hooks.example.com" in out.getvalue()
    assert settings_secrets(Settings(), {}) == ()
