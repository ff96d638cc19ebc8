"""What services in other languages are asked, and why one of them cannot take part."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks.peer_services import install
from benchmarks.peer_services.entry import ENTRIES, is_admitted, requests_of

from crestgate.protobuf.messages import RateLimitRequest, RateLimitResponse

GUBERNATOR = next(entry for entry in ENTRIES if entry.served == "gubernator")
RATELIMIT = next(entry for entry in ENTRIES if entry.served == "ratelimit")


def test_every_key_is_asked_for_once() -> None:
    for entry in (GUBERNATOR, RATELIMIT):
        requests = requests_of(entry, 10_000)
        assert len(set(requests)) == 10_000
        assert len({len(request) for request in requests}) == 1


def test_envoys_request_names_the_user() -> None:
    message = RateLimitRequest.FromString(requests_of(RATELIMIT, 43)[42][5:])
    assert message.descriptors[0].entries[0].value == "0042"
    assert is_admitted(RATELIMIT, RateLimitResponse(overall_code=1).SerializeToString())
    assert not is_admitted(RATELIMIT, RateLimitResponse(overall_code=2).SerializeToString())


def test_gubernators_request_and_answers() -> None:
    prefix, message = requests_of(GUBERNATOR, 1)[0][:5], requests_of(GUBERNATOR, 1)[0][5:]
    assert prefix == b"\0" + len(message).to_bytes(4, "big")
    assert message[:2] == bytes([0x0A, len(message) - 2])
    assert b"\x0a\x09benchmark\x12\x040000\x18\x01\x20" in message
    assert is_admitted(GUBERNATOR, b"\x0a\x04\x10\x05\x18\x04")
    assert not is_admitted(GUBERNATOR, b"\x0a\x04\x08\x01\x10\x05")
    assert not is_admitted(GUBERNATOR, b"\x0a\x04\x2a\x02no")
    assert not is_admitted(GUBERNATOR, b"")


def test_program_that_cannot_be_installed_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(install.NotInstalledError, match="there is no Go compiler"):
        install.install_program(tmp_path, install.GUBERNATOR)
    failing = tmp_path / "go"
    failing.write_text("#!/bin/sh\necho 'go: no such module' >&2\nexit 1\n")
    failing.chmod(0o755)
    with pytest.raises(install.NotInstalledError, match=r"it could not be installed \(no such module\)"):
        install.install_program(tmp_path, install.GUBERNATOR)


def test_program_whose_checksum_is_unknown_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its verification is not turned off."""
    failing = tmp_path / "go"
    failing.write_text(
        "#!/bin/sh\necho 'go: a@v1: verifying module: reading https://sum/a: 404 Not Found' >&2\nexit 1\n"
    )
    failing.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(install.NotInstalledError, match=r"checksum could not be verified \(404 Not Found\)$"):
        install.install_program(tmp_path, install.GUBERNATOR)


def test_program_that_is_there_is_not_installed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    there = tmp_path / ".bench-venv" / "go" / install.RATELIMIT.version / "service_cmd"
    there.parent.mkdir(parents=True)
    there.touch()
    assert install.install_program(tmp_path, install.RATELIMIT) == there
