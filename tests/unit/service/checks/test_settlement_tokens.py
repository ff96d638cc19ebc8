"""Settlement tokens: only issued tokens are accepted."""

from __future__ import annotations

import random

import pytest

from crestgate.core.algorithms import build
from crestgate.core.algorithms.algorithm import MAX_SAFE_INTEGER
from crestgate.core.bounds import MAX_COST
from crestgate.core.limit import Limit
from crestgate.service.checks.tokens import Tokens

NOW = 1_700_000_000
TOKENS = Tokens(b"k" * 32)
ALGORITHM = build(Limit.parse("10/hour"), "inline|10/hour")
MUTATIONS = 5_000
ALPHABET = "0123456789abcdefABCDEFis.-+_ xX\n\t\x00é٣\ud800"


def issued(cost: int = 3, tick: int = 1_234_567) -> str:
    return TOKENS.issue(TOKENS.next_take(), NOW, "caller", "user:42", ALGORITHM, cost, tick)


def is_accepted(token: str) -> bool:
    claimed = TOKENS.read(token)
    if claimed is None:
        return False
    assert 0 <= claimed.cost <= MAX_COST
    assert 0 <= claimed.tick <= MAX_SAFE_INTEGER
    return TOKENS.check(claimed, "caller", "user:42", ALGORITHM)


@pytest.mark.parametrize(("cost", "tick"), [(0, 0), (1, 1), (3, 1_234_567), (MAX_COST, MAX_SAFE_INTEGER)])
def test_issued_token_is_valid(cost: int, tick: int) -> None:
    token = issued(cost, tick)
    claimed = TOKENS.read(token)
    assert claimed is not None
    assert (claimed.inline, claimed.issued, claimed.cost, claimed.tick) == (True, NOW, cost, tick)
    assert is_accepted(token)


def test_mutated_tokens_are_refused() -> None:
    rng = random.Random(14)
    token, other = issued(), issued(cost=2**20, tick=MAX_SAFE_INTEGER)
    for _ in range(MUTATIONS):
        mutated = mutate(rng, token, other)
        if mutated not in (token, other):
            assert not is_accepted(mutated), ascii(mutated)


def mutate(rng: random.Random, token: str, other: str) -> str:
    """The token with a few characters or whole fields changed, added, removed or swapped."""
    if rng.random() < 0.3:
        fields, others = token.split("."), other.split(".")
        index = rng.randrange(len(fields))
        text = fields[index]
        fields[index] = rng.choice(
            ["", "0" + text, "+" + text, "-" + text, " " + text, text + "\n", text.upper(), "f" * 40, others[index]]
        )
        return ".".join(fields)
    for _ in range(rng.randint(1, 3)):
        index = rng.randrange(len(token) + 1)
        added = "".join(rng.choices(ALPHABET, k=rng.randint(0, 3)))
        token = token[:index] + added + token[index + rng.randint(0, 3) :]
    return token


@pytest.mark.parametrize(
    ("index", "text"),
    [
        *((0, text) for text in ("i", "i-1", "i+1", "i1_0", "i 1", "ix1", "i01", "x1", "i" + "f" * 13)),
        *((1, text) for text in ("", "a", "0" * 16, f"{'0' * 16}-", f"{'0' * 16}--1", f"{'A' * 16}-1")),
        *((2, text) for text in ("", "-1", "+1", "1_0", " 1", "0x1", "01", "80000000", "f" * 40)),
        *((3, text) for text in ("", "-1", "+1", "1_0", " 1", "0x1", "01", "20000000000000", "f" * 40)),
        *((4, text) for text in ("", "b", "0" * 31, "0" * 33, "A" * 32)),
    ],
)
def test_fields_are_read_strictly(index: int, text: str) -> None:
    fields = issued().split(".")
    fields[index] = text
    assert TOKENS.read(".".join(fields)) is None
