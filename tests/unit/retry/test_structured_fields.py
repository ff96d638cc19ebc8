"""Structured lists, compared with an independent parser."""

from __future__ import annotations

import pytest
from http_sfv.list import List
from hypothesis import example, given
from hypothesis import strategies as st

from crestgate.retry.structured_fields import MAX_LENGTH, read_list

PIECES = [
    *['"', "\\", "a", "B", "é", "*", ";", "=", ",", " ", "  ", "\t", "(", ")", "?1", "?2", "-", "0", "17", "1.5", "."],
    *['"per-user"', "token/1:2", ":Zm9v:", ":=:", ";r=0", ";t=17", "; t=1", ";pk=:Zm9v:", ";R=1", ";a", ", ", "@5"],
    *['"a\\"b"', '%"%c3%a9"', "999999999999999", "1234567890123456", "(a b)", "()", ";=", "1.1234", "\n", "\x00"],
]


def reference_parse(text: str) -> list[dict[str, int | None]] | None:
    """The parameters of a list, parsed by http-sfv."""
    parsed = List()
    try:
        parsed.parse(text.encode("utf-8"))
    except ValueError:
        return None
    return [{name: value if type(value) is int else None for name, value in member.params.items()} for member in parsed]


def is_parsed_alike(text: str) -> bool:
    """False where http-sfv differs from RFC 9651: it accepts `1.` as a number, and rejects an empty list."""
    return "." not in text.replace("1.5", "").replace("1.1234", "") and text.strip(" ") != ""


@given(st.lists(st.sampled_from(PIECES), max_size=12).map("".join).filter(is_parsed_alike))
@example('"per-user";r=42;t=17, "per-day";r=0;t=3600')
@example('"a";r=1;r=2')
@example('"a";r=-1;t=?1;x')
@example("(a  b;q=1 );r=0;t=5")
@example('"a" ;r=1')
@example("a;t=17\n")
def test_parser_matches_http_sfv(text: str) -> None:
    if ":=:" not in text:  # bytes are not decoded here
        assert read_list(text) == reference_parse(text)


@given(
    st.lists(
        st.tuples(
            st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E)),
            st.dictionaries(
                st.sampled_from(["r", "t", "q", "w", "x-y.z"]), st.integers(-999_999_999_999_999, 999_999_999_999_999)
            ),
        )
    )
)
def test_written_lists_round_trip(items: list[tuple[str, dict[str, int]]]) -> None:
    written = ", ".join(
        '"' + name.replace("\\", "\\\\").replace('"', '\\"') + '"' + "".join(f";{key}={n}" for key, n in parts.items())
        for name, parts in items
    )
    assert read_list(written) == ([parts for _, parts in items] if len(written) <= MAX_LENGTH else None)


@given(st.text(max_size=50))
def test_arbitrary_text_raises_no_error(text: str) -> None:
    read_list(text)


@pytest.mark.parametrize("text", ["1.", "a;b=1.", '"a', ":Zm9v", "a;b=é", '"a";r=0' + " " * MAX_LENGTH])
def test_malformed_lists(text: str) -> None:
    assert read_list(text) is None


def test_empty_list_has_no_members() -> None:
    assert read_list("") == read_list("  ") == []
