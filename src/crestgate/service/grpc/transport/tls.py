"""TLS context of the gRPC listener, as strict as HTTP/2 requires.

RFC 9113, section 9.2: TLS 1.2 or later, forward secrecy, AEAD ciphers, no compression, no renegotiation. gRPC clients
close the connection unless ALPN selects `h2`.
"""

from __future__ import annotations

import ssl

__all__ = ["create_tls_context"]

CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20"
"""For TLS 1.2. All ciphers of TLS 1.3 meet the requirements."""


def create_tls_context(certificate: str, key: str, client_ca: str | None = None) -> ssl.SSLContext:
    """Load the files; OSError if one cannot be loaded. With `client_ca`, clients must present a certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    context.set_ciphers(CIPHERS)
    context.set_alpn_protocols(["h2"])
    context.load_cert_chain(certificate, key, "")  # an encrypted key is an error: nobody types its password
    if client_ca is not None:
        context.load_verify_locations(client_ca)
        # Every certificate in the file is a trust anchor, including intermediate authorities.
        context.verify_flags |= ssl.VerifyFlags.VERIFY_X509_PARTIAL_CHAIN
        context.verify_mode = ssl.CERT_REQUIRED
    return context
