"""deploy/Dockerfile, parsed as Docker does: command, user, contents of the image."""

from __future__ import annotations

import fnmatch
import json
import re
import shlex
from pathlib import Path

import pytest

from crestgate.config.settings import load_settings
from crestgate.service.auth.guard import is_loopback

ROOT = Path(__file__).parent.parent.parent.parent
DOCKERFILE = ROOT / "deploy" / "Dockerfile"


def stages() -> list[list[tuple[str, str]]]:
    """The instructions of each stage, with their arguments."""
    text = re.sub(r"^\s*#.*\n", "", DOCKERFILE.read_text(), flags=re.MULTILINE)
    lines = re.sub(r"\\\n\s*", "", text).splitlines()
    found: list[list[tuple[str, str]]] = [[]]
    for line in filter(None, lines):
        instruction, _, rest = line.partition(" ")
        if instruction == "FROM":
            found.append([])
        found[-1].append((instruction, rest.strip()))
    return found[1:]


def arguments(instructions: list[tuple[str, str]], instruction: str) -> list[str]:
    return [rest for name, rest in instructions if name == instruction]


BUILD, RUNTIME = stages()


def environment() -> dict[str, str]:
    return dict(pair.partition("=")[::2] for line in arguments(RUNTIME, "ENV") for pair in shlex.split(line))


def test_instructions_are_valid() -> None:
    allowed = {"FROM", "RUN", "WORKDIR", "COPY", "ENV", "VOLUME", "USER", "EXPOSE", "STOPSIGNAL", "HEALTHCHECK"}
    allowed |= {"ENTRYPOINT", "CMD"}
    assert {instruction for stage in (BUILD, RUNTIME) for instruction, _ in stage} <= allowed


def test_compiler_stays_in_the_first_stage() -> None:
    assert "gcc" in " ".join(arguments(BUILD, "RUN"))
    assert arguments(BUILD, "FROM")[0].endswith(" AS build")
    assert "apt-get" not in " ".join(arguments(RUNTIME, "RUN"))
    assert arguments(RUNTIME, "COPY") == ["--from=build /opt/crestgate /opt/crestgate"]
    assert arguments(RUNTIME, "FROM")[0].endswith("-slim")


def test_everything_is_installed_from_the_source_tree_and_compiled() -> None:
    (install,) = [line for line in arguments(BUILD, "RUN") if "pip install" in line]
    assert "'.[all]'" in install
    assert "grep -q '(compiled)'" in install


def test_runs_as_an_unprivileged_numeric_user() -> None:
    (user,) = arguments(RUNTIME, "USER")
    number, group = map(int, user.split(":"))
    assert number > 0
    made = " ".join(arguments(RUNTIME, "RUN"))
    assert f"--uid {number} " in made
    assert f"--gid {group} " in made
    names = [instruction for instruction, _ in RUNTIME]
    assert names.index("USER") < names.index("ENTRYPOINT")
    assert names.index("RUN") < names.index("USER"), "the user's folder is created by root"


@pytest.mark.parametrize("instruction", ["ENTRYPOINT", "CMD"])
def test_service_is_started_without_a_shell(instruction: str) -> None:
    (written,) = arguments(RUNTIME, instruction)
    assert all(isinstance(part, str) for part in json.loads(written))


def test_starts_the_service() -> None:
    assert json.loads(arguments(RUNTIME, "ENTRYPOINT")[0]) + json.loads(arguments(RUNTIME, "CMD")[0]) == [
        "crestgate",
        "serve",
    ]
    assert environment()["PATH"].split(":")[0] == "/opt/crestgate/bin"
    assert arguments(RUNTIME, "STOPSIGNAL") == ["SIGTERM"]


def test_listens_on_the_exposed_and_probed_ports() -> None:
    settings = load_settings(None, {**environment(), "CRESTGATE_ADMIN_KEY": "0123456789abcdef"})
    server = settings.server
    assert not is_loopback(server.http.host)
    assert not is_loopback(server.grpc.host)
    assert arguments(RUNTIME, "EXPOSE") == [f"{server.http.port} {server.grpc.port}"]
    (check,) = arguments(RUNTIME, "HEALTHCHECK")
    options, _, command = check.partition("CMD ")
    assert {option.partition("=")[0] for option in options.split()} >= {"--interval", "--timeout", "--start-period"}
    program, flag, code = json.loads(command)
    assert (program, flag) == ("python", "-c")
    compile(code, "HEALTHCHECK", "exec")
    assert f"'127.0.0.1', {settings.server.http.port}" in code
    assert "'/healthz'" in code


def test_no_secret_is_in_the_image() -> None:
    assert not [name for name in environment() if re.search("KEY|TOKEN|PASSWORD|STORE", name)]
    assert not arguments(BUILD, "ARG")


def test_data_is_in_a_volume() -> None:
    (volume,) = json.loads(arguments(RUNTIME, "VOLUME")[0])
    assert arguments(RUNTIME, "WORKDIR") == [volume], ".crestgate is created in the working directory"
    assert f"-m 0700 {volume}" in " ".join(arguments(RUNTIME, "RUN"))


def test_copied_files_exist_and_are_not_ignored() -> None:
    copied = [name.removeprefix("./") for line in arguments(BUILD, "COPY") for name in line.split()[:-1]]
    assert {"pyproject.toml", "setup.py", "src"} <= {*copied}
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    included = {line[1:] for line in ignored if line.startswith("!")}
    assert "*" in ignored, "only named files are included"
    assert {*copied} == included
    for name in copied:
        assert (ROOT / name).exists(), name
    excluded = [line for line in ignored if line.startswith("**/")]
    for secret in ("__pycache__", "crestgate.egg-info", "core.so"):
        assert any(fnmatch.fnmatch(secret, line.removeprefix("**/")) for line in excluded), secret
