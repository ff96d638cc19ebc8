"""Path normalisation: spellings that try to evade a rule, and their results."""

from __future__ import annotations

import re
import time
from urllib.parse import unquote

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from crestgate.core.context import RequestContext
from crestgate.rules.matching import paths as path_module
from crestgate.rules.matching.paths import LONG_PATH, LONG_ROUNDS, MAX_PATH, ROUNDS, is_clean, normalise, readings
from crestgate.rules.ruleset import RuleSet

_END = re.compile("[?#]|^[A-Za-z][^/]*://")

# Input, normalised path, reason.
TABLE = [
    # Nothing to do.
    ("/orders", "/orders", "the one spelling stays"),
    ("/", "/", "the root stays"),
    ("/a.b/..c/d..", "/a.b/..c/d..", "dots inside a segment are letters"),
    ("/...", "/...", "three dots are a name"),
    ("/a b", "/a b", "a blank is a letter"),
    ("/a\\b", "/a\\b", "a backslash is no slash in a URL"),
    # `//`
    ("//orders", "/orders", "an empty segment is none: servers merge slashes"),
    ("/orders//7", "/orders/7", "in the middle too"),
    ("////", "/", "nothing but slashes is the root"),
    ("//host/orders", "/host/orders", "a path that begins with `//` is a path, not another host"),
    # `.` and `..`
    ("/./orders", "/orders", "`.` is where one is"),
    ("/orders/.", "/orders", "at the end too"),
    ("/x/../orders", "/orders", "`..` goes up"),
    ("/orders/7/..", "/orders", "at the end too"),
    ("/../../orders", "/orders", "above the root there is nothing"),
    ("/a/b/../../../orders", "/orders", "not even by way of something"),
    ("/x//../orders", "/orders", "`..` drops a segment, not a slash"),
    # %2e
    ("/x/%2e%2e/orders", "/orders", "`%2e` is a dot"),
    ("/x/%2E%2e/orders", "/orders", "in upper case too"),
    ("/x/.%2e/orders", "/orders", "half of it too"),
    ("/%2e/orders", "/orders", "alone too"),
    # %2F
    ("/x%2F..%2Forders", "/orders", "`%2F` is a slash to many servers behind"),
    ("/orders%2F7", "/orders/7", "so it parts segments"),
    ("%2Forders", "/orders", "what has a slash, however it is spelled, is no name"),
    ("%252Forders", "/orders", "however often"),
    ("get%20Users", "get%20Users", "and what has none is one, and taken literally"),
    ("/%2Forders", "/orders", "encoded slashes merge, too"),
    # Letters
    ("/%6Frders", "/orders", "an encoded letter is the letter"),
    ("/%4frders", "/Orders", "also an upper-case one, which is another letter"),
    ("/a%20b", "/a b", "a blank"),
    ("/a+b", "/a+b", "a plus is a plus in a path"),
    # Twice and more
    ("/x/%252e%252e/orders", "/orders", "encoded twice: servers that decode twice are covered"),
    ("/%25256Frders", "/orders", "three times"),
    ("/%" + "25" * (ROUNDS - 1) + "6Frders", "/orders", "as often as it is decoded"),
    ("/%" + "25" * ROUNDS + "6Frders", "/%6Frders", "beyond that it is another path: no server decodes so often"),
    ("/100%", "/100%", "a lone percent sign is itself"),
    ("/100%25", "/100%", "and its escape is it"),
    ("/%zz/%6", "/%zz/%6", "what is no escape is left alone"),
    ("/%%36F", "/o", "an escape that decoding makes is decoded, too"),
    # The trailing slash
    ("/orders/", "/orders", "frameworks serve both"),
    ("/orders///", "/orders", "or many"),
    ("/orders/%2F", "/orders", "or an encoded one"),
    # Case
    ("/Orders", "/Orders", "case is kept: URLs are case-sensitive, and case-insensitive routers need both rules"),
    # ;params
    ("/orders;jsessionid=1", "/orders", "parameters of a segment are not its name"),
    ("/orders;a=1/7;b=2", "/orders/7", "in each segment"),
    ("/x/..;/orders", "/orders", "`..;` goes up in servers that drop parameters"),
    ("/x/..;a=b/orders", "/orders", "whatever they are"),
    ("/orders%3Bx", "/orders", "an encoded semicolon may be read as one"),
    ("/;x/orders", "/orders", "a segment of parameters alone is empty"),
    # NUL
    ("/orders\0", "/orders", "a NUL ends a string in C"),
    ("/orders%00.png", "/orders", "encoded, too"),
    ("/orders%2500", "/orders", "twice encoded, too"),
    ("/orders\0/../x", "/orders", "what follows it is not seen"),
    # Queries and fragments
    ("/orders?x=1", "/orders", "a query is not the path"),
    ("/orders?x=/../y", "/orders", "whatever it says"),
    ("/orders#x", "/orders", "nor is a fragment"),
    ("/orders/?", "/orders", "an empty query is none"),
    ("/orders%3Fx", "/orders?x", "an encoded question mark is a letter of the path"),
    ("/orders%23x", "/orders#x", "and so is an encoded fragment sign"),
    # Whole URLs
    ("http://example.com/orders", "/orders", "a request line may have the whole URL"),
    ("HTTPS://example.com:8443//orders/", "/orders", "of any scheme, host and port"),
    ("http://user:pass@example.com/orders", "/orders", "with a password, which must not be part of a key"),
    ("http://example.com", "/", "without a path: the root"),
    ("http://example.com?x=/y", "/", "with a query alone: the root"),
    ("/http://example.com/orders", "/http:/example.com/orders", "not in the middle of a path"),
    # Unicode and broken UTF-8
    ("/caf%C3%A9", "/café", "UTF-8 is decoded"),
    ("/café", "/café", "and need not be encoded"),
    ("/cafe\u0301", "/cafe\u0301", "two ways to write an accent stay two: servers tell them apart"),
    ("/%ff", "/\udcff", "a byte that is no UTF-8 stays that byte"),
    ("/%C0%AFx", "/\udcc0\udcafx", "an overlong slash is no slash"),
    ("/%E2%82", "/\udce2\udc82", "nor is half a letter lost"),
    ("/%uFF0F", "/%uFF0F", "there is no such escape"),
    ("/\uff0fx", "/\uff0fx", "a wide slash is no slash"),
    # Names
    ("getUsers", "getUsers", "the name of an API is taken literally"),
    ("get%55sers", "get%55sers", "also when it has percent signs"),
    ("a;b", "a;b", "or a semicolon"),
    ("..", "..", "or dots"),
    ("*", "*", "`OPTIONS *` asks for no path"),
    ("", "/", "nothing is the root"),
    ("orders/7", "/orders/7", "with a slash in it, it is a path"),
    ("./orders/7", "/orders/7", "wherever it begins"),
]  # fmt: skip


