"""What locks are called where they are kept."""

from __future__ import annotations

import pytest

from headgate.locks.names import file_name, short_name, stored_name

STRANGE = ["a", "A", "a ", "á", ":", "a:b", "a/b", "..", "\0", "\n", "%3A", "😀", "\ud800", "sha256:", "x" * 255]
STRANGE += ["x" * 256, "x" * 1000, "é" * 127, "é" * 128]


@pytest.mark.parametrize("make", [short_name, lambda name: stored_name("hg", name), lambda name: file_name("hg", name)])
def test_every_name_is_short_and_unlike_the_others(make: object) -> None:
    assert callable(make)
    made = [make(name) for name in STRANGE]
    assert len(set(made)) == len(STRANGE)
    assert all(0 < len(name) <= 255 for name in made)


def test_a_name_that_looks_like_a_hash_is_not_taken_for_one() -> None:
    long = "x" * 1000
    hashed = short_name(long).decode()
    assert short_name(hashed) != short_name(long)
    assert stored_name("hg", hashed) != stored_name("hg", long)


def test_files_stay_in_their_folder() -> None:
    for name in STRANGE:
        assert "/" not in file_name("../x", name)
        assert "\0" not in file_name("../x", name)


def test_prefixes_and_names_are_told_apart() -> None:
    pairs = [("a", "b:c"), ("a:b", "c"), ("a%3Ab", "c"), ("A", "b:c")]
    assert len({stored_name(*pair) for pair in pairs}) == len(pairs)
    assert len({file_name(*pair) for pair in pairs}) == len(pairs)
    assert len(stored_name("p" * 300, "x")) <= 255
    assert stored_name("p" * 300, "x") != stored_name("p" * 301, "x")


@pytest.mark.parametrize("name", ["", b"bytes", 42, None])
def test_a_name_is_a_text(name: object) -> None:
    with pytest.raises(ValueError, match="the name of a lock is a text that is not empty, such as 'client:42', not"):
        short_name(name)  # type: ignore[arg-type]
