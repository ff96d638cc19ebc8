"""TLS settings: certificates and keys, loaded with the settings."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from crestgate.config.server import Tls
from crestgate.config.settings import load_settings
from crestgate.errors import ValidationError

NEW_KEY = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two certificates with keys, an encrypted key, a combined file, and a revocation list."""
    folder = tmp_path_factory.mktemp("tls")
    for name in ("one", "other"):
        files = ["-keyout", f"{name}.key", "-out", f"{name}.pem"]
        openssl(folder, "req", "-x509", "-days", "2", "-nodes", *NEW_KEY, "-subj", "/CN=localhost", *files)
    openssl(folder, "ec", "-in", "one.key", "-aes128", "-passout", "pass:hunter2", "-out", "locked.key")
    (folder / "both.pem").write_text((folder / "one.key").read_text() + (folder / "one.pem").read_text())
    (folder / "text.pem").write_text("no certificate\n")
    (folder / "empty.pem").write_text("")
    cut = (folder / "one.pem").read_text()
    (folder / "cut.pem").write_text(cut[: len(cut) // 2])
    (folder / "cut.key").write_text((folder / "one.key").read_text()[:100])
    (folder / "index").touch()
    (folder / "ca.cnf").write_text(
        "[ca]\ndefault_ca=one\n[one]\ndatabase=index\ndefault_md=sha256\ndefault_crl_days=2\n"
    )
    signer = ["-keyfile", "one.key", "-cert", "one.pem"]
    openssl(folder, "ca", "-gencrl", "-config", "ca.cnf", *signer, "-out", "revoked.pem")
    return folder


def openssl(folder: Path, *arguments: str) -> None:
    subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)


def load(certificate: str, key: str, signers: str | None = None) -> Tls | None:
    environ = {"CRESTGATE_SERVER__TLS__CERTIFICATE": certificate, "CRESTGATE_SERVER__TLS__KEY": key}
    if signers is not None:
        environ["CRESTGATE_SERVER__TLS__GRPC_CLIENT_CA"] = signers
    return load_settings(None, environ).server.tls


@pytest.mark.parametrize(("certificate", "key"), [("one.pem", "one.key"), ("both.pem", "both.pem")])
def test_certificate_and_key(folder: Path, certificate: str, key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    assert load(certificate, key) == Tls(certificate, key)
    path = os.path.join(folder, certificate)
    assert load(path, key) == Tls(path, key)


@pytest.mark.parametrize("signers", ["one.pem", "other.pem", "both.pem"])
def test_grpc_client_ca(folder: Path, signers: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    assert load("one.pem", "one.key", signers) == Tls("one.pem", "one.key", signers)


NO_CERTIFICATE = "contains no certificate: write the path of one in PEM format"
NO_KEY = "contains no private key: write the path of one in PEM format"
MISTAKES = [
    ("one.pem", "other.key", "key: 'other.key' is not the key of 'one.pem': write the path of the matching key"),
    ("one.pem", "locked.key", "key: 'locked.key' is encrypted: write the path of a key without a password"),
    ("one.pem", "one.pem", f"key: 'one.pem' {NO_KEY}"),
    ("one.pem", "text.pem", f"key: 'text.pem' {NO_KEY}"),
    ("one.pem", "empty.pem", f"key: 'empty.pem' {NO_KEY}"),
    ("one.pem", "cut.key", f"key: 'cut.key' {NO_KEY}"),
    ("one.key", "one.pem", f"certificate: 'one.key' {NO_CERTIFICATE}"),
    ("text.pem", "one.key", f"certificate: 'text.pem' {NO_CERTIFICATE}"),
    ("empty.pem", "one.key", f"certificate: 'empty.pem' {NO_CERTIFICATE}"),
    ("cut.pem", "one.key", f"certificate: 'cut.pem' {NO_CERTIFICATE}"),
    ("none.pem", "one.key", "certificate: there is no file 'none.pem': create it, or correct the path"),
    ("one.pem", ".", "key: '.' is a folder: name the file in it"),
    (
        "one.pem/x",
        "one.key",
        "certificate: 'one.pem/x' cannot be read (Not a directory): give the service read permission, "
        "or correct the path",
    ),
]


@pytest.mark.parametrize(("certificate", "key", "message"), MISTAKES)
def test_invalid_files(folder: Path, certificate: str, key: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    with pytest.raises(ValidationError) as raised:
        load(certificate, key)
    (problem,) = raised.value.problems
    assert f"{problem.field}: {problem.message}" == f"server.tls.{message}"
    assert problem.file == f"CRESTGATE_SERVER__TLS__{message.partition(':')[0].upper()}"


def test_both_errors_are_reported(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    with pytest.raises(ValidationError) as raised:
        load("none.pem", "none.key")
    assert [problem.field for problem in raised.value.problems] == ["server.tls.certificate", "server.tls.key"]


OF_SIGNERS = [
    ("none.pem", "there is no file 'none.pem': create it, or correct the path"),
    (".", "'.' is a folder: name the file in it"),
    *((f"{name}.pem", f"'{name}.pem' {NO_CERTIFICATE}") for name in ("text", "empty", "cut", "revoked")),
    ("one.key", f"'one.key' {NO_CERTIFICATE}"),
]


@pytest.mark.parametrize(("signers", "message"), OF_SIGNERS)
def test_invalid_grpc_client_ca(folder: Path, signers: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    with pytest.raises(ValidationError) as raised:
        load("one.pem", "one.key", signers)
    (problem,) = raised.value.problems
    assert (problem.file, problem.field) == ("CRESTGATE_SERVER__TLS__GRPC_CLIENT_CA", "server.tls.grpc_client_ca")
    assert problem.message == message


def test_grpc_client_ca_needs_a_certificate(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    with pytest.raises(ValidationError) as raised:
        load_settings(None, {"CRESTGATE_SERVER__TLS__GRPC_CLIENT_CA": "one.pem"})
    assert [problem.field for problem in raised.value.problems] == ["server.tls.certificate", "server.tls.key"]
