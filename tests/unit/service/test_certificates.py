"""Certificates: replaced in every way that people replace files, and kept while the new files are broken."""

from __future__ import annotations

import logging
import os
import re
import shutil
import ssl
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from crestgate.config.settings import Tls
from crestgate.errors import ValidationError
from crestgate.service.certificate_expiry import expiry_of
from crestgate.service.certificates import Certificates
from servers.machine import find, run
from servers.redis import self_signed
from servers.signing import Signer

NEVER = 3600.0


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two certificates for the service, an encrypted key, and two authorities with a client each."""
    folder = tmp_path_factory.mktemp("made")
    for name in ("old", "new"):
        (folder / name).mkdir()
        self_signed(folder / name)
        Signer(folder, f"{name}_ca").sign(f"{name}_client")
    locked = ["-in", str(folder / "new/server.key"), "-aes128", "-passout", "pass:hunter2"]
    run([find("openssl", "openssl"), "ec", *locked, "-out", str(folder / "locked.key")])
    return folder


class Files:
    """The files of a service, and its certificates."""

    def __init__(self, folder: Path, made: Path) -> None:
        self.made = made
        self.certificate, self.key, self.client_ca = folder / "server.crt", folder / "server.key", folder / "ca.pem"
        self.copy("old")
        shutil.copy(made / "old_ca.pem", self.client_ca)
        self.tls = Tls(str(self.certificate), str(self.key), str(self.client_ca))
        self.certificates = Certificates(self.tls, NEVER)

    def copy(self, name: str) -> None:
        """In place: the same files with other contents."""
        shutil.copyfile(self.made / name / "server.crt", self.certificate)
        shutil.copyfile(self.made / name / "server.key", self.key)

    def shown(self) -> set[str]:
        """The certificates that new connections of both listeners see, by name."""
        names = {self.der(name): name for name in ("old", "new")}
        return {
            names[handshake(context(), self.client())]
            for context in (self.certificates.http_context, self.certificates.grpc_context)
        }

    def der(self, name: str) -> bytes:
        return ssl.PEM_cert_to_DER_cert((self.made / name / "server.crt").read_text())

    def client(self, name: str = "old_client") -> ssl.SSLContext:
        context = ssl.create_default_context()
        for server in ("old", "new"):
            context.load_verify_locations(self.made / server / "server.crt")
        context.load_cert_chain(self.made / f"{name}.pem", self.made / f"{name}.key")
        return context


def handshake(server: ssl.SSLContext, client: ssl.SSLContext) -> bytes:
    """The certificate that the client sees; SSLError if either refuses the other."""
    seen = client_side(server, client).getpeercert(binary_form=True)
    assert seen is not None
    return seen


def client_side(server: ssl.SSLContext, client: ssl.SSLContext, session: ssl.SSLSession | None = None) -> ssl.SSLObject:
    """The client's side of a completed handshake."""
    there, here = (ssl.MemoryBIO(), ssl.MemoryBIO()), (ssl.MemoryBIO(), ssl.MemoryBIO())
    side = server.wrap_bio(*here, server_side=True)
    other = client.wrap_bio(*there, server_hostname="localhost", session=session)
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
    return other


@pytest.fixture
def files(tmp_path: Path, made: Path) -> Iterator[Files]:
    files = Files(tmp_path, made)
    yield files
    files.certificates.close()


def test_unchanged_files_are_not_loaded_again(files: Files) -> None:
    context = files.certificates.http_context()
    assert [files.certificates.refresh() for _ in range(3)] == [False] * 3
    assert files.certificates.http_context() is context
    assert files.shown() == {"old"}


def test_files_edited_in_place(files: Files, caplog: pytest.LogCaptureFixture) -> None:
    files.copy("new")
    with caplog.at_level(logging.INFO, "crestgate"):
        assert files.certificates.refresh()
    assert files.shown() == {"new"}
    shown = run(
        [find("openssl", "openssl"), "x509", "-fingerprint", "-sha256", "-noout", "-in", str(files.certificate)]
    )
    fingerprint = shown.strip().partition("=")[2].replace(":", "")
    assert caplog.messages == [f"certificates reloaded: {files.certificate}: SHA-256 fingerprint {fingerprint}"]


def test_files_replaced_by_others(files: Files, made: Path, tmp_path: Path) -> None:
    for name in ("server.crt", "server.key"):
        shutil.copy(made / "new" / name, tmp_path / "next")
        os.replace(tmp_path / "next", tmp_path / name)
    assert files.certificates.refresh()
    assert files.shown() == {"new"}


def test_switched_link_of_kubernetes(made: Path, tmp_path: Path) -> None:
    """A mounted secret: the files are links through ..data, itself a link, which is replaced."""
    os.symlink(made / "old", tmp_path / "..data")
    for name in ("server.crt", "server.key"):
        os.symlink(f"..data/{name}", tmp_path / name)
    certificates = Certificates(Tls(str(tmp_path / "server.crt"), str(tmp_path / "server.key")), NEVER)
    before = certificates.http_context()
    os.symlink(made / "new", tmp_path / "..data_tmp")
    os.replace(tmp_path / "..data_tmp", tmp_path / "..data")
    assert certificates.refresh()
    trust = ssl.create_default_context(cafile=str(made / "new/server.crt"))
    assert handshake(certificates.http_context(), trust)
    with pytest.raises(ssl.SSLError):
        handshake(before, trust)
    certificates.close()


