"""TLS context of the HTTP listener: Python's defaults, which are TLS 1.2 or later with forward secrecy."""

from __future__ import annotations

import ssl

__all__ = ["create_http_context"]


def create_http_context(certificate: str, key: str) -> ssl.SSLContext:
    """Load the files; OSError if one cannot be loaded."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(certificate, key, "")  # an encrypted key is an error: nobody types its password
    return context
