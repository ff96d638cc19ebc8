"""TLS for gRPC: the certificate that HTTP shows too, and perhaps a look at those of the callers.

HTTP/2 asks for more than TLS does (RFC 9113, section 9.2): version 1.2 at least, keys that are made anew for each
connection, ciphers that vouch for what they hide, no compression and no renegotiation; and clients of gRPC hang up
unless the server agrees with them on `h2`.
"""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING

from headgate.errors import ConfigError

if TYPE_CHECKING:
    from headgate.config.settings import Tls

__all__ = ["make_context"]

CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20"
"""For TLS 1.2. Those of 1.3 are all good enough, and are not chosen here."""


def make_context(tls: Tls) -> ssl.SSLContext:
    """What the listener asks of every connection. ConfigError when a file is no longer what it was at the start."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    context.set_ciphers(CIPHERS)
    context.set_alpn_protocols(["h2"])
    try:
        context.load_cert_chain(tls.certificate, tls.key)
        if tls.grpc_client_ca is not None:
            context.load_verify_locations(tls.grpc_client_ca)
            # Whoever stands in the file is trusted, whether or not somebody else has signed for them.
            context.verify_flags |= ssl.VerifyFlags.VERIFY_X509_PARTIAL_CHAIN
            context.verify_mode = ssl.CERT_REQUIRED
    except OSError as error:
        files = ", ".join(path for path in (tls.certificate, tls.key, tls.grpc_client_ca) if path is not None)
        raise ConfigError(f"server.tls: cannot be loaded any more ({error}): look at {files}") from error
    return context