def only_certificate(files: Files) -> None:
    shutil.copyfile(files.made / "new/server.crt", files.certificate)


def half_a_certificate(files: Files) -> None:
    text = (files.made / "new/server.crt").read_text()
    files.certificate.write_text(text[: len(text) // 2])


def no_key(files: Files) -> None:
    files.key.unlink()


def locked_key(files: Files) -> None:
    only_certificate(files)
    shutil.copyfile(files.made / "locked.key", files.key)


def empty_client_ca(files: Files) -> None:
    files.client_ca.write_text("")


BROKEN: list[tuple[Callable[[Files], None], str]] = [
    (only_certificate, r"/server\.key: server\.tls\.key: .+ is not the key of .+: write the path of the matching key"),
    (half_a_certificate, r"/server\.crt: server\.tls\.certificate: .+ contains no certificate"),
    (no_key, r"/server\.key: server\.tls\.key: there is no file "),
    (locked_key, r"/server\.key: server\.tls\.key: .+ is encrypted"),
    (empty_client_ca, r"/ca\.pem: server\.tls\.grpc_client_ca: .+ contains no certificate"),
]


@pytest.mark.parametrize(("break_files", "reason"), BROKEN)
def test_broken_files_keep_the_previous_certificate(
    files: Files, break_files: Callable[[Files], None], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    break_files(files)
    assert [files.certificates.refresh() for _ in range(3)] == [False] * 3
    assert files.shown() == {"old"}
    assert files.certificates.failures == 3
    (logged,) = caplog.records
    assert logged.levelname == "ERROR"
    assert logged.exc_info is None
    start = "certificate reload failed, keeping the previous certificate: "
    assert logged.getMessage().startswith(start)
    assert re.search(reason, logged.getMessage())
    files.copy("new")
    shutil.copyfile(files.made / "old_ca.pem", files.client_ca)
    assert files.certificates.refresh()
    assert files.shown() == {"new"}
    assert f"certificate reload recovered: {files.certificate}" in caplog.messages


def test_client_ca_is_reloaded(files: Files) -> None:
    old, new = files.client("old_client"), files.client("new_client")
    handshake(files.certificates.grpc_context(), old)
    with pytest.raises(ssl.SSLError):
        handshake(files.certificates.grpc_context(), new)
    shutil.copyfile(files.made / "new_ca.pem", files.client_ca)
    assert files.certificates.refresh()
    handshake(files.certificates.grpc_context(), new)
    with pytest.raises(ssl.SSLError):
        handshake(files.certificates.grpc_context(), old)


def test_session_before_a_reload_is_not_resumed(files: Files) -> None:
    """Else a client whose certificate is no longer trusted could still connect."""
    client = files.client()
    client.maximum_version = ssl.TLSVersion.TLSv1_2  # which has the session at the end of the handshake
    before = files.certificates.grpc_context()
    session = client_side(before, client).session
    assert client_side(before, client, session).session_reused
    files.copy("new")
    assert files.certificates.refresh()
    assert not client_side(files.certificates.grpc_context(), client, session).session_reused


def test_reload_wakes_the_thread(files: Files) -> None:
    """As SIGHUP does; otherwise this one would look in an hour."""
    files.copy("new")
    before = files.certificates.http_context()
    files.certificates.reload()
    waited = threading.Event()
    for _ in range(3000):
        if files.certificates.http_context() is not before:
            break
        waited.wait(0.01)
    assert files.shown() == {"new"}


@pytest.mark.parametrize(("break_files", "reason"), BROKEN)
def test_broken_files_at_the_start(files: Files, break_files: Callable[[Files], None], reason: str) -> None:
    break_files(files)
    with pytest.raises(ValidationError) as raised:
        Certificates(files.tls, NEVER)
    assert re.search(reason, str(raised.value))


def test_weak_protocols_are_refused_over_http(files: Files) -> None:
    assert files.certificates.http_context().minimum_version == ssl.TLSVersion.TLSv1_2


def test_expiry_follows_the_certificate_in_use(files: Files) -> None:
    def expiry(path: Path) -> int:
        shown = run([find("openssl", "openssl"), "x509", "-enddate", "-noout", "-in", str(path)])
        return int(ssl.cert_time_to_seconds(shown.strip().partition("=")[2]))

    assert files.certificates.expires_at == expiry(files.certificate)
    days = ["-days", "12000", "-subj", "/CN=localhost", "-key", str(files.key), "-out", str(files.certificate)]
    run([find("openssl", "openssl"), "req", "-x509", *days])
    assert files.certificates.refresh()
    assert files.certificates.expires_at == expiry(files.certificate), "after 2049, in the other form of time"
    files.certificate.write_text("nothing")
    before = files.certificates.expires_at
    files.certificates.refresh()
    assert files.certificates.expires_at == before


@pytest.mark.parametrize("cut", [0, 1, 2, 10, 40, 80])
def test_bytes_that_are_no_certificate_have_no_expiry(files: Files, cut: int) -> None:
    der = ssl.PEM_cert_to_DER_cert(files.certificate.read_text())
    assert expiry_of(der) == files.certificates.expires_at
    assert expiry_of(der[:cut]) is None
    assert expiry_of(b"\x30\x84\xff\xff\xff\xff" + der[6:]) is None
