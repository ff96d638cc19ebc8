"""When a certificate expires, for a metric: `notAfter` of X.509, read from the DER bytes.

The standard library shows `notAfter` of a peer's certificate only, not of a file's. The five elements on the way to it
are fixed by RFC 5280 (4.1), so this reads them and nothing else.
"""

from __future__ import annotations

from datetime import UTC, datetime

__all__ = ["expiry_of"]

SEQUENCE, INTEGER, VERSION = 0x30, 0x02, 0xA0
UTC_TIME, GENERALIZED_TIME = 0x17, 0x18
FORMATS = {UTC_TIME: "%y%m%d%H%M%SZ", GENERALIZED_TIME: "%Y%m%d%H%M%SZ"}


def expiry_of(der: bytes) -> int | None:
    """Unix time of `notAfter`; None if these bytes are not a certificate."""
    try:
        return _read(der)
    except (IndexError, ValueError):
        return None


def _read(der: bytes) -> int:
    certificate, _ = _element(der, SEQUENCE)
    fields, _ = _element(certificate, SEQUENCE)
    if fields[0] == VERSION:
        _, fields = _element(fields, VERSION)
    for tag in (INTEGER, SEQUENCE, SEQUENCE):  # serial number, signature algorithm, issuer
        _, fields = _element(fields, tag)
    validity, _ = _element(fields, SEQUENCE)
    _, not_after = _element(validity, validity[0])
    text, _ = _element(not_after, not_after[0])
    parsed = datetime.strptime(text.decode("ascii"), FORMATS[not_after[0]]).replace(tzinfo=UTC)
    if not_after[0] == UTC_TIME and parsed.year >= 2050:  # Python's two-digit years end in 2068, those of X.509 in 2049
        parsed = parsed.replace(year=parsed.year - 100)
    return int(parsed.timestamp())


def _element(data: bytes, tag: int) -> tuple[bytes, bytes]:
    """The contents of the first element, and what follows it. ValueError if it has another tag or is cut off."""
    if data[0] != tag:
        raise ValueError("unexpected element")
    length, start = data[1], 2
    if length & 0x80:  # the number of bytes that the length takes
        start += length & 0x7F
        length = int.from_bytes(data[2:start])
    if start + length > len(data):
        raise ValueError("cut off")
    return data[start : start + length], data[start + length :]
