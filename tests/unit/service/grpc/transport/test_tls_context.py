"""TLS of the gRPC listener: protocol versions, ciphers, ALPN and client certificates."""

from __future__ import annotations

import ssl
from dataclasses import replace
from pathlib import Path

import pytest

from crestgate.config.settings import Tls
from crestgate.service.grpc.transport.tls import create_tls_context
from servers.redis import self_signed
from servers.signing import Signer

ALPN = ["h2"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The service's certificate, a root and an intermediate authority, and a client certificate of each."""
    folder = tmp_path_factory.mktemp("security")
    self_signed(folder)
    root = Signer(folder, "root")
    below, other = Signer(folder, "below", root), Signer(folder, "other")
    for signer, name in ((root, "of_root"), (below, "of_below"), (other, "of_other")):
        signer.sign(name)
    root.sign("no_client", "extendedKeyUsage=serverAuth")
    return folder


@pytest.fixture(scope="module")
def tls(folder: Path) -> Tls:
    return Tls(str(folder / "server.crt"), str(folder / "server.key"))


def client(folder: Path, name: str | None = None, alpn: list[str] = ALPN) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(folder / "server.crt"))
    context.set_alpn_protocols(alpn)
    if name is not None:
        context.load_cert_chain(folder / f"{name}.pem", folder / f"{name}.key")
    return context


def complete_handshake(server: ssl.SSLContext, client: ssl.SSLContext) -> ssl.SSLObject:
    """The server's side of a completed handshake; SSLError if it fails."""
    there, here = (ssl.MemoryBIO(), ssl.MemoryBIO()), (ssl.MemoryBIO(), ssl.MemoryBIO())
    side = server.wrap_bio(*here, server_side=True)
    other = client.wrap_bio(*there, server_hostname="localhost")
    waiting = [other, side]
    for _ in range(10):
        for one in list(waiting):
            try:
                one.do_handshake()
                waiting.remove(one)
            except ssl.SSLWantReadError:
                pass
            here[0].write(there[1].read())
            there[0].write(here[1].read())
    assert not waiting
    return side


def grpc_context(tls: Tls) -> ssl.SSLContext:
    return create_tls_context(tls.certificate, tls.key, tls.grpc_client_ca)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_alpn_selects_h2(version: ssl.TLSVersion, folder: Path, tls: Tls) -> None:
    calling = client(folder, alpn=["http/1.1", "h2"])
    calling.minimum_version = calling.maximum_version = version
    side = complete_handshake(grpc_context(tls), calling)
    assert side.selected_alpn_protocol() == "h2"
    assert side.version() == version.name.replace("_", ".")
    cipher = side.cipher()
    assert cipher is not None
    assert "GCM" in cipher[0] or "CHACHA20" in cipher[0]
    assert not side.getpeercert(), "no client certificate is requested"


def test_weak_protocols_and_ciphers_are_refused(folder: Path, tls: Tls) -> None:
    assert grpc_context(tls).minimum_version == ssl.TLSVersion.TLSv1_2
    weak = client(folder)
    weak.maximum_version = ssl.TLSVersion.TLSv1_2
    weak.set_ciphers("ECDHE+AES:!AESGCM:!AESCCM")
    with pytest.raises(ssl.SSLError, match="NO_SHARED_CIPHER"):
        complete_handshake(grpc_context(tls), weak)


@pytest.mark.parametrize(
    ("signers", "name", "let_in"),
    [
        ("root", "of_root", True),
        ("below", "of_below", True),
        ("other", "of_other", True),
        ("root", "of_other", False),
        ("root", "of_below", False),
        ("below", "of_root", False),
        ("root", "no_client", False),
        ("root", None, False),
    ],
)
def test_client_certificate_must_be_signed_by_client_ca(
    signers: str, name: str | None, let_in: bool, folder: Path, tls: Tls
) -> None:
    """A certificate of the intermediate authority, sent without its chain, is trusted through that authority only."""
    context = grpc_context(replace(tls, grpc_client_ca=str(folder / f"{signers}.pem")))
    if let_in:
        subject = (complete_handshake(context, client(folder, name)).getpeercert() or {})["subject"]
        assert subject == ((("commonName", name),),)
    else:
        with pytest.raises(ssl.SSLError, match="CERTIFICATE"):
            complete_handshake(context, client(folder, name))
