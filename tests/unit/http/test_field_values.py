"""Header values as names: every spelling that some server or framework ignores is one value."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crestgate.http.field_values import header_name_value, header_text, trimmed, trimmed_bytes

AROUND = [
    b" ",
    b"\t",
    b"\t\t",
    b" \t ",
    b"\r\n ",
    b"\x00",
    b"\x0b",
    b"\x0c",
    b"\x1c",
    b"\x1f",
    b"\x7f",
    b"\x85",
    b"\xa0",
]
UTF8_AROUND = ["\u00a0", "\u0085", "\u1680", "\u2003", "\u2028", "\u3000", "\ufeff"]


@pytest.mark.parametrize("blank", [*AROUND, *(text.encode() for text in UTF8_AROUND)], ids=repr)
def test_blanks_around_a_value_are_removed(blank: bytes) -> None:
    for spelled in (b"secret" + blank, blank + b"secret", blank + b"secret" + blank * 3):
        assert header_text(spelled) == "secret"
        assert trimmed_bytes(spelled) == b"secret"
    assert header_text(blank) is None
    assert header_text(blank * 5) is None


def test_value_inside_is_untouched() -> None:
    assert header_text(b" a \t b ") == "a \t b"
    assert header_text(b"Secret") != header_text(b"secret")


@pytest.mark.parametrize("letter", ["à", "Å", "Š", "丠", "你", "é"])
def test_letter_does_not_lose_a_byte(letter: str) -> None:
    """The last byte of some letters is a blank in Latin-1."""
    assert header_text(f" x{letter}\t".encode()) == f"x{letter}"
    assert trimmed_bytes(f" x{letter}\t".encode()) == f"x{letter}".encode()
    assert trimmed(f"x{letter}".encode().decode("latin-1")) == f"x{letter}".encode().decode("latin-1")


@pytest.mark.parametrize("blank", [b"\xa0", b"\x85\xa0", b"\t\xa0"])
def test_latin_blanks_around_utf_8_are_removed(blank: bytes) -> None:
    for text in ("é", "xà", "€", "丠"):
        assert header_text(blank + text.encode() + blank) == text
    assert header_text(b"caf\xe9 " + blank) == "café", "Latin-1 as a whole"


@given(st.binary(max_size=20))
def test_trimming_twice_changes_nothing(value: bytes) -> None:
    once = trimmed_bytes(value)
    assert trimmed_bytes(once) == once
    assert header_text(once) == header_text(value)


@pytest.mark.parametrize(
    ("name", "spellings"),
    [
        (b"authorization", [b"Bearer xyz", b"bearer xyz", b"BEARER   xyz\t", b"Bearer \t xyz"]),
        (b"proxy-authorization", [b"Basic eHl6", b"basic  eHl6"]),
        (
            b"host",
            [b"example.com", b"EXAMPLE.com", b"example.com.", b"Example.Com.:8080", b"example.com:", b" example.com"],
        ),
        (b"x-forwarded-host", [b"[::1]", b"[::1]:80"]),
    ],
)
def test_header_with_several_spellings_is_one_value(name: bytes, spellings: list[bytes]) -> None:
    assert len({header_name_value(name, value) for value in spellings}) == 1


@pytest.mark.parametrize(
    ("name", "one", "other"),
    [
        (b"authorization", b"Bearer xyz", b"Bearer XYZ"),
        (b"authorization", b"Bearer xyz", b"Basic xyz"),
        (b"x-api-key", b"xyz", b"XYZ"),
        (b"x-api-key", b"a b", b"a  b"),
        (b"host", b"a.example", b"b.example"),
        (b"host", b"[::1]", b"[::2]"),
        (b"host", b"fe80::1", b"fe80::2"),
    ],
)
def test_different_values_stay_different(name: bytes, one: bytes, other: bytes) -> None:
    assert header_name_value(name, one) != header_name_value(name, other)