@pytest.mark.parametrize(("sent", "expected", "reason"), TABLE, ids=[repr(row[0])[:40] for row in TABLE])
def test_normalised_paths(sent: str, expected: str, reason: str) -> None:
    assert normalise(sent) == expected, reason


def test_table_has_no_duplicates() -> None:
    assert len({row[0] for row in TABLE}) == len(TABLE)


READINGS = [
    # Input, every path that servers may read it as, and which servers do so.
    ("/search/foo/results", ["/search/foo/results"], "there is only one"),
    ("/search//results", ["/search/results"], "slashes merge everywhere"),
    ("/search/;x/results", ["/search/results", "/search/;x/results"], "`;x` is dropped, or is what is searched for"),
    ("/search/a;b/results", ["/search/a/results", "/search/a;b/results"], "so is what follows a semicolon"),
    ("/search/%3Bx/results", ["/search/results", "/search/;x/results", "/search/%3Bx/results"], "encoded, too"),
    ("/search/a%2Fb/results", ["/search/a/b/results", "/search/a%2Fb/results"], "a slash, or part of a segment"),
    ("/search/%2e%2E/results", ["/results", "/search/../results", "/search/%2e%2E/results"], "up, or a value"),
    ("/search/a%00b/results", ["/search/a", "/search/a\0b/results", "/search/a%00b/results"], "an end, or a character"),
    ("/files/..;/..;/x", ["/x", "/files/..;/..;/x"], "up where `;` is dropped first"),
    (
        "/files/%252e%252e/x",
        ["/x", "/files/%2e%2e/x", "/files/%252e%252e/x"],
        "decoded twice, once, and not at all",
    ),
    ("http://h/a/../b?c", ["/b", "/a/../b"], "the URL's host and query are in none of them"),
    ("reports/x", ["/reports/x"], "what has a slash is also a path"),
    ("getUsers", [], "what has none is not"),
    ("", ["/"], "nothing is the root"),
]


@pytest.mark.parametrize(("sent", "read", "reason"), READINGS, ids=[repr(row[0]) for row in READINGS])
def test_all_readings_of_a_path(sent: str, read: list[str], reason: str) -> None:
    assert readings(sent) == read, reason


hostile = st.text(st.sampled_from("/.%25eEfF;?#\0aA\\ é\udcff:"), max_size=40)


