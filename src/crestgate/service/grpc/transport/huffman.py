# mypyc: compile
"""Huffman codes of header strings (RFC 7541, appendix B), decoded four bits at a time.

The code is canonical: codes of a length follow each other in the order of their symbols, and longer ones follow shorter
ones. So the lengths tell all of it. The states of the decoder are the inner nodes of the code's tree.
"""

from __future__ import annotations

from typing import Final

__all__ = ["decode_huffman"]

SYMBOLS: Final[dict[int, bytes]] = {
    5: b"012aceiost",
    6: b" %-./3456789=A_bdfghlmnpru",
    7: b":BCDEFGHIJKLMNOPQRSTUVWYjkqvwxyz",
    8: b"&*,;XZ",
    10: b'!"()?',
    11: b"'+|",
    12: b"#>",
    13: b"\x00$@[]~",
    14: b"^}",
    15: b"<`{",
    19: b"\\\xc3\xd0",
    20: b"\x80\x82\x83\xa2\xb8\xc2\xe0\xe2",
    21: b"\x99\xa1\xa7\xac\xb0\xb1\xb3\xd1\xd8\xd9\xe3\xe5\xe6",
    22: b"\x81\x84\x85\x86\x88\x92\x9a\x9c\xa0\xa3\xa4\xa9\xaa\xad\xb2\xb5\xb9\xba\xbb\xbd\xbe\xc4\xc6\xe4\xe8\xe9",
    23: b"\x01\x87\x89\x8a\x8b\x8c\x8d\x8f\x93\x95\x96\x97\x98\x9b\x9d\x9e\xa5\xa6\xa8\xae\xaf\xb4\xb6\xb7\xbc\xbf"
    b"\xc5\xe7\xef",
    24: b"\t\x8e\x90\x91\x94\x9f\xab\xce\xd7\xe1\xec\xed",
    25: b"\xc7\xcf\xea\xeb",
    26: b"\xc0\xc1\xc8\xc9\xca\xcd\xd2\xd5\xda\xdb\xee\xf0\xf2\xf3\xff",
    27: b"\xcb\xcc\xd3\xd4\xd6\xdd\xde\xdf\xf1\xf4\xf5\xf6\xf7\xf8\xfa\xfb\xfc\xfd\xfe",
    28: b"\x02\x03\x04\x05\x06\x07\x08\x0b\x0c\x0e\x0f\x10\x11\x12\x13\x14\x15\x17\x18\x19\x1a\x1b\x1c\x1d\x1e\x1f"
    b"\x7f\xdc\xf9",
    30: b"\n\r\x16",
}
"""By the length of their codes, in bits. The last code, of 30 ones, ends no string."""
END: Final = 256
"""That last code, which must not occur."""
NOTHING: Final = -1
MAX_PADDING: Final = 7
"""Bits."""


def _tree() -> list[list[int]]:
    """The inner nodes, each with what follows a 0 and a 1: the number of another node, or ~symbol."""
    tree: list[list[int]] = [[0, 0]]
    code = 0
    length = 0
    for bits, symbols in SYMBOLS.items():
        code <<= bits - length
        length = bits
        for symbol in [*symbols, END] if bits == 30 else symbols:
            node = 0
            for shift in range(bits - 1, 0, -1):
                branch = code >> shift & 1
                if not tree[node][branch]:
                    tree[node][branch] = len(tree)
                    tree.append([0, 0])
                node = tree[node][branch]
            tree[node][code & 1] = ~symbol
            code += 1
    return tree


def _transitions(tree: list[list[int]]) -> tuple[bytes, list[int]]:
    """For each node and four bits: the next node, and the symbol that ends in them. No code is shorter, so there is one
    at most."""
    following = bytearray()
    symbols: list[int] = []
    for start in range(len(tree)):
        for bits in range(16):
            node, symbol = start, NOTHING
            for shift in (3, 2, 1, 0):
                node = tree[node][bits >> shift & 1]
                if node < 0:
                    node, symbol = 0, ~node
            following.append(node)
            symbols.append(symbol)
    return bytes(following), symbols


def _ends(tree: list[list[int]]) -> list[int]:
    """The nodes where a string may end: in the padding, which is the beginning of the last code."""
    ends = [0]
    for _ in range(MAX_PADDING):
        ends.append(tree[ends[-1]][1])
    return ends


_FOLLOWING, _SYMBOLS = _transitions(_tree())
FOLLOWING: Final[bytes] = _FOLLOWING
SYMBOL: Final[list[int]] = _SYMBOLS
ENDS: Final[frozenset[int]] = frozenset(_ends(_tree()))


def decode_huffman(data: bytes) -> bytes:
    """A decoded string; ValueError if it is invalid.

    >>> decode_huffman(bytes.fromhex("a8eb10649cbf"))
    b'no-cache'
    """
    decoded: list[int] = []
    node = 0
    for i in range(len(data)):
        byte = data[i]
        at = node * 16 + (byte >> 4)
        symbol = SYMBOL[at]
        if symbol >= 0:
            if symbol == END:
                raise ValueError("the end of strings is in a string")
            decoded.append(symbol)
        at = FOLLOWING[at] * 16 + (byte & 15)
        symbol = SYMBOL[at]
        if symbol >= 0:
            if symbol == END:
                raise ValueError("the end of strings is in a string")
            decoded.append(symbol)
        node = FOLLOWING[at]
    if node not in ENDS:
        raise ValueError("invalid padding")
    return bytes(decoded)
