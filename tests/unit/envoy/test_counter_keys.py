"""Keys of counters: different descriptors never share one, whatever their contents and length."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crestgate.core.bounds import MAX_KEY_BYTES
from crestgate.envoy.descriptor_tree import DescriptorNode, add_node, domain_node, path_of
from crestgate.envoy.files import read_descriptor_files
from crestgate.envoy.matcher import Domains
from crestgate.envoy.rate_limit import DescriptorLimit

Entries = tuple[tuple[str, str], ...]
SIGNS = ["", "a", "|", "=", "~", "%", "%7C", "|a=", "a_b", "_", "*", "\n", "\x00", "ü", "sha256:", "\udcff"]
strange = st.text(st.sampled_from("ab_|=~%*\n\x00ü\ud800"), max_size=6)
keys = strange.filter(lambda text: text and "*" not in text)


def any_value(domain: str, names: tuple[str, ...]) -> Domains:
    """A limit on these nested keys, for any values."""
    root = node = domain_node(domain)
    for name in names:
        node = add_node(node, name, "", False, False, False)
    node.limit = DescriptorLimit(None, domain)
    return Domains({domain: root})


def key_of(domain: str, entries: Entries) -> str:
    found = any_value(domain, tuple(name for name, _ in entries)).match(domain, entries)
    assert found is not None
    return found.key


@given(st.lists(st.tuples(strange, st.lists(st.tuples(keys, strange), min_size=1, max_size=3).map(tuple)), max_size=8))
def test_different_descriptors_never_share_a_key(descriptors: list[tuple[str, Entries]]) -> None:
    different = set(descriptors)
    assert len({key_of(domain, entries) for domain, entries in different}) == len(different)


def test_every_pair_of_characters_has_its_own_key() -> None:
    names = [name for name in SIGNS if name and "*" not in name]
    pairs = list(itertools.product(names, SIGNS))
    single = {key_of("d", (pair,)) for pair in pairs}
    assert len(single) == len(pairs)
    double = {key_of("d", (first, second)) for first, second in itertools.product(pairs[::7], pairs[::5])}
    assert len(double) == len(pairs[::7]) * len(pairs[::5])
    assert not single & double


def test_separators_are_escaped() -> None:
    assert key_of("d|%", (("a|=~%b", "v|=~%w"), ("c", ""))) == "d%7C%25|a%7C%3D%7E%25b=v%7C=~%25w|c="


def test_pattern_and_value_have_different_keys() -> None:
    """The shared counter of a pattern differs from the counter of a request whose value is the pattern itself."""
    root = domain_node("d")
    for name, shares in (("shared", True), ("apart", False)):
        add_node(root, name, "x*", shares, False, False).limit = DescriptorLimit(None, name)
    domains = Domains({"d": root})
    shared, apart = (domains.match("d", [(name, "x*")]) for name in ("shared", "apart"))
    assert shared is not None
    assert apart is not None
    assert (shared.key, apart.key) == ("d|shared~x*", "d|apart=x*")
    unlimited = domains.override("d", [("shared", "y")], 1, 1)
    assert unlimited is not None
    assert unlimited.key == "d|shared=y"


@pytest.mark.parametrize("letter", ["x", "ü", "€", "😀", "|", "%", "\udcff"])
@pytest.mark.parametrize("size", [200, 255, 256, 257, 300, 340, 500, 1000, 1020, 1024, 1025, 5000, 60_000])
def test_key_length_is_bounded(letter: str, size: int) -> None:
    one = key_of("domain", (("key", letter * size + "a"),))
    other = key_of("domain", (("key", letter * size + "b"),))
    assert one != other
    for key in (one, other):
        assert len(key.encode("utf-8", "surrogatepass")) <= MAX_KEY_BYTES
        assert key.startswith("domain|key=")


def test_key_of_maximum_length_is_not_shortened() -> None:
    fits = "x" * (MAX_KEY_BYTES - len("d|k="))
    assert key_of("d", (("k", fits),)) == f"d|k={fits}"
    longer = key_of("d", (("k", fits + "x"),))
    assert longer.startswith(f"d|k={fits[:900]}")
    assert "|sha256:" in longer


def test_shortened_key_cannot_be_forged() -> None:
    shortened = key_of("d", (("k", "x" * 5000),))
    beginning, _, digest = shortened.rpartition("|")
    assert len(digest) == len("sha256:") + 64
    value = beginning.removeprefix("d|k=")
    assert key_of("d", (("k", f"{value}|{digest}"),)) != shortened
    assert key_of("d", (("k", value), (digest, ""))) != shortened


def test_overrides_shorten_keys_the_same() -> None:
    """An override of a request uses the counter of the configured limit, also when its key is shortened."""
    files = read_descriptor_files(str(Path(__file__).parent / "documented"))
    entries = [("recipient", "x" * 5000)]
    configured, brought = files.domains.match("mail", entries), files.domains.override("mail", entries, 5, 4)
    other = files.domains.override("edge", [("recipient", "x" * 5000)], 5, 4)
    assert configured is not None
    assert brought is not None
    assert other is not None
    assert configured.key == brought.key
    assert len(other.key) <= MAX_KEY_BYTES


def test_long_domain_is_shortened() -> None:
    root: DescriptorNode = domain_node("d" * 1024)
    add_node(root, "k", "", False, False, False).limit = DescriptorLimit(None, "d")
    found = Domains({"d" * 1024: root}).match("d" * 1024, [("k", "v")])
    assert found is not None
    assert len(found.key) <= MAX_KEY_BYTES


SECRETS = ("api_key", "X-Api-Key", "apikey", "Authorization", "session_id", "x-auth-token", "cookie", "client.secret")


@pytest.mark.parametrize("name", SECRETS)
def test_secrets_are_in_no_key_and_no_label(name: str) -> None:
    """Neither values of a request, nor those in the file, nor those of an override."""
    root = domain_node("d")
    add_node(root, name, "", False, True, True).limit = DescriptorLimit(None, "d")
    written = add_node(root, name, "s3cret", False, False, False)
    written.limit = DescriptorLimit(None, path_of(written))
    domains = Domains({"d": root})
    found = [domains.match("d", [(name, value)]) for value in ("hush", "hush2", "s3cret")]
    found += [domains.override("d", [(name, "hush"), ("other", "x")], 1, 1)]
    assert len({match.key for match in found if match is not None}) == len(found)
    for match in found:
        assert match is not None
        assert all(secret not in match.key + match.label + match.limit.label for secret in ("hush", "s3cret"))


def test_other_values_are_in_keys_and_labels() -> None:
    assert key_of("d", (("remote_address", "10.0.0.1"), ("keyboard", "qwerty"))) == (
        "d|remote_address=10.0.0.1|keyboard=qwerty"
    )