@settings(deadline=None)
@given(st.one_of(hostile, st.text(max_size=40)))
@example("/\n/..\n")
@example("/..\n")
def test_every_text_becomes_a_path_or_is_a_name(text: str) -> None:
    path = normalise(text)
    if path[0] != "/":
        assert path == text, "a name is taken literally"
        assert "/" not in text
        return
    assert "\0" not in path
    assert ";" not in path
    if path != "/":
        assert not {"", ".", ".."} & set(path[1:].split("/"))


@settings(deadline=None)
@given(st.one_of(hostile, st.text(max_size=40)))
def test_normalisation_is_idempotent(text: str) -> None:
    """Unless it was encoded so often that decoding stopped, or contains a character that ends a path."""
    path = normalise(text)
    if not any(letter in path for letter in "%?#"):
        assert normalise(path) == path


names = st.text(st.sampled_from("abcé "), min_size=1, max_size=4)


@settings(deadline=None)
@given(st.lists(names, min_size=1, max_size=4), st.data())
def test_no_spelling_of_a_path_evades_it(segments: list[str], data: st.DataObject) -> None:
    sent = ""
    for segment in segments:
        sent += data.draw(st.sampled_from(["/", "//", "/./", "/x/../", "/x/%2e%2E/", "%2F", "/;p/"]))
        for letter in segment:
            encoded = "".join(f"%{byte:02x}" for byte in letter.encode())
            sent += data.draw(st.sampled_from([letter, encoded, encoded.replace("%", "%25")]))
        sent += data.draw(st.sampled_from(["", ";v=1", "%3B"]))
    sent = "/" + sent + data.draw(st.sampled_from(["", "/", "/.", "?q=/..", "#f", "%00", "\0x"]))
    assert normalise(sent) == "/" + "/".join(segments)


@pytest.mark.parametrize(
    "path",
    [
        "/" + "%25" * 4000,
        "/%" + "25" * 4000,
        "/" + "../" * 4000,
        "/" + "a/" * 4000,
        "/" + "/" * 10_000,
        "/" + ";" * 10_000,
        "/" + "%2525" * 3000 + "%",
        "/" + "é%C3" * 3000,
        "a" * 10_000 + "://",
        "/" + "a" * 10_000 + "%",
        "/." * 5000 + "..",
        "/" + "%" * 9000 + "%25252525252541",
        "/" + "%4" * 4500 + "%25252525252541",
    ],
    ids=lambda path: path[:8],
)
def test_hostile_paths_are_processed_in_linear_time(path: str) -> None:
    """The bound is a hundred times the usual time: quadratic work would take far longer."""
    start = time.process_time()
    normalise(path)
    assert time.process_time() - start < 0.5


@settings(deadline=None)
@given(
    st.one_of(st.text(st.sampled_from("%%%0123456789abcdefABCDEF=\r\n_gé\udcff/ "), max_size=30), st.text(max_size=30))
)
@example("/%%%41%%%")
@example("/=41%3d%=%\r\n%\r%\n=\n%4")
@example("/%C3%A9%C3\udca9é%")
def test_one_round_of_decoding_matches_urllib(text: str) -> None:
    try:
        text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return
    text = "/" + _END.sub("", text)
    expected = unquote(text, "utf-8", "surrogateescape").encode("utf-8", "surrogateescape")
    decoded = expected.decode("utf-8", "surrogateescape")
    assert "/" + "/".join(part for part in decoded.split("/") if part) in readings(text) or is_clean(text)


def test_paths_that_no_url_can_carry_are_decoded_too() -> None:
    assert normalise("/%63afé/\ud800/%6f") == "/café/\ufffd/o"


def test_long_paths_are_decoded_less_often() -> None:
    for rounds, padding in ((ROUNDS, ""), (LONG_ROUNDS, "/." * LONG_PATH)):
        assert normalise(padding + "/%" + "25" * (rounds - 1) + "6Frders") == "/orders"
        assert normalise(padding + "/%" + "25" * rounds + "6Frders") == "/%6Frders"


def test_check_decodes_its_path_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The work of the worst paths is that of decoding them, not a multiple of it."""
    rounds: list[bytes] = []

    def counted(data: bytes) -> bytes:
        rounds.append(data)
        return unescaped(data)

    unescaped = path_module._unescaped
    if path_module.__file__.endswith(".py"):
        monkeypatch.setattr(path_module, "_unescaped", counted)
    RuleSet.empty().resolve(RequestContext(user="u", path="/" + "%2525252525252541" * 500), 0)
    assert len(rounds) <= LONG_ROUNDS
    assert sum(map(len, rounds)) <= LONG_ROUNDS * MAX_PATH
