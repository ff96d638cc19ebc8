"""Stored names of locks."""

from __future__ import annotations

import pytest

from crestgate.databases.names import file_name, short_name, stored_name

STRANGE = ["a", "A", "a ", "á", ":", "a:b", "a/b", "..", "\0", "\n", "%3A", "😀", "\ud800", "sha256:", "x" * 255]
STRANGE += ["x" * 256, "x" * 1000, "é" * 127, "é" * 128]


@pytest.mark.parametrize("make", [short_name, lambda name: stored_name("cg", name), lambda name: file_name("cg", name)])
def test_stored_names_are_short_and_unique(make: object) -> None:
    assert callable(make)
    made = [make(name) for name in STRANGE]
    assert len(set(made)) == len(STRANGE)
    assert all(0 < len(name) <= 255 for name in made)


def test_name_that_looks_like_a_hash_is_hashed() -> None:
    long = "x" * 1000
    hashed = short_name(long).decode()
    assert short_name(hashed) != short_name(long)
    assert stored_name("cg", hashed) != stored_name("cg", long)


def test_file_names_have_no_path_separators() -> None:
    for name in STRANGE:
        assert "/" not in file_name("../x", name)
        assert "\0" not in file_name("../x", name)


def test_prefixes_and_names_do_not_collide() -> None:
    pairs = [("a", "b:c"), ("a:b", "c"), ("a%3Ab", "c"), ("A", "b:c")]
    assert len({stored_name(*pair) for pair in pairs}) == len(pairs)
    assert len({file_name(*pair) for pair in pairs}) == len(pairs)
    assert len(stored_name("p" * 300, "x")) <= 255
    assert stored_name("p" * 300, "x") != stored_name("p" * 301, "x")


@pytest.mark.parametrize("name", ["", b"bytes", 42, None])
def test_name_must_be_text(name: object) -> None:
    with pytest.raises(ValueError, match="the name of a lock must be a non-empty string, such as 'client:42', not"):
        short_name(name)  # type: ignore[arg-type]
